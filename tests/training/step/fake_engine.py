"""A vLLM engine that answers at once, and dies when it is told to. Imports nothing heavy: each one is a process."""

import asyncio
import os
from typing import Any

import ray

from meds_openrlhf.training.step.engine_fleet import EngineStatus, StaleWeightsError

SAMPLES = 2


class Engine:
    """Answers like OpenRLHF's engine actor. Its first life ends at a prompt; later ones know no weights at first."""

    def __init__(self, dies_at: int) -> None:
        reborn = ray.get_runtime_context().was_current_actor_reconstructed
        self.dies_at = None if reborn else dies_at
        self.life, self.has_weights = str(os.getpid()), not reborn
        self.answered = 0

    async def status(self) -> EngineStatus:
        return EngineStatus(self.life, self.has_weights)

    async def has_received(self, life: str) -> None:
        self.has_weights |= life == self.life

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
