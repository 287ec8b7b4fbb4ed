"""Lay out another trainer's rollouts as a run folder: log, memory and settings, which every tool of ours reads.

A step is done when its log is written. Run the command again to append the steps that were logged since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.config.loader import RunConfig, load_config
from meds_openrlhf.dumps.answers import COLUMN, STYLES, name_of, style_of
from meds_openrlhf.dumps.formats import Rollout
from meds_openrlhf.dumps.scores import Scores
from meds_openrlhf.features.final_answer import answer_rows
from meds_openrlhf.features.kind import Feature
from meds_openrlhf.files import write_atomically
from meds_openrlhf.locks import FolderInUseError, lock_folder
from meds_openrlhf.memory.rows import Sharding, make_rows, prompt_key
from meds_openrlhf.memory.sets import UNASSIGNED
from meds_openrlhf.memory.shard import MemoryShard, ShardSettings
from meds_openrlhf.memory.snapshot import MemoryFormat, read_format, rewrite_memory, write_format
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.log import read_step, rollout_table, write_rollouts
from meds_openrlhf.rollouts.texts import ResponseText
from meds_openrlhf.runs.settings import ANSWERS_FROM
from meds_openrlhf.step_log import StepLog

ENOUGH = 1_000  # rollouts at the beginning in which final answers are looked for in several ways


@dataclass
class Filled:
    """What became of the rollouts; a wrong one without a fingerprint is only in the log.

    ``answered`` have a final answer, found ``where``.
    """

    where: str = ""
    answered: int = 0
    right: int = 0
    remembered: int = 0
    without_answer: int = 0
    too_long: int = 0
    prompts: set[str] = field(default_factory=set)
    wrong_prompts: set[str] = field(default_factory=set)
    scores: Scores = field(default_factory=Scores)


class RunFolder:
    """The folder ``root``, for rollouts that are right from the reward ``right_from`` up.

    ``fingerprints`` is `dumps.fingerprints.Fingerprints`, or None: wrong rollouts with the same final answer are then
    the same mistake. Without ``config.meds.features.answer_pattern``, answers are looked for where most responses of
    the first steps have one, and later steps' in the same place; ``by_column`` are the trainer's own.

    Raises ConfigError if the folder holds something else.
    """

    def __init__(
        self, root: Path, config: RunConfig, fingerprints: Any, right_from: float, by_column: bool = False
    ) -> None:
        self._paths = RunPaths(root)
        self._fingerprints = fingerprints
        self._right_from = right_from
        self._settle(_with_answers(config, COLUMN) if by_column else config)
        self._require_own()
        self._shard: MemoryShard | None = None
        self._lock: BinaryIO | None = None
        self._metrics = StepLog(self._paths.metrics)
        self._lines: dict[int, dict[str, Any]] = {}
        self.filled = Filled()

    def add(self, steps: Iterable[tuple[int, Sequence[Rollout]]]) -> Iterator[int]:
        """Add each (step, rollouts), unless the folder has it, and yield its number of rollouts.

        Raises ConfigError if the folder has other rollouts of that step.
        """
        steps, first = iter(steps), []
        for step, rollouts in steps:
            first.append((step, rollouts))
            if sum(len(rollouts) for _, rollouts in first) >= ENOUGH:
                break
        if first:
            self._begin([rollout for _, rollouts in first for rollout in rollouts])
        for step, rollouts in chain(first, steps):
            table = read_step(self._paths, step)
            if table is None:
                table = self._added(step, rollouts)
            else:
                self._require_same(step, rollouts, table)
            self._count(table, self._lines[step])
            yield len(rollouts)

    def close(self) -> None:
        """Release the folder."""
        if self._shard is not None:
            self._shard.close()
        if self._lock is not None:
            self._lock.close()

    def _begin(self, rollouts: Sequence[Rollout]) -> None:
        if self._fingerprints is not None:
            self._fingerprints.require_fit(rollouts)
        self._paths.root.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = lock_folder(self._paths.lock, 0.0)
        except FolderInUseError as error:
            raise ConfigError("--out", str(self._paths.root), str(error)) from error
        if not self._paths.config.exists() and not self._knows_answers:
            style = style_of(rollouts, self._fingerprints is None)
            self._settle(_with_answers(self._config, STYLES.get(style, COLUMN)))
        self._require_own()  # once more: another process may have filled it meanwhile
        if self._fingerprints is not None:
            self._fingerprints.find_answers(self._config.meds.features.answer_pattern)
        self.filled.where = name_of(self._config.meds.features.answer_pattern, self._by_column)
        self._lines = {line["step"]: line for line in self._metrics.read()}
        if not self._paths.config.exists():
            write_atomically(self._paths.config, self._config.as_yaml())

    def _settle(self, config: RunConfig) -> None:
        """Take over the settings, and what follows from them."""
        self._config = config
        feature = Feature.of(config.meds, None if self._fingerprints is None else self._fingerprints.config)
        self._format = MemoryFormat.of(config.meds, feature)

    @property
    def _by_column(self) -> bool:
        return ANSWERS_FROM in self._config.openrlhf

    @property
    def _knows_answers(self) -> bool:
        """Whether it is said where answers are."""
        return self._by_column or self._config.meds.features.answer_pattern is not None

    def _response_of(self, rollout: Rollout) -> ResponseText:
        if not self._by_column:
            return ResponseText.of(rollout.response, self._config.meds.features.answer_pattern)
        start = rollout.response.rfind(rollout.answer) if rollout.answer is not None else -1
        return ResponseText(rollout.response, rollout.answer, start if start >= 0 else None)

    def _added(self, step: int, rollouts: Sequence[Rollout]) -> pa.Table:
        """Put a step into the memory, then into the metrics, last into the log."""
        right = np.array([rollout.reward >= self._right_from for rollout in rollouts])
        responses = [self._response_of(rollout) for rollout in rollouts]
        keys = [prompt_key(rollout.prompt) for rollout in rollouts]
        wrong = np.flatnonzero(~right)
        answers = [responses[row].answer for row in wrong]
        place, features, too_long = self._features_of([rollouts[row] for row in wrong], answers)
        sample = wrong[place]
        label, size = np.full(len(rollouts), UNASSIGNED, np.int32), np.zeros(len(rollouts), np.int32)
        if len(sample):
            rows = make_rows(sample, [keys[row] for row in sample], right[sample], features)
            answer = self._memory().observe(step, rows)
            self._require(set(answer.sample.tolist()) == set(sample.tolist()), step)
            label[answer.sample], size[answer.sample] = answer.label, answer.size
        reward = np.array([rollout.reward for rollout in rollouts], np.float32)
        if step not in self._lines:
            self._lines[step] = {
                "step": step,
                "rollout/num_samples": len(rollouts),
                "rollout/reward_mean": float(reward.mean()),
                "rollout/without_answer": len(wrong) - len(sample) - too_long,
                "rollout/too_long": too_long,
                "meds/accuracy": float(right.mean()),
                "meds/rows_step": len(sample),
            }
            self._metrics.append(step, self._lines[step])
        table = rollout_table(
            step,
            responses,
            prompt=keys,
            prompt_text=[rollout.prompt for rollout in rollouts],
            ground_truth=[rollout.truth for rollout in rollouts],
            correct=right,
            reward=reward,
            shaped_reward=reward,
            label=label,
            cluster_size=size,
            tokens=np.zeros(len(rollouts), np.int32),  # unknown
            truncated=np.zeros(len(rollouts), bool),
        )
        write_rollouts(self._paths, table)
        return table

    def _features_of(
        self, rollouts: Sequence[Rollout], answers: Sequence[str | None]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], int]:
        """The indices (m,) of wrong rollouts with a feature, the memory's rows (m, d), and how many were too long."""
        if self._fingerprints is not None:
            return self._fingerprints.of(rollouts)  # type: ignore[no-any-return]
        rows = answer_rows(answers)
        place = np.flatnonzero(~np.isnan(rows[:, 0]))
        return place, rows[place], 0

    def _require_same(self, step: int, rollouts: Sequence[Rollout], table: pa.Table) -> None:
        """Raise ConfigError unless the folder's rollouts of ``step`` are these."""
        names = ("prompt_text", "response", "reward", "ground_truth")
        stored = zip(*(table.column(name).to_pylist() for name in names))
        given = [(each.prompt, each.response, float(np.float32(each.reward)), each.truth) for each in rollouts]
        self._require(step in self._lines and list(stored) == given, step)

    def _require(self, same: bool, step: int) -> None:
        if not same:
            hint = f"contains other rollouts of step {step}, or other right answers, perhaps of a partly written dump. "
            raise ConfigError("--out", str(self._paths.root), f"{hint}Name another folder.")

    def _count(self, table: pa.Table, line: Mapping[str, Any]) -> None:
        correct, keys = table.column("correct").to_numpy(), np.array(table.column("prompt").to_pylist())
        answers, truths = table.column("answer").to_pylist(), table.column("ground_truth").to_pylist()
        filled = self.filled
        filled.answered += sum(answer is not None for answer in answers)
        filled.scores.add(table.column("reward").to_pylist(), answers, truths)
        filled.right += int(correct.sum())
        filled.remembered += line["meds/rows_step"]
        filled.without_answer += line["rollout/without_answer"]
        filled.too_long += line["rollout/too_long"]
        filled.prompts.update(keys)
        filled.wrong_prompts.update(keys[~correct])

    def _require_own(self) -> None:
        """Raise ConfigError unless the folder is new, empty, or made by this with these settings."""
        root = self._paths.root
        if not root.exists() or (root.is_dir() and {path.name for path in root.iterdir()} <= {self._paths.lock.name}):
            return
        if not root.is_dir():
            raise ConfigError("--out", str(root), "is a file. Name a folder.")
        stored_config = load_config(self._paths.config) if self._paths.config.is_file() else None
        if stored_config is not None and not self._knows_answers:
            by_column, pattern = ANSWERS_FROM in stored_config.openrlhf, stored_config.meds.features.answer_pattern
            self._settle(_with_answers(self._config, COLUMN if by_column else pattern))
        if stored_config != self._config:
            hint = "has other files, or an atlas with other settings. Name another folder."
            raise ConfigError("--out", str(root), hint)
        stored = read_format(self._paths.memory)
        if stored is not None:
            stored.require_match(self._format, root, "--out")

    def _memory(self) -> MemoryShard:
        """The memory; made when the first wrong rollouts come."""
        if self._shard is None:
            meds, memory = self._config.meds, self._paths.memory
            rewrite_memory(memory, self._format)
            write_format(memory, self._format)
            self._shard = MemoryShard(memory, Sharding(0, 1), ShardSettings.of(meds, self._format.layers))
        return self._shard


def _with_answers(config: RunConfig, where: str | None) -> RunConfig:
    """The settings with the answers' pattern, None for boxes, or `COLUMN`."""
    if where == COLUMN:
        return replace(config, openrlhf={**config.openrlhf, ANSWERS_FROM: COLUMN})
    features = replace(config.meds.features, answer_pattern=where)
    return replace(config, meds=replace(config.meds, features=features))
