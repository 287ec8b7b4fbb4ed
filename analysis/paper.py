"""The paper's tables and figures for one model: makes all that its runs allow, and says what is missing for the rest.

    python -m analysis.paper qwen2.5-math-7b
    python -m analysis.paper qwen2.5-math-7b --judge-model NAME --judge-url http://localhost:8000/v1

Nothing is trained or sampled: the page that it writes has the commands for what is missing. Options of the judge
(docs/analyses.md) are passed on; without them, what needs a judge stays as it was.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import case_study, cost, eigen_ratio, error_categories, new_paths, step_diversity
from analysis.agreement import name_of
from analysis.command_line import Finding, exit_code_of
from meds_openrlhf.config import load_config
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.evaluation.report import PICTURE, papers_table, results_of_labels, write_report
from meds_openrlhf.evaluation.request import PAPERS, find_benchmarks, read_settings
from meds_openrlhf.files import write_atomically
from meds_openrlhf.judge.settings import JudgeSettings, add_judge_options, judge_settings
from meds_openrlhf.memory.errors import MemoryCorruptionError
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.options import positive
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.features import SINGLE, own_transform
from meds_openrlhf.runs.metrics import logged_curves
from meds_openrlhf.stats.presentation import draw_curves, markdown, shown, write_figure, write_numbers
from meds_openrlhf.step_log import StepLog

CONFIGS, RUNS, SAMPLES, DATA, OUT = map(Path, ("configs", "runs", "eval", "data", "paper"))
ABLATIONS = CONFIGS / "ablations.yaml"
# The ablation's variants, in the paper's order; None is MEDS itself, with the last 14 of 28 layers.
ABLATION = ("single", "28-diff", "14-diff", "28", None)
TABLE, FIGURE, NUMBERS, PAGE = "table.md", "figure.png", "numbers.json", "README.md"

Lacks = dict[str, str]  # what is missing, and the command that makes it, empty if there is none
Make = Callable[[Path, Sequence[Path]], Lacks]


@dataclass
class Item:
    """A table or figure of the paper: the ``name`` of its folder, what it ``shows``, and the ``runs`` that it needs.

    ``make(folder, runs)`` makes it of those ``runs`` that exist, at least ``least`` of them, and returns what else it
    lacks. ``lacks`` is complete after `Paper.attempt`.
    """

    name: str
    shows: str
    runs: Sequence[Path]
    make: Make
    least: int = 1
    lacks: Lacks = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return OUT / self.name

    @property
    def is_made(self) -> bool:
        """Whether its folder holds it."""
        return (self.folder / TABLE).is_file() or (self.folder / FIGURE).is_file()


class Paper:
    """The items of a model: from its runs, the samples of its evaluation, and a judge, if there is one."""

    def __init__(self, given: argparse.Namespace, judge: JudgeSettings | None) -> None:
        self._given, self._judge = given, judge
        self._training: dict[Path, str] = {}  # the command that trains each run
        config = CONFIGS / given.model / "dapo.yaml"
        if not config.is_file():
            raise ConfigError("MODEL", given.model, f"{config} does not exist. Name a folder of {CONFIGS}/.")
        self._base = str(load_config(config).openrlhf["actor.model_name_or_path"])
        grpo, entropy, dapo = (self._run(method) for method in ("grpo", "grpo-entropy", "dapo"))
        method, *variant = given.meds.split("-", 1)
        meds = self._meds = self._run(method, *variant)
        self._features = [meds if name is None else self._run(method, *variant, name) for name in ABLATION]
        both, every = [dapo, meds], [grpo, entropy, dapo, meds]
        within, across, agreement = map(self._judged, (step_diversity, new_paths, error_categories))
        self.items = [  # later ones use earlier ones
            Item("entropy", "Figure 1a: entropy of the policy", both, _entropy),
            Item("within-step", "Figure 1c: diversity within a step", both, within, least=2),
            Item("across-steps", "Figure 1c: diversity across steps", both, across),
            Item("main", "Table 1, Figure 4: pass@k", every, self._pass_at_k),
            Item("eigen-ratio", "Figure 5, left: top-1 eigen ratio", both, _found(eigen_ratio.analyze)),
            Item("agreement", "Figure 5, right: agreement", [meds], agreement),
            Item("case-study", "Figures 6, 7: logits of one prompt", [meds], _found(case_study.analyze, one=True)),
            Item("ablation", "Table 2: features", [dapo, *self._features], self._ablation),
            Item("cost", "Section 4.2: minutes a step", both, _found(cost.analyze)),
        ]

    def attempt(self, item: Item) -> None:
        """Make an item of what there is. Raises ConfigError or MemoryCorruptionError if that fails."""
        present = [run for run in item.runs if StepLog(RunPaths(run).metrics).read()]
        item.lacks = {f"no run {run.name}": self._training[run] for run in item.runs if run not in present}
        if len(present) >= item.least:
            item.lacks |= item.make(item.folder, present)

    def page(self) -> str:
        """The items that are there; for missing items, the commands that produce them."""
        lines = [f"# The paper's tables and figures, from runs of {self._given.model}", "", self.overview(), ""]
        commands = dict.fromkeys(command for item in self.items for command in item.lacks.values() if command)
        if commands:
            lines += ["What is missing is made by:", "", *(f"    {command}" for command in commands), ""]
        for item in self.items:
            if item.is_made:
                table = item.folder / TABLE
                lines += [f"## {item.shows}", "", *([table.read_text(), ""] if table.is_file() else [])]
                pictures = [name for name in (FIGURE, PICTURE) if (item.folder / name).is_file()]
                lines += [f"![{item.shows}]({item.name}/{name})\n" for name in pictures]
        return "\n".join(lines)

    def overview(self) -> str:
        """A table of all items, and what each lacks."""
        rows = []
        for item in self.items:
            state = f"`{item.name}/`" if item.is_made else "not made"
            rows.append([item.shows, state, "; ".join(item.lacks)])
        return markdown(pd.DataFrame(rows, columns=["in the paper", "here", "missing"]), left=3)

    def _run(self, method: str, *variants: str) -> Path:
        words = ["meds", "train", str(CONFIGS / self._given.model / f"{method}.yaml")]
        words += [word for name in variants for word in ("--variant", f"{ABLATIONS}:{name}")]
        path = RUNS / "-".join([self._given.model, method, *variants])
        self._training[path] = shlex.join([*words, "--meds.tracking.rollouts", "all"])
        return path

    # ── how the items are made ──

    def _judged(self, script: Any) -> Make:
        if self._judge is not None:
            return _found(script.analyze, one=script is error_categories, judge=self._judge)
        words = ["python", "-m", "analysis.paper", *self._given.words, "--judge-model", "NAME", "--judge-url", "URL"]
        return lambda folder, _: {} if (folder / TABLE).is_file() else {"no judge": shlex.join(words)}

    def _pass_at_k(self, folder: Path, runs: Sequence[Path]) -> Lacks:
        return self._evaluated(folder, [self._base, *map(str, runs)])

    def _ablation(self, folder: Path, runs: Sequence[Path]) -> Lacks:
        """Table 2, with the agreement of each feature's clusters with the judge as the last column."""
        return self._evaluated(folder, [*map(str, runs)], self._agreement(runs))

    def _agreement(self, runs: Sequence[Path]) -> dict[str, float | None]:
        """The judge's agreement with the clusters by each run's feature, in percent; empty if it was not made."""
        file = OUT / "agreement" / NUMBERS
        if not file.is_file():
            return {}
        shares = {entry["variant"]: entry["noise_together"] for entry in json.loads(file.read_text())["agreement"]}
        own, layers = own_transform(self._meds), open_memory(self._meds).format.layers
        found = {}
        for run in (run for run in self._features if run in runs):
            is_single = run == self._features[0]  # it differs in how it clusters
            name = SINGLE if is_single else name_of(own_transform(run), own, layers)
            share = shares.get(name) if name else None
            found[run.name] = share and 100 * share
        return found

    def _evaluated(
        self, folder: Path, models: Sequence[str], agreement: Mapping[str, float | None] | None = None
    ) -> Lacks:
        """Write the report of those models that were evaluated, with this column; returns what is missing."""
        given = self._given
        named = [model.rpartition("/")[2] for model in models]
        settings = {label: read_settings(SAMPLES / label) for label in named}
        labels = {label: entry for label, entry in settings.items() if entry is not None}
        notes = [f"no samples of {label}" for label in named if label not in labels]
        if labels:
            wanted = list(labels.values())[-1]  # a run's, whose length the base model should have too
            benchmarks = find_benchmarks(given.benchmarks, DATA)
            results = results_of_labels(SAMPLES, labels, wanted, benchmarks, given.n, notes.append)
            if results:
                comparison = write_report(folder, results, labels)
                title, table = papers_table(comparison)
                if agreement is not None:
                    table["agreement (%)"] = [shown(agreement.get(model)) for model in comparison.models]
                write_atomically(folder / TABLE, f"### {title}\n\n{markdown(table)}\n")
        command = shlex.join(["meds", "eval", *models, "--benchmarks", *given.benchmarks, "--n", str(given.n)])
        return dict.fromkeys(notes, command)


def _found(analyze: Callable[..., Finding], one: bool = False, **options: Any) -> Make:
    """Make an item by an analysis, of all runs or of ``one``."""

    def make(folder: Path, runs: Sequence[Path]) -> Lacks:
        finding = analyze(runs[0] if one else runs, **options)
        write_atomically(folder / TABLE, f"{finding.text}\n")
        write_numbers(finding.numbers, folder / NUMBERS)
        if finding.figure is not None:
            write_figure(finding.figure, folder / FIGURE)
        return {}

    return make


def _entropy(folder: Path, runs: Sequence[Path]) -> Lacks:
    curves = logged_curves(runs, ["policy_entropy"], "logged no policy_entropy")
    figure = draw_curves(curves, {"policy_entropy": "entropy of the policy"}, "nats per token")
    write_figure(figure, folder / FIGURE)
    return {}


def parse_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ``words`` are it itself."""
    summary = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m analysis.paper", description=summary, allow_abbrev=False)
    parser.add_argument("model", metavar="MODEL", help="a folder in configs/; the runs are runs/MODEL-METHOD")
    hint = "the run to take as MEDS (default: %(default)s, the method of the paper's code)"
    parser.add_argument("--meds", metavar="NAME", default="meds-reference", help=hint)
    parser.add_argument("--benchmarks", nargs="+", default=list(PAPERS), help="benchmarks (default: the paper's)")
    parser.add_argument("--n", type=positive, default=128, metavar="N", help="samples per problem (default: 128)")
    add_judge_options(parser, "the language model that three items need, and limits on its cost for each of them")
    given = parser.parse_args(words)
    given.words = sys.argv[1:] if words is None else words
    return given


def main(words: Sequence[str] | None = None) -> int:
    """Make all items and the page, print its overview, and return the exit code, 2 if an item failed."""
    given = parse_arguments(words)
    failed = []

    def write() -> None:
        has_judge = any(name.startswith("judge_") for name in vars(given))
        paper = Paper(given, judge_settings(vars(given)) if has_judge else None)
        for item in paper.items:
            try:
                paper.attempt(item)
            except (ConfigError, MemoryCorruptionError) as error:
                print(f"error: {error}", file=sys.stderr)
                item.lacks[str(error)] = ""
                failed.append(item)
        page = OUT / PAGE
        write_atomically(page, paper.page())
        print(paper.overview(), f"\n{page} has all items, and the commands for the missing ones", sep="\n")

    return exit_code_of(write) or (2 if failed else 0)


if __name__ == "__main__":
    sys.exit(main())
