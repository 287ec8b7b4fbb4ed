"""TRL's `GRPOTrainer`, learning less from what was solved before (docs/library.md).

Written for TRL 1.16, whose overridden methods are private and may change. Nothing else here knows TRL.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils import gather_object
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer

from meds_openrlhf.config.schema import PenaltySettings
from meds_openrlhf.files import MOST_TEXT, read_file, write_atomically
from meds_openrlhf.memory.rows import prompt_key
from meds_openrlhf.memory.successes import DECAY, Successes, Visit, count_visits
from meds_openrlhf.shaping.focal import GAMMA, focal_weights

RIGHT = PenaltySettings.correct_threshold  # the reward from which a completion is right
SUCCESSES = "successes.json"  # of a checkpoint


class FocalGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """A `trl.GRPOTrainer` that multiplies a group's advantages by `focal_weights` of the prompt's remembered success.

    At a prompt's first visit, and with ``focal_gamma`` 0, it trains as `GRPOTrainer` does. Successes are counted in
    training alone, over all processes, and are part of a checkpoint. Logged completions have the weighted advantages.

    Args:
        focal_gamma: the exponent, not below 0.
        success_decay: what a visit counts of the next one, above 0 and at most 1.
        right_by: the name of the reward function by which a completion is right, if it gives `RIGHT` or more; the
            first one by default. Where it gives none, the completion is not counted.

    The other arguments are those of `GRPOTrainer`. Raises ValueError for values other than these.
    """

    def __init__(
        self,
        *args: Any,
        focal_gamma: float = GAMMA,
        success_decay: float = DECAY,
        right_by: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not focal_gamma >= 0:
            raise ValueError(f"focal_gamma={focal_gamma!r}: must be 0 or more.")
        if not 0 < success_decay <= 1:
            raise ValueError(f"success_decay={success_decay!r}: must be above 0 and at most 1.")
        super().__init__(*args, **kwargs)
        names = self.reward_func_names
        if right_by is not None and right_by not in names:
            raise ValueError(f"right_by={right_by!r}: no reward function has this name. There are {', '.join(names)}.")
        self._focal_gamma = focal_gamma
        self._right_by = 0 if right_by is None else names.index(right_by)
        self._successes = Successes(success_decay)
        self._last: Mapping[
            str, Visit
        ] = {}  # of the generation that is trained on, which a checkpoint inside it repeats

    def _calculate_rewards(self, inputs: Any, prompts: Any, *rest: Any) -> Any:
        """Keep the prompts and verdicts of all processes, in the order of the rewards."""
        rewards = super()._calculate_rewards(inputs, prompts, *rest)
        self._judged = gather_object([_key(prompt) for prompt in prompts]), rewards[:, self._right_by].tolist()
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        found = super()._generate_and_score_completions(inputs)
        if not self.model.training:
            return found
        self._count_last()
        keys, verdicts = self._judged
        given = [(key, verdict) for key, verdict in zip(keys, verdicts) if not math.isnan(verdict)]
        visits = self._successes.visits_of(count_visits((key, int(verdict >= RIGHT), 1) for key, verdict in given))
        self._last = visits
        success = np.array([visits[key].success or 0.0 if key in visits else 0.0 for key in keys])
        weights = focal_weights(success, self._focal_gamma)
        logged = self._logs["advantages"]  # the last of them are this batch's
        logged.extend([weight * advantage for weight, advantage in zip(weights, list(logged)[-len(weights) :])])
        self._metrics["train"]["focal/weight"].append(float(weights.mean()))
        own = self.accelerator.process_index * len(inputs)
        advantages = found["advantages"]
        return {**found, "advantages": advantages * advantages.new_tensor(weights[own : own + len(inputs)])}

    def _count_last(self) -> None:
        self._successes.add(self._last)
        self._last = {}

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self._step % (self.args.steps_per_generation * self.num_iterations) == 0:
            self._count_last()
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            write_atomically(folder / SUCCESSES, self._successes.to_json().encode())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            path = Path(checkpoint) / SUCCESSES
            if not path.exists():
                raise ValueError(f"{path}: not found, so this is no checkpoint of FocalGRPOTrainer.")
            self._successes = Successes.from_json(read_file(path, MOST_TEXT), self._successes.decay)


def _key(prompt: str | list[dict[str, Any]]) -> str:
    """Return the prompt's key; a conversation is a prompt by its messages."""
    return prompt_key(prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True))
