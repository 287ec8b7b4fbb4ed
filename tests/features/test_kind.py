"""A feature of the user's own: what a file must have, and what becomes of its mistakes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.features.kind import FeatureFunctionError, load_function

LENGTHS = """
import numpy as np

def from_texts(prompts, responses):
    return np.array([[len(prompt), len(response)] for prompt, response in zip(prompts, responses)])
"""
LAST_LAYER = """
def from_hidden_states(hidden_states):
    return hidden_states[:, -1, :3]
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "my_features.py"
    path.write_text(text)
    return str(path)


def test_feature_function_is_tried_and_identified_by_its_code(tmp_path: Path) -> None:
    function = load_function(write(tmp_path, LENGTHS), layers=0, hidden=0)
    assert (function.name, function.values) == ("from_texts", 2)
    found = function(2, ["a", "bb"], ["ccc", ""])
    assert found.dtype == np.float32
    assert found.tolist() == [[1, 3], [2, 0]]
    assert function(0, [], []).shape == (0, 2)
    digest = function.digest
    assert load_function(write(tmp_path, LENGTHS), 0, 0).digest == digest
    assert load_function(write(tmp_path, LENGTHS + "\n# other\n"), 0, 0).digest != digest
    with pytest.raises(ConfigError, match=r"does not exist\. Name a Python file"):
        load_function(str(tmp_path / "none.py"), 4, 8)


def test_a_function_of_hidden_states_gets_float32_of_every_layer(tmp_path: Path) -> None:
    function = load_function(write(tmp_path, LAST_LAYER), layers=4, hidden=8)
    assert (function.name, function.values) == ("from_hidden_states", 3)
    hidden = torch.arange(5 * 4 * 8.0).reshape(5, 4, 8).requires_grad_()
    assert np.array_equal(function(5, hidden), hidden[:, -1, :3].detach().numpy())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_of_that_name", "cannot be run: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("x = ", "cannot be run: SyntaxError"),
        ("import sys\nsys.exit(3)", "cannot be run: SystemExit: 3"),
        ("x = 1", "has neither from_hidden_states nor from_texts. Define one of them"),
        (LENGTHS + LAST_LAYER, "has both from_hidden_states and from_texts. Define one of them"),
        ("from_texts = lambda prompts: 1", "fails on 2 trial inputs: TypeError"),
        ("from_texts = lambda prompts, responses: [[0.0]]", r"returns values of shape \(1, 1\) for 2 inputs"),
        ("from_texts = lambda prompts, responses: [[], []]", r"returns values of shape \(2, 0\)"),
        ("from_texts = lambda prompts, responses: [[1.0], [float('nan')]]", "returns NaN or infinite values for 2"),
    ],
)
def test_what_does_not_work_is_refused_before_a_run(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"meds.features.function=.*my_features.py: {message}"):
        load_function(write(tmp_path, text), 4, 8)


@pytest.mark.parametrize(
    ("condition", "message"),
    [("1 / 0", "raised ZeroDivisionError"), ("[[1.0]] * len(prompts)", r"returned values of shape \(3, 1\) instead")],
)
def test_what_fails_during_a_run_names_the_file(tmp_path: Path, condition: str, message: str) -> None:
    text = f"def from_texts(prompts, responses):\n    return [[1.0, 2.0]] * 2 if len(prompts) == 2 else {condition}"
    function = load_function(write(tmp_path, text), 0, 0)
    with pytest.raises(FeatureFunctionError, match=f"my_features.py: from_texts {message}"):
        function(3, ["a"] * 3, ["b"] * 3)
