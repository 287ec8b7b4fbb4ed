"""The report of a study, made of its results alone: tables, figures, one page, and a verdict on every claim.

OUT/report.html, report.md                       everything, to read
OUT/runs.csv, scores.csv, differences.csv, claims.csv    the tables' numbers
OUT/figures/NAME.svg, NAME.png
"""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meds_openrlhf.files import write_atomically
from meds_openrlhf.report.output import markdown_table, write_figure
from meds_openrlhf.study.figures import figures_of
from meds_openrlhf.study.plan import StudyRun
from meds_openrlhf.study.results import metric_of, runs_csv
from meds_openrlhf.study.statistics import Interval, bootstrap_interval, interquartile_mean
from meds_openrlhf.study.status import RunStatus, Status, statuses_of
from meds_openrlhf.study.study_file import Study
from meds_openrlhf.study.verdicts import LEAST_SEEDS, Comparison, Results, Verdict, compare, judge, pairs_of

PAGE = "report.html"
STYLE = """\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.875rem; }
th, td { border-bottom: 1px solid #ddd; padding: 0.25rem 0.75rem; text-align: right; vertical-align: top; }
th:first-child, td:first-child, .text td, .text th { text-align: left; }
img { max-width: 100%; } figure { margin: 1.5rem 0; } figcaption { color: #555; font-size: 0.875rem; }
"""


@dataclass(frozen=True)
class Table:
    """A table under a ``title``: cells are texts, for Markdown, HTML and (if it has a ``file``) CSV alike."""

    title: str
    header: list[str]
    rows: list[list[str]]
    file: str | None = None
    texts: bool = False  # all columns are words

    def markdown(self) -> str:
        """The table in Markdown."""
        sides = "<" * len(self.header) if self.texts else ""
        cells = [[cell.replace("|", "\\|") for cell in row] for row in self.rows]
        return f"## {self.title}\n\n{markdown_table(self.header, cells, sides)}\n"

    def html(self) -> str:
        """The table in HTML, with every cell escaped."""

        def row(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in self.rows)
        kind = ' class="text"' if self.texts else ""
        return f"<h2>{html.escape(self.title)}</h2>\n<table{kind}>{row(self.header, 'th')}{body}</table>\n"

    def csv(self) -> str:
        """The table as CSV."""
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows([self.header, *self.rows])
        return file.getvalue()


def write_study_report(runs: Sequence[StudyRun], out: Path) -> tuple[Path, list[Verdict]]:
    """Write the report into ``out``; returns the page's path and the verdicts."""
    study, statuses = runs[0].study, statuses_of(runs)
    results = {(row.run.task, row.run.method, row.run.seed): row.result for row in statuses if row.result is not None}
    verdicts = [judge(study, results, name) for name in study.claims]
    tables = [
        _claims(verdicts),
        _scores(study, results),
        _differences(study, results),
        *([_agreement(study, results)] if any(result.agreement for result in results.values()) else []),
        _run_table(statuses),
    ]
    captions = {}
    for name, (caption, figure) in figures_of(study, results, verdicts).items():
        captions[name] = caption
        for suffix in (".svg", ".png"):
            write_figure(figure, out / "figures" / f"{name}{suffix}")
    for table in tables:
        if table.file is not None:
            write_atomically(out / table.file, table.csv())
    write_atomically(out / "runs.csv", runs_csv(study, list(results.values())))
    write_atomically(out / "report.md", _markdown(study, statuses, tables, captions))
    write_atomically(out / PAGE, _page(study, statuses, tables, captions, out))
    return out / PAGE, verdicts


# ── tables ──


def _claims(verdicts: Sequence[Verdict]) -> Table:
    rows = []
    for verdict in verdicts:
        what = f"{verdict.claim.metric}, {verdict.claim.method} - {verdict.claim.than}"
        what = what if verdict.claim.than_metric is None else f"{what} ({verdict.claim.than_metric})"
        rows.append([verdict.name, verdict.claim.says, what, verdict.verdict, *_compared(verdict.comparison)])
    header = ["claim", "says", "compared", "verdict", *_COMPARED]
    return Table("Claims", header, rows, "claims.csv", texts=True)


_COMPARED = ["difference", "interval", "probability of improvement", "interval of it", "p", "seeds"]


def _compared(found: Comparison | None) -> list[str]:
    if found is None:
        return [""] * len(_COMPARED)
    gap, improvement = found.difference, found.improvement
    return [
        *(f"{gap.value:+.4f}", f"{gap.low:+.4f} to {gap.high:+.4f}"),
        *(f"{improvement.value:.2f}", f"{improvement.low:.2f} to {improvement.high:.2f}"),
        *(f"{found.p_value:.4f}", str(len(found.pairs.seeds))),
    ]


def _scores(study: Study, results: Results) -> Table:
    """The interquartile mean over seeds of every primary metric, by task and method."""
    rows = []
    for task in study.tasks:
        for method in study.methods:
            mine = [results[task, method, seed] for seed in study.seeds if (task, method, seed) in results]
            cells = [task, method, f"{len(mine)} of {len(study.seeds)}"]
            for metric in study.rule.primary:
                values = [metric_of(result, metric, study.rule.last) for result in mine]
                cells += _score([value for value in values if value is not None], study.rule.level)
            rows.append(cells)
    names = [name for metric in study.rule.primary for name in (metric, f"interval of {metric}")]
    return Table("Scores", ["task", "method", "seeds", *names], rows, "scores.csv")


def _score(values: Sequence[float], level: float) -> list[str]:
    if not values:
        return ["missing", ""]
    scores = np.array([values])
    found = bootstrap_interval(scores, level=level) if len(values) > 1 else None
    return [f"{float(interquartile_mean(scores)):.4f}", "" if found is None else _ends(found)]


def _ends(found: Interval) -> str:
    return f"{found.low:.4f} to {found.high:.4f}"


def _differences(study: Study, results: Results) -> Table:
    """Every method against the first, over all tasks and in each, in every primary metric."""
    first, *others = study.methods
    spans = {"all": tuple(study.tasks), **({task: (task,) for task in study.tasks} if len(study.tasks) > 1 else {})}
    rows = []
    for metric, (span, tasks), method in itertools.product(study.rule.primary, spans.items(), others):
        pairs = pairs_of(study, results, ((method, metric), (first, metric)), tasks)
        missing = f"{pairs.missing} missing" if pairs.missing else ""
        rows.append([metric, span, method, *_compared(compare(pairs, study)), missing])
    header = ["metric", "tasks", f"method (against {first})", *_COMPARED, "pairs"]
    return Table("Paired differences", header, rows, "differences.csv")


def _agreement(study: Study, results: Results) -> Table:
    names = list(dict.fromkeys(name for result in results.values() for name in result.agreement))
    rows = []
    for task in (task for task, given in study.tasks.items() if given.known_mistakes):
        for method in study.methods:
            mine = [result.agreement for key, result in results.items() if key[:2] == (task, method)]
            values = [[metrics[name] for metrics in mine if name in metrics] for name in names]
            rows.append([task, method, *(_score(found, study.rule.level)[0] for found in values)])
    return Table("Agreement of clusters with known mistakes", ["task", "method", *names], rows, "agreement.csv")


def _run_table(statuses: Sequence[RunStatus]) -> Table:
    rows = [[row.run.name, row.state.value, f"{row.steps}/{row.run.study.steps}", row.detail] for row in statuses]
    return Table("Runs", ["run", "state", "steps", ""], rows, texts=True)


# ── pages ──


def _lead(study: Study, statuses: Sequence[RunStatus]) -> str:
    states = [row.state for row in statuses]
    counts = ", ".join(f"{states.count(state)} {state.value}" for state in Status if state in states)
    size = f"{len(study.tasks)} x {len(study.methods)} x {len(study.seeds)} runs (tasks x methods x seeds)"
    return f"{size} of {study.steps} steps: {counts}."


def _how(study: Study) -> str:
    rule = study.rule
    statistic = {"mean": "mean", "iqm": "interquartile mean"}[rule.statistic]
    return (
        f"pass@k of a run is the mean over its last {rule.last} evaluations on held-out problems, {study.evaluation.n} "
        "samples each; a metric of training is the mean over its last quarter of steps. Scores are interquartile means "
        f"over seeds. Differences are paired by task and seed; theirs is the {statistic}. Intervals ({rule.level:.0%}) "
        "are from a bootstrap of seeds within tasks. p is that of a paired permutation test. A claim holds if the "
        "interval is beyond 0 in its direction; it does not hold if the interval is below the smallest difference "
        f"that matters, or below 0; otherwise, and with fewer than {LEAST_SEEDS} seeds, it cannot be decided. No claim "
        "is judged before all of its runs are finished. Several claims are judged, each with this chance of error."
    )


def _markdown(study: Study, statuses: Sequence[RunStatus], tables: Sequence[Table], captions: dict[str, str]) -> str:
    figures = [f"![{caption}](figures/{name}.svg)\n\n{caption}\n" for name, caption in captions.items()]
    texts = [table.markdown() for table in tables]
    return "\n".join(
        [f"# {study.name}\n", f"{_lead(study, statuses)}\n", *texts[:1], *figures, *texts[1:], _how(study), ""]
    )


def _page(
    study: Study, statuses: Sequence[RunStatus], tables: Sequence[Table], captions: dict[str, str], out: Path
) -> str:
    """One file without scripts, which may load nothing: its figures are in it."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    figures = []
    for name, caption in captions.items():
        image = base64.b64encode((out / "figures" / f"{name}.svg").read_bytes()).decode()
        text = html.escape(caption)
        source = f"data:image/svg+xml;base64,{image}"
        figures.append(f'<figure><img src="{source}" alt="{text}"><figcaption>{text}</figcaption></figure>\n')
    first, *rest = [table.html() for table in tables]
    name = html.escape(study.name)
    head = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{STYLE}</style></head>\n'
    )
    lead, how = html.escape(_lead(study, statuses)), html.escape(_how(study))
    body = "".join([f"<h1>{name}</h1>\n<p>{lead}</p>\n", first, *figures, *rest, f"<p>{how}</p>\n"])
    return f"{head}<body>{body}</body></html>\n"
