"""The head of a request as ASGI's scope. Pure."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from httptools import parse_url

from centuria.gateway.web import Scope

_ASGI = {"version": "3.0", "spec_version": "2.3"}
Address = tuple[str, int] | None


def scope_of(
    method: str, url: bytes, version: str, headers: list[tuple[bytes, bytes]], client: Address, server: Address
) -> Scope:
    """`headers` have names in lower case. Raises what refuses a request for a `url` that is none."""
    if url.startswith(b"/") and b"#" not in url:
        raw, _, query = url.partition(b"?")
    else:  # a whole address, or one of a place in a page
        parsed = parse_url(url)
        raw, query = parsed.path or b"/", parsed.query or b""
    path = raw.decode("ascii")
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": version,
        "method": method,
        "scheme": "http",
        "path": unquote(path) if "%" in path else path,
        "raw_path": raw,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": client,
        "server": server,
    }


def address(name: Any) -> Address:
    """Of a socket's name; one without a host and a port has none."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
