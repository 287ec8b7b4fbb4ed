"""`meds memory`: inspect a run's memory, verify it, and replay it with other settings."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meds_openrlhf.config import ConfigError, MedsSettings
from meds_openrlhf.config.loader import parse_overrides
from meds_openrlhf.options import add_command
from meds_openrlhf.terminal import aligned, in_a_line

if TYPE_CHECKING:
    from meds_openrlhf.memory.stored import Overview
    from meds_openrlhf.tools.replay import Recording, ReplaySummary

RUN_HELP = "folder of a run, or of a memory (which contains format.json); the run may still be training"
PRESET_HELP = "clustering preset: paper, reference or robust (default: the run's{})"
TEXT_WIDTH = 80  # characters of a prompt's beginning


def add_parser(subparsers: Any) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "memory",
        help="look into a run's memory of past errors",
        description="Look into a run's memory of past errors, verify its files, or try other settings on it without "
        "training. No command changes the memory, and the run may still be training.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    parser = add_command(actions, "inspect", inspect, inspect.__doc__)
    parser.add_argument("folder", metavar="RUN", type=Path, help=RUN_HELP)
    parser.add_argument("--top", type=int, default=10, metavar="K", help="clusters to list (default: %(default)s)")
    parser.add_argument("--preset", help=PRESET_HELP.format(""))
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser = add_command(actions, "verify", verify, verify.__doc__)
    parser.add_argument("folder", metavar="RUN", type=Path, help=RUN_HELP)
    parser = add_command(actions, "replay", replay, replay.__doc__, takes_overrides=True)
    source = "an Arrow file with the columns step, prompt_key, correct and layer_logits, or a run's folder"
    parser.add_argument("source", metavar="FILE|RUN", type=Path, help=source)
    parser.add_argument("--preset", help=PRESET_HELP.format("; `paper` for a file"))
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="Arrow file to write")


def inspect(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Show what is remembered, and which errors recur most.

    Show how much is remembered, cluster all prompts, and list the biggest clusters: the errors that the policy repeats.
    """
    from meds_openrlhf.data.prompt_texts import texts_of_data_set, without_template
    from meds_openrlhf.memory.stored import open_memory, survey
    from meds_openrlhf.paths import RunPaths
    from meds_openrlhf.rollouts.run import read_log
    from meds_openrlhf.runs.settings import config_of

    if arguments.top < 0:
        raise ConfigError("--top", arguments.top, "must be at least 0.")
    memory = open_memory(arguments.folder)
    settings = memory.settings(_changed(arguments.preset, []))
    overview = survey(memory, settings, arguments.top)
    texts = texts_of_data_set(None if memory.run is None else config_of(memory.run))
    texts = texts or read_log(memory.run or RunPaths(arguments.folder)).prompt_texts
    if arguments.json:
        content = asdict(overview)
        for cluster in content["biggest"]:
            cluster["text"] = texts.get(cluster["prompt"])
        print(json.dumps(content, indent=2))
    else:
        print(_as_text(overview, without_template(texts), settings.memory.preset))
    return 0


def verify(arguments: argparse.Namespace, _rest: list[str]) -> int:
    """Verify that no file is damaged.

    Read all files and compare checksums, counts and snapshots. Prints a line for each damaged file. Exit code 0: no
    file is damaged; 1: a file is damaged.
    """
    from meds_openrlhf.memory.stored import open_memory, verify_memory

    report = verify_memory(open_memory(arguments.folder))
    for line in report.damage:
        print(f"damage: {line}")
    verdict = f"{len(report.damage)} damaged" if report.damage else "sound"
    visits = f", {report.visits} visits" if report.visits else ""  # none in memories of earlier versions
    print(f"{report.rows} rows{visits}, {report.snapshots} snapshots: {verdict}")
    return 1 if report.damage else 0


def replay(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Compute what other settings would have penalized.

    Replay recorded rollouts with other settings, and write the cluster of each rollout, the cluster's size and the
    penalty: try alpha, beta, layers and presets in minutes, without training. The settings are the run's, or the
    defaults for a file. You can change meds.penalty.alpha and beta; meds.features.layers, difference and normalize;
    and meds.memory.remember, preset, min_cluster_size, assignment and noise, e.g. --meds.penalty.alpha 0.05.
    """
    from meds_openrlhf.tools.replay import replay as replay_rows

    changed = _changed(arguments.preset, overrides)
    _require_replayable(changed)
    recording, settings = _recording(arguments.source, arguments.out, changed)
    print(_summary(replay_rows(recording, settings, arguments.out), arguments.out))
    return 0


def _recording(source: Path, target: Path, changed: dict[str, Any]) -> tuple[Recording, MedsSettings]:
    """The rows of a file or a run's folder, and the settings for their replay. ``target`` must not be the input."""
    from meds_openrlhf.memory.stored import open_memory, settings_with
    from meds_openrlhf.outputs import require_output
    from meds_openrlhf.tools.replay import read_recording, recording_of

    require_output(target, "--out")
    if source.is_dir():
        memory = open_memory(source)
        meds = memory.settings(changed)
        memory.transform(meds)  # raises ConfigError if they do not match
        return recording_of(memory), meds
    if target.exists() and source.exists() and target.samefile(source):
        raise ConfigError("--out", target, "this is the file to replay. Name another file.")
    return read_recording(source), settings_with(changed)


def _require_replayable(changed: dict[str, Any]) -> None:
    """Raise ConfigError for a setting that replay cannot change because it took effect during recording."""
    from meds_openrlhf.config.method import OVERRIDES
    from meds_openrlhf.memory.stored import REPLAYABLE_FEATURES

    known = [f"meds.features.{name}" for name in REPLAYABLE_FEATURES]
    known += [f"meds.memory.{name}" for name in ("remember", "preset", *OVERRIDES)]
    known += ["meds.penalty.alpha", "meds.penalty.beta"]
    for key, value in changed.items():
        if key not in known:
            hint = f"cannot be changed for recorded rollouts. Change one of {', '.join(known)}."
            raise ConfigError(key, value, hint)


def _changed(preset: str | None, overrides: list[str]) -> dict[str, Any]:
    """The changed settings by full name."""
    return {**({} if preset is None else {"meds.memory.preset": preset}), **parse_overrides(overrides)}


def _as_text(overview: Overview, texts: dict[str, str], preset: str) -> str:
    rows = overview.wrong + overview.right
    steps = f", from {overview.first_step} to {overview.last_step}" if overview.steps else ""
    facts = {
        "prompts": overview.prompts,
        "rows": f"{rows} ({overview.wrong} wrong, {overview.right} right)",
        "steps": f"{overview.steps}{steps}",
        "files": f"{overview.files}, {overview.bytes / 1e6:.1f} MB",
        "snapshots": ", ".join(overview.snapshots) or "none",
        "clusters": f"{overview.clusters} with the preset {preset}; {overview.noise} rows are noise",
    }
    if overview.visits:  # none in memories of earlier versions
        facts["successes"] = f"{overview.visits} visits of {overview.visited} prompts, {overview.solved} solved"
    table = [("size", "share", "steps", "verdict", "prompt")]
    for cluster in overview.biggest:
        text = in_a_line(texts.get(cluster.prompt, ""), TEXT_WIDTH)
        verdict, span = "right" if cluster.correct else "wrong", f"{cluster.first_step}-{cluster.last_step}"
        table.append((str(cluster.size), f"{cluster.share:.0%}", span, verdict, f"{cluster.prompt}  {text}"))
    biggest = f"\n\n{aligned(table, '>><<<')}" if overview.biggest else ""
    return aligned(list(facts.items())) + biggest


def _summary(summary: ReplaySummary, target: Path) -> str:
    rows = max(summary.rows, 1)
    facts = [("rows", f"{summary.rows}, of which {summary.remembered} were remembered and {summary.assigned} labeled")]
    if summary.broken:
        facts.append(("not finite", f"{summary.broken} rows with NaN or infinite logits, which are ignored"))
    facts += [
        ("penalized", f"{summary.penalized} ({summary.penalized / rows:.1%} of all rows)"),
        ("penalty", f"{summary.penalty / rows:.4f} on average over all rows"),
        ("clusters", f"{summary.clusters} at the end; {summary.noise} rows are noise"),
        ("written", str(target)),
    ]
    return aligned(facts)
