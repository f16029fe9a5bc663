"""Programs of others that talk to a gateway: run to their end, with nothing of ours about them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.servers.installed import CLIENTS_PYTHON

SECONDS = 90.0


async def run(
    argv: Sequence[str | Path], env: Mapping[str, str], *, within: float = SECONDS, cwd: Path | None = None
) -> tuple[int, str, str]:
    """A program to its end: its exit code, its output, and what it says beside it. It is killed with us."""
    # Nothing of the developer's own (keys, proxies, base URLs) reaches it.
    own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT") if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        *map(str, argv),
        env={**own, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1", **env},
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(within):
            out, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(), said.decode()


async def run_client(file: Path, env: Mapping[str, str], *, interpreter: Path = CLIENTS_PYTHON) -> dict[str, Any]:
    """What a program of `clients/programs` prints: one JSON object."""
    code, out, said = await run([interpreter, file], env)
    assert code == 0, f"{file.name} ended with {code}:\n{said[-4000:]}"
    result: dict[str, Any] = json.loads(out)
    return result
