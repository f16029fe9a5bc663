"""The official conformance suite against `/mcp`: what it asks of a server with tools, in both eras of the protocol."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.conformance.test_client import SUITE as SUITE_MODULE
from tests.conformance.test_client import node
from tests.gateway.mcp.kit import SUITE, mcp_of

EXPECTED = Path(__file__).parent / "expected.yaml"
#: What a gateway of tools need not have. Nothing else may be expected to fail.
ELSEWHERE = re.compile(
    r"(resources|prompts)-.*|completion-complete|logging-set-level|tools-call-(with-logging|sampling|elicitation)"
    r"|elicitation-.*|input-required-result-.*"
)
#: Not scored, and ours all the same.
EXTRA = {
    "2025-11-25": {"server-session-lifecycle", "json-schema-2020-12", "server-sse-polling"},
    "2026-07-28": {"json-schema-2020-12", "http-header-validation", "http-custom-header-server-validation"},
}
MINUTES = 4


def expected() -> set[str]:
    return set(re.findall(r"^  - (\S+)$", EXPECTED.read_text(), re.MULTILINE))


def required(revision: str) -> set[str]:
    text = (SUITE_MODULE / "requirements" / f"{revision}.yaml").read_text()
    (block,) = re.findall(r"^server:\n((?:  - .*\n)+)", text, re.MULTILINE)
    return set(re.findall(r"  - (\S+)", block))


def test_only_what_the_gateway_does_not_have_or_forward_may_be_expected_to_fail() -> None:
    assert [name for name in sorted(expected()) if not ELSEWHERE.fullmatch(name)] == []


@pytest.mark.timeout(60 * (MINUTES + 1))
@pytest.mark.parametrize(("revision", "scored"), [("2025-11-25", 30), ("2026-07-28", 37)])
async def test_every_other_scenario_of_a_revision_passes(tmp_path: Path, revision: str, scored: int) -> None:
    async with mcp_of(None, SUITE) as (url, _):
        process = await asyncio.create_subprocess_exec(
            *(str(node()), str(SUITE_MODULE / "dist" / "index.js"), "server", "--url", url),
            *("--requirements", revision, "--expected-failures", str(EXPECTED), "-o", str(tmp_path)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(60 * MINUTES):
                text = (await process.communicate())[0].decode()
        finally:
            if process.returncode is None:
                process.kill()
    summary = text.partition("=== SUMMARY ===")[2]
    found = re.findall(r"^([✓✗]) (\S+): (\d+) passed, (\d+) failed", summary, re.MULTILINE)
    passed = {name for mark, name, *_ in found if mark == "✓"}
    wanted = required(revision)
    assert len(wanted) == scored
    assert {name for _, name, *_ in found} >= wanted | EXTRA[revision]
    assert sorted((wanted | EXTRA[revision]) - expected() - passed) == [], text[-6_000:]
    assert sorted(wanted & expected() & passed) == []  # the list is not longer than it need be
