"""Faults at random, the same ones for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from centuria.core.ratelimits import read_refusal
from centuria.testing.replies import HttpError, Reply
from centuria.testing.torture.row import OK, Row
from centuria.testing.torture.rows import ROWS
from centuria.testing.upstream import Script


def recoverable(rows: Sequence[Row] = ROWS) -> tuple[Reply, ...]:
    """The first replies of all streamed rows after which a right client asks again and is answered.

    Without those that state a limit: to a crowd it would be a lie that slows whoever believes it.
    """
    return tuple(
        row.streamed[0]
        for row in rows
        if len(row.streamed) > 1
        and len(row.wants) == 1
        and row.wants[0].text == OK.text
        and not callable(row.streamed[0])
        and not row.wants[0].waits
        and not _states_a_limit(row.streamed[0])
    )


def _states_a_limit(reply: Reply) -> bool:
    return isinstance(reply, HttpError) and read_refusal(reply.message).limit != ""


def seeded(
    seed: int,
    share: float,
    *,
    answer: Callable[[dict[str, Any]], Reply] = lambda body: OK,
    faults: Sequence[Reply] | None = None,
) -> Script:
    """A script that gives one of the `faults` to this share of requests, and else the answer.

    The same requests in the same order meet the same faults.
    """
    dice = random.Random(seed)
    choice = tuple(faults) if faults is not None else recoverable()

    def reply(body: dict[str, Any]) -> Reply:
        return dice.choice(choice) if dice.random() < share else answer(body)

    return reply
