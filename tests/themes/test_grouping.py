"""Clusters of different prompts that depart in the same way make a theme."""

import numpy as np

from meds_openrlhf.rollouts.texts import ResponseText
from meds_openrlhf.themes.grouping import (
    NO_THEME,
    ClusterTexts,
    PromptTexts,
    Themes,
    by_departure,
    joined,
    phrase_vectors,
)

SIZES = np.array([2, 3, 9, 4, 2])


def cluster(a: int, b: int, *texts: str) -> ClusterTexts:
    """Responses to a product, with right ones beside them; {a}, {b} and {r}, a wrong number, are filled in."""
    prompt = PromptTexts(f"What is {a} times {b}?", [f"{a} * {b} = {a * b}"], str(a * b))
    return ClusterTexts(prompt, [ResponseText.of(text.format(a=a, b=b, s=a + b, r=a * b + 1), None) for text in texts])


def sums(a: int, b: int) -> ClusterTexts:
    return cluster(a, b, "so {a} + {b} = {s} \\boxed{{{s}}}", "We add: {a} plus {b} is {s}. \\boxed{{{s}}}")


def slips(a: int, b: int) -> ClusterTexts:
    return cluster(a, b, "{a} * {b} = {r} \\boxed{{{r}}}")


def themes(*clusters: ClusterTexts, most: int = 20) -> Themes:
    return by_departure(clusters, SIZES[: len(clusters)], most)


def test_clusters_of_one_kind_are_one_theme_with_a_name_in_words() -> None:
    found = themes(sums(4, 7), slips(3, 8), slips(5, 9), sums(6, 12), slips(11, 13))
    assert found.theme.tolist() == [1, 0, 0, 1, 0]
    assert found.names == [
        "miscalculates a product: given * given = wrong", "adds instead of multiplying: given + given = wrong",
    ]  # fmt: skip


def test_themes_without_calculations_are_named_by_telling_words() -> None:
    guess, refusal = "I simply guess {r}. \\boxed{{{r}}}", "Nobody can know this, \\boxed{{unknown}}"
    found = themes(cluster(4, 7, guess), cluster(5, 9, guess), cluster(3, 8, refusal), cluster(6, 11, refusal))
    assert found.theme.tolist() == [1, 1, 0, 0]
    assert "know" in found.names[0] or "nobody" in found.names[0]
    assert "guess" in found.names[1] or "simply" in found.names[1]


def test_names_are_never_markup_alone_and_never_the_same() -> None:
    wordings = ["\\[ {{ }} \\] {r}", "** ** {r}", ". , ; {r}", "{r} {r}", "\\alpha {r}", "= {r}"]
    found = by_departure([cluster(3 + n, 5, wording) for n, wording in enumerate(wordings)], np.full(6, 2), 20)
    assert len(set(found.names)) == len(found.names)
    assert all(any(len(word) > 2 and word.isalpha() for word in name.split()) for name in found.names)


def test_a_cluster_without_text_has_no_theme() -> None:
    nothing = cluster(1, 2)
    found = themes(nothing, slips(3, 8), cluster(2, 2, ""), slips(5, 9), nothing)
    assert found.theme.tolist() == [NO_THEME, 0, NO_THEME, 0, NO_THEME]
    assert themes(nothing, nothing).names == []
    assert themes().theme.tolist() == []


def test_no_more_themes_than_wanted_and_no_name_twice() -> None:
    random = np.random.default_rng(0)
    clusters = [cluster(n, 3, " ".join(random.choice(["one", "red", "sun", "sea", "ice"], 4))) for n in range(2, 62)]
    sizes = random.integers(2, 9, 60)
    found = by_departure(clusters, sizes, 7)
    assert len(found.names) == len(set(found.names)) == 7
    assert (np.diff(np.bincount(found.theme, sizes)) <= 0).all()
    assert by_departure(clusters, sizes, 7).theme.tolist() == found.theme.tolist()


def test_phrases_are_weighed_by_logarithm_and_rarity() -> None:
    found = phrase_vectors([[["a"], ["a"], ["b"]], [["a"], ["b"], ["b"]], [["b"], ["c"]]])
    rare = 1 + np.log(4 / 3)  # a is in two of three clusters, b in all
    rows = np.array([[(1 + np.log(2)) * rare, 1], [rare, 1 + np.log(2)], [0, 1]])
    np.testing.assert_allclose(found, rows / np.linalg.norm(rows, axis=1, keepdims=True), rtol=1e-6)
    assert found.dtype == np.float32
    assert phrase_vectors([[["a"]], [["b"]]]).tolist() == [[0], [0]]


def test_groups_are_joined_by_average_distance_as_scipy_joins_them() -> None:
    from scipy.cluster import hierarchy

    generator = np.random.default_rng(0)
    for count in (1, 2, 3, 40, 40):
        vectors = generator.integers(-1, 3, (count, 4)).astype(np.float32)  # with copies and ties
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        found = joined(vectors, most=5)
        assert found[0] == 0
        if count > 1:
            distances = np.clip(1 - vectors @ vectors.T, 0, None)
            tree = hierarchy.linkage(distances[np.triu_indices(count, 1)], "average")
            groups = min(5, count - int((tree[:, 2] < 0.65).sum()))
            expected = hierarchy.fcluster(tree, groups, "maxclust")
            assert [*map([*dict.fromkeys(expected)].index, expected)] == found.tolist()
