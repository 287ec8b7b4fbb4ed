"""Whether Weights & Biases can be reached, if the environment asks for it. A key is never shown."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

from meds_openrlhf.doctor.finding import Finding
from meds_openrlhf.tracking.trackers import is_offline, wanted_trackers

SERVER = "https://api.wandb.ai"
ANSWER_SECONDS = 10.0


def examine_wandb(environment: Mapping[str, str]) -> Finding:
    """Check from this process, as the driver of a run would reach the server."""
    if "wandb" not in wanted_trackers(environment):
        return Finding("this process", "W&B", "WANDB_API_KEY is not set: runs are not sent there")
    if is_offline("wandb", environment):
        return Finding("this process", "W&B", "offline: runs are written to files, to be sent with `meds track`")
    address = environment.get("WANDB_BASE_URL") or SERVER
    host = urlsplit(address).hostname  # an address may contain a key
    try:
        urllib.request.urlopen(address, timeout=ANSWER_SECONDS).close()
    except urllib.error.HTTPError:
        pass  # it answers
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        advice = "runs go on without it; set WANDB_MODE=offline and send them later with `meds track`, or open the way"
        return Finding("this process", "W&B", f"a key is set, but {host} does not answer ({reason})", advice, slow=True)
    return Finding("this process", "W&B", f"a key is set, and {host} answers")
