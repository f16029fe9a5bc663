"""The page's own files. What can be asked for is a table made at the start: no path is ever built from a request."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from centuria.gateway.web import Handler, Reply, Request, Route

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: The pages of their own address; every other file is below /assets/.
_PAGES = {"index.html": "/", "docs.html": "/docs"}
#: Scripts, styles and data come from here alone, nothing is inline, and text never becomes markup.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_OF_PAGES = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "x-frame-options": "DENY",
}
_OF_ALL = {
    "cache-control": "no-cache",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
}


def routes() -> list[Route]:
    """One public route for each file."""
    found = dict(_files(files("centuria.gateway.page").joinpath("static"), PurePosixPath()))
    return [Route("GET", _address(name), _serving(name, body), "public") for name, body in sorted(found.items())]


def _files(folder: Traversable, below: PurePosixPath) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = below / entry.name
        if entry.is_dir():
            yield from _files(entry, name)
        elif name.suffix in _TYPES:
            yield str(name), entry.read_bytes()


def _address(name: str) -> str:
    return _PAGES.get(name, f"/assets/{name}")


def _serving(name: str, body: bytes) -> Handler:
    type = _TYPES[PurePosixPath(name).suffix]
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**_OF_ALL, **(_OF_PAGES if name in _PAGES else {}), "etag": tag}

    async def serve(request: Request) -> Reply:
        known = [known.strip().removeprefix("W/") for known in request.headers.get("if-none-match", "").split(",")]
        if tag in known or "*" in known:
            return Reply(b"", 304, headers, type)
        return Reply(body, 200, headers, type)

    return serve
