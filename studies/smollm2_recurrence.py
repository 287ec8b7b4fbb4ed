"""Does a real model repeat its errors when it is trained, and do their fingerprints stay? One stream of DAPO.

    python examples/smollm2.py prepare assets/smollm2-135m
    python -m studies.smollm2_recurrence screen assets/smollm2-135m/policy results/smollm2-recurrence
    meds train configs/smollm2-135m/dapo.yaml \
        --data.prompt_dataset=results/smollm2-recurrence/problems.jsonl --meds.run_dir=runs/smollm2-recurrence \
        --algo.dynamic_filtering_enable=false --meds.max_steps=26
    python -m studies.smollm2_recurrence extract runs/smollm2-recurrence results/smollm2-recurrence
    python -m studies.smollm2_recurrence resample assets/smollm2-135m/policy results/smollm2-recurrence
    python -m studies.smollm2_recurrence judge results/smollm2-recurrence
    meds whatif runs/smollm2-recurrence --json results/smollm2-recurrence/whatif.json

What follows was fixed before the first run. No methods are compared: one run cannot.

*Stream.* SmolLM2-135M-Instruct from 4-bit weights after its supervised start. `PROBLEMS` problems, half of each task,
the first that the started model solves in 1 to `MOST_RIGHT` of `SCREENED` samples, because what it always or never
solves teaches it nothing. DAPO on them without dynamic sampling, so that all groups are seen, also those without a
right response: 8 problems a step, 8 responses each, `VISITS` visits of every problem. `alpha` is 0: errors are
remembered, and cost nothing.

*Recurrence.* Of the wrong answers of visits after the first, the share that the policy has given at an earlier visit of
the problem. Its null is the started model, sampled `POOL` times for each problem: its wrong answers, in random order,
are dealt to visits with as many wrong answers as those of the run have, `DEALS` times. Dealing is without replacement,
so that an answer comes back only if the model gave it again. Visits for which a problem's pool does not suffice are
left out.

*Drift.* Wrong responses with the same answer to the same problem, from the first and the second half of its visits. Do
clusters (the paper's and `robust`, over all visits, within problems) tell halves apart: adjusted Rand index of cluster
and half, mean over such groups of responses, weighted by their number. And, which needs no clusters: how much more
often than by chance the nearest fingerprint is of the same half.

Intervals: 95 %, problems drawn again 2,000 times.

*Rule.* The premise, that errors recur more than a policy's that does not train, holds if the lower end of the ratio of
recurrence to its null is above 1.2, and is refuted if the upper end is below 1.2. The memory is stale if the lower end
of the index of the paper's clusters and halves is above 0.3, and fresh if the upper end is below.

*Against the design*: 16 problems, not 48, so that each has 13 visits in the hours at hand; declared before the start.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from examples.smollm2 import Problem, problems, write_problems
from meds_openrlhf import AnswerLocator
from studies.smollm2_fingerprint import neighbor_gain, ratio, resampled
from studies.smollm2_rollouts import TASKS, Sampler, read_responses, responses_to

PROBLEMS, SCREENED, MOST_RIGHT, VISITS, POOL, DEALS = 16, 8, 6, 13, 128, 400
PROBLEM_SEED, SCREENING_SEED, POOL_SEED = 5_100, 50_000, 60_000
AT_ONCE = 16  # problems that are screened together
PREMISE, STALE = 1.2, 0.3


def _responses_of(model: Path) -> Callable[..., Iterator[list[dict[str, Any]]]]:
    sampler = Sampler(model)
    return partial(responses_to, sampler, AnswerLocator(sampler.tokenizer))


def screen(model: Path, out: Path) -> None:
    """Write ``problems.jsonl``: of each task, the first problems that the model solves at times."""
    responses, chosen = _responses_of(model), []
    for task in TASKS:
        source, screened = problems(task, PROBLEM_SEED, starts=False), 0
        of_task: list[Problem] = []
        while len(of_task) < PROBLEMS // 2:
            drawn = list(islice(source, AT_ONCE))
            for problem, found in zip(drawn, responses(drawn, SCREENED, SCREENING_SEED + 1000 * screened)):
                if 1 <= sum(response["correct"] for response in found) <= MOST_RIGHT:
                    of_task.append(problem)
            screened += len(drawn)
        print(f"{task}: {len(of_task)} of {screened} are solved at times", flush=True)
        chosen += of_task[: PROBLEMS // 2]
    out.mkdir(parents=True, exist_ok=True)
    write_problems(out / "problems.jsonl", chosen, 0)


def read_problems(out: Path) -> list[Problem]:
    """Read the problems that `screen` has chosen, without their solutions."""
    with (out / "problems.jsonl").open(encoding="utf-8") as file:
        rows = map(json.loads, file)
        return [Problem(row["datasource"], row["question"], "", row["answer"]) for row in rows]


def resample(model: Path, out: Path) -> None:
    """Sample the pool of the null; write ``first-policy.jsonl``, a line a response, in order of problems."""
    chosen = read_problems(out)
    responses, path = _responses_of(model), out / "first-policy.jsonl"
    done = len(path.read_text(encoding="utf-8").splitlines()) // POOL if path.exists() else 0
    with path.open("a", encoding="utf-8") as file:
        for place, problem in enumerate(chosen[done:], done):
            (found,) = responses([problem], POOL, POOL_SEED + place)
            for response in found:
                line = {"problem": place, "answer": response["answer"], "correct": response["correct"]}
                file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"{place + 1} of {len(chosen)}", flush=True)


def extract(run: Path, out: Path) -> None:
    """Write what is judged of a run: ``stream.jsonl``, a line a response, and layer logits (n, N), ``rows.npz``."""
    import pyarrow as pa

    from meds_openrlhf.memory.stored import open_memory
    from meds_openrlhf.paths import RunPaths
    from meds_openrlhf.rollouts.log import read_rollouts

    columns = ["step", "sample", "prompt_text", "response", "answer", "correct"]
    log = pa.concat_tables(read_rollouts(RunPaths(run.absolute()), columns)).to_pandas()
    questions = [problem.question for problem in read_problems(out)]
    log["problem"] = [next(place for place, q in enumerate(questions) if q in text) for text in log.pop("prompt_text")]
    (out / "stream.jsonl").write_text(log.to_json(orient="records", lines=True), encoding="utf-8")
    rows = open_memory(run).table()
    logits = np.stack(rows["layer_logits"].to_numpy())
    by_place = pd.MultiIndex.from_arrays([rows["step"].to_numpy(), rows["sample"].to_numpy()])
    found = by_place.get_indexer(pd.MultiIndex.from_frame(log[["step", "sample"]]))
    np.savez_compressed(out / "rows.npz", layer_logits=np.where(found[:, None] >= 0, logits[found], np.nan))


def recurring(visits: Sequence[NDArray[np.int64]]) -> int:
    """Return how many of the answers of visits were given at an earlier one."""
    count, seen = 0, set[int]()
    for answers in visits:
        count += sum(answer in seen for answer in answers.tolist())
        seen.update(answers.tolist())
    return count


def recurrence_of(stream: pd.DataFrame, pool: pd.DataFrame) -> pd.DataFrame:
    """Return by problem: wrong answers of later visits, those that came back, and the same expected of the pool."""
    random, lines = np.random.default_rng(0), []
    for problem, rows in stream.groupby("problem"):
        of_pool = pool[(pool["problem"] == problem) & ~pool["correct"] & pool["form"].notna()]
        wrong = rows[~rows["correct"] & rows["form"].notna()]
        codes, _ = pd.factorize(pd.concat([wrong["form"], of_pool["form"]]))
        given, dealt = codes[: len(wrong)], codes[len(wrong) :]
        steps = sorted(rows["step"].unique())
        visits = [given[(wrong["step"] == step).to_numpy()] for step in steps]
        ends = np.cumsum([len(visit) for visit in visits])
        fitting = int((ends <= len(dealt)).sum())
        visits, cuts = visits[:fitting], ends[:fitting]
        deals = [recurring(np.split(random.permutation(dealt)[: cuts[-1]], cuts[:-1])) for _ in range(DEALS)]
        lines.append({
            "problem": problem, "visits": fitting, "left_out": len(steps) - fitting, "sum": recurring(visits),
            "count": int(cuts[-1] - cuts[0]), "expected": float(np.mean(deals)),
        })  # fmt: skip
    return pd.DataFrame(lines).set_index("problem")


def over_null(table: pd.DataFrame, weights: NDArray[Any]) -> NDArray[Any]:
    """Return the ratio of what came back to what is expected."""
    return np.asarray((weights @ table["sum"].to_numpy()) / (weights @ table["expected"].to_numpy()))


def halves_by_cluster(
    labels: NDArray[Any], half: NDArray[Any], stratum: NDArray[Any], problem: NDArray[Any]
) -> pd.DataFrame:
    """Return by problem, over strata of both halves: the sum of index times responses, and that of responses."""
    from sklearn.metrics import adjusted_rand_score  # type: ignore[import-untyped]

    table, lines = pd.DataFrame({"label": labels, "half": half, "problem": problem}), []
    for _, rows in table.groupby(stratum):
        if len(rows) > 2 and rows["half"].nunique() == 2:
            index = adjusted_rand_score(rows["half"], rows["label"])
            lines.append({"problem": rows["problem"].iloc[0], "sum": len(rows) * index, "count": len(rows)})
    return pd.DataFrame(lines, columns=["problem", "sum", "count"]).groupby("problem").sum()


def judge(out: Path) -> None:
    """Write ``numbers.json`` and ``report.md``."""
    from meds_openrlhf.config.method import PRESETS
    from meds_openrlhf.memory.clustering import cluster_sets

    stream, pool = read_responses(out / "stream.jsonl"), read_responses(out / "first-policy.jsonl")
    logits = np.load(out / "rows.npz")["layer_logits"]
    recurrence = recurrence_of(stream, pool)
    numbers: dict[str, Any] = {
        "steps": int(stream["step"].max()), "responses": len(stream),
        "right_by_third": [float(part["correct"].mean()) for part in thirds(stream)],
        "distinct_wrong_by_third": [distinct_wrong(part) for part in thirds(stream)],
        "right_of_the_first_policy": float(pool["correct"].mean()),
        "visits_left_out": int(recurrence["left_out"].sum()),
        "recurrence": resampled(recurrence, ratio),
        "null": resampled(recurrence.assign(sum=recurrence["expected"]), ratio),
        "recurrence_over_null": resampled(recurrence, over_null),
    }  # fmt: skip
    has_row = np.isfinite(logits).all(axis=1) & (~stream["correct"] & stream["form"].notna()).to_numpy()
    rows = stream[has_row].assign(place=np.flatnonzero(has_row)).sort_values(["problem", "step", "sample"])
    vectors = logits[rows["place"], -15:].astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    problem = rows["problem"].to_numpy()
    middle = rows["problem"].map(stream.groupby("problem")["step"].median())
    half = (rows["step"] > middle).to_numpy().astype(int)
    stratum = pd.factorize(rows["problem"].astype(str) + "|" + rows["form"])[0]
    offsets = np.cumsum([0, *rows.groupby("problem").size()])
    numbers["rows"] = len(rows)
    for preset in ("paper", "robust"):
        labels = cluster_sets(vectors, offsets, PRESETS[preset])
        table = halves_by_cluster(labels, half, stratum, problem)
        numbers[f"drift_{preset}"] = resampled(table, ratio) if len(table) else None
        numbers[f"in_clusters_{preset}"] = float((labels >= 0).mean())
    numbers["drift_neighbors"] = resampled(neighbor_gain(vectors, half, stratum, problem), ratio)
    over, drift = numbers["recurrence_over_null"], numbers["drift_paper"]
    numbers["rule"] = {
        "premise_holds": over[1] > PREMISE, "premise_refuted": over[2] < PREMISE,
        "stale": drift is not None and drift[1] > STALE, "fresh": drift is not None and drift[2] < STALE,
    }  # fmt: skip
    (out / "numbers.json").write_text(json.dumps(numbers, indent=1) + "\n")
    lines = [f"- {name}: {value}" for name, value in numbers.items()]
    (out / "report.md").write_text("\n".join(["# smollm2-recurrence", "", *lines]) + "\n")


def thirds(stream: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the first, second and last third of the steps."""
    third = (stream["step"] - 1) * 3 // stream["step"].max()
    return [rows for _, rows in stream.groupby(third)]


def distinct_wrong(stream: pd.DataFrame) -> float:
    """Return the mean number of distinct wrong answers of a visit."""
    wrong = stream[~stream["correct"]]
    return float(wrong.groupby(["problem", "step"])["form"].nunique().mean())


def main(words: Sequence[str] | None = None) -> None:
    """Run a part of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts: dict[str, Callable[..., None]] = {
        "screen": screen, "resample": resample, "extract": extract, "judge": judge,
    }  # fmt: skip
    parser.add_argument("part", choices=parts)
    parser.add_argument("folders", nargs="+", type=Path, help="what is read, unless it judges, and the results'")
    given = parser.parse_args(words)
    parts[given.part](*given.folders)


if __name__ == "__main__":
    main()
