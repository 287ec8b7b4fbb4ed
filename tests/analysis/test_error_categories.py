"""A run whose wrong responses are of known kinds, before a judge that reads the kind off the text."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from analysis.agreement import features_of, name_of
from analysis.error_categories import draw_responses, main
from meds_openrlhf.features.transform import FeatureTransform
from meds_openrlhf.rollouts.features import wrong_rows
from tests.analysis.runs import Rollout, kind, write_run
from tests.judge.judge_server import Request, Response, judge_server, options


def _rollout(prompt: str, number: int, seed: int, text: str | None = None) -> Rollout:
    words = f"Error of kind {number}, told for the {seed}th time." if text is None else text
    return Rollout(prompt, str(number), logits=kind(number, 0.05, seed), text=words)


def _run(tmp_path: Path) -> Path:
    """Two prompts, two steps; of each prompt in each step three responses of kind 7 and three of kind 2; some right."""
    steps = []
    for step in range(2):
        wrong = [_rollout(p, number, 10 * step + i) for p in ("p", "q") for number in (7, 2) for i in range(3)]
        steps.append([*wrong, Rollout("p", "1", correct=True, text="right"), Rollout("q", None, text="no box")])
    return write_run(tmp_path / "run", steps)


def _label(request: Request, _: int) -> Response:
    match = re.search(r"Error of kind (\d+)", request.material)
    assert match
    return Response(f"It says so.\nCATEGORY: {match[1]}")


def test_clusters_of_the_kinds_agree_with_the_judge_and_a_single_one_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _run(tmp_path)
    with judge_server(_label) as judge:
        assert main([str(run), *options(tmp_path, judge, "--preset", "robust")]) == 0
        first = (tmp_path / "n.json").read_bytes()
        assert main([str(run), *options(tmp_path, judge, "--preset", "robust")]) == 0
        assert len(judge.requests) == 24
    assert (tmp_path / "n.json").read_bytes() == first
    assert re.search(r"<correct answer>\ntruth of [pq]\n</correct answer>\n\n<wrong resp", judge.requests[0].material)
    numbers = json.loads(first)
    assert numbers["categories"]["basic calculation"] == numbers["categories"]["problem set-up misread"] == 12
    assert sum(numbers["categories"].values()) == 24
    assert numbers["pairs"] == 2 * 66
    agreement = {one["variant"]: one for one in numbers["agreement"]}
    assert list(agreement) == ["8", "4", "8-diff", "4-diff", "single", "equal-answer", "first-character"]
    assert agreement["equal-answer"]["noise_together"] == 1.0  # the answer is the kind's number
    assert agreement["equal-answer"]["clusters"] == 4
    assert agreement["8"]["noise_together"] == agreement["4"]["noise_together"] == 1.0
    assert agreement["8"]["clusters"] == 4
    assert agreement["single"]["noise_together"] == pytest.approx(30 / 66)
    printed = capsys.readouterr()
    assert re.search(r"\| single +\| +2 \| +0 \| +45.45 \| +45.45 \|", printed.out)
    assert "24 of 800 wrong responses: the run has no more" in printed.err
    assert len(numbers["responses"]) == 24
    assert {(one["prompt"], one["category"]) for one in numbers["responses"]} == {
        ("p", 7), ("p", 2), ("q", 7), ("q", 2),
    }  # fmt: skip


@pytest.mark.parametrize(("spoiled", "malformed", "pairs"), [(r"Work out p\..*kind 7", 6, 15 + 66), ("", 24, 0)])
def test_malformed_labels_are_in_no_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoiled: str, malformed: int, pairs: int
) -> None:
    def script(request: Request, before: int) -> Response:
        is_spoiled = re.search(spoiled, request.material, re.DOTALL)
        return Response("CATEGORY: arithmetic") if is_spoiled else _label(request, before)

    with judge_server(script) as judge:
        assert main([str(_run(tmp_path)), *options(tmp_path, judge)]) == 0
    numbers = json.loads((tmp_path / "n.json").read_text())
    assert (numbers["malformed"], numbers["pairs"]) == (malformed, pairs)
    assert ({one["noise_together"] for one in numbers["agreement"]} == {None}) == (pairs == 0)
    assert re.search(rf"\| \(malformed replies\) +\| +{malformed} \|", capsys.readouterr().out)


def test_steps_without_all_texts_are_not_labeled_but_clustered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(*texts: str | None) -> list[Rollout]:
        return [Rollout("p", "1", logits=kind(i, 0.05), text=text) for i, text in enumerate(texts)]

    run = write_run(tmp_path / "run", [step("Error of kind 7", "Error of kind 2"), step("Error of kind 7", None)])
    none = write_run(tmp_path / "none", [[Rollout("p", "1", text="no logits")], step("Error of kind 7", None)])
    with judge_server(_label) as judge:
        assert main([str(run), *options(tmp_path, judge)]) == 0
        assert main([str(none), *options(tmp_path, judge)]) == 2
    assert len(judge.requests) == 2
    errors = capsys.readouterr().err
    assert "1 of 4 rollouts have no text in the log; 1 steps" in errors
    assert "none: has no wrong response with layer logits and text." in errors


def test_responses_are_drawn_prompt_after_prompt(tmp_path: Path) -> None:
    wrong = wrong_rows(_run(tmp_path))
    prompts = np.array(wrong["prompt"].to_pylist())
    rows = draw_responses(wrong, {1, 2}, count=10, per_prompt=8, seed=0)
    assert len(set(rows.tolist())) == 10
    assert sorted(np.unique(prompts[rows], return_counts=True)[1].tolist()) == [2, 8]
    assert draw_responses(wrong, {1, 2}, 10, 8, 0).tolist() == rows.tolist()
    assert draw_responses(wrong, {1, 2}, 10, 8, 1).tolist() != rows.tolist()
    only_second = draw_responses(wrong, {2}, 99, 99, 0)
    assert {wrong["step"][int(row)].as_py() for row in only_second} == {2}
    assert len(only_second) == 12


def test_the_runs_own_feature_is_compared_if_it_is_none_of_the_papers() -> None:
    """Qwen3-8B has 36 layers, of which the paper takes 14."""
    assert list(features_of(FeatureTransform("last-half"), 28)) == ["28", "14", "28-diff", "14-diff", "single"]
    features = features_of(FeatureTransform(14), 36)
    assert list(features) == ["36", "18", "36-diff", "18-diff", "single", "14 (own)"]
    assert features["14 (own)"] == FeatureTransform(14)
    assert name_of(FeatureTransform(14), FeatureTransform(14), 36) == "14 (own)"
    assert name_of(FeatureTransform("all"), FeatureTransform(14), 36) == "36"
    assert name_of(FeatureTransform(14, "before"), FeatureTransform(14), 36) is None
    assert list(features_of(FeatureTransform(14), 28)) == ["28", "14", "28-diff", "14-diff", "single"]
    unscaled = FeatureTransform("last-half", normalize="none")
    assert name_of(unscaled, unscaled, 28) == "14 (own)"
