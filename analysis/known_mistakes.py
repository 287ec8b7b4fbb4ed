"""Do the clusters find the mistakes? On the demo's task the mistakes are known, so agreement needs no judge.

Clusters the wrong rollouts of a run of the arithmetic task by each feature variant of the paper's ablation (Section
5.3) and each preset, and compares the clusters of each prompt with the mistake that explains each rollout. Rollouts
that no mistake or several mistakes may explain are clustered but not compared.

    python -m analysis.known_mistakes runs/demo-20261121-120000
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from analysis.agreement import MEASURES, agreement_by_prompt, labels_by_answer, separate_noise
from analysis.command_line import Command, Finding
from analysis.mistakes import Explanation, explain, expression_of
from meds_openrlhf.arithmetic.problems import MISTAKES, Mistake
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.memory.sets import NOISE
from meds_openrlhf.options import folders, option
from meds_openrlhf.rollouts.features import FEATURES, LOGIT_PRESETS, SINGLE, labels_of_feature, wrong_rows
from meds_openrlhf.rollouts.run import prompt_codes
from meds_openrlhf.stats.presentation import markdown

COLUMNS = ("prompt_text", "answer", "response")  # of the log, to find the mistake
ANY_PRESET = "any"  # for the variants without layer logits, which any clustering must exceed: `labels_by_answer`,
ALONE = "alone"  # every response is a cluster of its own; and `SINGLE`, all of a prompt are one

Numbers = dict[str, Any]  # by name, as they are written


def analyze(
    run: Annotated[Path, folders("folder of a run of the arithmetic task", None)],
    noise: Annotated[
        str, option("all noise is one cluster, as in the paper, or each noise row is alone", choices=("set", "alone"))
    ] = "set",
) -> Finding:
    """Compare clusters and mistakes; ``noise`` is one "set", or each of its rows is "alone"."""
    wrong, explanations = wrong_and_explained(run)
    coverage, scores = coverage_of(explanations), scores_of(run, wrong, explanations, noise=noise)
    numbers = {"noise": noise, "coverage": coverage, "scores": scores}
    return Finding(f"{coverage_lines(coverage)}\n\n{markdown(table_of(scores))}", numbers)


def wrong_and_explained(run: Path, mistakes: tuple[Mistake, ...] = MISTAKES) -> tuple[pa.Table, list[Explanation]]:
    """The run's wrong rollouts with layer logits, and which of the ``mistakes`` may explain each.

    Raises ConfigError like `wrong_rows` and `expression_of`.
    """
    wrong = wrong_rows(run, COLUMNS)
    cases = zip(*(wrong[name].to_pylist() for name in COLUMNS))
    return wrong, [explain(expression_of(text), answer, response, mistakes) for text, answer, response in cases]


def coverage_of(explanations: Sequence[Explanation]) -> dict[str, Any]:
    """The numbers of wrong rollouts with a single mistake as truth, by kind of evidence, and of the others."""
    named = [case for case in explanations if case.kind is not None]
    evidence = Counter(case.evidence for case in named)
    return {
        "wrong": len(explanations),
        "by_steps": evidence["steps"],
        "by_first_wrong_step": evidence["first wrong step"],
        "by_answer": evidence["answer"],
        "several": sum(len(case.kinds) > 1 for case in explanations),
        "unexplained": sum(not case.kinds for case in explanations),
        "kinds": dict(sorted(Counter(case.kind or "" for case in named).items())),
    }


def scores_of(run: Path, wrong: pa.Table, explanations: Sequence[Explanation], *, noise: str = "set") -> list[Numbers]:
    """For each variant and preset: clusters and share of noise among all wrong rows, and agreement with the mistakes.

    ``per_prompt`` is the unweighted mean over prompts; ``over_all`` weights a prompt by its pairs (pairwise) or rows
    (the others). Pairs are always within a prompt. Raises ConfigError if no prompt has two rows to compare.
    """
    kinds = sorted({case.kind for case in explanations if case.kind is not None})
    truth = np.array([-1 if case.kind is None else kinds.index(case.kind) for case in explanations], dtype=np.int64)
    explained, prompts = truth >= 0, prompt_codes(wrong)
    scores = []
    variants = [(v, p) for v in FEATURES for p in ((ANY_PRESET,) if v == SINGLE else LOGIT_PRESETS)]
    clustered = {(v, p): labels_of_feature(wrong, FEATURES[v], p) for v, p in variants}
    others = {ALONE: np.arange(len(wrong)), **labels_by_answer(run, wrong)}
    for (variant, preset), labels in {**clustered, **{(v, ANY_PRESET): others[v] for v in others}}.items():
        counted = separate_noise(labels) if noise == "alone" else labels
        table = agreement_by_prompt(counted[explained], truth[explained], prompts[explained])
        if not len(table):
            hint = "has no two wrong rollouts of the same prompt that a mistake explains. Name a longer run."
            raise ConfigError("RUN", None, hint)
        weights = {name: table.pairs if name == "pairwise" else table.rows for name in MEASURES}
        score = {
            "variant": variant,
            "preset": preset,
            "clusters": len(np.unique(labels[labels != NOISE])),
            "noise_share": float((labels == NOISE).mean()),
            "prompts": len(table),
            "rows": int(table.rows.sum()),
            "per_prompt": {name: float(table[name].mean()) for name in MEASURES},
            "over_all": {name: float(np.average(table[name], weights=weights[name])) for name in MEASURES},
        }
        scores.append(score)
    return scores


def table_of(scores: Sequence[Numbers]) -> pd.DataFrame:
    """The scores: means over prompts, and the weighted means in brackets."""
    measures = ("adjusted_rand", "pairwise", "homogeneity", "completeness")
    header = ["variant", "preset", "clusters", "noise", *(name.replace("_r", " R") for name in measures)]
    rows = [
        [
            *(entry["variant"], entry["preset"], entry["clusters"], f"{entry['noise_share']:.1%}"),
            *(f"{entry['per_prompt'][name]:.3f} ({entry['over_all'][name]:.3f})" for name in measures),
        ]
        for entry in scores
    ]
    return pd.DataFrame(rows, columns=header)


def coverage_lines(coverage: Mapping[str, Any]) -> str:
    """The coverage in words."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in coverage["kinds"].items())
    return (
        "{wrong} wrong rollouts with layer logits: {by_steps} explained by all their steps, {by_first_wrong_step} by "
        "their first wrong step,\n{by_answer} by their answer alone; {several} explained by several mistakes and "
        "{unexplained} explained by none are not compared.\nmistakes: "
    ).format(**coverage) + (kinds or "none")


main = Command("known_mistakes", __doc__, analyze, draws=False)

if __name__ == "__main__":
    sys.exit(main())
