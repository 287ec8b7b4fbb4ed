"""Statistics of clusters and prompts, computed for all of them together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from meds_openrlhf.rollouts.clusters import ClusteredRows
from meds_openrlhf.rollouts.run import NONE, RolloutLog


def visits_of(rows: ClusteredRows, log: RolloutLog) -> pd.DataFrame:
    """All visits of the prompts, from the stored rows and from the log, which also has visits without stored rows.

    Columns: prompt, step (the order of the visits), ``rollouts`` and ``correct``, counted in the log, both 0 if it
    lacks the visit, and ``left``, the number of the prompt's later visits.
    """
    logged = {"prompt": numbers_in(rows, log), "step": log.step, "rollouts": 1, "correct": log.correct.astype(np.int64)}
    stored = {"prompt": rows.prompt, "step": rows.step, "rollouts": 0, "correct": 0}
    every = pd.concat([pd.DataFrame(logged).query(f"prompt != {NONE}"), pd.DataFrame(stored)])
    visits = every.groupby(["prompt", "step"], as_index=False).sum()
    return visits.assign(left=visits.groupby("prompt").cumcount(ascending=False))


def find_clusters(rows: ClusteredRows, visits: pd.DataFrame) -> tuple[pd.DataFrame, ClusteredRows]:
    """All clusters, ordered by prompt, wrong before right, bigger before smaller, and the rows with their numbers.

    Columns: prompt, ``number`` within the prompt (0 is its biggest wrong cluster), right, size, ``share`` of the
    prompt's rows of that verdict, including noise, its first and last step, and ``since``, the number of the prompt's
    visits after the last step; 0 means that the cluster is alive.
    """
    frame = pd.DataFrame({"prompt": rows.prompt, "right": rows.correct, "label": rows.label, "step": rows.step})
    steps = frame.query("label >= 0").groupby(["prompt", "right", "label"])["step"]
    clusters = steps.agg(size="size", first="min", last="max").reset_index()
    order = ["prompt", "right", "size", "first"]
    clusters = clusters.sort_values(order, ascending=[True, True, False, True], kind="stable", ignore_index=True)
    clusters["number"] = clusters.groupby("prompt").cumcount()
    of_verdict = frame.value_counts(["prompt", "right"], sort=False).rename("of_verdict")
    clusters = clusters.join(of_verdict, on=["prompt", "right"])
    clusters["share"] = clusters["size"] / clusters["of_verdict"]
    clusters["since"] = clusters.join(visits.set_index(["prompt", "step"])["left"], on=["prompt", "last"])["left"]
    number = frame.join(clusters.set_index(["prompt", "label"])["number"], on=["prompt", "label"])["number"]
    return clusters, replace(rows, label=number.fillna(frame["label"]).to_numpy(np.int64))


def right_answers(rows: ClusteredRows, log: RolloutLog) -> dict[int, int]:
    """The most frequent answer of each prompt's right rollouts, as its index in the log, for prompts that have any."""
    right = pd.DataFrame({"prompt": numbers_in(rows, log), "answer": log.answer})[log.correct]
    counts = right.query(f"prompt != {NONE} and answer != {NONE}").value_counts(sort=False).reset_index()
    best = counts.sort_values(["prompt", "count", "answer"], ascending=[True, False, True]).drop_duplicates("prompt")
    return dict(zip(best["prompt"].tolist(), best["answer"].tolist()))


def numbers_in(rows: ClusteredRows, log: RolloutLog) -> NDArray[np.int64]:
    """For each logged rollout (n,) its prompt's index in ``rows.prompts``, or NONE."""
    known = {key: number for number, key in enumerate(rows.prompts)}
    numbers = np.array([known.get(key, NONE) for key in log.prompts], dtype=np.int64)
    return numbers[log.prompt]


def right_places(log: RolloutLog, keys: Collection[str], most: int) -> dict[str, list[int]]:
    """The newest right rollouts with a text, up to ``most``, of each of the prompts ``keys`` that has any."""
    is_wanted = np.array([key in keys for key in log.prompts], bool)[log.prompt]
    right = pd.DataFrame({"place": np.flatnonzero(log.correct & log.has_text & is_wanted)})
    by_prompt = right.groupby(log.prompt[right["place"]])["place"]
    return {log.prompts[code]: group.tolist()[-most:] for code, group in by_prompt}
