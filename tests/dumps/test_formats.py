"""A line of each trainer's dump, by the schema in its source; TRL's own files are in tests/e2e/test_trl.py."""

from typing import Any

import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.dumps.formats import LeftOut, Rollout, recognise

QUESTION = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2"}]
REPLY = [{"role": "assistant", "content": "\\boxed{5}"}]
VERL = {"input": "user\n2+2\nassistant\n", "output": "\\boxed{5}", "gts": "4", "score": -1.0, "step": 3, "acc": False}
VERL_BY_SCORE = {name: value for name, value in VERL.items() if name != "acc"}
NEMO = {"content": [["<user>2+2", "\\boxed{5}"]], "rewards": [0.0], "input_lengths": [17], "idx": 0}
SLIME = {
    "group_index": 0, "index": 7, "prompt": QUESTION, "tokens": [1, 2], "response": "\\boxed{5}", "response_length": 1,
    "label": "4", "reward": 0.0, "status": "completed", "metadata": {}, "rollout_id": 3,
}  # fmt: skip
PRIME = {"example_id": 9, "task": "sums", "prompt": QUESTION, "completion": REPLY, "answer": "4", "reward": 0.0}
TRACE = {
    "nodes": [
        {"parent": None, "sampled": False, "message": QUESTION[0]},
        {"parent": 0, "sampled": False, "message": QUESTION[1]},
        {"parent": 1, "sampled": True, "message": REPLY[0]},
    ],
    "rewards": {"right": 0.0, "brief": 0.25}, "errors": [], "task": {"idx": 9},
}  # fmt: skip
OPENRLHF = {"input": "2+2=", "output": "\\boxed{5}", "reward": 0.0}
TRL = {"step": 3, "prompt": "2+2=", "completion": "\\boxed{5}", "is_right": 0.0, "advantage": -0.7}
ASKED = ("be brief\n\n2+2", "\\boxed{5}")


def read(row: dict[str, Any], name: str = "auto", **columns: str) -> tuple[str, Rollout]:
    found, form = recognise(name, columns, row, "FILE")
    return found, form.rollout(row)


@pytest.mark.parametrize(
    ("row", "name", "rollout"),
    [
        (VERL, "verl", Rollout("user\n2+2\nassistant\n", "\\boxed{5}", 0.0, "4", 3)),
        (NEMO, "nemo-rl", Rollout("<user>2+2", "\\boxed{5}", 0.0)),
        (SLIME, "slime", Rollout(*ASKED, 0.0, "4", 3, tuple(QUESTION))),
        (PRIME, "prime-rl", Rollout(*ASKED, 0.0, "4", None, tuple(QUESTION))),
        (TRACE, "prime-rl", Rollout(*ASKED, 0.25, None, None, tuple(QUESTION))),
        (OPENRLHF, "openrlhf", Rollout("2+2=", "\\boxed{5}", 0.0)),
        (TRL, "trl", Rollout("2+2=", "\\boxed{5}", 0.0, None, 3)),
        ({"question": "2+2", "output": "5", "correct": True}, "plain", Rollout("2+2", "5", 1.0)),
        ({**VERL_BY_SCORE, "output": "a\ud800b"}, "verl", Rollout("user\n2+2\nassistant\n", "a?b", -1.0, "4", 3)),
    ],
)
def test_a_line_of_each_trainer_is_recognised_and_read(row: dict[str, Any], name: str, rollout: Rollout) -> None:
    assert read(row) == (name, rollout)
    assert read(row, name) == (name, rollout)


def test_columns_can_be_named_and_some_have_to_be() -> None:
    assert read({"q": "2+2", "a": "5", "r": 2}, prompt="q", response="a", reward="r")[1] == Rollout("2+2", "5", 2.0)
    row = {**SLIME, "reward": {"right": 1.0, "format": 0.5}}
    assert read(row, reward="reward.right")[1].reward == 1.0
    row = {**TRL, "format": 0.5}
    assert read(row, reward="format")[1].reward == 0.5
    with pytest.raises(ConfigError, match=r"FILES: .*is_right, format.*--columns reward=NAME"):
        read(row)
    with pytest.raises(ConfigError, match=r"FILES=FILE: does not .* of a known trainer; it has q, a. Name"):
        read({"q": "2+2", "a": "5"})
    with pytest.raises(ConfigError, match="does not have the columns of slime"):
        read(OPENRLHF, "slime")


NO_TRACES = [{"rewards": {"a": "b"}}, {"nodes": [{"sampled": True}]}, {"nodes": [{"sampled": True, "parent": 9}]}]


@pytest.mark.parametrize(
    ("row", "change", "reason"),
    [
        (VERL, {"output": None}, "without output"),
        (VERL, {"acc": float("nan")}, "whose acc is not a finite number"),
        (VERL, {"acc": "yes"}, "whose acc is not a finite number"),
        (VERL, {"step": "last"}, "whose step is not a finite number"),
        (VERL, {"step": 10**400}, "whose step is not a finite number"),
        (TRL, {"is_right": 10**400}, "whose is_right is not a finite number"),
        *[(VERL, {"step": step}, "whose step is not a step from 0 to 999999999") for step in (-1, 10**9, 1e300)],
        (VERL, {"output": 7}, "whose prompt or response is neither a text nor messages"),
        (TRACE, {"errors": ["timeout"]}, "of a rollout that failed"),
        *[(TRACE, change, "whose nodes or rewards do not form a trace") for change in NO_TRACES],
    ],
)
def test_a_line_that_is_no_rollout_says_why(row: dict[str, Any], change: dict[str, Any], reason: str) -> None:
    _, form = recognise("auto", {}, row, "FILE")
    with pytest.raises(LeftOut, match=f"^{reason}$"):
        form.rollout({**row, **change})


def test_of_a_conversation_the_last_generated_message_and_those_before_it_count() -> None:
    nodes = [*TRACE["nodes"], {"parent": 2, "sampled": False, "message": {"role": "tool", "content": "no"}}]
    nodes += [{"parent": 3, "sampled": True, "message": {"role": "assistant", "content": [{"text": "four"}]}}]
    rollout = read({**TRACE, "nodes": nodes})[1]
    assert rollout.prompt == "be brief\n\n2+2\n\n\\boxed{5}\n\nno"
    assert rollout.response == "four"
