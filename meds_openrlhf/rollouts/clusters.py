"""Every remembered rollout with its current cluster, ordered by prompt.

Clusters come from clustering all current rows of a prompt with the run's settings. The labels in the logs do not
identify clusters: a prompt's clusters are renumbered each time that the prompt is clustered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meds_openrlhf.config.loader import RunConfig
from meds_openrlhf.features.final_answer import form_codes
from meds_openrlhf.features.kind import Kind
from meds_openrlhf.memory.sets import NOISE
from meds_openrlhf.memory.stored import StoredMemory
from meds_openrlhf.rollouts.run import NONE, RolloutLog


@dataclass(frozen=True)
class PromptLogits:
    """The n rows of a prompt: the stored logits (n, N), and the features (n, d) used for clustering."""

    logits: NDArray[np.float32]
    features: NDArray[np.float64]


@dataclass(frozen=True)
class ClusteredRows:
    """Prompt i has the rows ``offsets[i]:offsets[i + 1]`` of n: wrong rows oldest first, then right rows.

    ``label`` (n,) numbers a prompt's clusters from 0, each of a single verdict; or it is NOISE. ``step`` is numbered as
    in the run's metrics.
    ``logits`` reads the rows of prompt i, and is None if rows have no logits; ``compared`` (N,) marks the layers that
    are clustered.
    """

    prompts: list[str]
    offsets: NDArray[np.int64]  # (p + 1,)
    step: NDArray[np.int64]  # (n,)
    sample: NDArray[np.int64]  # (n,)
    correct: NDArray[np.bool_]  # (n,)
    label: NDArray[np.int64]  # (n,)
    basis: str
    logits: Callable[[int], PromptLogits] | None = None
    compared: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.step)

    def of(self, prompt: int) -> slice:
        """Where the rows of prompt ``prompt`` are."""
        return slice(int(self.offsets[prompt]), int(self.offsets[prompt + 1]))

    @property
    def prompt(self) -> NDArray[np.int64]:
        """The index (n,) of each row's prompt."""
        return np.repeat(np.arange(len(self.prompts)), np.diff(self.offsets))


def rows_of_memory(memory: StoredMemory, config: RunConfig | None) -> ClusteredRows:
    """Cluster all stored rows with the run's settings, or with the preset "paper" if ``config`` is None.

    Raises MemoryCorruptionError if a segment is damaged.
    """
    meds = config.meds if config is not None else memory.settings()
    stored = memory.load(meds)
    history = stored.history
    keys = sorted({prompt for prompt, _ in history.groups})
    groups = history.find([(key, correct) for key in keys for correct in (False, True)])
    selection = history.select(groups)
    numbers, offsets = selection.rows, selection.offsets
    correct = np.repeat(np.arange(len(groups)) % 2 == 1, np.diff(offsets))
    label = history.labels[numbers].astype(np.int64)
    basis = f"clustered by the run's settings (preset {meds.memory.preset})"
    rows = ClusteredRows(
        prompts=keys,
        offsets=offsets[::2].copy(),
        step=stored.step[numbers].astype(np.int64),
        sample=stored.sample[numbers].astype(np.int64),
        correct=correct,
        label=np.where(label >= 0, 2 * label + correct, label),  # keep wrong and right clusters distinct
        basis=basis if config is not None else "clustered by the preset paper: the folder has no config.yaml",
    )
    if memory.format.kind is not Kind.LAYER_LOGITS:
        return rows

    def logits(prompt: int) -> PromptLogits:
        of_prompt = numbers[rows.of(prompt)]
        return PromptLogits(stored.logits[of_prompt], history.features[of_prompt])

    compared = memory.transform(meds).compared(memory.format.layers)
    return replace(rows, logits=logits, compared=compared)


def rows_of_log(log: RolloutLog) -> ClusteredRows:
    """For a run without a memory: the logged wrong rollouts. Equal answers form a cluster; single answers are noise."""
    wrong = np.flatnonzero(~log.correct & (log.answer != NONE))
    wrong = wrong[np.argsort(log.prompt[wrong], kind="stable")]
    numbers, prompt = np.unique(log.prompt[wrong], return_inverse=True)
    form = form_codes(log.answers)
    pairs = prompt * len(form) + form[log.answer[wrong]]
    _, pair, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    return ClusteredRows(
        prompts=[log.prompts[number] for number in numbers.tolist()],
        offsets=np.searchsorted(prompt, np.arange(len(numbers) + 1)),
        step=log.step[wrong],
        sample=log.sample[wrong],
        correct=np.zeros(len(wrong), bool),
        label=np.where(counts[pair] > 1, pair, NOISE),
        basis="the run has no memory; equal wrong answers are grouped",
    )
