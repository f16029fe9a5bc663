"""All checks of a server, one after another, with a bound on requests and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from centuria.model.failures import blot
from centuria.ports import Transport
from centuria.settings import Endpoint
from centuria.testing.torture.server.answers import answers, crowds
from centuria.testing.torture.server.asking import Examiner
from centuria.testing.torture.server.checks import Check, Outcome, State
from centuria.testing.torture.server.refusals import manners, refusals, texts
from centuria.testing.torture.server.tools import tools


@dataclass(frozen=True, slots=True)
class Finding:
    """One row: how it ended, what was seen, in how many requests and seconds."""

    check: Check
    state: State
    seen: str
    requests: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """The most that an examination sends, about: requests, and tokens in and out."""

    requests: int
    prompt: int
    output: int


def checks(endpoint: Endpoint, *, skip: Sequence[str] = ()) -> list[Check]:
    """The rows in their order, without those whose names hold one of the words in `skip`."""
    everything = [*answers(), *tools(), *texts(), *refusals(endpoint.context), *crowds(), *manners()]
    return [check for check in everything if not any(word.lower() in check.name.lower() for word in skip)]


def estimate(endpoint: Endpoint, rows: Sequence[Check]) -> Estimate:
    """A model that thinks may spend 4,096 tokens a request."""
    output = sum(check.output for check in rows)
    if endpoint.thinks:
        output = max(output, 4096 * sum(check.requests for check in rows if check.output))
    return Estimate(sum(check.requests for check in rows), sum(check.prompt for check in rows), output)


async def examine(
    endpoint: Endpoint,
    transport: Transport,
    rows: Sequence[Check],
    *,
    patience: float = 60.0,
    within: float = 900.0,
    told: Callable[[Finding], None] = lambda finding: None,
) -> list[Finding]:
    """Try the rows in order. `patience` is the most that one request may take, `within` all of it, in seconds:
    rows that there is no time for are not applicable. Never raises for what the server does."""
    now = asyncio.get_running_loop().time
    ends = now() + within
    server = Examiner(endpoint, transport, patience=patience)
    secret = endpoint.key.value if endpoint.key is not None else ""
    findings = []
    for check in rows:
        began, sent = now(), server.sent
        if began >= ends:
            outcome = Outcome("n/a", f"no time left: {within:g} s are over")
        else:
            outcome = await _tried(check, server, ends)
        seen = blot(outcome.seen, secret)
        finding = Finding(check, outcome.state, seen, server.sent - sent, now() - began)
        findings.append(finding)
        told(finding)
    return findings


async def _tried(check: Check, server: Examiner, ends: float) -> Outcome:
    try:
        async with asyncio.timeout_at(ends):
            return await check.run(server)
    except TimeoutError:
        return Outcome("fail", "it took all the time that was left")
    except Exception as error:  # an answer of a shape that no check foresaw is the server's fault
        return Outcome("fail", f"an answer that cannot be read: {type(error).__name__}: {error}")


def findings_as_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [
        {
            "check": finding.check.name,
            "state": finding.state,
            "right": finding.check.right,
            "seen": finding.seen,
            "requests": finding.requests,
            "seconds": round(finding.seconds, 3),
        }
        for finding in findings
    ]
