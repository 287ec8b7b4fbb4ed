"""The paper's tables and figures for one model: makes all that its runs allow, and says what is missing for the rest.

    python -m analysis.paper qwen2.5-math-7b
    python -m analysis.paper qwen2.5-math-7b --judge-model NAME --judge-url http://localhost:8000/v1

Nothing is trained or sampled: the page that it writes has the commands for what is missing. Options of the judge
(docs/analyses.md) are passed on; without them, what needs a judge stays as it was.
"""

from __future__ import annotations

import argparse
import io
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

from analysis import case_study, cost, eigen_ratio, error_categories, new_paths, step_diversity
from analysis.category_agreement import name_of
from analysis.command_line import INTERRUPTED, exit_code_of, positive
from analysis.judge.settings import add_judge_arguments
from meds_openrlhf.config import load_config
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.evaluation.benchmarks import PAPERS, find_benchmarks
from meds_openrlhf.evaluation.labels import results_of_labels
from meds_openrlhf.evaluation.report import PICTURE, first_table, write_report
from meds_openrlhf.evaluation.results import BenchmarkResult
from meds_openrlhf.evaluation.settings import read_settings
from meds_openrlhf.files import write_atomically
from meds_openrlhf.memory.stored import open_memory
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.report.output import markdown_table, shown, write_figure
from meds_openrlhf.runs.clusters import SINGLE, own_transform
from meds_openrlhf.runs.metrics import logged_curves, read_lines

CONFIGS, RUNS = Path("configs"), Path("runs")
ABLATIONS = CONFIGS / "ablations.yaml"
# The ablation's variants; None is MEDS itself, with the last 14 of 28 layers.
ABLATION = ("28", None, "28-diff", "14-diff", "single")
MEDS = ABLATION.index(None)
TABLE, FIGURE, NUMBERS, PAGE = "table.md", "figure.png", "numbers.json", "README.md"

Script = Callable[[Sequence[str]], int]  # an analysis' `main`


@dataclass(frozen=True)
class Lack:
    """What an item lacks, and the command that makes it."""

    what: str
    command: str


@dataclass(frozen=True)
class Run:
    """A run's folder, and the command that trains it."""

    path: Path
    training: str


Make = Callable[[Path, Sequence[Path]], list[Lack]]


@dataclass
class Item:
    """A table or figure of the paper: the ``name`` of its folder, what it ``shows``, and the ``runs`` that it needs.

    ``make(folder, runs)`` makes it of those ``runs`` that exist, at least ``least`` of them, and returns what else it
    lacks. ``lacks`` is complete after `Paper.attempt`.
    """

    name: str
    shows: str
    runs: Sequence[Run]
    make: Make
    least: int = 1
    lacks: list[Lack] = field(default_factory=list)


class Paper:
    """The items of a model: from its runs, the samples of its evaluation, and a judge's options, if there is one."""

    def __init__(self, arguments: argparse.Namespace, judge: Sequence[str]) -> None:
        self._given, self._judge, self._model = arguments, judge, arguments.model
        config = CONFIGS / self._model / "dapo.yaml"
        if not config.is_file():
            raise ConfigError("MODEL", self._model, f"has no {config} here. Name a folder of {CONFIGS}/.")
        self._base = str(load_config(config).openrlhf["actor.model_name_or_path"])
        grpo, entropy, dapo = (self._run(method) for method in ("grpo", "grpo-entropy", "dapo"))
        method, *variant = arguments.meds.split("-", 1)
        meds = self._run(method, *variant)
        self._features = [meds if name is None else self._run(method, *variant, name) for name in ABLATION]
        both, every = [dapo, meds], [grpo, entropy, dapo, meds]
        every_layer, last, all_differences, last_differences, single = self._features
        ablation = [dapo, single, all_differences, last_differences, every_layer, last]  # as in the paper
        self.items = [  # later ones use earlier ones
            Item("entropy", "Figure 1a: entropy of the policy", both, self._entropy),
            Item("within-step", "Figure 1c: diversity within a step", both, self._judged(step_diversity.main), least=2),
            Item("across-steps", "Figure 1c: diversity across steps", both, self._judged(new_paths.main)),
            Item("main", "Table 1, Figure 4: pass@k", every, self._pass_at_k),
            Item("eigen-ratio", "Figure 5, left: top-1 eigen ratio", both, self._drawn(eigen_ratio.main)),
            Item("agreement", "Figure 5, right: agreement", [meds], self._judged(error_categories.main)),
            Item("case-study", "Figures 6, 7: logits of one prompt", [meds], self._drawn(case_study.main)),
            Item("ablation", "Table 2: features", ablation, self._ablation),
            Item("cost", "Section 4.2: minutes a step", both, self._cost),
        ]

    def attempt(self, item: Item) -> None:
        """Make an item of what there is. Raises ConfigError if that fails."""
        present = [run.path for run in item.runs if read_lines(RunPaths(run.path).metrics)]
        absent = [run for run in item.runs if run.path not in present]
        item.lacks = [Lack(f"no run {run.path.name}", run.training) for run in absent]
        if len(present) >= item.least:
            folder = self.folder(item)
            folder.mkdir(parents=True, exist_ok=True)
            item.lacks += item.make(folder, present)

    def folder(self, item: Item) -> Path:
        """The folder of the item's files."""
        path: Path = self._given.out / item.name
        return path

    def page(self) -> str:
        """All items that are there, and what the others lack, with the commands for it."""
        lines = [f"# The paper's tables and figures, from runs of {self._model}", "", *self.overview(), ""]
        commands = dict.fromkeys(lack.command for item in self.items for lack in item.lacks if lack.command)
        if commands:
            lines += ["What is missing is made by:", "", *(f"    {command}" for command in commands), ""]
        for item in self.items:
            folder = self.folder(item)
            if is_made(folder):
                lines += [f"## {item.shows}", ""]
                lines += [(folder / TABLE).read_text(), ""] if (folder / TABLE).is_file() else []
                pictures = [name for name in (FIGURE, PICTURE) if (folder / name).is_file()]
                lines += [f"![{item.shows}]({item.name}/{name})\n" for name in pictures]
        return "\n".join(lines)

    def overview(self) -> list[str]:
        """A table of all items, and what each lacks."""
        rows = []
        for item in self.items:
            state = f"`{item.name}/`" if is_made(self.folder(item)) else "not made"
            rows.append([item.shows, state, "; ".join(lack.what for lack in item.lacks)])
        return markdown_table(["in the paper", "here", "missing"], rows, "<<<").split("\n")

    def _run(self, method: str, *variants: str) -> Run:
        words = ["meds", "train", str(CONFIGS / self._model / f"{method}.yaml")]
        words += [word for name in variants for word in ("--variant", f"{ABLATIONS}:{name}")]
        path = self._given.runs / "-".join([self._model, method, *variants])
        words += [] if self._given.runs == RUNS else ["--meds.run_dir", str(path)]
        return Run(path, shlex.join([*words, "--meds.tracking.rollouts", "all"]))

    # ── how the items are made ──

    def _entropy(self, folder: Path, runs: Sequence[Path]) -> list[Lack]:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.0, 3.2), layout="constrained")
        axes = figure.subplots()
        for curve in logged_curves(runs, ["policy_entropy"], "logged no policy_entropy"):
            axes.plot(curve.steps, curve.values, label=curve.run)
        axes.set(xlabel="training step", ylabel="entropy of the policy (nats per token)")
        axes.legend(frameon=False)
        write_figure(figure, folder / FIGURE)
        return []

    def _drawn(self, script: Script, more: Sequence[str] = ()) -> Make:
        return lambda folder, runs: _analyse(script, runs, folder, ["--figure", str(folder / FIGURE), *more])

    def _judged(self, script: Script) -> Make:
        if self._judge:
            return self._drawn(script, self._judge)
        words = ["python", "-m", "analysis.paper", *self._given.words, "--judge-model", "NAME", "--judge-url", "URL"]
        command = shlex.join(words)
        return lambda folder, runs: [] if is_made(folder) else [Lack("no judge", command)]

    def _cost(self, folder: Path, runs: Sequence[Path]) -> list[Lack]:
        return _analyse(cost.main, runs, folder)

    def _pass_at_k(self, folder: Path, runs: Sequence[Path]) -> list[Lack]:
        return self._evaluated(folder, [self._base, *map(str, runs)])[0]

    def _ablation(self, folder: Path, runs: Sequence[Path]) -> list[Lack]:
        """Table 2, with the agreement of each feature's clusters with the judge as the last column."""
        lacks, is_written = self._evaluated(folder, [*map(str, runs)])
        if not is_written:
            return lacks
        agreement = self._agreement(runs)
        title, empty, header, rule, *rows = (folder / TABLE).read_text().rstrip().split("\n")
        named = [f"{row} {shown(agreement.get(row.split('|')[1].strip()))} |" for row in rows]
        content = [title, empty, f"{header} agreement (%) |", f"{rule}---:|", *named]
        write_atomically(folder / TABLE, "\n".join(content) + "\n")
        return lacks

    def _agreement(self, runs: Sequence[Path]) -> dict[str, float | None]:
        """The judge's agreement with the clusters by each run's feature, in percent; empty if it was not made."""
        file, meds = self._given.out / "agreement" / NUMBERS, self._features[MEDS].path
        if not file.is_file():
            return {}
        shares = {entry["variant"]: entry["noise_together"] for entry in json.loads(file.read_text())["agreement"]}
        own, layers = own_transform(meds), open_memory(meds).format.layers
        ablation = [run.path for run in self._features if run.path in runs]
        single = self._features[-1].path  # it differs in how it clusters
        names = {run: SINGLE if run == single else name_of(own_transform(run), own, layers) for run in ablation}
        found = {run.name: shares.get(name) if name else None for run, name in names.items()}
        return {run: share and 100 * share for run, share in found.items()}

    def _evaluated(self, folder: Path, models: Sequence[str]) -> tuple[list[Lack], bool]:
        """Write the report of those models that were evaluated.

        Returns what is missing of the others, and whether there is a report.
        """
        given, notes = self._given, list[str]()
        named = {model.rpartition("/")[2]: model for model in models}
        settings = {label: read_settings(given.eval / label) for label in named}
        labels = {label: entry for label, entry in settings.items() if entry is not None}
        notes += [f"no samples of {label}" for label in named if label not in labels]
        results: list[BenchmarkResult] = []
        if labels:
            wanted = list(labels.values())[-1]  # a run's, whose length the base model should have too
            benchmarks = find_benchmarks(given.benchmarks, given.data)
            results = results_of_labels(given.eval, labels, wanted, benchmarks, given.n, notes.append)
            if results:
                found = {result.model for result in results}
                write_report(folder, results, {label: entry for label, entry in labels.items() if label in found})
                write_atomically(folder / TABLE, first_table(folder))
        words = ["meds", "eval", *models, "--benchmarks", *given.benchmarks, "--n", str(given.n)]
        command = shlex.join([*words, "--data", str(given.data), "--out", str(given.eval)])
        return [Lack(note, command) for note in notes], bool(results)


def is_made(folder: Path) -> bool:
    """Whether an item's folder holds it."""
    return (folder / TABLE).is_file() or (folder / FIGURE).is_file()


def _analyse(script: Script, runs: Sequence[Path], folder: Path, more: Sequence[str] = ()) -> list[Lack]:
    """Run an analysis; its table goes into the folder. Raises ConfigError if it fails, after its own line on stderr."""
    table = io.StringIO()
    with redirect_stdout(table):
        code = script([*map(str, runs), *more, "--json", str(folder / NUMBERS)])
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise ConfigError("item", folder.name, "cannot be made. Its error line on the screen says why.")
    write_atomically(folder / TABLE, table.getvalue())
    return []


def parse_arguments(command_line: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line, with the judge's options apart."""
    parser, judge = (argparse.ArgumentParser(prog="python -m analysis.paper", allow_abbrev=False) for _ in range(2))
    parser.description = (__doc__ or "").split("\n")[0]
    parser.epilog = (
        "The judge's options are those of `python -m analysis.step_diversity --help`. Three items need a judge, each "
        "with its own --budget."
    )
    parser.add_argument("model", metavar="MODEL", help="a folder of configs/, whose runs are RUNS/MODEL-METHOD")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the runs; default: %(default)s")
    parser.add_argument("--eval", type=Path, default=Path("eval"), help="samples of meds eval; default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("paper"), help="folder to write; default: %(default)s")
    hint = "the run that stands for MEDS; default: %(default)s, the method of the paper's code"
    parser.add_argument("--meds", metavar="NAME", default="meds-reference", help=hint)
    parser.add_argument("--benchmarks", nargs="+", default=list(PAPERS), help="default: the paper's")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the benchmarks")
    parser.add_argument("--n", type=positive, default=128, metavar="N", help="samples of a problem; default: 128")
    arguments, rest = parser.parse_known_args(command_line)
    arguments.words = sys.argv[1:] if command_line is None else command_line
    add_judge_arguments(judge)
    if rest:
        judge.parse_args(rest)
    return arguments, rest


def write(arguments: argparse.Namespace, judge: Sequence[str]) -> None:
    """Make all items and the page, and print its overview. Raises ConfigError at the end if an item failed."""
    paper = Paper(arguments, judge)
    failed: ConfigError | None = None
    for item in paper.items:
        try:
            paper.attempt(item)
        except ConfigError as error:
            item.lacks.append(Lack(str(error), ""))
            failed = error
    write_atomically(arguments.out / PAGE, paper.page())
    print(*paper.overview(), f"\n{arguments.out / PAGE} has them all, and the commands for what is missing", sep="\n")
    if failed is not None:
        raise failed


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    arguments, judge = parse_arguments(command_line)
    return exit_code_of(lambda: write(arguments, judge))


if __name__ == "__main__":
    sys.exit(main())
