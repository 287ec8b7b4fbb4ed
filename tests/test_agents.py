"""What AGENTS.md names is there."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "AGENTS.md").read_text()


def test_its_commands_are_targets_of_the_makefile() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, flags=re.MULTILINE))
    named = {word for words in re.findall(r"make ((?:[a-z0-9-]+ ?)+?)(?:\s{2}|`|$)", PAGE) for word in words.split()}
    assert {"setup", "lint", "types", "test", "test-e2e", "settings", "demo"} <= named
    assert named <= targets


def test_its_files_and_options_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    paths = re.findall(r"`((?:meds_openrlhf|tests|configs|examples)/[\w./-]*)`", PAGE)
    assert len(links) >= 5
    assert len(paths) > 8
    assert [name for name in (*links, *paths) if not (REPOSITORY / name).exists()] == []
    for module in ("train", "doctor", "eval", "memory", "report", "whatif"):
        assert '"--json"' in (REPOSITORY / "meds_openrlhf" / "cli" / f"{module}.py").read_text()
