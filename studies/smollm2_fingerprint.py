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

*Against the design*: 24 problems a task, not 32, and 12 samples a visit, not 16, because the machine at hand generates
140 tokens a second; declared before the start.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from examples.smollm2 import Problem, Sampler
from examples.smollm2 import problems as recipe_problems
from meds_openrlhf import AnswerLocator

PROMPTS, SCREENED, VISITS, GROUP = 24, 8, 3, 12
SCREENING_SEED, SEED, PROBLEM_SEED = 20_000, 30_000, 4_100
PATTERN = r"(-?\d[\d,]*(?:\.\d+)?)"
ASK = " Think step by step: write an equation for each step, and the answer at the end."
SUFFIX = " Give the result as your final answer. Do not include units."
COVERED = 0.6
TASKS = ("chain_sum", "gsm_symbolic")
PRESETS = ("paper", "reference", "robust", "answers")
RESAMPLES = 2_000

_NUMBER = r"-?\$?\d+(?:\.\d+)?"
_EQUATION = re.compile(rf"({_NUMBER}(?:\s*[-+*/x×÷]\s*{_NUMBER})+)\s*=\s*({_NUMBER})")
_OPERATORS = str.maketrans({"x": "*", "×": "*", "÷": "/", "$": None, " ": None})


# ── rollouts ──


@dataclass(frozen=True)
class Stage:
    """What is asked of a model, and how its answers are found: by ``pattern``, or in boxes."""

    pattern: str | None
    problems: Callable[[str], Iterator[Problem]]


def _published_problems(task: str) -> Iterator[Problem]:
    import reasoning_gym

    terms = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 2} if task == "chain_sum" else {}
    for item in reasoning_gym.create_dataset(task, size=400, seed=PROBLEM_SEED, **terms):
        sums = item["metadata"].get("expression")
        question = f"What is {sums}?" if sums else item["question"].removesuffix(SUFFIX)
        yield Problem(task, question + ASK, "", str(item["answer"]))


STAGES = {
    "published": Stage(PATTERN, _published_problems),
    "started": Stage(None, partial(recipe_problems, seed=PROBLEM_SEED, starts=False)),
}


def responses_to(
    sampler: Sampler, locator: AnswerLocator, chosen: Sequence[Problem], n: int, seed: int
) -> Iterator[list[dict[str, Any]]]:
    """Yield ``n`` responses to each problem, with their answers."""
    for each, (prompt, outputs) in zip(chosen, sampler.sample(chosen, n, seed)):
        before = sampler.tokenizer.encode(prompt, add_special_tokens=False)
        found = []
        for output in outputs:
            ids = [*before, *output.token_ids]
            answer = locator.find(ids, [False] * len(before) + [True] * len(output.token_ids)).text
            found.append({
                "task": each.task, "prompt": prompt, "truth": each.answer, "response": output.text,
                "ids": list(output.token_ids), "answer": answer, "correct": is_right(answer, each.answer),
            })  # fmt: skip
        yield found


def sample(model: Path, out: Path) -> None:
    """Screen problems and sample their visits; write ``rollouts.jsonl``, a line a response. Tasks that it has stay."""
    stage, sampler = STAGES[out.name], Sampler(model)
    responses = partial(responses_to, sampler, AnswerLocator(sampler.tokenizer, stage.pattern))
    out.mkdir(parents=True, exist_ok=True)
    path = out / "rollouts.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    written = Counter(json.loads(line)["task"] for line in lines)
    done = {task for task, count in written.items() if count == PROMPTS * VISITS * GROUP}
    path.write_text("".join(line for line in lines if json.loads(line)["task"] in done), encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        for task in TASKS:
            if task in done:
                continue
            chosen: list[Problem] = []
            screened, source = 0, stage.problems(task)
            while len(chosen) < PROMPTS:
                drawn = [next(source) for _ in range(PROMPTS)]
                for each, found in zip(drawn, responses(drawn, SCREENED, SCREENING_SEED + 1000 * screened)):
                    if sum(response["correct"] for response in found) <= SCREENED / 2 and len(chosen) < PROMPTS:
                        chosen.append(each)
                screened += len(drawn)
            print(f"{task}: {len(chosen)} of {screened} problems", flush=True)
            for visit in range(1, VISITS + 1):
                for found in responses(chosen, GROUP, SEED + 1000 * visit):
                    for response in found:
                        file.write(json.dumps({"visit": visit, **response}) + "\n")
                print(f"{task}: visit {visit} of {VISITS}", flush=True)


def is_right(answer: str | None, truth: str) -> bool:
    """Whether an answer is the true number."""
    from meds_openrlhf.features.final_answer import same_answer_form

    return answer is not None and same_answer_form(answer) == same_answer_form(truth)


# ── fingerprints ──


def record(model: Path, out: Path) -> None:
    """Record the layer logits (n, N) of all responses with an answer, NaN for the others; ``rows.npz``."""
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from meds_openrlhf import LayerLogitRecorder, locate_answers, padded_positions

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    recorder, locator = LayerLogitRecorder(policy), AnswerLocator(tokenizer, STAGES[out.name].pattern)
    rollouts = read_responses(out / "rollouts.jsonl")
    before = {prompt: tokenizer.encode(prompt, add_special_tokens=False) for prompt in rollouts["prompt"].unique()}
    full = [[*before[prompt], *ids] for prompt, ids in zip(rollouts["prompt"], rollouts["ids"])]
    logits = np.full((len(full), recorder.layer_count), np.nan, np.float32)
    log_prob, first = np.full(len(full), np.nan, np.float32), np.full(len(full), -1)
    order = sorted(range(len(full)), key=lambda row: len(full[row]))
    for begin in range(0, len(order), 16):
        rows = order[begin : begin + 16]
        ids = pad_sequence([torch.tensor(full[row]) for row in rows], batch_first=True)
        own = torch.zeros(ids.shape, dtype=torch.bool)
        for place, row in enumerate(rows):
            own[place, len(before[rollouts["prompt"][row]]) : len(full[row])] = True
        positions, targets = locate_answers(locator, ids, own)
        with torch.inference_mode(), recorder.record(padded_positions(positions, ids.shape[1]), targets) as recording:
            states = policy.model(ids).last_hidden_state
        with torch.inference_mode():
            places = torch.arange(len(rows))
            scores = policy.lm_head(states[places, positions.clamp(min=0)]).log_softmax(-1)
        found = positions.numpy() >= 0
        kept = np.array(rows)[found]
        logits[kept] = recording.layer_logits.numpy()[found]
        log_prob[kept] = scores[places, targets].numpy()[found]
        first[kept] = targets.numpy()[found]
        if begin % 320 == 0:
            print(f"{begin} of {len(order)}", flush=True)
    np.savez_compressed(out / "rows.npz", layer_logits=logits, log_prob=log_prob, first=first)


def read_responses(path: Path) -> pd.DataFrame:
    """Read responses, a line each; ``form`` is the answer in one spelling, both None without an answer."""
    from meds_openrlhf.features.final_answer import same_answer_form

    with path.open(encoding="utf-8") as file:
        found = pd.DataFrame(map(json.loads, file))
    answers = found["answer"].astype(object).where(found["answer"].notna(), None)
    forms = pd.Series([answer and same_answer_form(answer) for answer in answers], dtype=object)
    return found.assign(answer=answers, form=forms)


# ── truths, arms and metrics ──


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
    from meds_openrlhf.stats.presentation import markdown, shown

    rollouts, rows = read_responses(out / "rollouts.jsonl"), np.load(out / "rows.npz")
    rollouts["first"], rollouts["log_prob"] = rows["first"], rows["log_prob"]
    truths_by_row = pd.DataFrame([truths_of(text) for text in rollouts["response"]])
    rollouts = rollouts.join(truths_by_row.rename(columns={"first": "first_equation"}))
    rollouts["length"] = rollouts["ids"].map(len)
    logits = rows["layer_logits"]
    is_wrong = ~rollouts["correct"] & rollouts["answer"].notna() & np.isfinite(logits).all(axis=1)
    covered = (rollouts[is_wrong]["path"].notna()).groupby(rollouts["task"]).mean()
    counted = is_wrong & rollouts["path"].notna() & rollouts["task"].map(covered >= COVERED)
    wrong, chosen = rollouts[counted].reset_index(drop=True), logits[counted.to_numpy()]
    prompt, first = wrong["prompt"].to_numpy(), wrong["first"].to_numpy()
    arms = vectors_of(chosen, prompt, first)
    scalars = {name: wrong[name].to_numpy(float) for name in ("length", "log_prob")} | {"last layer": chosen[:, -1]}
    clusterings = clusterings_of(arms, wrong)
    truths = {"first": wrong["first_equation"], "operators": wrong["operators"], "path": wrong["path"]}
    numbers: dict[str, Any] = {
        "rollouts": len(rollouts), "right": float(rollouts["correct"].mean()), "wrong_with_answer": int(is_wrong.sum()),
        "counted": int(counted.sum()), "covered": covered.to_dict(), "M1": {}, "M2": {}, "M3": {},
    }  # fmt: skip
    tables, cell = [], partial(shown, form=".3f")
    for name, column in truths.items():
        truth = pd.factorize(column)[0]
        by_prompt = {arm: rand_by_prompt(labels, truth, prompt) for arm, labels in clusterings.items()}
        best = max((arm for arm in by_prompt if ", " in arm), key=lambda arm: by_prompt[arm].mean())
        permuted = (
            pd.Series(clusterings[best])
            .groupby(prompt)
            .transform(lambda x: x.sample(frac=1, random_state=0).to_numpy())
        )
        by_prompt["best, permuted"] = rand_by_prompt(permuted.to_numpy(), truth, prompt)
        beyond = by_prompt[best] - by_prompt["equal first tokens"]
        by_prompt["best logits less equal first tokens"] = beyond
        found = {arm: resampled(pd.DataFrame({"sum": scores, "count": 1}), ratio) for arm, scores in by_prompt.items()}
        numbers["M1"][name] = {"best": best, "prompts": len(beyond), **found}
        tables.append((f"M1, adjusted Rand index to `{name}`", pd.DataFrame(
            [[arm, *map(cell, values)] for arm, values in found.items()], columns=["labels", "index", "low", "high"]
        )))  # fmt: skip
        for stratum, key in (("equal answers", "form"), ("equal first tokens", "first")):
            strata = pd.factorize(wrong["prompt"] + "|" + wrong[key].astype(str))[0]
            lines: dict[str, dict[str, Any]] = {}
            by_arm: dict[str, pd.DataFrame] = {}
            for arm, values in (arms | scalars).items():
                gains = neighbor_gain(values, truth, strata, prompt)
                lines[arm] = {"gain": resampled(gains, ratio), "hits": gains["hits"].sum() / gains["count"].sum(),
                              "count": int(gains["count"].sum())}  # fmt: skip
                by_arm[arm] = gains
            less = by_arm["relative"].assign(sum=by_arm["relative"]["sum"] - by_arm["last 15"]["sum"])
            lines["relative less last 15"] = {**lines["relative"], "gain": resampled(less, ratio)}
            numbers["M2"][f"{name}, {stratum}"] = lines
            tables.append((f"M2, `{name}` within {stratum}", pd.DataFrame(
                [[arm, line["count"], cell(line["hits"]), *map(cell, line["gain"])] for arm, line in lines.items()],
                columns=["arm", "rollouts", "nearest has it", "less chance", "low", "high"],
            )))  # fmt: skip
    for preset, is_shuffled in (*((preset, False) for preset in PRESETS), ("paper", True)):
        effects = effects_of(rollouts, logits, preset, is_shuffled)
        numbers["M3"][f"{preset}{', shuffled' * is_shuffled}"] = {
            "groups": int(effects["count"].sum()), "amplitude": resampled(effects, amplitude) if len(effects) else None,
        }  # fmt: skip
    tables.append(("M3, amplitude of the penalty", pd.DataFrame(
        [[name, of["groups"], *map(cell, of["amplitude"] or [None] * 3)] for name, of in numbers["M3"].items()],
        columns=["memory", "groups", "amplitude", "low", "high"],
    )))  # fmt: skip
    reads = numbers["M2"]["first, equal answers"]["last 15"]["gain"]
    beyond_first = numbers["M1"]["first"]["best logits less equal first tokens"]
    paper = numbers["M3"]["paper"]["amplitude"]
    relative = numbers["M2"]["operators, equal first tokens"]["relative less last 15"]["gain"]
    numbers["rule"] = {
        "reads_reasoning": reads[1] > 0.05,
        "proxy_of_the_answer": beyond_first[2] < 0,
        "relative_is_worth_a_setting": relative[1] > 0,
        "can_matter": paper is not None and paper[1] > 0.10,
        "cannot_matter": paper is not None and paper[2] < 0.05,
    }
    (out / "numbers.json").write_text(json.dumps(numbers, indent=1) + "\n")
    facts = [f"- {name}: {value}" for name, value in numbers.items() if name not in ("M1", "M2", "M3")]
    pages = [f"## {title}\n\n{markdown(table)}" for title, table in tables]
    (out / "report.md").write_text("\n\n".join([f"# {out.parent.name}, {out.name}", "\n".join(facts), *pages]) + "\n")


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
