"""Clusters of different prompts that depart at similar words make a theme."""

import numpy as np

from meds_openrlhf.themes.grouping import NO_THEME, find_themes

BRACKETS = [["so", "given", "*", "given", "=", "wrong"], [",", "given", "*", "given", "=", "wrong"]]
CARRY = [["right", "+", "right", "=", "wrong"]]
SIZES = np.array([2, 3, 9, 4, 2])


def test_clusters_of_one_kind_are_one_theme_named_by_what_tells_it() -> None:
    found = find_themes([BRACKETS, CARRY, CARRY, BRACKETS[1:], CARRY], SIZES, most=2)
    assert found.theme.tolist() == [1, 0, 0, 1, 0]
    assert found.names == ["right + right = wrong", "given * given = wrong"]


def test_a_cluster_without_text_has_no_theme() -> None:
    found = find_themes([[], CARRY, [[]], CARRY, []], SIZES)
    assert found.theme.tolist() == [NO_THEME, 0, NO_THEME, 0, NO_THEME]
    assert find_themes([[], []], SIZES[:2]).names == []
    assert find_themes([], SIZES[:0]).theme.tolist() == []


def test_a_single_cluster_and_clusters_with_nothing_in_common() -> None:
    assert find_themes([CARRY], SIZES[:1]).names == ["right + right = wrong"]
    apart = find_themes([[["one"]], [["two"]], [["three"]]], SIZES[:3])
    assert sorted(apart.theme.tolist()) == [0, 1, 2]
    assert apart.names == ["three", "two", "one"]


def test_no_more_themes_than_wanted_and_no_name_twice() -> None:
    random = np.random.default_rng(0)
    clusters = [[random.choice(list("abcdef"), 4).tolist()] for _ in range(60)]
    sizes = random.integers(2, 9, 60)
    found = find_themes(clusters, sizes, most=7)
    rollouts = np.bincount(found.theme, sizes)
    assert len(found.names) == len(set(found.names)) == 7
    assert (np.diff(rollouts) <= 0).all()
    assert find_themes(clusters, sizes, most=7).theme.tolist() == found.theme.tolist()
