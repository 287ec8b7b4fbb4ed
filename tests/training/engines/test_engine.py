"""What an engine answers with."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from meds_openrlhf.training.engines.engine import in_arrays
from tests.training.test_batches import require_equal


@given(seed=st.integers(0, 999), cut=st.integers(3, 30), log_probs=st.booleans())
def test_openrlhf_makes_the_same_experience_of_arrays(seed: int, cut: int, log_probs: bool) -> None:
    draws = np.random.default_rng(seed)
    prompt, length = int(draws.integers(1, 5)), int(draws.integers(0, 20))
    response = {
        "prompt": "p", "label": "l", "reward": 1.0, "scores": 0.5, "truncated": False, "extra_logs": {"tries": 2},
        "observation_tokens": draws.integers(0, 150_000, prompt + length).tolist(),
        "action_ranges": [(prompt, prompt + length)],
        "rollout_log_probs": draws.normal(size=prompt + length).tolist() if log_probs else None,
    }  # fmt: skip
    generator = SamplesGenerator(SimpleNamespace(args=None), None, None, None, [])
    found = generator._process_response_into_experience(in_arrays(response), max_len=cut)
    require_equal(found, generator._process_response_into_experience(response, max_len=cut))


def test_arrays_are_sent_in_half_the_bytes() -> None:
    tokens = list(range(100_000, 102_000))
    response = {"observation_tokens": tokens, "rollout_log_probs": [-0.125] * 2000, "prompt": "p"}
    sizes = [len(pickle.dumps(one)) for one in (response, in_arrays(response))]
    assert sizes[1] == pytest.approx(4 * 2000 * 2, rel=0.05)
    assert sizes[1] < sizes[0]
