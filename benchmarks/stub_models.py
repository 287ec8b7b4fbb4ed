"""Engines and policy ranks that compute nothing: they return at once what real ones would, of the same size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch

from benchmarks.large_tokenizer import VOCABULARY
from meds_openrlhf.training.actor import RecordedLogProbs
from meds_openrlhf.training.engines.engine import in_arrays
from meds_openrlhf.training.engines.engine_fleet import AS_STARTED, EngineStatus

RIGHT_SHARE = 0.4


@dataclass(frozen=True)
class Lengths:
    """Log-normal lengths of responses in tokens, cut at ``cut``; ``mean`` is that before the cut."""

    mean: float
    sigma: float
    cut: int

    @staticmethod
    def parse(text: str) -> Lengths:
        """Parse "mean,sigma,cut"."""
        mean, sigma, cut = text.split(",")
        return Lengths(float(mean), float(sigma), int(cut))

    def draw(self, count: int, seed: int) -> np.ndarray:
        """Draw ``count`` lengths."""
        drawn = np.random.default_rng(seed).lognormal(np.log(self.mean) - self.sigma**2 / 2, self.sigma, count)
        return np.clip(drawn, 1, self.cut).astype(int)


class _Engine:
    """Holds responses to every prompt, as OpenRLHF's agent executor returns them."""

    def __init__(self, lengths: Lengths, prompts: list[str], samples: int) -> None:
        draws = np.random.default_rng(0)
        drawn = lengths.draw(len(prompts) * samples, seed=1).reshape(len(prompts), samples)
        self._responses = {
            prompt: [self._response(prompt, int(length), draws) for length in of_prompt]
            for prompt, of_prompt in zip(prompts, drawn)
        }

    def _response(self, prompt: str, length: int, draws: np.random.Generator) -> dict[str, Any]:
        question = draws.integers(0, VOCABULARY - 1, 100)
        tokens = draws.integers(0, VOCABULARY - 1, length)
        reward = float(draws.random() < RIGHT_SHARE)
        return {
            "prompt": prompt,
            "label": "1",
            "images": None,
            "mm_train_inputs": None,
            "observation_tokens": [*question.tolist(), *tokens.tolist()],
            "action_ranges": [(100, 100 + length)],
            "rollout_log_probs": None,
            "truncated": False,
            "reward": reward,
            "scores": reward,
            "extra_logs": {},
        }

    def in_arrays(self) -> None:
        """Return arrays from now on, as our engines do."""
        for prompt, responses in self._responses.items():
            self._responses[prompt] = [in_arrays(response) for response in responses]

    def get_num_unfinished_requests(self) -> int:
        """None are."""
        return 0

    def generate_responses(self, prompt: str, **_: Any) -> list[dict[str, Any]]:
        """Return the responses to a prompt."""
        return self._responses[prompt]

    def status(self) -> EngineStatus:
        """As of an engine that was never restarted."""
        return EngineStatus(str(id(self)), AS_STARTED)

    def has_received(self, weights: int) -> None:
        """Nothing to note."""

    def sleep(self, level: int = 1) -> None:
        """Nothing to do."""

    def wake_up(self, tags: Any = None) -> None:
        """Nothing to do."""


class _Rank:
    """A rank of the policy: log-probs of zeros, and with ``records`` random layer logits."""

    def __init__(self, layers: int, records: bool = False) -> None:
        self._layers, self._records = layers, records
        self._logits = np.random.default_rng(0).normal(size=(4096, layers)).astype(np.float32)

    def execute_batch(self, method: str, data: dict[str, list[Any]], start: int, end: int) -> list[Any]:
        """OpenRLHF's way to call a method for each micro-batch."""
        return [self._forward(mask) for mask in data["action_mask"]] if method == "forward" else []

    def _forward(self, action_mask: torch.Tensor) -> Any:
        log_probs = torch.zeros(action_mask.shape)
        if not self._records:
            return log_probs
        rows = np.random.default_rng(action_mask.shape[1]).integers(0, len(self._logits), len(action_mask))
        return RecordedLogProbs(log_probs, ["7"] * len(rows), np.ones(len(rows), bool), self._logits[rows], 0.0)

    def fit(self, kl_ctl: float = 0.0) -> dict[str, float]:
        """Train on nothing."""
        return {"policy_loss": 0.0}

    def empty_cache(self) -> None:
        """Nothing to do."""

    def broadcast_to_vllm(self) -> None:
        """Nothing to do."""

    def reload_states(self) -> None:
        """Nothing to do."""

    def offload_states(self) -> None:
        """Nothing to do."""


StubEngine = ray.remote(num_cpus=0)(_Engine)
StubRank = ray.remote(num_cpus=0)(_Rank)
