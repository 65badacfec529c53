"""Runs of the soak that were made up, to judge a trouble by."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from forebay.benchmarks.soak_evidence import Evidence, Injected, Trouble
from forebay.benchmarks.soak_explained import explanation_of
from forebay.benchmarks.soak_faults import ORCHESTRATORS, Fault
from forebay.benchmarks.soak_party import Life

from .soak_books import Books

HERE, THERE = ORCHESTRATORS


def hit(kind: str, victim: str, at: float, lasts_s: float = 0.0, how: str = "", **more: object) -> Injected:
    fault = Fault(at_s=at, kind=kind, victim=victim, lasts_s=lasts_s, how=how)
    given = {"life": 1, "was_at_work": True} | more
    return Injected(at=at, fault=fault, over_at=at + lasts_s, **given)  # type: ignore[arg-type]


def lives(*back_at: float) -> list[Life]:
    """A first life that is at work at once, and those that follow it."""
    return [
        Life(number=number, pid=number, began_at=max(0.0, at - 1), at_work_at=at)
        for number, at in enumerate((0.1, *back_at), start=1)
    ]


@dataclasses.dataclass
class Story:
    """What was injected, and who lived when; everything else is calm."""

    injected: Sequence[Injected] = ()
    lives: dict[str, list[Life]] = dataclasses.field(default_factory=dict)
    books: Books = dataclasses.field(default_factory=Books)

    def explains(self, kind: str, name: str, at: float, who: str = HERE, life: int = 1, key: str = "") -> bool:
        evidence = Evidence(self.injected, self.lives, {HERE: self.books.told}, self.books.did)
        trouble = Trouble(at=at, who=who, kind=kind, name=name, life=life, key=key)
        return explanation_of(trouble, evidence) is not None
