"""OpenRLHF's source without OpenRLHF's imports."""

import subprocess
import sys

import pytest

from meds_openrlhf.training.host.openrlhf import module_alone

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


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        module_alone("no_such_package.script")
