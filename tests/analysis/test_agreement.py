"""Agreement of labelings on small cases; the measures are scikit-learn's."""

from pathlib import Path

import numpy as np
import pytest

from analysis.agreement import agreement, agreement_by_prompt, labels_by_answer, separate_noise
from meds_openrlhf.arithmetic.tiny_policy import build_char_tokenizer
from meds_openrlhf.config.errors import ConfigError
from meds_openrlhf.paths import RunPaths
from meds_openrlhf.rollouts.features import wrong_rows
from tests.analysis.runs import Rollout, kind, write_run


def test_pairs_are_of_one_prompt() -> None:
    labels, truth, prompts = np.array([0, 0, 1, 0, 2]), np.array([5, 5, 3, 3, 3]), np.array([7, 7, 4, 4, 9])
    table = agreement_by_prompt(labels, truth, prompts)
    assert table[["rows", "pairs", "pairwise"]].to_numpy().tolist() == [[2, 1, 0], [2, 1, 1]]
    assert agreement_by_prompt(labels[:1], truth[:1], prompts[:1]).pairs.tolist() == []


def test_noise_is_one_set_or_each_row_alone() -> None:
    labels, truth = np.array([-1, -1, 0, 0]), np.array([0, 1, 2, 2])
    assert agreement(labels, truth)["pairwise"] == 5 / 6  # the two rows of noise count as the same
    alone = agreement(separate_noise(labels), truth)
    assert list(alone.values()) == [4, 6, 1.0, 1.0, 1.0, 1.0]
    assert separate_noise(labels).tolist() == [1, 2, 0, 0]
    assert separate_noise(np.array([-1, -1])).tolist() == [0, 1]


def test_homogeneous_clusters_need_not_be_complete() -> None:
    halved = agreement(np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 0, 0, 1, 1]))
    assert halved["homogeneity"] == pytest.approx(1.0, abs=1e-12)
    assert halved["completeness"] == pytest.approx(0.5793801642856952, abs=1e-12)  # H(1/3, 2/3) / ln 3
    assert halved["pairwise"] == 11 / 15


def _answers_run(root: Path) -> Path:
    """Wrong answers of two prompts; the same ones would be equal if clusters were not within prompts."""
    answers = {"p": ["-14", "-15", "12", "12.0", "15", None], "q": ["12", "120"]}
    return write_run(root, [[Rollout(p, answer, logits=kind(0)) for p, given in answers.items() for answer in given]])


def _clusters(run: Path) -> dict[str, list[list[int]]]:
    """The rows of each cluster, by variant; noise first."""
    found = labels_by_answer(run, wrong_rows(run, ["answer"]))
    return {
        name: [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)]
        for name, labels in found.items()
    }


def test_answers_are_one_cluster_if_they_or_their_first_characters_are_equal(tmp_path: Path) -> None:
    assert _clusters(_answers_run(tmp_path)) == {
        "equal-answer": [[5], [0], [1], [2, 3], [4], [6], [7]],
        "first-character": [[5], [0, 1], [2, 3, 4], [6, 7]],
    }


@pytest.mark.parametrize(
    ("pieces", "clusters"),
    [
        (["\\boxed{"], [[5], [0, 1], [2, 3, 4], [6, 7]]),
        (["12"], [[5], [0, 1], [2, 3], [4], [6, 7]]),
        # The token that ends the opening has the sign as well, and the one behind it is the answer's first.
        (["{-", "14"], [[5], [0], [1, 2, 3, 4], [6, 7]]),
    ],
)
def test_the_first_token_is_the_one_behind_the_opening(
    pieces: list[str], clusters: list[list[int]], tmp_path: Path
) -> None:
    run = _answers_run(tmp_path)
    build_char_tokenizer(pieces=pieces).backend_tokenizer.save(str(RunPaths(run).tokenizer))
    assert sorted(_clusters(run)["first-token"]) == sorted(clusters)


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    run = _answers_run(tmp_path)
    RunPaths(run).tokenizer.write_text("{")
    with pytest.raises(
        ConfigError, match=r"tokenizer\.json: cannot be read .* Restore it from a backup, or remove it\."
    ):
        _clusters(run)
