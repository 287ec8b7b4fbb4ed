"""A vLLM engine that answers at once, and dies when it is told to. Imports nothing heavy: each one is a process."""

import asyncio
import os
from typing import Any

import ray

from meds_openrlhf.training.step.engine_fleet import EngineStatus, StaleWeightsError

SAMPLES = 2


class Engine:
    """Answers like OpenRLHF's engine actor. Its first life may end at a prompt; later ones know no weights at first."""

    def __init__(self, number: int, dies_at: int | None = None) -> None:
        reborn = ray.get_runtime_context().was_current_actor_reconstructed
        self.number, self.dies_at = number, None if reborn else dies_at
        self.life, self.has_weights = f"{number}-{os.getpid()}", not reborn
        self.answered = 0

    async def status(self) -> EngineStatus:
        return EngineStatus(self.life, self.has_weights)

    async def has_received(self, life: str) -> None:
        self.has_weights |= life == self.life

    def get_num_unfinished_requests(self) -> int:
        return 0

    async def generate_responses(self, prompt: str, label: str, **_: Any) -> list[dict[str, Any]]:
        if not self.has_weights:
            raise StaleWeightsError
        self.answered += 1
        if self.answered == self.dies_at:
            os._exit(1)
        await asyncio.sleep(0.01)
        return responses_to(prompt, label)


def responses_to(prompt: str, label: str) -> list[dict[str, Any]]:
    """What OpenRLHF's engine returns; odd prompts are answered right."""
    score = float(int(prompt) % 2)
    response = {"prompt": prompt, "label": label, "scores": score, "reward": score}
    tokens = {"observation_tokens": [1, int(prompt)], "action_ranges": [(1, 2)], "rollout_log_probs": None}
    return [{**response, **tokens}] * SAMPLES
