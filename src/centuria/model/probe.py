"""One look at an endpoint for `doctor`: is it there, does it take the key, does it list the model? Costs
nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass

from centuria.errors import ModelDenied, ModelError
from centuria.model.failures import error_from
from centuria.model.wire import authorization
from centuria.ports import HttpRequest, Transport
from centuria.settings import Endpoint

_BODY_CAP = 4 * 2**20
_NAMES_CAP = 1000


@dataclass(frozen=True, slots=True)
class Probe:
    """What GET `{base}/models` came to. None where it could not be found out.

    `models` are the names that the endpoint lists; `problem` and `remedy` are "" where all is well.
    """

    reachable: bool
    accepted: bool | None = None
    listed: bool | None = None
    models: tuple[str, ...] = ()
    problem: str = ""
    remedy: str = ""


async def probe(endpoint: Endpoint, transport: Transport, *, now: float = 0.0, within: float = 15.0) -> Probe:
    """Ask for the list of models, `within` seconds at most. Never raises for what it finds."""
    url = endpoint.base_url.rstrip("/") + "/models"
    headers = {**endpoint.headers, **authorization(endpoint), "Accept": "application/json"}
    body = bytearray()
    try:
        async with asyncio.timeout(within), transport.send(HttpRequest("GET", url, headers)) as response:
            async for chunk in response.chunks():
                body += chunk
                if len(body) > _BODY_CAP:
                    break
            status, answered = response.status, dict(response.headers)
    except TimeoutError:
        return Probe(False, problem=f"No answer within {within:g} s.", remedy="Check base_url and the network.")
    except ModelError as error:
        return Probe(False, problem=error.message, remedy=error.remedy)
    if 200 <= status < 300:
        return _listing(endpoint, bytes(body))
    refusal = error_from(status, answered, bytes(body), now, secret=endpoint.key.value if endpoint.key else "")
    accepted = False if isinstance(refusal, ModelDenied) and status in (401, 403) else None
    return Probe(True, accepted, problem=refusal.message, remedy=refusal.remedy)


def _listing(endpoint: Endpoint, body: bytes) -> Probe:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    entries = value.get("data") if isinstance(value, Mapping) else value
    if not isinstance(entries, list):
        return Probe(
            True,
            problem="It answers, but not with a list of models.",
            remedy="Check base_url: most end in /v1.",
        )
    names = [entry.get("id") for entry in entries if isinstance(entry, Mapping)]
    models = tuple(name for name in names if isinstance(name, str))[:_NAMES_CAP]
    if endpoint.model in models or f"models/{endpoint.model}" in models:
        return Probe(True, True, True, models)
    near = ", ".join(models[:20]) or "none"
    problem = f"The endpoint does not list the model {endpoint.model}."
    return Probe(True, True, False, models, problem, f"It lists: {near}.")
