"""Do the clusters find the mistakes? On the demo's task the mistakes are known, so agreement needs no judge.

Clusters the wrong rollouts of a run of the arithmetic task by each feature variant of the paper's ablation (Section
5.3) and each preset, and compares the clusters of each prompt with the mistake that explains each rollout. Rollouts
that no mistake or several mistakes may explain are clustered but not compared.

    python -m analysis.known_mistakes runs/demo-20261121-120000
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.agreement import NOISE_READINGS, Agreement, agreement
from analysis.command_line import exit_code_of
from analysis.mistakes import Explanation, explain_all
from analysis.results import add_result_arguments, write_numbers
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.clustering import NOISE
from meds_openrlhf.report.output import markdown_table, write_figure
from meds_openrlhf.runs.clusters import LOGIT_PRESETS, SINGLE, VARIANTS, labels_of_variant
from meds_openrlhf.runs.log import prompt_codes
from meds_openrlhf.runs.rows import remembered_wrong, run_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = ("pairwise", "adjusted_rand", "homogeneity", "completeness")
COLUMNS = ("prompt_text", "answer", "response")  # of the log, to find the mistake
ANY_PRESET = "any"  # for the variant without clustering

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Coverage:
    """The numbers of wrong rollouts with a unique mistake as truth, by kind of evidence."""

    wrong: int
    by_steps: int
    by_first_wrong_step: int
    by_answer: int
    several: int
    unexplained: int
    kinds: dict[str, int]


@dataclass(frozen=True)
class Score:
    """A variant and preset: clusters and share of noise among all wrong rows, and agreement with the mistakes.

    ``per_prompt`` is the unweighted mean over prompts; ``over_all`` weights a prompt by its pairs (pairwise) or rows
    (the others). Pairs are always within a prompt.
    """

    variant: str
    preset: str
    clusters: int
    noise_share: float
    prompts: int
    rows: int
    per_prompt: dict[str, float]
    over_all: dict[str, float]


def coverage_of(explanations: Sequence[Explanation]) -> Coverage:
    """Count the explanations by kind and evidence."""
    named = [case.kind for case in explanations if case.kind is not None]
    evidence = Counter(case.evidence for case in explanations if case.kind is not None)
    return Coverage(
        wrong=len(explanations),
        by_steps=evidence["steps"],
        by_first_wrong_step=evidence["first wrong step"],
        by_answer=evidence["answer"],
        several=sum(len(case.kinds) > 1 for case in explanations),
        unexplained=sum(not case.kinds for case in explanations),
        kinds={kind: named.count(kind) for kind in sorted(set(named))},
    )


def score(labels: Labels, truth: Labels, prompts: Labels, *, noise: str = "set") -> tuple[list[Agreement], Labels]:
    """Agreement in each prompt with at least two rows that have a truth, and the numbers of these prompts.

    ``labels``, ``truth`` (-1 if the row has none) and ``prompts`` are all (n,).
    """
    found, names = [], []
    for prompt in np.unique(prompts):
        rows = (prompts == prompt) & (truth >= 0)
        if rows.sum() >= 2:
            found.append(agreement(labels[rows], truth[rows], noise=noise))
            names.append(prompt)
    return found, np.array(names, dtype=np.int64)


def scores_of(wrong: pa.Table, explanations: Sequence[Explanation], *, noise: str = "set") -> list[Score]:
    """A `Score` for each variant and preset. Raises ConfigError if no prompt has two rows to compare."""
    kinds = sorted({case.kind for case in explanations if case.kind is not None})
    truth = np.array([-1 if case.kind is None else kinds.index(case.kind) for case in explanations], dtype=np.int64)
    prompts = prompt_codes(wrong)
    combinations = [(v, p) for v in VARIANTS for p in ((ANY_PRESET,) if v == SINGLE else LOGIT_PRESETS)]
    scores = []
    for variant, preset in combinations:
        labels = labels_of_variant(wrong, variant, LOGIT_PRESETS[0] if preset == ANY_PRESET else preset)
        found, _ = score(labels, truth, prompts, noise=noise)
        if not found:
            hint = "has no two wrong rollouts of the same prompt that a mistake explains. Name a longer run."
            raise ConfigError("RUN", None, hint)
        scores.append(_summed_up(variant, preset, labels, found))
    return scores


def _summed_up(variant: str, preset: str, labels: Labels, found: list[Agreement]) -> Score:
    values = {name: np.array([getattr(entry, name) for entry in found]) for name in MEASURES}
    rows = np.array([entry.rows for entry in found])
    weights = {name: np.array([entry.pairs for entry in found]) if name == "pairwise" else rows for name in MEASURES}
    return Score(
        variant=variant,
        preset=preset,
        clusters=len(np.unique(labels[labels != NOISE])),
        noise_share=float((labels == NOISE).mean()),
        prompts=len(found),
        rows=int(rows.sum()),
        per_prompt={name: float(values[name].mean()) for name in MEASURES},
        over_all={name: float(np.average(values[name], weights=weights[name])) for name in MEASURES},
    )


def table_of(scores: Sequence[Score]) -> str:
    """The scores as a table: means over prompts, and the weighted means in brackets."""
    header = ("variant", "preset", "clusters", "noise", "pairwise", "adjusted Rand", "homogeneity", "completeness")
    rows = [
        [
            entry.variant,
            entry.preset,
            str(entry.clusters),
            f"{entry.noise_share:.1%}",
            *(f"{entry.per_prompt[name]:.3f} ({entry.over_all[name]:.3f})" for name in MEASURES),
        ]
        for entry in scores
    ]
    return markdown_table(header, rows)


def coverage_lines(coverage: Coverage) -> str:
    """The coverage in words."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in coverage.kinds.items())
    return (
        f"{coverage.wrong} wrong rollouts with layer logits: {coverage.by_steps} explained by all their steps, "
        f"{coverage.by_first_wrong_step} by their first wrong step,\n{coverage.by_answer} by their answer alone; "
        f"{coverage.several} that several mistakes may explain and {coverage.unexplained} that none does are not "
        f"compared.\nmistakes: {kinds or 'none'}"
    )


def draw(scores: Sequence[Score]) -> Figure:
    """Draw bars per variant and preset, with a panel per measure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    for axes, measure in zip(figure.subplots(2, 2).flat, MEASURES):
        _draw_measure(axes, scores, measure)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), title="preset", loc="outside right upper")
    figure.suptitle("Agreement of clusters with the known mistakes, mean over prompts")
    return figure


def _draw_measure(axes: Any, scores: Sequence[Score], measure: str) -> None:
    width = 0.8 / len(LOGIT_PRESETS)
    for number, preset in enumerate((*LOGIT_PRESETS, ANY_PRESET)):
        mine = [entry for entry in scores if entry.preset == preset]
        shift = 0.0 if preset == ANY_PRESET else (number - 1) * width
        places = [VARIANTS.index(entry.variant) + shift for entry in mine]
        axes.bar(places, [entry.per_prompt[measure] for entry in mine], width, label=preset, color=f"C{number}")
    axes.set_xticks(range(len(VARIANTS)), VARIANTS)
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.0)
    axes.set_title(measure.replace("_", " "))


def parse_arguments(command_line: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    summary = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m analysis.known_mistakes", description=summary)
    parser.add_argument("run", metavar="RUN", type=Path, help="a run's folder, trained on the demo's arithmetic task")
    hint = "noise is a set per prompt, as in the paper, or every row stands alone; default: %(default)s"
    parser.add_argument("--noise", choices=NOISE_READINGS, default="set", help=hint)
    add_result_arguments(parser, "known_mistakes")
    return parser.parse_args(command_line)


def compare(arguments: argparse.Namespace) -> None:
    """Print the table, and write the figure and the numbers."""
    wrong = remembered_wrong(run_rows(arguments.run, COLUMNS))
    explanations = explain_all(*(wrong[name].to_pylist() for name in COLUMNS))
    coverage, scores = coverage_of(explanations), scores_of(wrong, explanations, noise=arguments.noise)
    print(coverage_lines(coverage), table_of(scores), sep="\n\n")
    write_figure(draw(scores), arguments.figure)
    numbers = {"noise": arguments.noise, "coverage": asdict(coverage), "scores": [asdict(entry) for entry in scores]}
    write_numbers(numbers, arguments.json)


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    arguments = parse_arguments(command_line)
    return exit_code_of(lambda: compare(arguments))


if __name__ == "__main__":
    sys.exit(main())
