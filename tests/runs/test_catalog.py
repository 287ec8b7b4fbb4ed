"""The catalog of metrics: it has what is logged, each metric once, and a meaning of each of ours."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa

import meds_openrlhf
from meds_openrlhf.columns import ROLLOUT_SCHEMA
from meds_openrlhf.features.moments import NO_MOMENTS, DiversityTracker, Moments
from meds_openrlhf.memory.metrics import step_metrics
from meds_openrlhf.memory.shard import MemoryAnswer, ShardStats
from meds_openrlhf.rollouts.recorder import cluster_line
from meds_openrlhf.runs.catalog import CHARTS, SUMMARY

METRICS = [metric for chart in CHARTS for metric in chart.metrics]
NAMES = [metric.name for metric in METRICS]


def logged_by_us() -> set[str]:
    """What a step with a memory of layer logits logs, and the histograms of its penalized rollouts."""
    features = np.random.default_rng(0).normal(size=(4, 3))
    prompts = np.zeros(4, int)
    diversity = DiversityTracker().add(features, features, stored=Moments.of(features), prompts=prompts)
    seconds = dict.fromkeys(("wait", "assign", "append", "cluster"), 0.0)
    none = np.zeros(0, np.int32)
    answer = MemoryAnswer(none, none, none, ShardStats(), NO_MOMENTS, seconds)
    rewards = {"raw": np.ones(2), "shaped": np.ones(2), "effect": 0.0, "correct": np.ones(2, bool)}
    logged = step_metrics(answer, **rewards, recording_seconds=0.0) | diversity
    amounts = {"reward": 0.0, "shaped_reward": -0.1, "penalty": 0.1, "label": 0, "cluster_size": 2, "tokens": 1}
    texts = {"prompt": "p", "prompt_text": "p", "response": "r"}
    row = {"step": 1, "sample": 0, **texts, "correct": False, **amounts, "truncated": False}
    histograms = cluster_line(pa.Table.from_pylist([row], ROLLOUT_SCHEMA))["histograms"]
    return {*logged, *histograms}


def test_the_catalogue_has_every_metric_of_ours_once_and_with_a_meaning() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert {name for name in NAMES if name.startswith("meds/")} == logged_by_us()
    for chart in CHARTS:
        if any(metric.name.startswith("meds/") for metric in chart.metrics):
            assert chart.metrics[-1].meaning  # a metric without one shares that of the next


def test_times_of_a_step_are_those_that_the_trainer_logs() -> None:
    trainer = (Path(meds_openrlhf.__file__).parent / "training" / "step" / "trainer.py").read_text()
    logged = {*re.findall(r'"(timing/\w+)"', trainer), "timing/generation", "timing/step_total"}  # two are OpenRLHF's
    assert {name for name in NAMES if name.startswith("timing/")} == logged


def test_rows_of_the_summary_are_of_one_unit() -> None:
    units: dict[str, set[str]] = {}
    for title, _, unit in SUMMARY:
        units.setdefault(title, set()).add(unit)
    assert all(len(of_title) == 1 for of_title in units.values())
