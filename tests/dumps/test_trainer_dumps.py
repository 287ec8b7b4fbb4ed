"""What each trainer's own writer left in tests/dumps/data (trainer_dumps.py): alone, and among other files.

Two problems, eight rollouts a step, of which six are wrong: two with the same answer and one with another, each.
"""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.dumps.answers import STYLES, style_of
from meds_openrlhf.dumps.formats import Rollout
from meds_openrlhf.dumps.reading import Dump
from meds_openrlhf.rollouts.texts import ResponseText
from tests.dumps.test_folders import add_strays

DATA = Path(__file__).parent / "data"
TWO, THREE = {1: 8, 2: 8}, {1: 8, 2: 8, 3: 8}
# The folder, its format, its rollouts by step, how many are wrong, and what is left out.
READ = [
    ("verl-0.9.1/v1", "verl", TWO, 12, {}),
    ("verl-0.9.1/v1_overlong", "verl", TWO, 12, {}),
    ("verl-0.9.1/v1_tools", "verl", {1: 8}, 6, {}),
    ("verl-0.9.1/v1_validation", "verl", {1: 8, 3: 8}, 12, {}),  # of the steps 0 and 2
    ("verl-0.9.1/legacy", "verl", TWO, 12, {}),
    ("verl-0.9.1/legacy_text", "verl", {1: 8, 2: 7}, 11, {"without acc": 1}),
    ("trl-1.16.0/plain", "trl", {1: 7, 2: 8}, 11, {"without accuracy": 1}),
    ("verifiers-0.4.0/by_step", "prime-rl", {1: 4, 2: 4}, 4,
     {"of rollouts that another file has as well": 2, "of an evaluation": 1, "of an agent that is not trained": 2,
      "of a rollout that failed": 2}),
    ("verifiers-0.4.0/stream", "prime-rl", TWO, 12,
     {"without rollouts": 6, "of an evaluation": 9, "of an agent that is not trained": 2,
      "of a rollout that failed": 2}),
    ("verifiers-0.4.0/finished", "prime-rl", {1: 8}, 6,
     {"without rollouts": 2, "of an agent that is not trained": 1, "of a rollout that failed": 1}),
    ("skyrl-0.3.0", "skyrl", {1: 8, 3: 8}, 12, {"without rollouts": 2}),
    ("areal-1.0.4", "areal", THREE, 18, {"of an evaluation": 2}),
    ("nemo_rl-0275e75/math", "nemo-rl", TWO, 12, {"without rollouts": 1, "of an evaluation": 2}),
    ("nemo_rl-0275e75/turns", "nemo-rl", TWO, 12, {}),
    ("slime-4c4adbb/math", "slime", TWO, 12, {"without rollouts": 2, "of an evaluation": 1}),
    ("slime-4c4adbb/numpy", "slime", {1: 8}, 6, {}),
    ("slime-4c4adbb/image", "slime", {1: 8}, 6, {}),
    ("inspect-more-0.3.285/yesno", "inspect", {1: 4}, 2, {}),
]  # fmt: skip
ASKED = [
    ("trl-1.16.0/tools", "product_reward, quotient_reward", "product_reward"),
    ("slime-4c4adbb/mapping", "reward.score, reward.acc", "reward.score"),
]
NAMED = [
    ("rllm-0de8298", "episodes of rLLM"),
    ("torchtitan-rl", "samples of torchtitan"),
    ("open_instruct", "traces of open-instruct"),
]


def read(folder: Path, **columns: str) -> tuple[dict[int, list[Rollout]], Dump]:
    dump = Dump([folder], columns=columns)
    return dict(dump), dump


def answers_of(steps: dict[int, list[Rollout]]) -> list[str | None]:
    """The answers of all rollouts that are wrong, as the atlas finds them."""
    rollouts = [rollout for of_step in steps.values() for rollout in of_step]
    pattern = STYLES[style_of(rollouts, with_column=False)]
    return [ResponseText.of(rollout.response, pattern).answer for rollout in rollouts if rollout.reward < 0.5]


@pytest.mark.parametrize(("folder", "name", "steps", "wrong", "left_out"), READ, ids=[case[0] for case in READ])
def test_what_a_trainer_wrote(
    tmp_path: Path, folder: str, name: str, steps: dict[int, int], wrong: int, left_out: dict[str, int]
) -> None:
    found, dump = read(DATA / folder)
    counts = dump.counts
    assert dump.format_name == name
    assert {step: len(rollouts) for step, rollouts in found.items()} == steps
    assert counts.left_out + counts.files_left_out == Counter(left_out)
    assert len({rollout.prompt for rollouts in found.values() for rollout in rollouts}) == 2
    answers = answers_of(found)
    assert len(answers) == wrong
    assert {"146", "6"} <= set(answers) <= {"146", "166", "6", "14"}

    shutil.copytree(DATA / folder, tmp_path / "dump")
    strays = add_strays(tmp_path / "dump")
    among, dump = read(tmp_path / "dump")
    assert among == found
    assert dump.counts.left_out == counts.left_out
    assert sum(dump.counts.files_left_out.values()) == sum(counts.files_left_out.values()) + strays


@pytest.mark.parametrize(("folder", "names", "first"), ASKED)
def test_of_several_rewards_one_is_asked_for(folder: str, names: str, first: str) -> None:
    with pytest.raises(ConfigError, match=rf"\({names}\)\. Choose one with --columns reward=NAME"):
        read(DATA / folder)
    found, _ = read(DATA / folder, reward=first)
    assert answers_of(found).count("146") == 4


@pytest.mark.parametrize(("folder", "what"), NAMED)
def test_what_is_not_read_is_named(folder: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        read(DATA / folder)


def test_a_tools_reply_holds_no_answer() -> None:
    for folder, tool in (("verl-0.9.1/v1_tools", "<tool_response>"), ("trl-1.16.0/tools", "<|im_start|>tool")):
        found, _ = read(DATA / folder, **({"reward": "product_reward"} if "trl" in folder else {}))
        rollouts = [rollout for of_step in found.values() for rollout in of_step]
        assert any(tool in rollout.response for rollout in rollouts)
        assert not any(tool in rollout.prompt for rollout in rollouts)
    agent, _ = read(DATA / "inspect-more-0.3.285/agent", reward="correct")
    assert any("<tool_call>\nproduct(" in rollout.response for rollout in agent[1])
    chunked, _ = read(DATA / "inspect-more-0.3.285/chunked", reward="correct")  # without the turns, which lie elsewhere
    assert [(rollout.prompt, rollout.reward) for rollout in chunked[1]] == [
        (rollout.prompt, rollout.reward) for rollout in agent[1]
    ]
