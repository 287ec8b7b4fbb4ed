"""A line of each trainer's dump, by the schema in its source; TRL's own files are in tests/e2e/test_trl.py."""

from typing import Any

import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.dumps.formats import Format, Rollout
from meds_openrlhf.dumps.recognition import chosen, recognized
from meds_openrlhf.dumps.values import LeftOut
from meds_openrlhf.rollouts.texts import ResponseText

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


def form_of(row: dict[str, Any], name: str = "auto", **columns: str) -> tuple[str, Format]:
    look = recognized([row], name, columns)
    assert look is not None
    return look.name, chosen([look], "FILE")


def read(row: dict[str, Any], name: str = "auto", **columns: str) -> tuple[str, Rollout]:
    found, form = form_of(row, name, **columns)
    [part] = form.split(row)
    return found, form.rollout(part)


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
    with pytest.raises(ConfigError, match=r"FILES=FILE: .*is_right, format.*--columns reward=NAME"):
        read(row)
    assert recognized([{"q": "2+2", "a": "5"}], "auto", {}) is None
    assert recognized([OPENRLHF], "slime", {}) is None
    with pytest.raises(ConfigError, match=r"FILES=FILE: .*reward\.right, reward\.format.*--columns reward=NAME"):
        read({**SLIME, "reward": {"right": 1.0, "format": 0.5, "pred": "5"}})
    assert read({**SLIME, "reward": {"right": 1.0, "pred": "5"}})[1].reward == 1.0


NO_TRACES = [{"rewards": {"a": "b"}}, {"nodes": [{"sampled": True}]}, {"nodes": [{"sampled": True, "parent": 9}]}]


@pytest.mark.parametrize(
    ("row", "change", "reason"),
    [
        (VERL, {"output": None}, "without output"),
        (VERL, {"acc": float("nan")}, "whose acc is not a finite number"),
        (VERL, {"acc": "maybe"}, "whose acc is not a finite number"),
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
    _, form = form_of(row)
    with pytest.raises(LeftOut, match=f"^{reason}$"):
        form.rollout({**row, **change})


def test_a_policys_turns_are_the_response_with_the_replies_between_them() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "calc", "arguments": "2+2"}]}
    turns = [call, {"role": "tool", "content": "\\boxed{9}"}, {"role": "assistant", "content": [{"text": "four"}]}]
    nodes = [*TRACE["nodes"][:2], *({"sampled": turn["role"] == "assistant", "message": turn} for turn in turns)]
    nodes = [{**node, **({"parent": place - 1} if place else {})} for place, node in enumerate(nodes)]
    for node in nodes[2:]:
        node["message"] = {name: value for name, value in node["message"].items() if value is not None}
    response = "\n<tool_call>\ncalc(2+2)\n</tool_call><|im_end|>\n<|im_start|>tool\n\\boxed{9}<|im_end|>\n"
    response += "<|im_start|>assistant\nfour"
    expected = Rollout("be brief\n\n2+2", response, 0.25, None, None, tuple(QUESTION))
    assert read({**TRACE, "nodes": nodes}) == ("prime-rl", expected)
    assert read({"prompt": QUESTION, "response": turns, "reward": 0.25})[1] == expected
    assert ResponseText.of(response, None).answer is None  # the tool's
    thinking = {**REPLY[0], "reasoning_content": "hm"}
    assert read({**PRIME, "completion": [thinking]})[1].response == "<think>\nhm\n</think>\n\n\\boxed{5}"


REWARDS = {"right": {"score": 1.0, "weight": 2.0}, "brief": {"score": 1.0}, "style": None}
EPISODE = {
    "id": "e", "run": {"type": "train", "work": {"type": "train", "step": 7}},
    "traces": [{**TRACE, "task": {"data": {"answer": "4"}}, "rewards": REWARDS}],
}  # fmt: skip


MULTI_TURN = "a<|im_end|>\n<|im_start|>environment\ne<|im_end|>\n<|im_start|>assistant\nb"


def test_an_episode_has_a_trace_for_each_agent() -> None:
    name, form = form_of(EPISODE)
    [row] = form.split(EPISODE)
    assert name == "prime-rl"
    assert form.rollout(row) == Rollout(*ASKED, 3.0, "4", 7, tuple(QUESTION))
    judge = {**TRACE, "agent": {"trainable": False}}
    unscored = {**TRACE, "rewards": {"right": None}}
    for trace, reason in ((judge, "of an agent that is not trained"), (unscored, "without reward")):
        with pytest.raises(LeftOut, match=reason):
            form.rollout(next(iter(form.split({**EPISODE, "traces": [trace]}))))
    evaluated = {**EPISODE, "run": {"type": "train", "work": {"type": "eval", "step": 7}}}
    assert [form.is_evaluation(next(iter(form.split(line)))) for line in (EPISODE, evaluated)] == [False, True]


@pytest.mark.parametrize(
    ("content", "more", "prompt", "response"),
    [
        (["p", "a", "Environment: incorrect"], {"token_loss_mask": [[0, 0, 1, 1, 0]]}, "p", "a"),
        (["p", "a"], {"token_loss_mask": [[0, 1, 0, 0]], "input_lengths": [2]}, "p", "a"),  # padded
        (["p", "a"], {"token_loss_mask": [[0, 1, 0, 0]]}, "p", "a"),
        (["s", "p", "a", "e"], {"token_loss_mask": [[0, 0, 1, 0]]}, "sp", "a"),
        (["p", "a", "e"], {}, "p", "a"),
        (["p", "a", "e", "b", "f"], {}, "p", MULTI_TURN),
        ([*QUESTION, *REPLY, {"role": "environment", "content": "no"}], {}, "be brief2+2", "\\boxed{5}"),
    ],
)  # fmt: skip
def test_of_nemo_rls_texts_the_mask_says_which_are_the_policys(
    content: list, more: dict[str, Any], prompt: str, response: str
) -> None:
    rollout = read({"content": [content], "rewards": [0.0], "idx": 0, **more})[1]
    assert (rollout.prompt, rollout.response) == (prompt, response)


def test_what_is_known_but_not_read_is_named() -> None:
    for row, words in (
        ({"episode_id": "1:0", "is_correct": True, "trajectories": []}, "episodes of rLLM"),
        ({"is_validation": False, "reward": 0.0, "turns": [], "advantage": 0.1}, "samples of torchtitan"),
    ):
        look = recognized([row], "auto", {})
        assert look is not None
        assert look.form.unread.startswith(words)
    empty = {"content": [["", "", ""]], "rewards": [0.0]}
    with pytest.raises(LeftOut, match="without texts, with token ids alone"):
        form_of(NEMO)[1].rollout(empty)


SYSTEM_TEXT, ASK = (
    "<|im_start|>system\nbe brief<|im_end|>\n",
    "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n",
)


@pytest.mark.parametrize("mask", [None, [0, 0, 1], [0, 0, 1, 0]])
def test_a_prompt_of_several_texts_ends_with_the_policys_header(mask: list[int] | None) -> None:
    for remark in ([], ["Environment: incorrect"], [""]):
        row = {"content": [[SYSTEM_TEXT, ASK, "\\boxed{5}", *remark]], "rewards": [0.0]}
        rollout = read(row if mask is None else {**row, "token_loss_mask": [mask], "input_lengths": [len(mask)]})[1]
        assert (rollout.prompt, rollout.response) == (SYSTEM_TEXT + ASK, "\\boxed{5}")


def test_examples_in_a_prompt_are_not_the_policys() -> None:
    shown = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "\\boxed{2}"}]
    log = [*shown, QUESTION[1], *REPLY, {"role": "environment", "content": "no"}]
    rollout = read({"content": [log], "rewards": [0.0]})[1]
    assert (rollout.prompt, rollout.response) == ("1+1\\boxed{2}2+2", "\\boxed{5}")


def test_of_several_beginnings_of_a_trace_the_first_has_the_prompt() -> None:
    later = [
        {"sampled": False, "message": {"role": "user", "content": "a summary"}},
        {"parent": 3, "sampled": True, "message": {"role": "assistant", "content": "\\boxed{6}"}},
    ]
    compacted = read({**TRACE, "nodes": [*TRACE["nodes"], *later]})[1]
    assert (compacted.prompt, compacted.response) == ("be brief\n\n2+2", "\\boxed{6}")
    asked_again = read({**TRACE, "nodes": [*TRACE["nodes"], *later], "root_reply": "\\boxed{5}"})[1]
    assert asked_again.response == "\\boxed{5}"
    for change, reason in (
        ({"nodes": [{"sampled": True, "message": REPLY[0]}]}, "prompt"),
        ({"is_trainable": False}, "agent"),
    ):
        with pytest.raises(LeftOut, match=reason):
            form_of(TRACE)[1].rollout({**TRACE, **change})


def test_columns_of_other_programs_do_not_hide_an_own_dump() -> None:
    own = {"prompt": "2+2", "response": "5", "reward": 0.0, "step": 4}
    for more in ({"prompt_tokens": 12}, {"trajectories": [1]}, {"is_validation": False}):
        assert read({**own, **more}) == ("plain", Rollout("2+2", "5", 0.0, None, 4))
    assert read({**own, "rollout_id": 77})[1].step == 4
    with pytest.raises(LeftOut, match="of an aborted rollout"):
        form_of(SLIME)[1].rollout({**SLIME, "status": "aborted"})
