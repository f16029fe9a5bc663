"""One exchange with an upstream as a line of a recording: the format, and what is blotted out of it. Pure.

A recording is UTF-8 text, one JSON object a line, each with `v` (the version of the format) and `kind`. The
first line is of kind "recording" and tells in `about` what was recorded; every other is an exchange
(docs/record-replay.md has the fields). Bytes are text where they are UTF-8, else `{"base64": ".."}`: they come
back as they were, in the pieces in which they arrived.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from centuria.core.blotting import CLEAR, Blotter, cover, secret_name, secrets_in
from centuria.errors import ConfigurationError, ContextTooLong, ModelDenied, ModelError, ModelRefused, ModelUnavailable
from centuria.messages import CallKey, safe_text
from centuria.model.failures import blot

VERSION = 1
#: Bytes of one line: an answer at its cap, in base64.
LINE_CAP = 256 * 2**20

How = Literal["end", "left", "cancelled", "cut", "reset", "error"]
_ERRORS: Mapping[str, type[ModelError]] = {
    kind.__name__: kind for kind in (ModelUnavailable, ModelRefused, ContextTooLong, ModelDenied)
}
_MASK = "***"


class Damaged(Exception):
    """A line is no line of a recording; the text says why."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an exchange ended, `after` seconds.

    "end": the body was read to its end; "left": its reader needed no more; "cancelled": its reader was stopped,
    by a time-out or from outside; "cut": the body broke off; "reset": the connection did, before any answer;
    "error": anything else that the transport raised. `error` is what it raised, in the last three.
    """

    how: How
    after: float = 0.0
    error: ModelError | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what came of it. Times are seconds: `at` from the beginning of the recording, the others
    from the beginning of the exchange.

    `status` 0: no answer came. `masked` are the stretches of `body` (start, length) that were blotted out.
    `attempt` counts the requests of one caller's key in one recording, from 1.
    """

    at: float
    caller: CallKey | None
    attempt: int
    method: str
    path: str
    request_headers: Mapping[str, str]
    body: bytes
    ending: Ending
    status: int = 0
    headers: Mapping[str, str] | None = None
    head_after: float = 0.0
    chunks: Sequence[tuple[float, bytes]] = ()
    masked: tuple[tuple[int, int], ...] = ()


# -- what must not be kept -------------------------------------------------------------------------------------------


def redacted(exchange: Exchange, secrets: Iterable[str]) -> Exchange:
    """The exchange as it may be kept: no key, no cookie, nothing of `secrets` and of the headers' own anywhere."""
    blotter = Blotter({*secrets, *secrets_in(exchange.request_headers)})
    spans = blotter.spans(exchange.body)
    sent = {
        name: blotter.text(value) if name.lower() in CLEAR else _MASK
        for name, value in exchange.request_headers.items()
    }
    got = {
        name: _MASK if secret_name(name) else blot(blotter.text(value))
        for name, value in (exchange.headers or {}).items()
    }
    error = exchange.ending.error
    if error is not None:
        error = _error(_error_fields(error, blotter))
    return replace(
        exchange,
        path=blotter.text(exchange.path),
        request_headers=sent,
        body=cover(exchange.body, spans),
        masked=spans,
        headers=got if exchange.status else None,
        chunks=blotter.pieces(exchange.chunks),
        ending=replace(exchange.ending, error=error),
    )


def path_of(url: str) -> str:
    """What a URL asks of its host; values of parameters with a secret's name are left out. "" where it is no URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    pairs = (pair.partition("=") for pair in parts.query.split("&") if pair)
    query = "&".join(f"{name}={_MASK}" if secret_name(name) else f"{name}{is_}{value}" for name, is_, value in pairs)
    return parts.path + (f"?{query}" if query else "")


# -- writing ---------------------------------------------------------------------------------------------------------


def about_line(about: Mapping[str, Any]) -> bytes:
    """The first line of a recording."""
    return _line({"v": VERSION, "kind": "recording", "about": dict(about)})


def exchange_line(exchange: Exchange) -> bytes:
    """The line of an exchange, its line feed included."""
    key, ending = exchange.caller, exchange.ending
    value: dict[str, Any] = {"v": VERSION, "kind": "exchange", "at": _time(exchange.at)}
    if key is not None:
        value |= {"task": key.task, "epoch": key.epoch, "turn": key.turn, "position": key.position}
    value["attempt"] = exchange.attempt
    request: dict[str, Any] = {"method": exchange.method, "path": exchange.path}
    request |= {"headers": dict(exchange.request_headers), "body": _content(exchange.body)}
    if exchange.masked:
        request["masked"] = [list(span) for span in exchange.masked]
    value["request"] = request
    if exchange.status:
        value["response"] = {
            "status": exchange.status,
            "headers": dict(exchange.headers or {}),
            "after": _time(exchange.head_after),
            "chunks": [[_time(at), _content(chunk)] for at, chunk in exchange.chunks],
        }
    value["end"] = {"how": ending.how, "after": _time(ending.after)}
    if ending.error is not None:
        value["end"]["error"] = _error_fields(ending.error, Blotter(()))
    return _line(value)


def _line(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return safe_text(text).encode() + b"\n"


def _time(seconds: float) -> float:
    return round(max(0.0, seconds), 6)


def _content(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _error_fields(error: ModelError, blotter: Blotter) -> dict[str, Any]:
    name = next((name for name, kind in _ERRORS.items() if type(error) is kind), ModelUnavailable.__name__)
    fields: dict[str, Any] = {"class": name, "message": blotter.text(error.message), "kind": error.kind}
    fields |= {"status": error.status, "served": error.served, "remedy": error.remedy}
    if error.retry_after is not None:
        fields["retry_after"] = error.retry_after
    return fields


# -- reading ---------------------------------------------------------------------------------------------------------


def read_line(line: bytes) -> Exchange | Mapping[str, Any]:
    """The exchange of a line, or what the recording is about. Raises `Damaged`, and nothing else, for any bytes.

    A line of a newer version raises `ConfigurationError`.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise Damaged("it is no JSON") from None
    version = _get(value, "v", int)
    if version > VERSION:
        raise ConfigurationError(
            "The recording was made by a newer Centuria.", remedy="Upgrade: pip install -U centuria."
        )
    if version != VERSION:
        raise Damaged("v is no version")
    kind = _get(value, "kind", str)
    if kind == "recording":
        about: Mapping[str, Any] = _get(value, "about", dict)
        return about
    if kind != "exchange":
        raise Damaged("kind is neither recording nor exchange")
    return _exchange(value)


def _exchange(value: Mapping[str, Any]) -> Exchange:
    request, end = _get(value, "request", dict), _get(value, "end", dict)
    caller = None
    if "task" in value:
        epoch, turn, position = (_get(value, name, int) for name in ("epoch", "turn", "position"))
        caller = CallKey(_get(value, "task", str), epoch, turn, position)
    how = _get(end, "how", str)
    if how not in get_args(How):
        raise Damaged("end.how is not known")
    exchange = Exchange(
        at=_seconds(value, "at"),
        caller=caller,
        attempt=_get(value, "attempt", int),
        method=_get(request, "method", str),
        path=_get(request, "path", str),
        request_headers=_headers(request),
        body=_bytes(request.get("body")),
        masked=tuple(_span(span) for span in _get(request, "masked", list, [])),
        ending=Ending(
            how,
            _seconds(end, "after"),
            _error(_get(end, "error", dict)) if how in ("cut", "reset", "error") else None,
        ),
    )
    if "response" not in value:
        if how in ("end", "left", "cut"):
            raise Damaged("response is missing")
        return exchange
    return _with_response(exchange, _get(value, "response", dict))


def _with_response(exchange: Exchange, response: Mapping[str, Any]) -> Exchange:
    status = _get(response, "status", int)
    if not 100 <= status <= 999:
        raise Damaged("status is none")
    chunks = []
    for chunk in _get(response, "chunks", list):
        if not isinstance(chunk, list) or len(chunk) != 2:
            raise Damaged("a chunk is not its time and its bytes")
        chunks.append((_number(chunk[0], "a chunk's time"), _bytes(chunk[1])))
    after = _seconds(response, "after")
    return replace(exchange, status=status, headers=_headers(response), head_after=after, chunks=tuple(chunks))


def _error(fields: Mapping[str, Any]) -> ModelError:
    kind = _ERRORS.get(_get(fields, "class", str), ModelUnavailable)
    return kind(
        _get(fields, "message", str),
        status=_get(fields, "status", int, 0),
        kind=_get(fields, "kind", str, ""),
        retry_after=_seconds(fields, "retry_after") if "retry_after" in fields else None,
        served=_get(fields, "served", bool, True),
        remedy=_get(fields, "remedy", str, ""),
    )


def _get(value: Any, name: str, kind: type, default: Any = None) -> Any:
    """A field of this very type (a bool is no int). Raises `Damaged`."""
    if not isinstance(value, dict):
        raise Damaged("it is no object")
    found = value.get(name, default)
    if type(found) is not kind:
        raise Damaged(f"{name} is missing or not what it must be")
    return _whole(found, name) if isinstance(found, str) else found


def _whole(text: str, name: str) -> str:
    if safe_text(text) != text:
        raise Damaged(f"{name} is no valid text")
    return text


def _seconds(value: Mapping[str, Any], name: str) -> float:
    return _number(value.get(name), name)


def _number(found: Any, name: str) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < math.inf:
        raise Damaged(f"{name} is no number of seconds")
    return min(float(min(found, 10**12)), 1e12)


def _headers(value: Mapping[str, Any]) -> dict[str, str]:
    found = _get(value, "headers", dict)
    if not all(isinstance(text, str) for text in found.values()):
        raise Damaged("a header is no text")
    return dict(found)


def _span(span: Any) -> tuple[int, int]:
    if not isinstance(span, list) or len(span) != 2 or any(type(part) is not int or part < 0 for part in span):
        raise Damaged("masked is no list of stretches")
    return span[0], span[1]


def _bytes(value: Any) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode()
        return base64.b64decode(_get(value, "base64", str), validate=True)
    except ValueError:
        raise Damaged("a body is neither text nor base64") from None
