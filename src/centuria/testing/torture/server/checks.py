"""What a checked row is, and what it may say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from centuria.testing.torture.server.asking import Examiner, Heard

State = Literal["pass", "fail", "n/a"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a check ended, and what was seen."""

    state: State
    seen: str


@dataclass(frozen=True, slots=True)
class Check:
    """A row: its name, what a right server does, how it is tried, and its cost at most in requests and tokens."""

    name: str
    right: str
    run: Callable[[Examiner], Awaitable[Outcome]]
    requests: int = 1
    prompt: int = 60
    output: int = 64


def passed(seen: str) -> Outcome:
    return Outcome("pass", seen)


def failed(seen: str) -> Outcome:
    return Outcome("fail", seen)


def not_applicable(seen: str) -> Outcome:
    return Outcome("n/a", seen)


def ensure(holds: bool, seen: str, otherwise: str) -> Outcome:
    return passed(seen) if holds else failed(otherwise)


def unanswered(heard: Heard) -> Outcome | None:
    """Why an answer that should be there is none: too many requests is no verdict on anything else."""
    if heard.status == 200:
        return None
    return not_applicable("refused for rate (429)") if heard.status == 429 else failed(str(heard))
