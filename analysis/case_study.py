"""One prompt's wrong rollouts, layer by layer, with their clusters marked (the paper's case study).

A heatmap of layer logits, responses by layers, sorted by cluster, each response with its answer. A wrong answer can
occur in several clusters (reached in several ways), and a cluster can hold several answers (the same way with several
results); the table shows both. Without --prompt, the script selects the prompt that shows most of both patterns.

    python -m analysis.case_study runs/cpu-meds
    python -m analysis.case_study runs/cpu-meds --prompt KEY --preset robust    # `meds memory inspect` lists keys
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import pyarrow as pa
from matplotlib.figure import Figure
from numpy.typing import NDArray

from analysis.command_line import Command, Finding
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.features.final_answer import same_answer_form
from meds_openrlhf.memory.rows import layer_logits_of
from meds_openrlhf.memory.sets import NOISE
from meds_openrlhf.options import folders, option
from meds_openrlhf.rollouts.features import LOGIT_PRESETS, labels_of_feature, own_transform, wrong_rows
from meds_openrlhf.rollouts.run import prompt_codes
from meds_openrlhf.stats.presentation import markdown
from meds_openrlhf.terminal import in_a_line

NO_ANSWER = "(none)"
COLUMNS = ("prompt_text", "answer")  # of the log
LONGEST_ANSWER = 24  # maximum number of characters shown


@dataclass(frozen=True)
class Case:
    """The n wrong rollouts of a prompt, sorted by cluster (noise last), then answer, then step.

    ``clusters`` (n,) are numbered from 0 within the prompt, -1 is noise; ``answers`` (n,) are normalized, so that
    answers that differ only in typesetting are equal; ``steps`` (n,); ``logits`` (n, N) float32.
    """

    prompt: str
    text: str
    clusters: NDArray[np.int64]
    answers: list[str]
    steps: NDArray[np.int64]
    logits: NDArray[np.float32]

    @property
    def table(self) -> pd.DataFrame:
        """The rollouts of each answer (rows, the most frequent first) in each cluster (columns, noise last)."""
        counts = pd.crosstab(np.array(self.answers, dtype=object), self.clusters)
        answers = sorted(counts.index, key=lambda answer: (-counts.loc[answer].sum(), answer))
        clusters = [*sorted(set(counts.columns) - {NOISE}), NOISE]
        return counts.reindex(index=answers, columns=clusters, fill_value=0)

    @property
    def clustered(self) -> pd.DataFrame:
        """The table without noise, and without answers that are noise alone."""
        counts = self.table.drop(columns=NOISE)
        return counts[counts.any(axis=1)]

    @property
    def split_answers(self) -> dict[str, list[int]]:
        """Answers that occur in several clusters, and these clusters."""
        found = {answer: row.index[row > 0].tolist() for answer, row in self.clustered.iterrows()}
        return {answer: clusters for answer, clusters in found.items() if len(clusters) > 1}

    @property
    def mixed_clusters(self) -> dict[int, list[str]]:
        """Clusters that hold several answers, and these answers."""
        found = {int(cluster): column.index[column > 0].tolist() for cluster, column in self.clustered.items()}
        return {cluster: answers for cluster, answers in found.items() if len(answers) > 1}

    @property
    def telling(self) -> int:
        """A score for how clearly the prompt shows both patterns.

        The number of rollouts whose answer is not their cluster's most frequent answer, plus the number of rollouts
        outside of their answer's biggest cluster. A prompt with both patterns always scores above a prompt of equal
        size with only one.
        """
        counts = self.clustered
        mixed, split = (int(counts.to_numpy().sum() - counts.max(axis=axis).sum()) for axis in (0, 1))
        return mixed + split + len(self.clusters) * min(mixed, split, 1)


def analyze(
    run: Annotated[Path, folders("a run's folder", None)],
    prompt: Annotated[str | None, option("prompt to show (default: the most telling prompt)", "KEY")] = None,
    preset: Annotated[str, option("clustering preset", choices=LOGIT_PRESETS)] = "paper",
) -> Finding:
    """The case of a prompt, or of the most telling one, clustered by the run's own feature."""
    wrong = wrong_rows(run, COLUMNS)
    case = chosen_case(wrong, labels_of_feature(wrong, own_transform(run), preset), prompt)
    title = f"{case.prompt}: {len(case.clusters)} wrong rollouts, {case.clusters.max() + 1} clusters, of {case.text!r}"
    rows = zip(case.steps.tolist(), case.clusters.tolist(), case.answers, case.logits.tolist())
    numbers = {
        "prompt": case.prompt,
        "text": case.text,
        "split_answers": [*case.split_answers],
        "mixed_clusters": [*case.mixed_clusters],
        "rollouts": [dict(zip(("step", "cluster", "answer", "layer_logits"), row)) for row in rows],
    }
    return Finding("\n\n".join([title, markdown(table_of(case)), patterns_of(case)]), numbers, draw(case))


def chosen_case(wrong: pa.Table, labels: NDArray[np.int64], prompt: str | None) -> Case:
    """The case of a prompt from ``wrong`` rows and their ``labels`` (n,), as returned by `labels_of_feature`.

    Without a prompt, that with the largest `Case.telling`; ties go to the most rollouts, then to the first prompt.
    Raises ConfigError if the prompt has no wrong rollout.
    """
    if prompt is not None:
        places = np.flatnonzero(np.array(wrong["prompt"].to_pylist()) == prompt)
        if len(places) == 0:
            hint = "has no wrong rollout with layer logits in this run. Omit --prompt to let the script choose one."
            raise ConfigError("--prompt", prompt, hint)
        return _case(wrong, labels, places)
    codes = prompt_codes(wrong)
    cases = [_case(wrong, labels, np.flatnonzero(codes == code)) for code in range(codes.max() + 1)]
    return max(cases, key=lambda case: (case.telling, len(case.clusters)))


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
        logits=layer_logits_of(rows)[order],
    )


def _numbered(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber the clusters from 0, the biggest first; noise stays -1."""
    values, counts = np.unique(labels[labels != NOISE], return_counts=True)
    ranks = {int(values[place]): rank for rank, place in enumerate(np.argsort(-counts, kind="stable"))}
    return np.array([ranks.get(int(label), NOISE) for label in labels], dtype=np.int64)


def table_of(case: Case) -> pd.DataFrame:
    """The case's table with names; 0 is empty."""
    names = ["noise" if cluster == NOISE else f"cluster {cluster}" for cluster in case.table.columns]
    rows = [[_shortened(answer), *(count or "" for count in row)] for answer, row in case.table.iterrows()]
    return pd.DataFrame(rows, columns=["answer", *names])


def patterns_of(case: Case) -> str:
    """A description of the two patterns in words."""
    lines = [
        f"answer {_shortened(answer)} is in {len(clusters)} clusters: {', '.join(map(str, clusters))}"
        for answer, clusters in case.split_answers.items()
    ]
    for cluster, answers in case.mixed_clusters.items():
        lines.append(f"cluster {cluster} holds {len(answers)} answers: {', '.join(map(_shortened, answers))}")
    return "\n".join(lines) or "every answer is in one cluster at most, and every cluster holds one answer"


def draw(case: Case) -> Figure:
    """Draw the logits, and their deviation from the mean over all responses; clusters are marked at the side."""
    rows, layers = case.logits.shape
    figure = Figure(figsize=(min(5 + 0.4 * layers, 16), min(2 + 0.16 * rows, 30)), layout="constrained")
    strip, *heatmaps = figure.subplots(1, 3, width_ratios=(1, 9, 9), sharey=True)
    strip.imshow(case.clusters[:, None] % 10, cmap="tab10", vmin=0, vmax=9, aspect="auto", interpolation="nearest")
    blocks = pd.DataFrame({"cluster": case.clusters, "answer": case.answers}).groupby(["cluster", "answer"])
    names = {places.mean(): _shortened(answer) for (_, answer), places in blocks.indices.items()}
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
    figure.suptitle(f"wrong rollouts of {case.prompt}")
    for cluster in dict.fromkeys(case.clusters.tolist()):  # its name at its middle, and a line after it
        members, is_noise = np.flatnonzero(case.clusters == cluster), cluster == NOISE
        if is_noise:
            strip.axhspan(members[0] - 0.5, members[-1] + 0.5, color="white")
        name = "noise" if is_noise else str(cluster)
        strip.text(0, members.mean(), name, ha="center", va="center", fontsize=7)
        for axes in (strip, *heatmaps):
            axes.axhline(members[-1] + 0.5, color="black", linewidth=1)
    return figure


def _shortened(answer: str) -> str:
    return in_a_line(answer.replace("$", ""), LONGEST_ANSWER)


main = Command("case_study", __doc__, analyze)

if __name__ == "__main__":
    sys.exit(main())
