"""Names of all files on disk, in a run folder with this layout. A name that leads out of the folder is refused.

runs/NAME/
  config.yaml                           the resolved configuration
  metrics.jsonl                         one line of metrics per training step
  evaluations.jsonl                     one line of metrics per evaluation during training, if there are any
  clusters.jsonl                        one line per step: sizes of its rollouts' clusters, and the biggest clusters
  rollouts/000050.arrow                 the rollouts of step 50: texts, answers, rewards, labels, penalties
  checkpoints/_actor/global_step50/     OpenRLHF / DeepSpeed
  checkpoints/complete/global_step50    marker, written last: the step, and all files of the checkpoint with sizes
  checkpoints/diversity/global_step50.npz  moments for the eigen ratios; only with a memory of layer logits
  memory/format.json                    format of the rows: format version, shard count, model fingerprint
  memory/shard-0003/000051.arrow        rows of step 51, an Arrow IPC stream
  memory/shard-0003/000001-000050.arrow rows of the steps up to a checkpoint
  memory/shard-0003/aside/              files that others replace, or of steps that a resumed run repeats
  memory/shard-0003/.lock               locked by the process that writes here
  memory/snapshots/global_step50.json   manifest of a checkpoint's memory; committed by rename
  memory-before/                        the memory while it is rewritten for another number of shards
  model/                                the trained policy, Hugging Face format
  tokenizer.json                        the policy's, with which texts of rollouts are decoded
  report.html                           curves and the atlas of errors, from `meds report`
  tracking.json, tracking.log           the run's id at the trackers; errors of sending
  wandb/, swanlab/, tensorboard/        files of W&B, SwanLab and TensorBoard
  .lock, .tracking-*.lock               locks of the processes that write here and that send to a tracker
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath

from meds_openrlhf.config.errors import ConfigError

MOST_STEPS = 10**9  # which names of nine digits can tell apart
_STEP = r"([0-9]{6}|[1-9][0-9]{6,8})"
STEPS_NAME = re.compile(rf"{_STEP}(?:-{_STEP})?\.arrow")
ROLLOUTS_NAME = re.compile(rf"{_STEP}\.arrow")
BEST = "best_"
TAG = re.compile(rf"({BEST})?global_step[0-9]{{1,9}}")  # of a checkpoint, as `tag_of` makes it
SHARD_NAME = re.compile(r"shard-([0-9]{4}|[1-9][0-9]{4,8})")
# The last file that OpenRLHF writes into a model's folder, after the weights.
MODEL_WRITTEN = "tokenizer_config.json"
SNAPSHOT_NAME = re.compile(r"[A-Za-z0-9_]{1,128}")


def leads_out(root: Path, name: str | PurePath) -> bool:
    """Whether ``root / name`` is outside of ``root``, through a link, ``..`` or an absolute path."""
    place, parts = os.fspath(root), PurePath(name).parts
    if ".." not in parts and not os.path.isabs(name):
        paths = [os.path.join(place, *parts[: count + 1]) for count in range(len(parts))]
        if not any(os.path.islink(path) for path in paths):
            return False
    real = os.path.realpath(place)
    return os.path.commonpath([real, os.path.realpath(os.path.join(place, name))]) != real


def inside(root: Path, name: str | PurePath, field: str = "RUN") -> Path:
    """Return ``root / name``. Raises ConfigError, about ``field``, if it is outside of ``root``."""
    if leads_out(root, name):
        hint = "leads out of the folder, where nothing is read or written. A link to the whole folder is followed."
        raise ConfigError(field, str(root / name), hint)
    return root / name


def entries_of(root: Path, folder: Path) -> list[Path]:
    """Return the entries of a ``folder`` in ``root`` by name, none if it does not exist; raises like `inside`."""
    below = folder.relative_to(root)
    if not inside(root, below).is_dir():
        return []
    with os.scandir(folder) as entries:
        found = sorted((entry.name, entry.is_symlink()) for entry in entries)
    return [inside(root, below / name) if is_link else folder / name for name, is_link in found]


def tag_of(step: int, best: bool = False) -> str:
    """Return the name of a step's checkpoint, or of the one that is kept because its evaluation was the best."""
    return f"{BEST * best}global_step{step}"


def as_folder_name(name: str) -> str:
    """Return a name that a user or a run's file gives, as the name of one folder."""
    plain = re.sub(r"[/\x00-\x1f\x7f]|^\.+$", "_", name)[:128]
    return plain or "_"


class Below:
    """A file or folder with a fixed name below the ``root`` of `RunPaths` or `MemoryPaths`; raises like `inside`.

    One that `files.open_own` opens, which follows no link, needs not be ``checked``.
    """

    def __init__(self, name: str, *, checked: bool = True) -> None:
        self.name, self._checked = name, checked

    def __get__(self, paths: RunPaths | MemoryPaths, _owner: object) -> Path:
        return inside(paths.root, self.name) if self._checked else paths.root / self.name


@dataclass(frozen=True)
class RunPaths:
    """The files of one run, below ``root``: ``config``, ``metrics``, ``evaluations``, ``checkpoints``, ``model`` ..."""

    root: Path

    config = Below("config.yaml")
    planned_steps = Below("planned_steps")  # how many the run will have, if no prompt is filtered out
    metrics = Below("metrics.jsonl")
    evaluations = Below("evaluations.jsonl")
    clusters = Below("clusters.jsonl")
    rollouts_folder = Below("rollouts")
    checkpoints = Below("checkpoints")  # OpenRLHF's ``ckpt.path``
    policy_checkpoints = Below("checkpoints/_actor")
    complete = Below("checkpoints/complete")
    diversity_folder = Below("checkpoints/diversity")
    model = Below("model")  # OpenRLHF's ``ckpt.output_dir``
    model_complete = Below(f"model/{MODEL_WRITTEN}")
    tokenizer = Below("tokenizer.json")
    report = Below("report.html")
    tracking = Below("tracking.json")
    tracking_log = Below("tracking.log", checked=False)  # where it cannot be written, a run goes on
    wandb = Below("wandb")
    swanlab = Below("swanlab")
    tensorboard = Below("tensorboard")  # unless ``logger.tensorboard_dir`` names another folder
    lock = Below(".lock")  # of the run's driver, so that two drivers never write to the same folder

    @property
    def memory(self) -> MemoryPaths:
        """The files of the run's memory."""
        return MemoryPaths(inside(self.root, "memory"))

    def owns(self, path: Path) -> bool:
        """Whether this folder is a run's, and ``path`` below it has a name of this layout; reports may be replaced."""
        beside = ("metrics.jsonl", "memory", "rollouts", ".lock")
        if not (self.root / "config.yaml").is_file() or not any((self.root / name).exists() for name in beside):
            return False
        first = path.relative_to(self.root).parts[0]
        return first != "report.html" and (first in _RUN_NAMES or first.startswith("."))

    def tracking_lock(self, package: str) -> Path:
        """Return the lock of the process that sends the run to a tracker."""
        return inside(self.root, f".tracking-{package}.lock")

    def rollouts(self, step: int) -> Path:
        """Return the file with the rollouts of a step."""
        return inside(self.root, f"rollouts/{step:06d}.arrow")

    def rollout_steps(self) -> list[int]:
        """Return the steps whose rollouts are stored, in ascending order."""
        if not self.rollouts_folder.is_dir():
            return []
        return sorted(int(path.stem) for path in self.rollouts_folder.iterdir() if ROLLOUTS_NAME.fullmatch(path.name))

    def diversity(self, tag: str) -> Path:
        """Return the moments file of a checkpoint. Raises ValueError for a tag that could leave the folder."""
        return inside(self.root, f"checkpoints/diversity/{_snapshot_name(tag)}.npz")

    def markers(self) -> list[Path]:
        """Return the markers of complete checkpoints."""
        return [entry for entry in entries_of(self.root, self.complete) if TAG.fullmatch(entry.name)]


_RUN_NAMES = {below.name.partition("/")[0] for below in vars(RunPaths).values() if isinstance(below, Below)}
_RUN_NAMES |= {"memory", "memory-before"}


@dataclass(frozen=True)
class MemoryPaths:
    """The files of one memory, below ``root``: ``format``, ``snapshots``, and a folder for each shard."""

    root: Path

    format = Below("format.json")
    snapshots = Below("snapshots")

    @property
    def before(self) -> MemoryPaths:
        """The files of this memory while it is rewritten, in another format or for another number of shards."""
        return MemoryPaths(inside(self.root.parent, f"{self.root.name}-before"))

    def owns(self, path: Path) -> bool:
        """Whether this folder is a memory, so that all below it belongs to it."""
        return self.root in path.parents and (self.root / "format.json").is_file() and bool(self.shard_folders())

    def shard(self, index: int) -> Path:
        """Return the folder of a shard's files."""
        return inside(self.root, f"shard-{index:04d}")

    def shard_folders(self) -> dict[int, Path]:
        """Return the existing folders of shards, by number."""
        found = {SHARD_NAME.fullmatch(entry.name): entry for entry in entries_of(self.root, self.root)}
        return {int(match.group(1)): entry for match, entry in found.items() if match and entry.is_dir()}

    def snapshot(self, name: str) -> Path:
        """Return the manifest of a snapshot. Raises ValueError for a name that could leave the folder."""
        return inside(self.root, f"snapshots/{_snapshot_name(name)}.json")

    def manifests(self) -> list[Path]:
        """Return the manifests of the snapshots, step 5 before step 10."""
        entries = entries_of(self.root, self.snapshots)
        found = [entry for entry in entries if entry.suffix == ".json" and SNAPSHOT_NAME.fullmatch(entry.stem)]
        return sorted(found, key=lambda path: (len(path.stem), path.stem))


def _snapshot_name(name: str) -> str:
    if not SNAPSHOT_NAME.fullmatch(name):
        raise ValueError(f"snapshot name: {name!r} may contain only letters, digits and underscores.")
    return name


@dataclass(frozen=True)
class StepFile:
    """A file of a shard with the rows of one step, or of all steps from ``first`` to ``last``."""

    path: Path
    first: int
    last: int


def steps_name(first: int, last: int) -> str:
    """Return the name of the file with the rows of some steps: ``000050.arrow``, or ``000001-000050.arrow``."""
    return f"{first:06d}.arrow" if first == last else f"{first:06d}-{last:06d}.arrow"


def step_files(folder: Path) -> tuple[list[StepFile], list[Path]]:
    """Return a shard's files in the order of their steps, and its files whose steps are in one of those too.

    The latter are left over if a process ends between writing a merged file and removing its parts.
    """
    found = []
    for entry in entries_of(folder.parent, folder):
        match = STEPS_NAME.fullmatch(entry.name)
        if match:
            found.append(StepFile(entry, int(match[1]), int(match[2] or match[1])))
    found.sort(key=lambda file: (file.first, -file.last))
    kept: list[StepFile] = []
    covered = []
    for file in found:
        if kept and file.last <= kept[-1].last:
            covered.append(file.path)
        else:
            kept.append(file)
    return kept, covered
