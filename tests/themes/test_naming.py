"""Themes by a language model, asked over HTTP."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meds_openrlhf.config import ConfigError
from meds_openrlhf.judge.client import JudgeClient
from meds_openrlhf.judge.settings import JudgeSettings
from meds_openrlhf.rollouts.texts import ResponseText
from meds_openrlhf.themes.grouping import NO_THEME, ClusterTexts, PromptTexts, Themes
from meds_openrlhf.themes.naming import by_model
from tests.judge.judge_server import Judge, Request, Response, judge_server

SUM = ClusterTexts(PromptTexts("2*3", ["2*3=6"]), [ResponseText("2+3=5"), ResponseText("so 5")])
ZERO = ClusterTexts(PromptTexts("4*7 </problem>", []), [ResponseText("it is 0")])
NOTHING = ClusterTexts(PromptTexts("5*5", []), [])
SIZES = np.array([3, 9, 2, 4])


def answers(request: Request, _number: int) -> Response:
    """A model that tells sums from other mistakes."""
    material = request.material
    if "<wrong_response>" in material:
        return Response(f"Let me see.\nMISTAKE: {'adds' if '+' in material else 'answers zero.'}")
    if "<kinds>" not in material:
        return Response("KIND: a sum for a product\nKIND: an answer of zero\nKIND: never seen")
    lines = re.findall(r"(?m)^(\d+)\. (adds|answers zero)$", material)
    return Response("\n".join(f"{number}: {1 if words == 'adds' else 2}" for number, words in lines))


def namer(judge: Judge, tmp_path: Path, **settings: Any) -> Callable[..., Themes]:
    return partial(by_model, JudgeClient(JudgeSettings(model="m", url=judge.url, cache=tmp_path / "cache", **settings)))


def test_clusters_are_described_merged_and_named(tmp_path: Path) -> None:
    clusters = [SUM, ZERO, NOTHING, SUM]
    with judge_server(answers) as judge:
        found = namer(judge, tmp_path)(clusters, SIZES)
        asked = len(judge.requests)
        again = namer(judge, tmp_path)(clusters, SIZES)
        assert len(judge.requests) == asked == 4  # two different descriptions, one merge, one assignment
    assert found.names == again.names == ["an answer of zero", "a sum for a product"]
    assert found.theme.tolist() == again.theme.tolist() == [1, 0, NO_THEME, 1]
    assert "</problem>" in judge.requests[0].material
    assert "4*7 < /problem>" in "".join(request.material for request in judge.requests)


def test_a_malformed_reply_leaves_a_cluster_out(tmp_path: Path) -> None:
    def mumbles(request: Request, number: int) -> Response:
        return Response("well") if "it is 0" in request.material else answers(request, number)

    with judge_server(mumbles) as judge:
        found = namer(judge, tmp_path)([SUM, ZERO], SIZES[:2])
    assert found.theme.tolist() == [0, NO_THEME]
    assert found.names == ["a sum for a product"]


def test_descriptions_that_are_not_merged_end_it_before_more_is_asked(tmp_path: Path) -> None:
    def lists(request: Request, number: int) -> Response:
        return Response("well") if "<descriptions>" in request.material else answers(request, number)

    with judge_server(lists) as judge, pytest.raises(ConfigError, match=r"--judge-model=.*: did not merge"):
        namer(judge, tmp_path)([SUM, ZERO], SIZES[:2])
    assert not [request for request in judge.requests if "<kinds>" in request.material]


def test_nothing_to_describe_asks_nothing_and_a_budget_ends_it(tmp_path: Path) -> None:
    with judge_server(answers) as judge:
        assert namer(judge, tmp_path)([NOTHING], SIZES[:1]).names == []
        with pytest.raises(ConfigError, match="--budget-requests=1: is used up"):
            namer(judge, tmp_path, most_requests=1)([SUM, ZERO], SIZES[:2])
    assert len(judge.requests) == 1
