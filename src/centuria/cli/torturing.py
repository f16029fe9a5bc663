"""torture: try what an OpenAI-compatible server gets right, after saying what that will cost."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence

from centuria.config import ModelChoice, NoKey, resolve
from centuria.errors import ConfigurationError, ProviderError
from centuria.model.http import HttpTransport
from centuria.settings import Endpoint
from centuria.testing.torture.server import Check, Finding, checks, estimate, examine, findings_as_json
from centuria.views.words import clean, counted


def torture(options: argparse.Namespace) -> int:
    """`centuria torture`: each row passes, fails, or is not applicable. Exit 0 where none fails, 1 where one does."""
    endpoint = _endpoint(options)
    rows = checks(endpoint, skip=options.skip.split(",") if options.skip else ())
    if not rows:
        raise ConfigurationError("--skip leaves nothing to try.", remedy="Skip fewer words.")
    _say_cost(endpoint, rows)
    if not options.yes and not _agreed():
        print("centuria: nothing was sent.", file=sys.stderr)
        return 2
    told: Callable[[Finding], None] = (lambda finding: None) if options.json else _print
    findings = asyncio.run(_examine(endpoint, rows, told))
    if options.json:
        print(json.dumps({"base_url": endpoint.base_url, "model": endpoint.model, "rows": findings_as_json(findings)}))
    else:
        states = Counter(finding.state for finding in findings)
        print(f"{states['pass']} pass, {states['fail']} fail, {states['n/a']} not applicable")
    return 1 if any(finding.state == "fail" for finding in findings) else 0


def _endpoint(options: argparse.Namespace) -> Endpoint:
    choice = ModelChoice(
        options.model,
        options.provider,
        options.base_url,
        key_env=options.key_env,
        context=options.context,
    )
    resolved = resolve(choice, os.environ)
    if isinstance(resolved, NoKey):
        raise ProviderError(resolved.text, remedy=resolved.remedy)
    return resolved


def _say_cost(endpoint: Endpoint, rows: Sequence[Check]) -> None:
    most = estimate(endpoint, rows)
    requests = counted(most.requests, "request")
    print(
        f"{counted(len(rows), 'row')} against {endpoint.model} at {endpoint.base_url}: about {requests}, at most "
        f"{most.prompt:,} tokens of prompts and {most.output:,} of answers.",
        file=sys.stderr,
    )
    longest = max(rows, key=lambda check: check.prompt)
    if longest.prompt > 10_000:
        print(
            f"Of the prompts, {longest.prompt:,} tokens are one request ({longest.name}) that a right server refuses "
            "unpaid; --skip long leaves it out.",
            file=sys.stderr,
        )


def _agreed() -> bool:
    """Ask a person. A script must say --yes: this is no run with a budget."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError("This costs money, and there is no terminal to ask at.", remedy="Add --yes.")
    print("Go on? [Y/n] ", end="", file=sys.stderr)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


async def _examine(endpoint: Endpoint, rows: Sequence[Check], told: Callable[[Finding], None]) -> list[Finding]:
    transport = HttpTransport()
    try:
        return await examine(endpoint, transport, rows, told=told)
    finally:
        await transport.aclose()


def _print(finding: Finding) -> None:
    print(f"{finding.state:<5} {finding.check.name:<28} {clean(finding.seen, 160)}")
    if finding.state == "fail":
        print(f"      {'':<28} right: {finding.check.right}")
    sys.stdout.flush()
