"""OpenRLHF's source without OpenRLHF's imports."""

import subprocess
import sys

import pytest

from meds_openrlhf.training.host.openrlhf import module_alone, run_main_block

PROGRAM = """
import sys
from meds_openrlhf.training.host.openrlhf import parse_openrlhf_arguments
flags = {"algo.advantage.estimator": "group_norm", "rollout.n_samples_per_prompt": 8}
print(parse_openrlhf_arguments(flags).train.batch_size)
print(*{"torch", "ray", "vllm", "deepspeed", "openrlhf"} & sys.modules.keys())
"""


def test_flags_are_parsed_without_the_packages_of_a_training() -> None:
    printed = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert printed == "128\n\n"


def test_a_module_alone_is_the_one_that_openrlhf_imports() -> None:
    from openrlhf.utils.config import hierarchize

    alone = module_alone("openrlhf.utils.config")
    assert alone.__file__ == hierarchize.__code__.co_filename
    assert alone.hierarchize.__code__.co_code == hierarchize.__code__.co_code
    assert module_alone("openrlhf.utils.config") is alone


def test_a_main_block_gets_the_names_that_it_is_provided_with(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    package = tmp_path / "scripted"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "script.py").write_text(
        "import json\n"
        "import nowhere.to.be.found\n"
        "from scripted.heavy import train\n"
        "\n"
        "if __name__ == '__main__':\n"
        "    from scripted.lazy import settings\n"
        "    train(json.dumps(settings))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    trained: list[str] = []
    run_main_block("scripted.script", {"train": trained.append, "settings": {"steps": 3}})
    assert trained == ['{"steps": 3}']
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        run_main_block("no_such_package.script", {})
