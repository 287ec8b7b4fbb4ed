"""`meds memory`: inspect a run's memory, verify it, and replay it with other settings."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.config import ConfigError, MedsSettings
from meds_openrlhf.config.loader import parse_overrides

if TYPE_CHECKING:
    from meds_openrlhf.memory.replay import Recording, ReplaySummary
    from meds_openrlhf.memory.stored import Overview

RUN_HELP = "a run's folder, or a memory's (the one with format.json); the run may be going on"
PRESET_HELP = "cluster as paper, reference or robust does (default: as the run itself)"
TEXT_WIDTH = 80  # characters of a prompt's beginning


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "memory",
        help="look into a run's memory of past errors",
        description="Look into a run's memory of past errors, prove it sound, or try other settings on it "
        "without training. Nothing is changed, and the run may be going on.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_inspect(actions)
    _add_verify(actions)
    _add_replay(actions)


def _add_action(actions: Any, action: Callable[..., int], summary: str, description: str) -> argparse.ArgumentParser:
    """The parser of an action on one RUN, named after the function that carries it out."""
    parser: argparse.ArgumentParser = actions.add_parser(action.__name__, help=summary, description=description)
    parser.add_argument("folder", metavar="RUN", type=Path, help=RUN_HELP)
    parser.set_defaults(run=action, takes_overrides=False)
    return parser


def _add_inspect(actions: Any) -> None:
    parser = _add_action(
        actions,
        inspect,
        "what is remembered, and which errors come back most",
        "Say how much is remembered, cluster all prompts, and list the biggest clusters: the errors that "
        "the policy keeps making.",
    )
    parser.add_argument("--top", type=int, default=10, metavar="K", help="clusters to list (%(default)s)")
    parser.add_argument("--preset", help=PRESET_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def _add_verify(actions: Any) -> None:
    _add_action(
        actions,
        verify,
        "whether every file is what was written",
        "Read everything and compare checksums, counts and snapshots. One line for each fault; the "
        "exit code is 1 if there is damage, 0 if all is sound.",
    )


def _add_replay(actions: Any) -> None:
    parser = actions.add_parser(
        "replay",
        help="what other settings would have penalized",
        description="Feed recorded rollouts through any settings and write the cluster, its size and the penalty of "
        "each: alpha, beta, layers and presets tried in minutes, without training. Settings are those of the run, or "
        "the defaults for a file; change them as --meds.memory.X V, --meds.penalty.X V, --meds.features.X V.",
    )
    parser.add_argument(
        "source",
        metavar="STREAM|RUN",
        type=Path,
        help="an Arrow file with the columns step, prompt_key, correct and layer_logits, or a run's folder",
    )
    parser.add_argument("--preset", help=PRESET_HELP)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="Arrow file to write")
    parser.set_defaults(run=replay, takes_overrides=True)


# ── actions ──


def inspect(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Print what a memory holds."""
    from meds_openrlhf.data.prompt_texts import texts_of_data_set, without_template
    from meds_openrlhf.memory.stored import open_memory, survey
    from meds_openrlhf.paths import RunPaths
    from meds_openrlhf.report.rollout_rows import read_rollout_rows
    from meds_openrlhf.report.settings import config_of

    if arguments.top < 0:
        raise ConfigError("--top", arguments.top, "is below 0; name how many clusters to list")
    memory = open_memory(arguments.folder)
    settings = memory.settings(_changed(arguments.preset, []))
    overview = survey(memory, settings, arguments.top)
    texts = texts_of_data_set(None if memory.run is None else config_of(memory.run))
    texts = texts or read_rollout_rows(RunPaths(arguments.folder)).prompt_texts
    if arguments.json:
        content = asdict(overview)
        for cluster in content["biggest"]:
            cluster["text"] = texts.get(cluster["prompt"])
        print(json.dumps(content, indent=2))
    else:
        print(_as_text(overview, without_template(texts), settings.memory.preset))
    return 0


def verify(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Print the findings; returns 1 if any of them is damage."""
    from meds_openrlhf.memory.stored import open_memory, verify_memory

    report = verify_memory(open_memory(arguments.folder))
    for line in report.damage:
        print(f"damage: {line}")
    verdict = f"{len(report.damage)} damaged" if report.damage else "sound"
    print(f"{report.rows} rows, {report.snapshots} snapshots: {verdict}")
    return 1 if report.damage else 0


def replay(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Write the replayed rows and print a summary."""
    from meds_openrlhf.memory.replay import replay as replay_rows

    _require_replayable(overrides)
    source, target = arguments.source, arguments.out
    recording, settings = _recording(source, target, arguments.preset, overrides)
    summary = replay_rows(recording, settings, target)
    print(_as_lines(summary, target))
    return 0


# ── settings ──


def _recording(source: Path, target: Path, preset: str | None, overrides: list[str]) -> tuple[Recording, MedsSettings]:
    """The rows of a file or a run's folder, and the settings for their replay. ``target`` must not be the input."""
    from meds_openrlhf.files import refuse_inside
    from meds_openrlhf.memory.replay import read_recording, recording_of
    from meds_openrlhf.memory.stored import open_memory, settings_with

    if source.is_dir():
        memory = open_memory(source)
        refuse_inside(target, memory.paths.root)
        meds = memory.settings(_changed(preset, overrides))
        memory.transform(meds)  # raises ConfigError if they do not match
        return recording_of(memory), meds
    if target.exists() and source.exists() and target.samefile(source):
        raise ConfigError("--out", str(target), "is the file that is replayed; name another one")
    return read_recording(source), settings_with(_changed(preset, overrides))


def _require_replayable(overrides: list[str]) -> None:
    """Raise ConfigError for a setting that replay cannot change because it took effect during recording."""
    from meds_openrlhf.config.method import OVERRIDES
    from meds_openrlhf.memory.stored import FEATURE_SETTINGS

    replayed = {
        "meds.features": FEATURE_SETTINGS,
        "meds.memory": ("remember", "preset", *OVERRIDES),
        "meds.penalty": ("alpha", "beta"),
    }
    known = [f"{section}.{name}" for section, names in replayed.items() for name in names]
    for key, value in parse_overrides(overrides).items():
        if key not in known:
            hint = f"cannot be changed for rollouts that are recorded already; what can: {', '.join(known)}"
            raise ConfigError(key, value, hint)


def _changed(preset: str | None, overrides: list[str]) -> dict[str, Any]:
    """The changed settings by full name."""
    return {**({} if preset is None else {"meds.memory.preset": preset}), **parse_overrides(overrides)}


# ── printing ──


def _as_text(overview: Overview, texts: dict[str, str], preset: str) -> str:
    rows = overview.wrong + overview.right
    steps = f", from {overview.first_step} to {overview.last_step}" if overview.steps else ""
    lines = [
        f"prompts    {overview.prompts}",
        f"rows       {rows} ({overview.wrong} wrong, {overview.right} right)",
        f"steps      {overview.steps}{steps}",
        f"files      {overview.files}, {overview.bytes / 1e6:.1f} MB",
        f"snapshots  {', '.join(overview.snapshots) or 'none'}",
        f"clusters   {overview.clusters} by preset {preset}; {overview.noise} rows in none",
    ]
    if overview.biggest:
        lines += ["", f"{'size':>6} {'share':>6}  {'steps':<11} {'verdict':<8} prompt"]
    for cluster in overview.biggest:
        text = " ".join(texts.get(cluster.prompt, "").split())
        name = f"{cluster.prompt}  {text if len(text) <= TEXT_WIDTH else text[: TEXT_WIDTH - 1] + '…'}".rstrip()
        verdict, span = "right" if cluster.correct else "wrong", f"{cluster.first_step}-{cluster.last_step}"
        lines.append(f"{cluster.size:>6} {cluster.share:>6.0%}  {span:<11} {verdict:<8} {name}")
    return "\n".join(lines)


def _as_lines(summary: ReplaySummary, target: Path) -> str:
    rows = max(summary.rows, 1)
    lines = [
        f"rows       {summary.rows}, of which {summary.remembered} were remembered and {summary.assigned} labelled",
        f"penalized  {summary.penalized} ({summary.penalized / rows:.1%} of all rows)",
        f"penalty    {summary.penalty / rows:.4f} on average over all rows",
        f"clusters   {summary.clusters} in the end; {summary.noise} rows in none",
        f"written    {target}",
    ]
    if summary.broken:
        lines.insert(1, f"not finite {summary.broken} rows with NaN or infinite logits, which count as having none")
    return "\n".join(lines)
