"""The list of messages: fields and texts of errors, with what is known only later in angle brackets."""

from pathlib import Path

from docsite.troubleshooting import listing

SOURCE = """
from package.names import SETTING

FLAGS = {"--size": 1, "--seed": 0}


def _refuse(name, hint):
    raise ConfigError(f"meds.{name}", None, hint)


def _guess(close):
    return f"did you mean {close[0]}?" if close else "see `meds data`"


def check(path, close, many):
    for flag, least in FLAGS.items():
        raise ConfigError(flag, 0, "is too small")
    hint = "is a folder"
    if many:
        hint = f"is one of {len(many)} folders"
        raise ConfigError(SETTING, path, hint)
    raise ConfigError("--out", path, f"{hint}; " + _guess(close))


def main(error):
    _refuse("reward", "is none")
    _refuse("run_dir", "is <empty>")
    raise MemoryLostError(f"{error.path}: is lost")
    raise RunLostError(str(error))
    raise KeyError("is ours")
"""


def test_the_list_has_every_message_below_its_field(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "cli").mkdir(parents=True)
    (package / "names.py").write_text('SETTING = "meds.function"\n')
    (package / "cli/submit.py").write_text(SOURCE)
    (package / "data").mkdir()
    (package / "data/sets.py").write_text('def read(error):\n    raise ConfigError("SET", 1, str(error))\n')
    lines = [line for line in listing(package).replace("<ul>", "").replace("</ul>", "").splitlines() if line]
    assert lines == [
        "## Jobs: meds submit",
        "### meds.function",
        "<li>is one of &lt;many&gt; folders</li>",
        "### meds.reward",
        "<li>is none</li>",
        "### meds.run_dir",
        "<li>is &lt;empty&gt;</li>",
        "### --out",
        "<li>is a folder; did you mean &lt;close&gt;?</li>",
        "<li>is a folder; see <code>meds data</code></li>",
        "<li>is one of &lt;many&gt; folders; did you mean &lt;close&gt;?</li>",
        "<li>is one of &lt;many&gt; folders; see <code>meds data</code></li>",
        "### --seed",
        "<li>is too small</li>",
        "### --size",
        "<li>is too small</li>",
        "### Lines without a field",
        "<li>&lt;path&gt;: is lost</li>",
    ]
