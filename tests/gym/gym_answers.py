"""Answers to every task of reasoning-gym: its own, and others of many forms."""

from __future__ import annotations

# Tasks without answers; they cannot be trained on.
WITHOUT_ANSWERS = {"boxnet", "composite", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}


def answers(own: str, others: list[str]) -> list[str]:
    """The task's own answer, answers to two other problems, and eleven more."""
    rows = [line.split() for line in own.splitlines()]
    numbers = [[int(word) if word.lstrip("-").isdecimal() else word for word in row] for row in rows]
    lists = [repr(list(own)), repr(own.split()), repr(numbers)]
    changed = [own[::-1], own[:-1], f"{own}1", f"{own} + 1", f"({own})*2"]
    return [own, *others, *changed, "0", "I do not know", "", *lists]
