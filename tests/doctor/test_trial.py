"""What the metrics of the two steps say."""

from typing import Any

import pytest

from meds_openrlhf.doctor.trial import judge


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
    finding = judge(steps)
    assert finding.advice.startswith(advice)
    assert finding.word == ("WRONG" if advice else "ok")
