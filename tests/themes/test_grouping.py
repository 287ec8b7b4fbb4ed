"""Clusters of different prompts that depart at similar words make a theme."""

import numpy as np

from meds_openrlhf.themes.grouping import NO_THEME, ClusterTexts, Themes, _names, by_departure

BRACKETS, CARRY = ["so given * given = wrong", ", given * given = wrong"], ["right + right = wrong"]
SIZES = np.array([2, 3, 9, 4, 2])


def themes(*clusters: list[str], most: int = 20) -> Themes:
    """Of responses whose numbers are replaced already."""
    return by_departure([ClusterTexts("", texts, []) for texts in clusters], SIZES[: len(clusters)], most)


def test_clusters_of_one_kind_are_one_theme_named_by_what_tells_it() -> None:
    found = themes(BRACKETS, CARRY, CARRY, BRACKETS[1:], CARRY, most=2)
    assert found.theme.tolist() == [1, 0, 0, 1, 0]
    assert found.names == ["right + right = wrong", "given * given = wrong"]


def test_a_cluster_without_text_has_no_theme() -> None:
    found = themes([], CARRY, [""], CARRY, [])
    assert found.theme.tolist() == [NO_THEME, 0, NO_THEME, 0, NO_THEME]
    assert themes([], []).names == []
    assert themes().theme.tolist() == []


def test_a_single_cluster_and_clusters_with_nothing_in_common() -> None:
    assert themes(CARRY).names == ["right + right = wrong"]
    apart = themes(["one"], ["two"], ["three"])
    assert sorted(apart.theme.tolist()) == [0, 1, 2]
    assert apart.names == ["three", "two", "one"]


def test_themes_whose_phrases_are_all_names_already_get_names_of_their_own() -> None:
    names = _names(np.array([0, 1]), [[["same"]], [["same"]]], 2)
    assert len(set(names)) == 2


def test_no_more_themes_than_wanted_and_no_name_twice() -> None:
    random = np.random.default_rng(0)
    clusters = [ClusterTexts("", [" ".join(random.choice(list("abcdef"), 4))], []) for _ in range(60)]
    sizes = random.integers(2, 9, 60)
    found = by_departure(clusters, sizes, 7)
    assert len(found.names) == len(set(found.names)) == 7
    assert (np.diff(np.bincount(found.theme, sizes)) <= 0).all()
    assert by_departure(clusters, sizes, 7).theme.tolist() == found.theme.tolist()
