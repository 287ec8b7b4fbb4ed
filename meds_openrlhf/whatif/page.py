"""The page of `meds whatif`: sentences on what the run does, a table of methods, and the same for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from meds_openrlhf.rollouts.run import NONE
from meds_openrlhf.shaping.method import Floats
from meds_openrlhf.terminal import aligned, counted, in_a_line
from meds_openrlhf.whatif import collapse
from meds_openrlhf.whatif.methods import CANDIDATES, NOTHING, Moved, baseline_of, moved_by, shares_of
from meds_openrlhf.whatif.visits import Visits

BLOCKS = " ▁▂▃▄▅▆▇█"
WIDEST = 72  # characters of the curve, and of a prompt
LISTED = 3  # prompts of the method that changes most


@dataclass(frozen=True)
class WhatIf:
    """All that the page says of the ``visits`` of a run."""

    visits: Visits

    @cached_property
    def baseline(self) -> Floats:
        """The advantages (n,) without any method."""
        return baseline_of(self.visits)

    @cached_property
    def methods(self) -> list[Moved]:
        """What each method would have done."""
        return [moved_by(self.visits, candidate, self.baseline) for candidate in CANDIDATES]

    @cached_property
    def recurrence(self) -> collapse.Recurrence | None:
        """How often wrong answers come back."""
        return collapse.recurrence_of(self.visits)

    @cached_property
    def peak(self) -> collapse.Peak | None:
        """Where pass@k peaked."""
        return collapse.peak_of(self.visits)

    @cached_property
    def passes(self) -> dict[int, dict[int, float]]:
        """pass@k by step and k."""
        return collapse.pass_by_step(self.visits)

    @property
    def is_filtered(self) -> bool:
        """Whether every logged group has a right response, as dynamic filtering leaves them."""
        return bool((self.visits.right > 0).all())

    @property
    def answered(self) -> int:
        """The number of responses with a final answer."""
        return int((self.visits.answer != NONE).sum())

    @property
    def of_no_use(self) -> float:
        """The share of visits without advantages: all of their rewards are equal, or there is one response."""
        moves = np.add.reduceat(self.baseline != 0, self.visits.offsets[:-1])
        return float((moves == 0).mean())

    def as_json(self) -> dict[str, Any]:
        """Everything by name; null where the rollouts do not say."""
        visits, recurrence = self.visits, self.recurrence
        peak = None if self.is_filtered else self.peak
        seen_before, solved = shares_of(visits, self.baseline)
        return {
            "rollouts": len(visits.answer),
            "prompts": len(visits.prompts),
            "visits": len(visits.step),
            "steps": len(np.unique(visits.step)),
            "group": collapse.usual_size(visits),
            "baseline": {
                "without_advantages": self.of_no_use,
                "seen_before": seen_before,
                "solved": solved,
            },
            "methods": [asdict(method) for method in self.methods],
            "collapse": {
                "equal_pairs": collapse.equal_pairs(visits),
                "distinct_wrong": collapse.distinct_wrong(visits),
                "coverage": collapse.coverage(visits),
                "recurrence": recurrence and recurrence.share,
                "recurrence_null": recurrence and recurrence.null,
                "recurrence_null_interval": recurrence and list(recurrence.interval),
                "pass_at_k": self.passes,
                "peak_k": peak and peak.k,
                "peak_step": peak and peak.step,
                "fall": peak and peak.fall,
                "fall_interval": peak and list(peak.interval),
                "collapses": peak and peak.collapses,
            },
        }

    def for_page(self) -> dict[str, Any]:
        """What the report shows: sentences, of which the first is the verdict, and methods."""
        names = ("name", "words", "amplitude", "mixed", "cosine", "seen_before", "solved", "changes_nothing")
        methods = [
            {
                **{name: getattr(method, name) for name in names},
                **{name: _shown(getattr(method, name)) for name in ("amplitude", "mixed")},
            }
            for method in self.methods
        ]
        return {"sentences": self.sentences(), "methods": methods, "nothing": NOTHING}

    def as_text(self) -> str:
        """The page for a terminal."""
        visits = self.visits
        counts = [
            (len(visits.answer), "rollout"),
            (len(visits.prompts), "prompt"),
            (len(np.unique(visits.step)), "step"),
        ]
        head = "{} of {} in {}".format(*(counted(*count) for count in counts))
        return "\n\n".join([head, "\n".join(self.sentences()), self._curve(), self._table(), *self._prompts()]) + "\n"

    def sentences(self) -> list[str]:
        """What the run does, in words."""
        if self.peak is None:
            unknown = "No prompt is visited twice, so nothing can be said of what comes back or of a peak."
            return [unknown, *self._pairs(), *self._spent()]
        verdict = verdict_of(self.peak)
        if self.is_filtered:
            verdict = (
                f"Every logged group has a right response, so pass@{self.peak.k} cannot fall in this log. If the "
                "training drops groups without one (dynamic filtering), evaluate checkpoints to see if it collapses."
            )
        return [verdict, *self._recurring(), *self._pairs(), *self._spent()]

    def _recurring(self) -> list[str]:
        if not self.visits.wrong_answer.any():
            return ["No final answer was found in a wrong response, so nothing can be said of what comes back."]
        if self.recurrence is None:
            return ["No prompt has wrong answers at its first visit and at a later one."]
        share, (low, high) = self.recurrence.share, self.recurrence.interval
        so = "so it repeats itself no more than at first"
        if share > high:
            so = "so it repeats itself"
        elif share < low:
            so = "from which nothing follows: a first visit shows only some of a policy's answers"
        return [
            f"{share:.0%} of wrong answers had been given to their prompt before; if the policy still answered as at "
            f"the prompt's first visit, {self.recurrence.null:.0%} would ({low:.0%} to {high:.0%}), {so}."
        ]

    def _pairs(self) -> list[str]:
        equal, distinct = collapse.equal_pairs(self.visits), collapse.distinct_wrong(self.visits)
        if equal is None or distinct is None:
            return []
        return [
            f"{equal:.0%} of pairs of wrong answers in a group are equal; a group with any has {distinct:.1f} "
            "distinct ones."
        ]

    def _spent(self) -> list[str]:
        _, solved = shares_of(self.visits, self.baseline)
        idle = f"{self.of_no_use:.0%} of groups give no advantages"
        if solved is None:
            return [f"{idle}."]
        return [f"{idle}; {solved:.0%} of the update went to prompts that were solved in most earlier visits."]

    def _curve(self) -> str:
        """pass@k over the steps as a line of blocks, pass@1 of a filtered log, in which pass@k is 1."""
        most = 1 if self.is_filtered else collapse.usual_size(self.visits)
        steps = sorted(self.passes)
        values = np.array([self.passes[step][most] for step in steps])
        parts = np.array_split(values, min(len(values), WIDEST))
        blocks = "".join(BLOCKS[round(float(part.mean()) * (len(BLOCKS) - 1))] for part in parts)
        return f"pass@{most}  {blocks}  steps {steps[0]} to {steps[-1]}, {values[0]:.2f} to {values[-1]:.2f}"

    def _table(self) -> str:
        head = ["method", "amplitude", "in mixed groups", "cosine", "on errors seen before", "on solved prompts", ""]
        shares = shares_of(self.visits, self.baseline)
        without = ["--" if share is None else f"{share:.0%}" for share in shares]
        rows = [head, ["(none)", "0.00", "0.00", "1.00", *without, "GRPO's advantages, as they are"]]
        for method in self.methods:
            numbers = _shown(method.amplitude), _shown(method.mixed), method.cosine
            cells = ["--" if number is None else f"{number:.2f}" for number in numbers]
            cells += ["--" if share is None else f"{share:.0%}" for share in (method.seen_before, method.solved)]
            here = "here" if self.visits.come_back or method.amplitude else "here, as no prompt comes back"
            nothing = f"changes nothing {here}: " if method.changes_nothing else ""
            rows.append([method.name, *cells, nothing + method.words])
        said = f"how far each method moves the advantages of these rollouts (below {NOTHING:g}: changes nothing; far "
        said += "is not better)\nmixed groups: with right and wrong responses, all that dynamic filtering leaves"
        return f"{said}\n{aligned(rows, '<>>>>><')}"

    def _prompts(self) -> list[str]:
        moving: Sequence[Moved] = [method for method in self.methods if not method.changes_nothing]
        if not moving:
            return []
        most = max(moving, key=lambda method: method.amplitude or 0.0)
        texts = dict(zip(self.visits.prompts, self.visits.texts))
        rows = [[f"{share:.0%}", in_a_line(texts[key], WIDEST)] for key, share in list(most.prompts.items())[:LISTED]]
        return [f"what {most.name}, which moves them farthest, changes by prompt\n{aligned(rows, '><')}"]


def _shown(amplitude: float | None) -> float | None:
    """An amplitude, and below `NOTHING` not one that is rounded up to it."""
    if amplitude is None or amplitude >= NOTHING:
        return amplitude
    return min(amplitude, NOTHING - 0.01)


def verdict_of(peak: collapse.Peak) -> str:
    """Say whether a run collapses, and which checkpoint to keep."""
    if not peak.is_told:
        few = f"{counted(peak.steps, 'step')} are too few to say where pass@{peak.k} peaks"
        return f"{few}; it takes {2 * collapse.WINDOW}."
    points, low, high = (round(100 * value) + 0.0 for value in (peak.fall, *peak.interval))
    fell = f"fell by {points:.0f} points ({low:.0f} to {high:.0f})"
    at = f"pass@{peak.k} peaked at step {peak.step} of {peak.last}"
    if not peak.collapses:
        return f"{at}; no clear fall since ({points:.0f} points, {low:.0f} to {high:.0f})."
    rose = " while pass@1 rose" if peak.pass1_rise > 0 else ""
    return f"{at} and {fell}{rose}; keep the checkpoint of step {peak.step}."
