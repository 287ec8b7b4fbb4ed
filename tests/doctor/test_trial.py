"""What the metrics of the two steps say."""

from typing import Any

import pytest

from meds_openrlhf.doctor.cluster import GpuNodes
from meds_openrlhf.doctor.trial import judge, modes_of


@pytest.mark.parametrize(
    ("steps", "advice"),
    [
        ([{"vllm_kl": 0.001, "meds/rows": 4.0}, {"vllm_kl": -0.002, "meds/rows": 9.0}], ""),
        ([{"vllm_kl": 0.3, "meds/rows": 4.0}, {"vllm_kl": 0.3, "meds/rows": 9.0}], "they compute other log-probs"),
        ([{"vllm_kl": 0.001, "meds/rows": 4.0}, {"vllm_kl": 0.4, "meds/rows": 9.0}], "the engines did not get"),
        ([{"vllm_kl": 0.001, "meds/rows": 0.0}, {"vllm_kl": 0.001}], "the memory got no rows"),
    ],
)
def test_the_first_fault_is_named(steps: list[dict[str, Any]], advice: str) -> None:
    finding = judge(steps, modes_of(GpuNodes(1, 1, made_up=False))[0])
    assert finding.check == "training"
    assert finding.advice.startswith(advice)
    assert finding.word == ("WRONG" if advice else "ok")


@pytest.mark.parametrize(
    ("gpus", "made_up", "modes"),
    [
        (1, False, [("training", "colocate", 1)]),
        (2, False, [("training", "split", 1), ("sharing", "colocate", 2)]),
        (7, False, [("training", "split", 1), ("sharing", "colocate", 4)]),
        (16, False, [("training", "split", 1), ("sharing", "colocate", 8)]),
        (8, True, [("training", "split", 1), ("sharing", "colocate", 2)]),
    ],
)
def test_with_two_gpus_the_mode_of_recipes_is_tried_too(
    gpus: int, made_up: bool, modes: list[tuple[str, str, int]]
) -> None:
    found = modes_of(GpuNodes(2, gpus, made_up))
    assert [(mode.check, mode.placement, mode.ranks) for mode in found] == modes
    assert all(mode.flags.get("ds.zero_stage") == 3 for mode in found[1:])


def test_a_finding_says_in_which_mode() -> None:
    steps = [{"vllm_kl": 0.001, "meds/rows": 4.0}, {"vllm_kl": 0.002, "meds/rows": 9.0}]
    finding = judge(steps, modes_of(GpuNodes(1, 8, made_up=False))[1])
    assert finding.found == (
        "a tiny policy trained as recipes do, 8 GPUs of a node shared by policy and engines; engines and policy differ "
        "by 0.0010 and, after a sync, 0.0020 nats"
    )
    assert (finding.check, finding.word) == ("sharing", "ok")
