"""OpenRLHF's vLLM engine as a restartable actor that knows whether it has the policy's weights.

A restarted engine has the weights from disk and belongs to no weight-sync group. It answers `status`, rejects requests
to generate, and rejoins at the policy's next weight sync (`step.engine_fleet`). If engines sleep while the policy
trains on the same GPUs, a restarted engine does not load vLLM before that sync, because the policy uses the GPU.
"""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
import uuid
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import ray
from openrlhf.trainer.ray import vllm_engine
from openrlhf.utils import get_tokenizer
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from meds_openrlhf.runtime.errors import RunLostError
from meds_openrlhf.runtime.processes import end_children_with_this_process
from meds_openrlhf.training.openrlhf.access import bound, plain_class, replaced
from meds_openrlhf.training.openrlhf.cpu import engine_arguments
from meds_openrlhf.training.step.engine_fleet import EngineStatus, StaleWeightsError

logger = logging.getLogger(__name__)

# More restarts would not help an engine that dies repeatedly.
MAX_RESTARTS = 10
# Maximum concurrent calls per engine: all prompts started in advance, plus a status request.
MOST_CALLS = 100_000
# How OpenRLHF's error begins for a prompt that leaves no room for a response.
TOO_LONG_WITH_IMAGES = "VLM prompt length"
# The pause before a failed restart is retried, for other processes to release the GPU's memory.
PAUSE_SECONDS = 10.0


class RestartableEngine(plain_class(vllm_engine.RolloutRayActor)):  # type: ignore[misc]
    """OpenRLHF's engine actor; see the module's docstring."""

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]
        restarted = ray.get_runtime_context().was_current_actor_reconstructed
        self._life = uuid.uuid4().hex
        self._has_weights = not restarted  # at the start of a run, the weights on disk are the policy's
        self._loaded = False
        self._given = (args, kwargs)
        end_children_with_this_process()
        if not restarted:
            await self._load()
        elif not kwargs.get("enable_sleep_mode"):
            await self.load()

    async def _load(self) -> None:
        args, kwargs = self._given
        self._tokenizer = get_tokenizer(kwargs["model"], None)
        await super().__init__(*args, **{**kwargs, **engine_arguments()})
        self._loaded = True

    async def load(self) -> None:
        """Start vLLM in a restarted engine; if engines sleep, put it to sleep, as OpenRLHF does at the start."""
        if self._loaded:
            return
        try:
            await self._load()
            if self._given[1].get("enable_sleep_mode"):
                await self.sleep()
        except Exception:
            # An error would end the actor permanently; Ray restarts a dead process up to `MAX_RESTARTS` times.
            logger.exception("a restarted engine could not start")
            await asyncio.sleep(PAUSE_SECONDS)
            os._exit(1)

    async def status(self) -> EngineStatus:
        """Return the engine's status; also works while responses are generated."""
        if self._loaded and self.llm.errored:
            os._exit(1)  # the vLLM process inside is gone; Ray starts both again
        return EngineStatus(self._life, self._has_weights, self._loaded)

    async def has_received(self, life: str) -> None:
        """Record that this ``life`` of the engine was part of a weight sync that has ended."""
        self._has_weights |= life == self._life

    async def generate_responses(self, *, sampling_params: SamplingParams, **request: Any) -> Any:
        """Generate responses to one prompt, with the engine's own tokenizer, since pickling one takes 0.1 s.

        vLLM returns each response once, when it is finished. Its default, an update after every token, takes half the
        time of the one thread that handles all responses. There are none to a prompt that is too long with its images,
        whose tokens only the engine counts. Raises StaleWeightsError if the engine lacks the policy's weights, and
        RunLostError if a user's agent raised.
        """
        if not self._has_weights:
            raise StaleWeightsError("restarted since the last weight sync")
        sampling_params.output_kind = RequestOutputKind.FINAL_ONLY
        request |= {"sampling_params": sampling_params, "hf_tokenizer": self._tokenizer}
        try:
            responses = await super().generate_responses(**request)
        except Exception as error:  # whatever a user's code raises
            if str(error).startswith(TOO_LONG_WITH_IMAGES):
                return []
            if self._given[1].get("agent_func_path") is None or self.llm.errored:
                raise
            raise RunLostError(f"the agent raised {_in_a_line(error)}") from error
        return [in_arrays(response) for response in responses]


def _in_a_line(error: Exception) -> str:
    """Return type, message and place of an error, such as ``KeyError: 'x' (my_agent.py, line 31)``."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    what, *_ = traceback.format_exception_only(error)[-1].splitlines()
    return f"{what} ({os.path.basename(place.filename)}, line {place.lineno})"


def in_arrays(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response with its token ids and log-probs in arrays, which are sent and read faster than lists."""
    kinds = {"observation_tokens": np.int32, "rollout_log_probs": np.float32}
    arrays = {name: np.array(response[name], kind) for name, kind in kinds.items() if response.get(name) is not None}
    return {**response, **arrays}


def restartable_engines(environment: dict[str, str], **arguments: Any) -> AbstractContextManager[None]:
    """Make OpenRLHF, which looks up its engine class by name, create restartable engines inside the context.

    ``environment`` extends the engine processes' environment, also after restarts; ``arguments`` are vLLM's, in
    addition to OpenRLHF's or in place of them.
    """
    options: dict[str, Any] = {"runtime_env": {"env_vars": environment}} if environment else {}
    actor = ray.remote(max_restarts=MAX_RESTARTS, max_concurrency=MOST_CALLS, **options)(RestartableEngine)
    return replaced(vllm_engine, RolloutRayActor=bound(actor, **arguments))
