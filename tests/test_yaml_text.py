"""YAML is a tree of a bounded size, or an error."""

import pytest
import yaml

from meds_openrlhf.yaml_text import MOST_DEPTH, parse_yaml


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: &rest {b: 1}\nc: {<<: *rest, d: 2}\ne: *rest",
        "a: {<<: {b: 1}, <<: {c: 2}}",
        "[a, 1, 1.5, null, 2026-11-25, 1e-6, !!set {x}]",
        "[" * (MOST_DEPTH - 1) + "1" + "]" * (MOST_DEPTH - 1),
        "\n".join(f"key{n}: {n}" for n in range(4_999)),
    ],
)
def test_what_is_a_tree_is_read_as_by_safe_load(text: str) -> None:
    assert parse_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("&a [*a]", "an alias of what contains it"),
        ("a: &a {b: *a}", "an alias of what contains it"),
        ("a: 1\nb: 2\na: 3", "the key 'a' twice"),
        ("meds: {x: 1}\nactor: 1\nmeds: {y: 2}", "the key 'meds' twice"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(f"b{n}: &b{n} [*a,*a,*a,*a]\n" for n in range(300)),
            "more than 10,000",
        ),
        ("\n".join(f"key{n}: {n}" for n in range(5_001)), "more than 10,000"),
        ("[" * MOST_DEPTH + "1" + "]" * MOST_DEPTH, "more than 50 levels"),
        ("&a [[[[[[[[[[1]]]]]]]]]]\n", None),
        ("a: &a " + "[" * 30 + "]" * 30 + "\nb: " + "[" * 30 + "*a" + "]" * 30, "more than 50 levels"),
        ("[" * 5_000, "more than 50 levels"),
        ("a: " + "9" * 41, "a number of 41 digits"),
        ("a: " + "1:" * 5_000 + "1", "a number of 10001 digits"),
        ('a: "\\UFFFFFFFF"', "does not fit its type"),
        ("a: !!bool maybe", "does not fit its type"),
        ("a: !!timestamp now", "does not fit its type"),
        ("!!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("a: [", "did not find expected|expected"),
        ("\x00", "special characters"),
    ],
)
def test_anything_else_is_refused(text: str, reason: str | None) -> None:
    if reason is None:
        parse_yaml(text)
        return
    with pytest.raises(ValueError, match=reason):
        parse_yaml(text)


def test_layers_of_aliases_are_counted_without_being_expanded() -> None:
    """Nine levels of nine aliases would be 387 million texts."""
    layers = "a: &a [x,x,x,x,x,x,x,x,x]\n"
    for name, before in zip("bcdefghi", "abcdefgh"):
        layers += f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    with pytest.raises(ValueError, match="more than 10,000 keys and values"):
        parse_yaml(layers)
