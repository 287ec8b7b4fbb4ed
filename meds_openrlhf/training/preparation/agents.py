"""Checks that engines can load a user's agent, in a process of its own, because its code may do anything."""

from __future__ import annotations

import subprocess
import sys

from meds_openrlhf.config import ConfigError

SETTING = "train.agent_func_path"
SECONDS = 300.0  # the imports of vLLM and OpenRLHF alone take 10 to 60


def require_loadable(path: str | None) -> None:
    """Raise ConfigError if the agent in the file ``path`` cannot be imported or created."""
    if path is None:
        return
    try:
        loading = subprocess.run(
            [sys.executable, "-m", __name__, path], capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        hint = f"was not loaded within {SECONDS:g} seconds; let it start nothing while it is imported and created"
        raise ConfigError(SETTING, path, hint) from None
    if loading.returncode:
        said = [line for line in (loading.stdout + loading.stderr).splitlines() if line.strip()]
        reason = next((line for line in said if line.startswith(_REASON)), said[-1] if said else "no message")
        hint = f"cannot be loaded: {reason.removeprefix(_REASON)}; every engine imports it and creates AgentExecutor()"
        raise ConfigError(SETTING, path, hint)


_REASON = "reason: "


def _load(path: str) -> None:
    """Load the agent as engines do, or exit with a line that says why that fails."""
    from meds_openrlhf.training import cpu

    if not cpu.has_cuda():
        cpu.install()
    from openrlhf.trainer.ray.vllm_engine import _load_agent_executor

    try:
        _load_agent_executor(path)
    except Exception as error:  # whatever a user's code raises
        message = (str(error).strip().splitlines() or ["no message"])[0]
        sys.exit(f"{_REASON}{type(error).__name__}: {message}")


if __name__ == "__main__":
    _load(sys.argv[1])
