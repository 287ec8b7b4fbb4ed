"""One prompt's wrong rollouts, layer by layer, with their clusters marked (the paper's case study).

A heatmap of layer logits, responses by layers, sorted by cluster, each response with its answer. A wrong answer can
occur in several clusters (reached in several ways), and a cluster can hold several answers (the same way with several
results); the table shows both. Without --prompt, the script selects the prompt that shows most of both patterns.

    python -m analysis.case_study runs/cpu-meds
    python -m analysis.case_study runs/cpu-meds --prompt KEY --preset robust    # `meds memory inspect` lists keys
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analysis.command_line import exit_code_of
from analysis.results import add_result_arguments, write_numbers
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.features.final_answer import same_answer_form
from meds_openrlhf.memory.clustering import NOISE
from meds_openrlhf.report.output import markdown_table, write_figure
from meds_openrlhf.runs.clusters import LOGIT_PRESETS, TRANSFORMS, VARIANTS, labels_of_feature, own_transform
from meds_openrlhf.runs.log import prompt_codes
from meds_openrlhf.runs.rows import layer_logits, remembered_wrong, run_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_ANSWER = "(none)"
COLUMNS = ("prompt_text", "answer")  # of the log
LONGEST_ANSWER = 24  # maximum number of characters shown
MOST_WITH_NUMBERS = 40  # responses, of which each has its logits written into the figure


@dataclass(frozen=True)
class Case:
    """The n wrong rollouts of a prompt, sorted by cluster (noise last), then answer, then step.

    ``clusters`` (n,) are numbered from 0 within the prompt, -1 is noise; ``answers`` (n,) are normalised, so that
    answers that differ only in typesetting are equal; ``steps`` (n,); ``logits`` (n, N) float32.
    """

    prompt: str
    text: str
    clusters: NDArray[np.int64]
    answers: list[str]
    steps: NDArray[np.int64]
    logits: NDArray[np.float32]

    @property
    def answers_in_clusters(self) -> dict[str, dict[int, int]]:
        """The count of each answer in each cluster (without noise), the most frequent answers first."""
        found: dict[str, dict[int, int]] = {}
        for (answer, cluster), count in Counter(zip(self.answers, self.clusters.tolist())).items():
            if cluster != NOISE:
                found.setdefault(answer, {})[cluster] = count
        return dict(sorted(found.items(), key=lambda item: (-sum(item[1].values()), item[0])))

    @property
    def split_answers(self) -> list[str]:
        """Answers that occur in several clusters."""
        return [answer for answer, clusters in self.answers_in_clusters.items() if len(clusters) > 1]

    @property
    def mixed_clusters(self) -> list[int]:
        """Clusters that hold several answers."""
        counts = Counter(cluster for clusters in self.answers_in_clusters.values() for cluster in clusters)
        return sorted(cluster for cluster, answers in counts.items() if answers > 1)

    @property
    def telling(self) -> int:
        """A score for how clearly the prompt shows both patterns.

        The number of rollouts whose answer is not their cluster's most frequent answer, plus the number of rollouts
        outside of their answer's biggest cluster. A prompt with both patterns always scores above a prompt of equal
        size with only one.
        """
        table = self.answers_in_clusters
        per_cluster: dict[int, list[int]] = {}
        for clusters in table.values():
            for cluster, count in clusters.items():
                per_cluster.setdefault(cluster, []).append(count)
        mixed = sum(sum(counts) - max(counts) for counts in per_cluster.values())
        split = sum(sum(counts.values()) - max(counts.values()) for counts in table.values())
        return mixed + split + len(self.clusters) * min(mixed, split, 1)


def case_of(wrong: pa.Table, labels: NDArray[np.int64], prompt: str) -> Case:
    """The case of a prompt from ``wrong`` rows and their ``labels`` (n,), as returned by `labels_of_feature`.

    Raises ConfigError if the prompt has no wrong rollout.
    """
    places = np.flatnonzero(pc.equal(wrong["prompt"], prompt).to_numpy())
    if len(places) == 0:
        raise ConfigError("--prompt", prompt, "has no wrong rollout with layer logits in this run. Leave it out.")
    return _case(wrong, labels, places)


def most_telling(wrong: pa.Table, labels: NDArray[np.int64]) -> Case:
    """The case of the prompt with the largest `Case.telling`; ties go to the most rollouts, then to the first prompt.

    Raises ConfigError if there are no wrong rollouts.
    """
    if len(wrong) == 0:
        raise ConfigError("RUN", None, "has no wrong rollouts with layer logits. Name another run.")
    prompts = prompt_codes(wrong)
    by_prompt = np.split(np.argsort(prompts, kind="stable"), np.cumsum(np.bincount(prompts))[:-1])
    return max((_case(wrong, labels, key) for key in by_prompt), key=lambda case: (case.telling, len(case.clusters)))


def _case(wrong: pa.Table, labels: NDArray[np.int64], places: NDArray[np.intp]) -> Case:
    rows = wrong.take(pa.array(places))
    answers = [NO_ANSWER if answer is None else same_answer_form(answer) for answer in rows["answer"].to_pylist()]
    numbered = _numbered(labels[places])
    steps = rows["step"].to_numpy()
    last = np.where(numbered == NOISE, numbered.max() + 1, numbered)  # sort noise after all clusters
    order = np.array(sorted(range(len(rows)), key=lambda row: (last[row], answers[row], steps[row])))
    return Case(
        prompt=rows["prompt"][0].as_py(),
        text=rows["prompt_text"][0].as_py(),
        clusters=numbered[order],
        answers=[answers[row] for row in order],
        steps=steps[order].astype(np.int64),
        logits=layer_logits(rows)[order],
    )


def table_of(case: Case) -> str:
    """A table of rollout counts, answers by clusters, with noise in the last column."""
    clusters = sorted(set(case.clusters.tolist()) - {NOISE})
    counts = Counter(zip(case.answers, case.clusters.tolist()))
    answers = sorted(set(case.answers), key=lambda text: (-case.answers.count(text), text))
    rows = [[_shortened(text), *(_shown(counts[text, cluster]) for cluster in (*clusters, NOISE))] for text in answers]
    return markdown_table(("answer", *(f"cluster {cluster}" for cluster in clusters), "noise"), rows)


def patterns_of(case: Case) -> str:
    """A description of the two patterns in words."""
    where = case.answers_in_clusters
    lines = [
        f"answer {_shortened(answer)} is in {len(where[answer])} clusters: {', '.join(map(str, sorted(where[answer])))}"
        for answer in case.split_answers
    ]
    for cluster in case.mixed_clusters:
        answers = [_shortened(answer) for answer, clusters in where.items() if cluster in clusters]
        lines.append(f"cluster {cluster} holds {len(answers)} answers: {', '.join(answers)}")
    return "\n".join(lines) or "every answer is in one cluster at most, and every cluster holds one answer"


def draw(case: Case) -> Figure:
    """Draw the logits, and their deviation from the mean over all responses; clusters are marked at the side."""
    from matplotlib.figure import Figure

    rows, layers = case.logits.shape
    figure = Figure(figsize=(min(5 + 0.4 * layers, 16), min(2 + 0.16 * rows, 30)), layout="constrained")
    strip, *heatmaps = figure.subplots(1, 3, width_ratios=(1, 9, 9), sharey=True)
    strip.imshow(case.clusters[:, None] % 10, cmap="tab10", vmin=0, vmax=9, aspect="auto", interpolation="nearest")
    names = _answers_by_place(case)
    strip.set(xticks=[], yticks=list(names), yticklabels=list(names.values()), ylabel="answer")
    strip.tick_params(axis="y", labelsize=6)
    apart = case.logits - case.logits.mean(axis=0)
    largest = float(np.abs(apart).max())
    shown = [
        heatmaps[0].imshow(case.logits, cmap="viridis", aspect="auto", interpolation="nearest"),
        heatmaps[1].imshow(apart, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest"),
    ]
    for axes, image, label in zip(heatmaps, shown, ("logit of the answer's first token", "minus the layer's mean")):
        axes.tick_params(axis="y", left=False, labelleft=False)
        places = range(0, layers, max(layers // 14, 1))
        axes.set(xlabel="layer", xticks=places, xticklabels=[str(layer + 1) for layer in places])
        figure.colorbar(image, ax=axes, label=label)
    if rows <= MOST_WITH_NUMBERS:
        _write_logits(heatmaps[0], case.logits)
    figure.suptitle(f"wrong rollouts of {case.prompt}")
    _mark_clusters(strip, heatmaps, case)
    return figure


def _write_logits(axes: Any, logits: NDArray[np.floating]) -> None:
    """Write each cell's value into it, dark on light and light on dark."""
    middle = (logits.min() + logits.max()) / 2
    for (row, layer), value in np.ndenumerate(logits):
        color = "black" if value > middle else "white"  # of the colours the high ones are light
        axes.text(layer, row, f"{value:.1f}", ha="center", va="center", fontsize=4, color=color)


def _answers_by_place(case: Case) -> dict[float, str]:
    """Each answer of a cluster at the middle position of its rows."""
    rows: dict[tuple[int, str], list[int]] = {}
    for row, key in enumerate(zip(case.clusters.tolist(), case.answers)):
        rows.setdefault(key, []).append(row)
    return {sum(places) / len(places): _shortened(answer) for (_, answer), places in rows.items()}


def _mark_clusters(strip: Any, heatmaps: list[Any], case: Case) -> None:
    """Write each cluster's name at its middle, draw a line after it, and make noise white."""
    for cluster in dict.fromkeys(case.clusters.tolist()):
        places = np.flatnonzero(case.clusters == cluster)
        if cluster == NOISE:
            strip.axhspan(places[0] - 0.5, places[-1] + 0.5, color="white")
        strip.text(
            0, places.mean(), "noise" if cluster == NOISE else str(cluster), ha="center", va="center", fontsize=7
        )
        for axes in (strip, *heatmaps):
            axes.axhline(places[-1] + 0.5, color="black", linewidth=1)


def _numbered(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber the clusters from 0, the biggest first; noise stays -1."""
    values, counts = np.unique(labels[labels != NOISE], return_counts=True)
    ranks = {int(values[place]): rank for rank, place in enumerate(np.argsort(-counts, kind="stable"))}
    return np.array([ranks.get(int(label), NOISE) for label in labels], dtype=np.int64)


def _shown(count: int) -> str:
    return str(count) if count else ""


def _shortened(answer: str) -> str:
    line = " ".join(answer.split()).replace("|", "\\|").replace("$", "")
    return line if len(line) <= LONGEST_ANSWER else f"{line[: LONGEST_ANSWER - 1]}…"


def _as_numbers(case: Case) -> dict[str, object]:
    rows = zip(case.steps.tolist(), case.clusters.tolist(), case.answers, case.logits.tolist())
    return {
        "prompt": case.prompt,
        "text": case.text,
        "split_answers": case.split_answers,
        "mixed_clusters": case.mixed_clusters,
        "rollouts": [dict(zip(("step", "cluster", "answer", "layer_logits"), row)) for row in rows],
    }


def parse_arguments(command_line: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m analysis.case_study", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", metavar="RUN", type=Path, help="a run's folder")
    parser.add_argument("--prompt", metavar="KEY", help="the prompt to show; default: the most telling prompt")
    hint = "which logits are clustered; default: those that the run's memory clusters"
    parser.add_argument("--variant", choices=VARIANTS, help=hint)
    parser.add_argument("--preset", choices=LOGIT_PRESETS, default="paper", help="how; default: %(default)s")
    add_result_arguments(parser, "case_study")
    return parser.parse_args(command_line)


def study(arguments: argparse.Namespace) -> None:
    """Print the table, and write the figure and the numbers."""
    wrong = remembered_wrong(run_rows(arguments.run, COLUMNS))
    transform = own_transform(arguments.run) if arguments.variant is None else TRANSFORMS.get(arguments.variant)
    labels = labels_of_feature(wrong, transform, arguments.preset)
    case = most_telling(wrong, labels) if arguments.prompt is None else case_of(wrong, labels, arguments.prompt)
    print(f"{case.prompt}: {len(case.clusters)} wrong rollouts, {case.clusters.max() + 1} clusters, of {case.text!r}\n")
    print(table_of(case), patterns_of(case), sep="\n\n")
    write_figure(draw(case), arguments.figure)
    write_numbers(_as_numbers(case), arguments.json)


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    arguments = parse_arguments(command_line)
    return exit_code_of(lambda: study(arguments))


if __name__ == "__main__":
    sys.exit(main())
