"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A check's result on a node; ``advice`` says what a fault means and what to do, and is empty if all is well.

    A fault that is ``slow`` only costs time.
    """

    node: str
    check: str
    found: str
    advice: str = ""
    slow: bool = False

    @property
    def word(self) -> str:
        """``ok``, ``slow`` or ``WRONG``."""
        return "ok" if not self.advice else "slow" if self.slow else "WRONG"

    def __str__(self) -> str:
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.word:5}  {self.node:15}  {self.check:8}  {self.found}{advice}"
