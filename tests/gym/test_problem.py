"""Labels of reasoning-gym's problems: what they name, and what they refuse."""

import json
from typing import Any

import pytest

from meds_openrlhf.gym.problem import GymLabel, is_label, read_label

FIELDS = {"task": "chain_sum", "size": 8, "seed": 3, "index": 7, "threshold": 0.5, "digest": "0f" * 8}


def changed(**fields: Any) -> str:
    content = json.loads(GymLabel(**FIELDS).as_text())
    return json.dumps({**content, **fields})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"min_terms": 2, "shares": [0.5, -1e-3], "allow_negation": False, "difficulty": None, "pairs": [[1, 2], []]},
        {"operators": ["+", "-", "*", "/", "**", "<<"], "symbols": "x", "delimiter": ".", "separator": " "},
        {"data_file": "words3to10.txt", "styles": ["latex_frac"], "rotations": ["90"]},
    ],
)
def test_a_label_is_read_as_it_was_written(settings: dict[str, Any]) -> None:
    label = GymLabel(**FIELDS, settings=settings)
    assert read_label(label.as_text()) == label
    assert is_label(label.as_text())
    assert not is_label("42")


@pytest.mark.parametrize(
    "value",
    [
        *("__import__('os').system('id')", "+exit()*", "x y", "os.system(", "'", '"', "\\", "()", "[]", "{}", "a__b"),
        *("..", "../../etc/passwd", "/etc/passwd", "a/b", "~/x", "x" * 65, "", "x\n", "\u00e9"),
        *({"a": 1}, [{"a": 1}], [[[["x"]]]], 10**19, float("inf"), float("nan")),
    ],
    ids=str,
)
def test_a_setting_is_a_number_or_a_word_or_an_operator(value: object) -> None:
    for settings in ({"operators": value}, {"operators": ["+", value]}, {"operators": [["+"], [value]]}):
        with pytest.raises(ValueError, match="is not a number, a word, an operator or a list of them"):
            read_label(changed(settings=settings))
    if isinstance(value, str):
        with pytest.raises(ValueError, match="is not a number"):
            read_label(changed(settings={value: 1}))


@pytest.mark.parametrize(
    "fields",
    [
        *({"reasoning_gym": "a b"}, {"reasoning_gym": 1}, {"digest": "'"}, {"digest": None}, {"settings": []}),
        *({"size": 0}, {"size": 7}, {"index": -1}, {"index": 1.0}, {"seed": -1}, {"seed": 10**10}, {"seed": True}),
        *({"size": "8"}, {"threshold": 0}, {"threshold": 1.5}, {"threshold": "1"}, {"threshold": float("nan")}),
    ],
    ids=str,
)
def test_fields_have_types_and_bounds(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"has a field that it cannot have\. Make the data set again with"):
        read_label(changed(**fields))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("42", "'42' is not a problem of reasoning-gym. Make it with `meds data prepare gym:TASK`."),
        (
            changed(entry={"answer": "1"}),
            "a label contains its problem, as those of earlier versions did. Make",
        ),
        (changed(more=1), "a label of reasoning-gym has the fields reasoning_gym, settings, size, seed, index, thresh"),
        (changed()[:-1], "a label of reasoning-gym is not JSON"),
        ('{"reasoning_gym": ' + "[" * 100_000, "a label of reasoning-gym is not JSON"),
        ('{"reasoning_gym": ' + "9" * 5000 + "}", "a label of reasoning-gym is not JSON"),
    ],
    ids=lambda text: text[:30],
)
def test_other_texts_are_refused_with_what_to_do(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message.replace('(', '.')}"):
        read_label(text)
