"""serve: the gateway and its page, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from socket import socket
from typing import Any

from centuria.config import ModelChoice, NoKey, resolve
from centuria.gateway.exposure import check_exposure
from centuria.gateway.ports import Key
from centuria.gateway.reading import read_gateway
from centuria.gateway.server import listen
from centuria.gateway.service import Gateway
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.tools.outages import told
from centuria.model.rehearsal import RehearsalTransport
from centuria.ports import Transport
from centuria.settings import Rehearsal

_REHEARSAL = "this is a rehearsal: a scripted model answers, at no cost, and no budget is drawn on"


def serve(options: argparse.Namespace) -> int:
    """`centuria serve`."""
    import uvloop

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("centuria").setLevel(logging.INFO)
    env = _environment(options)
    rehearse = options.rehearse
    if options.config is None and not rehearse:
        found = resolve(ModelChoice(), env)
        if isinstance(found, NoKey):
            rehearse = True
            print(f"centuria: {found.text} {found.remedy}", file=sys.stderr)
    settings = _overridden(read_gateway(options.config, env, rehearse=rehearse), options)
    check_exposure(settings, options.config)
    transport = RehearsalTransport(Rehearsal(), lambda task: {}) if rehearse else None
    listener = listen(settings.host, settings.port)
    try:
        uvloop.run(_serve(settings, transport, listener))
    finally:
        listener.close()
    return 0


async def _serve(settings: GatewaySettings, transport: Transport | None, listener: socket) -> None:
    async with Gateway(settings, transport=transport) as gateway:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        who = _who([key for key, _ in await gateway.store.keys()])

        def serving() -> None:
            _say(f"the gateway is at http://{shown}:{port} (API: /v1, MCP: /mcp, page: /); {who}")
            if settings.rehearsal:
                _say(_REHEARSAL)
            for state in gateway.tools.servers():
                if not state.up:
                    _say(told(state))

        def stopping() -> None:
            _say("the gateway ends")
            under_way = gateway.funnel.in_flight()
            if under_way:
                patience = f"{settings.caps.grace:g} s (`grace`); another signal ends them at once"
                _say(f"requests under way: {under_way}, which have up to {patience}")

        _settle_memory()
        await gateway.serve(listener, serving=serving, stopping=stopping)


def _who(keys: Sequence[Key]) -> str:
    """Who may use the gateway."""
    working = sum(key.revoked is None for key in keys)
    if working:
        return f"{working} key{'s' if working > 1 else ''}"
    if keys:
        return "all keys are revoked, so nobody may use it (centuria keys add NAME)"
    return "no keys yet, so this machine alone may use it (centuria keys add NAME)"


def _say(text: str) -> None:
    print(f"centuria: {text}", file=sys.stderr, flush=True)


def _settle_memory() -> None:
    """What is there now stays: the collector need not look at it again, and looks less often at what comes and goes.
    It would take a tenth of a request's time otherwise."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def _environment(options: argparse.Namespace) -> Mapping[str, str]:
    """What flags say stands in for what the environment says."""
    env = dict(os.environ)
    if options.model is not None:
        env["CENTURIA_MODEL"] = options.model
    if options.base_url is not None:
        env["CENTURIA_BASE_URL"] = options.base_url
    return env


def _overridden(settings: GatewaySettings, options: argparse.Namespace) -> GatewaySettings:
    said: dict[str, Any] = {"host": options.host, "port": options.port, "store": options.store}
    return replace(settings, **{name: value for name, value in said.items() if value is not None})
