"""Does the fingerprint of a real model read its reasoning, and can a memory of it matter? No training.

    python examples/smollm2.py convert assets/smollm2-135m/published
    python -m studies.smollm2_fingerprint sample assets/smollm2-135m/published results/smollm2-fingerprint/published
    python -m studies.smollm2_fingerprint record assets/smollm2-135m/published results/smollm2-fingerprint/published
    python -m studies.smollm2_fingerprint judge results/smollm2-fingerprint/published

The same on the model after its supervised start, with `python examples/smollm2.py prepare assets/smollm2-135m` in place
of the first, and `assets/smollm2-135m/policy` and `results/smollm2-fingerprint/started` in the others.

What follows was fixed before the first run.

*Rollouts.* SmolLM2-135M-Instruct from 4-bit weights, as published (no supervised start), in float32. `PROMPTS`
problems of each of two tasks of reasoning-gym: `chain_sum` with three terms of one or two digits, and `gsm_symbolic`.
Problems are screened in order with `SCREENED` samples from other seeds; those with at least half of them wrong are
taken. Then `VISITS` visits of `GROUP` samples each at temperature 1, of at most 128 tokens. The answer is the
last number of the response (`PATTERN`). Wrong responses with an answer count.

*Truths, none of which is the answer.* An equation is numbers joined by + - * / and a number behind "=". `path`: all
equations of a response in order; `first`: the first of them; `operators`: the operators on the left sides, in order.
Responses without an equation are left out. A task of which fewer than `COVERED` of the wrong responses have an equation
is left out. The rule is judged on `first`, because whole paths of such a small model hardly repeat; the others are
reported.

*Arms.* Vectors: logits of the last 15 layers, of all, their differences, the last 15 less the mean of the prompt's
rollouts with the same first token of the answer (`relative`), the last layer alone, the length, the log-prob of the
answer's first token. Clusterings: the vectors of logits by the presets `paper` and `robust`, equal answers, equal first
tokens, one cluster, each alone, and the best arm's labels permuted within prompts.

*Metrics.* M1: adjusted Rand index to the truth, mean over prompts. M2: within the same prompt and the same answer
(also: the same first token), the share of rollouts whose nearest neighbor (by cosine; scalars by difference) has the
same truth, minus its mean when truths are permuted within the stratum (exact: the share of equal others). M3: the
amplitude, root of `penalty_effect`, of visits 2 and 3 with the paper's alpha and beta, over groups with right and wrong
responses, for the presets `paper`, `reference`, `robust`, `answers`, and for `paper` with exchanged sizes. Intervals:
95 %, 2,000 resamples of prompts.

*Rule.* It reads reasoning if M2's lower end of the last 15 layers, within equal answers, is above 0.05. It is a proxy
of the answer if M1 of the best clustering of logits minus M1 of equal first tokens ends below 0. A memory of it can
matter if the amplitude's lower end (`paper`) is above 10 %, and cannot if its upper end is below 5 %.

*After the supervised start*, fixed before its run: answers are in boxes, and problems are the recipe's
(`examples.smollm2`), of templates that the start has not seen; all else, and the rule, is the same. `relative` is worth
a setting if its M2 for `operators`, within equal first tokens, less that of the last 15 layers, has its lower end above
0, because whole paths may hardly repeat here too.

*Afterwards*, when the results were known, M2 with each text of a prompt once was added to its tables, and the truth
itself in place of a vector: the most that any could reach.

*Against the design*: 24 problems a task, not 32, and 12 samples a visit, not 16, because the machine at hand generates
140 tokens a second; declared before the start.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from meds_openrlhf.stats.presentation import markdown, shown
from studies.smollm2_rollouts import GROUP, SEED, read_responses, record, sample

COVERED = 0.6
PRESETS = ("paper", "reference", "robust", "answers")
RESAMPLES = 2_000
_cell = partial(shown, form=".3f")

_NUMBER = r"-?\$?\d+(?:\.\d+)?"
_EQUATION = re.compile(rf"({_NUMBER}(?:\s*[-+*/x×÷]\s*{_NUMBER})+)\s*=\s*({_NUMBER})")
_OPERATORS = str.maketrans({"x": "*", "×": "*", "÷": "/", "$": None, " ": None})


def equations_of(response: str) -> list[str]:
    """Return the written equations, such as ``12+5=17``."""
    return [f"{left}={right}".translate(_OPERATORS) for left, right in _EQUATION.findall(response)]


def truths_of(response: str) -> dict[str, str | None]:
    """Return what stands for the reasoning in a response, None without an equation."""
    equations = equations_of(response)
    operators = [re.sub(r"[^-+*/]", "", re.sub(r"(^|(?<=[-+*/]))-", "", each.split("=")[0])) for each in equations]
    found = {"path": " ".join(equations), "first": "".join(equations[:1]), "operators": " ".join(operators)}
    return {name: text or None for name, text in found.items()}


Vectors = NDArray[np.floating]


def vectors_of(logits: Vectors, prompt: NDArray[Any], first: NDArray[Any]) -> dict[str, Vectors]:
    """Return the vectors of logits by arm, (n, d) each, of unit length."""
    relative = pd.DataFrame(logits[:, -15:]).groupby([prompt, first]).transform(lambda column: column - column.mean())
    arms = {
        "last 15": logits[:, -15:],
        "all": logits,
        "last 15, differences": np.diff(logits[:, -15:], axis=1),
        "all, differences": np.diff(logits, axis=1),
        "relative": relative.to_numpy(),
    }
    return {name: arm / np.maximum(np.linalg.norm(arm, axis=1, keepdims=True), 1e-12) for name, arm in arms.items()}


def neighbor_gain(values: Vectors, truth: NDArray[Any], stratum: NDArray[Any], prompt: NDArray[Any]) -> pd.DataFrame:
    """Return by prompt the sum of M2's differences and the number of rollouts, in strata of two and more.

    ``values``: (n, d) unit vectors, or (n,) scalars. Ties among nearest neighbors count in equal parts.
    """
    lines = []
    for _, rows in pd.DataFrame({"stratum": stratum}).groupby("stratum"):
        places = rows.index.to_numpy()
        if len(places) < 2:
            continue
        of = values[places]
        near = of @ of.T if values.ndim == 2 else -np.abs(of[:, None] - of[None, :])
        np.fill_diagonal(near, -np.inf)
        nearest = near >= near.max(axis=1, keepdims=True) - 1e-12
        equal = truth[places][:, None] == truth[places][None, :]
        hit = (nearest & equal).sum(axis=1) / nearest.sum(axis=1)
        chance = (equal.sum(axis=1) - 1) / (len(places) - 1)
        lines.append({"prompt": prompt[places[0]], "sum": float((hit - chance).sum()), "hits": float(hit.sum()),
                      "count": len(places)})  # fmt: skip
    table = pd.DataFrame(lines, columns=["prompt", "sum", "hits", "count"])
    return table.groupby("prompt").sum()


def resampled(table: pd.DataFrame, value: Callable[[pd.DataFrame, NDArray[Any]], NDArray[Any]]) -> tuple[float, ...]:
    """Return a value over prompts, and its interval when prompts are drawn again; ``value`` takes weights (r, p)."""
    drawn = np.random.default_rng(0).multinomial(len(table), np.full(len(table), 1 / len(table)), RESAMPLES)
    point = value(table, np.ones((1, len(table))))[0]
    return float(point), *map(float, np.nanquantile(value(table, drawn), [0.025, 0.975]))


def ratio(table: pd.DataFrame, weights: NDArray[Any]) -> NDArray[Any]:
    """Return the sum over the count."""
    return np.asarray((weights @ table["sum"].to_numpy()) / np.maximum(weights @ table["count"].to_numpy(), 1))


def amplitude(table: pd.DataFrame, weights: NDArray[Any]) -> NDArray[Any]:
    """Return the root of the mean effect."""
    return np.asarray(np.sqrt(ratio(table, weights)))


def clusterings_of(arms: dict[str, Vectors], wrong: pd.DataFrame) -> dict[str, NDArray[Any]]:
    """Return the clusterings (n,) of M1, each within prompts; noise is a set, as in the paper."""
    from meds_openrlhf.config.method import PRESETS
    from meds_openrlhf.memory.clustering import cluster_sets

    wrong = wrong.reset_index(drop=True)
    places = list(wrong.groupby("prompt", sort=False).indices.values())
    offsets = np.cumsum([0, *map(len, places)])
    order, found = np.concatenate(places), {}
    for preset in ("paper", "robust"):
        for name, vectors in arms.items():
            labels = np.empty(len(wrong), int)
            labels[order] = cluster_sets(vectors[order].astype(np.float64), offsets, PRESETS[preset])
            found[f"{name}, {preset}"] = labels
    alone = {"one cluster": np.zeros(len(wrong), int), "each alone": np.arange(len(wrong))}
    keys = {"equal answers": "form", "equal first tokens": "first"}
    return found | {name: pd.factorize(wrong[key])[0] for name, key in keys.items()} | alone


def rand_by_prompt(labels: NDArray[Any], truth: NDArray[Any], prompt: NDArray[Any]) -> pd.Series:
    """Return the adjusted Rand index of each prompt with several rollouts and several kinds of the truth."""
    from sklearn.metrics import adjusted_rand_score  # type: ignore[import-untyped]

    table = pd.DataFrame({"labels": labels, "truth": truth, "prompt": prompt})
    found = {
        name: adjusted_rand_score(rows["truth"], rows["labels"])
        for name, rows in table.groupby("prompt")
        if len(rows) > 1 and rows["truth"].nunique() > 1
    }
    return pd.Series(found)


def effects_of(rollouts: pd.DataFrame, logits: Vectors, preset: str, is_shuffled: bool = False) -> pd.DataFrame:
    """Return by prompt the summed `penalty_effect` of visits 2 and 3 with right and wrong responses, and the number."""
    import tempfile

    from meds_openrlhf import (
        MemoryPaths,
        MemoryShard,
        Sharding,
        ShardSettings,
        cluster_penalty,
        make_rows,
        shaped_reward,
    )
    from meds_openrlhf.config.method import make_method
    from meds_openrlhf.features.final_answer import answer_rows
    from meds_openrlhf.features.transform import FeatureTransform
    from meds_openrlhf.shaping.law import penalty_effect
    from meds_openrlhf.shaping.shuffled import shuffled

    rows = answer_rows(rollouts["answer"].tolist()) if preset == "answers" else logits
    transform = FeatureTransform("all", normalize="none") if preset == "answers" else FeatureTransform(15)
    settings = ShardSettings(layers=rows.shape[1], transform=transform, method=make_method(preset))
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        memory = MemoryShard(MemoryPaths(Path(folder)), Sharding(0, 1), settings)
        for visit, of_visit in rollouts.groupby("visit"):
            right = of_visit["correct"].to_numpy()
            kept = np.flatnonzero(~right & of_visit["answer"].notna().to_numpy())
            places = of_visit.index.to_numpy()[kept]
            batch = make_rows(kept, of_visit["prompt"].iloc[kept].tolist(), np.zeros(len(kept), bool), rows[places])
            answer = memory.observe(int(visit), batch)
            sizes = np.zeros(len(of_visit), np.int64)
            sizes[answer.sample] = answer.size
            grouped: NDArray[np.integer] = sizes.reshape(-1, GROUP)
            if is_shuffled:
                has_row = np.isin(np.arange(len(of_visit)), kept).reshape(-1, GROUP)
                grouped = shuffled(grouped, has_row, [SEED, int(visit)])
            for prompt, of_group, correct in zip(of_visit["prompt"].iloc[::GROUP], grouped, right.reshape(-1, GROUP)):
                if visit > 1 and correct.any() and not correct.all():
                    raw = correct[None].astype(np.float64)
                    shaped = shaped_reward(raw, cluster_penalty(of_group[None], alpha=0.1, beta=0.2), correct[None])
                    lines.append({"prompt": prompt, "sum": penalty_effect(raw, shaped), "count": 1})
        memory.close()
    return pd.DataFrame(lines, columns=["prompt", "sum", "count"]).groupby("prompt").sum()


def judge(out: Path) -> None:
    """Write ``numbers.json``, and the tables and the verdict of the rule to ``report.md``."""
    rollouts, logits = _recorded(out)
    is_wrong = ~rollouts["correct"] & rollouts["answer"].notna() & np.isfinite(logits).all(axis=1)
    covered = (rollouts[is_wrong]["path"].notna()).groupby(rollouts["task"]).mean()
    counted = is_wrong & rollouts["path"].notna() & rollouts["task"].map(covered >= COVERED)
    wrong, chosen = rollouts[counted].reset_index(drop=True), logits[counted.to_numpy()]
    arms = vectors_of(chosen, wrong["prompt"].to_numpy(), wrong["first"].to_numpy())
    scalars = {name: wrong[name].to_numpy(float) for name in ("length", "log_prob")} | {"last layer": chosen[:, -1]}
    clusterings = clusterings_of(arms, wrong)
    numbers: dict[str, Any] = {
        "rollouts": len(rollouts), "right": float(rollouts["correct"].mean()), "wrong_with_answer": int(is_wrong.sum()),
        "counted": int(counted.sum()), "covered": covered.to_dict(), "M1": {}, "M2": {}, "M3": {},
    }  # fmt: skip
    tables = []
    for name, column in (("first", "first_equation"), ("operators", "operators"), ("path", "path")):
        truth = pd.factorize(wrong[column])[0]
        best, found, prompts = _agreement(clusterings, truth, wrong["prompt"].to_numpy())
        numbers["M1"][name] = {"best": best, "prompts": prompts, **found}
        rows = [[arm, *map(_cell, values)] for arm, values in found.items()]
        tables.append((f"M1, adjusted Rand index to `{name}`", rows, ["labels", "index", "low", "high"]))
        for stratum, key in (("equal answers", "form"), ("equal first tokens", "first")):
            lines = _neighbors(arms, scalars, truth, wrong, key)
            numbers["M2"][f"{name}, {stratum}"] = lines
            rows = [[arm, of["count"], _cell(of["hits"]), *map(_cell, of["gain"])] for arm, of in lines.items()]
            columns = ["arm", "rollouts", "nearest has it", "less chance", "low", "high"]
            tables.append((f"M2, `{name}` within {stratum}", rows, columns))
    for preset, is_shuffled in (*((preset, False) for preset in PRESETS), ("paper", True)):
        effects = effects_of(rollouts, logits, preset, is_shuffled)
        numbers["M3"][f"{preset}{', shuffled' * is_shuffled}"] = {
            "groups": int(effects["count"].sum()), "amplitude": resampled(effects, amplitude) if len(effects) else None,
        }  # fmt: skip
    rows = [[name, of["groups"], *map(_cell, of["amplitude"] or [None] * 3)] for name, of in numbers["M3"].items()]
    tables.append(("M3, amplitude of the penalty", rows, ["memory", "groups", "amplitude", "low", "high"]))
    numbers["rule"] = _verdicts(numbers)
    (out / "numbers.json").write_text(json.dumps(numbers, indent=1) + "\n")
    facts = [f"- {name}: {value}" for name, value in numbers.items() if name not in ("M1", "M2", "M3")]
    pages = [f"## {title}\n\n{markdown(pd.DataFrame(rows, columns=columns))}" for title, rows, columns in tables]
    (out / "report.md").write_text("\n\n".join([f"# {out.parent.name}, {out.name}", "\n".join(facts), *pages]) + "\n")


def _recorded(out: Path) -> tuple[pd.DataFrame, Vectors]:
    """Return all responses with their truths, and their layer logits (n, N)."""
    rollouts, rows = read_responses(out / "rollouts.jsonl"), np.load(out / "rows.npz")
    truths = pd.DataFrame([truths_of(text) for text in rollouts["response"]])
    rollouts = rollouts.join(truths.rename(columns={"first": "first_equation"}))
    length = rollouts["ids"].map(len)
    return rollouts.assign(first=rows["first"], log_prob=rows["log_prob"], length=length), rows["layer_logits"]


def _agreement(
    clusterings: dict[str, NDArray[Any]], truth: NDArray[Any], prompt: NDArray[Any]
) -> tuple[str, dict[str, tuple[float, ...]], int]:
    """Return the best clustering of logits, M1 of all and of two more, and the number of prompts."""
    by_prompt = {arm: rand_by_prompt(labels, truth, prompt) for arm, labels in clusterings.items()}
    best = max((arm for arm in by_prompt if ", " in arm), key=lambda arm: by_prompt[arm].mean())
    labels = pd.Series(clusterings[best]).groupby(prompt)
    permuted = labels.transform(lambda x: x.sample(frac=1, random_state=0).to_numpy())
    by_prompt["best, permuted"] = rand_by_prompt(permuted.to_numpy(), truth, prompt)
    beyond = by_prompt[best] - by_prompt["equal first tokens"]
    by_prompt["best logits less equal first tokens"] = beyond
    found = {arm: resampled(pd.DataFrame({"sum": scores, "count": 1}), ratio) for arm, scores in by_prompt.items()}
    return best, found, len(beyond)


def _neighbors(
    arms: dict[str, Vectors], scalars: dict[str, Vectors], truth: NDArray[Any], wrong: pd.DataFrame, key: str
) -> dict[str, dict[str, Any]]:
    """Return M2 by arm within prompts and equal values of the column ``key``."""
    prompt = wrong["prompt"].to_numpy()
    strata = pd.factorize(wrong["prompt"] + "|" + wrong[key].astype(str))[0]
    gains = {arm: neighbor_gain(values, truth, strata, prompt) for arm, values in (arms | scalars).items()}
    differ = ~wrong.duplicated(["prompt", "response"]).to_numpy()
    perfect = np.eye(truth.max() + 1)[truth]  # whose nearest neighbor has the same truth wherever there is one
    gains["truth itself"] = neighbor_gain(perfect, truth, strata, prompt)
    for arm, values in (("last 15", arms["last 15"]), ("truth itself", perfect)):
        once = neighbor_gain(values[differ], truth[differ], strata[differ], prompt[differ])
        gains[f"{arm}, each text once"] = once
    less = gains["relative"]["sum"] - gains["last 15"]["sum"]
    gains["relative less last 15"] = gains["relative"].assign(sum=less)
    return {
        arm: {
            "gain": resampled(of, ratio),
            "hits": of["hits"].sum() / of["count"].sum(),
            "count": int(of["count"].sum()),
        }
        for arm, of in gains.items()
    }


def _verdicts(numbers: dict[str, Any]) -> dict[str, bool]:
    """Return what the rule says."""
    reads = numbers["M2"]["first, equal answers"]["last 15"]["gain"]
    beyond_first = numbers["M1"]["first"]["best logits less equal first tokens"]
    paper = numbers["M3"]["paper"]["amplitude"]
    relative = numbers["M2"]["operators, equal first tokens"]["relative less last 15"]["gain"]
    return {
        "reads_reasoning": reads[1] > 0.05,
        "proxy_of_the_answer": beyond_first[2] < 0,
        "relative_is_worth_a_setting": relative[1] > 0,
        "can_matter": paper is not None and paper[1] > 0.10,
        "cannot_matter": paper is not None and paper[2] < 0.05,
    }


def main(words: Sequence[str] | None = None) -> None:
    """Run a part of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("sample", "record", "judge"))
    parser.add_argument("folders", nargs="+", type=Path, help="the model's, unless it judges, and that of the results")
    given = parser.parse_args(words)
    parts: dict[str, Callable[..., None]] = {"sample": sample, "record": record, "judge": judge}
    parts[given.part](*given.folders)


if __name__ == "__main__":
    main()
