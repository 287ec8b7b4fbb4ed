"""Visits that tests write down, and logs of them."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meds_openrlhf.whatif.visits import Visits

RIGHT = "r"  # a response; any other letter is a wrong answer, and "-" is none


def visits_of(*steps: dict[str, str], stored: Sequence[int] = ()) -> Visits:
    """Steps of responses by prompt, a letter each: ``{"a": "rxx-"}``."""
    flat = [(step, prompt, letters) for step, of in enumerate(steps, 1) for prompt, letters in of.items()]
    names = sorted({prompt for _, prompt, _ in flat})
    letters = "".join(letters for *_, letters in flat)
    correct = np.array([letter == RIGHT for letter in letters])
    return Visits(
        step=np.array([step for step, *_ in flat]),
        prompt=np.array([names.index(prompt) for _, prompt, _ in flat]),
        offsets=np.cumsum([0, *(len(letters) for *_, letters in flat)]),
        answer=np.array([-1 if letter == "-" else ord(letter) for letter in letters]),
        correct=correct,
        reward=correct.astype(float),
        stored=np.array(stored or [0] * len(letters)),
        prompts=names,
        texts=[f"the prompt {name}" for name in names],
    )


def write_dump(path: Path, *steps: dict[str, str], truth: str | None = None) -> Path:
    """The same as JSON lines, with the right answer of all prompts if given."""
    lines = [
        {
            "step": step,
            "prompt": f"the prompt {prompt}",
            "response": "nothing" if letter == "-" else rf"\boxed{{{letter}}}",
            "reward": float(letter == RIGHT),
            **({} if truth is None else {"ground_truth": truth}),
        }
        for step, of in enumerate(steps, 1)
        for prompt, letters in of.items()
        for letter in letters
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path
