"""A user's agent inside an engine: an episode in which it raises is sampled again and does not end the run."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from openrlhf.utils.agent import AgentExecutorBase

from meds_openrlhf.training.errors import RunLostError

logger = logging.getLogger(__name__)

ATTEMPTS = 3  # per episode


class RetryingAgent(AgentExecutorBase):
    """Runs an episode of ``agent`` up to `ATTEMPTS` times, until it does not raise."""

    def __init__(self, agent: AgentExecutorBase) -> None:
        self._agent = agent

    async def execute(self, *, sampling_params: Any, llm_engine: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the agent's response, with the errors of earlier attempts as ``agent_errors``.

        If every attempt raised, there is nothing else in it. Raises the errors of an engine that is lost, because
        another engine then gets the prompt.
        """
        errors: list[str] = []
        for _ in range(ATTEMPTS):
            try:
                # A copy, because OpenRLHF's agents change it, and all episodes of a prompt share it.
                response = await self._agent.execute(
                    sampling_params=deepcopy(sampling_params), llm_engine=llm_engine, **kwargs
                )
                return {**response, "agent_errors": errors}
            except Exception as error:  # whatever a user's code raises
                if llm_engine.llm.errored:
                    raise
                logger.warning("an agent's episode raised", exc_info=True)
                errors.append(_in_a_line(error))
        return {"agent_errors": errors}


class AgentErrors:
    """What an agent raised during one generation of a batch."""

    def __init__(self) -> None:
        self._errors: list[str] = []
        self._answered = 0
        self._left_out = 0

    def has_answered(self, responses: Sequence[dict[str, Any]], prompts: int) -> bool:
        """Return whether all episodes of a prompt were completed, at the first attempt or a later one.

        Raises RunLostError if ``prompts`` prompts were not, and no prompt was.
        """
        raised = [error for response in responses for error in response.get("agent_errors", ())]
        self._errors += raised
        if all("observation_tokens" in response for response in responses):
            self._answered += 1
            return True
        self._left_out += 1
        if not self._answered and self._left_out >= prompts:
            raise RunLostError(f"the agent raised in {ATTEMPTS} attempts at every prompt: {raised[-1]}")
        return False

    def line(self) -> str | None:
        """Return what to tell the user; None if the agent did not raise."""
        if not self._errors:
            return None
        left_out = f"; prompts left out after {ATTEMPTS} attempts: {self._left_out}" if self._left_out else ""
        return f"agent errors: {len(self._errors)}, last {self._errors[-1]}; episodes were sampled again{left_out}"


def _in_a_line(error: Exception) -> str:
    """Return type, message and place of an error, such as ``KeyError: 'x' (my_agent.py, line 31)``."""
    frames = traceback.extract_tb(error.__traceback__)
    (what, *_) = traceback.format_exception_only(error)[-1].splitlines() or [type(error).__name__]
    return f"{what} ({frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno})"
