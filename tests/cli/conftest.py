"""`meds` as it is typed, in this process, since imports take their time."""

from pathlib import Path

import pytest

from meds_openrlhf.cli.main import main


class Meds:
    """Calls the command, in a folder of the test's own and without a known Ray cluster."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *words: object) -> tuple[int, str, str]:
        """The exit code and what was printed."""
        code = main([str(word) for word in words])
        printed = self._capture.readouterr()
        return code, printed.out, printed.err

    def output(self, *words: object) -> str:
        """What a command prints that succeeds."""
        code, printed, trouble = self(*words)
        assert code == 0, trouble
        return printed

    def refusal(self, *words: object) -> str:
        """The one line of a command that is refused, beside those that say what was read meanwhile."""
        code, printed, trouble = self(*words)
        assert code == 2
        *said, line = trouble.splitlines()
        assert line.startswith("meds: ")
        assert [word for word in (*printed.splitlines(), *said) if not word.startswith("reading ")] == []
        return line.removeprefix("meds: ")


@pytest.fixture
def meds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Meds:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return Meds(capsys)
