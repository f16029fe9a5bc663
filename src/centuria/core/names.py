"""The names of tools as models see them: `slug__tool`, legal everywhere, never two alike. Pure.

slug        [a-z][a-z0-9-]{0,15}, from the server's name in the configuration. It has no `_`, so that the
            first `__` ends it.
tool        The server's own name. Each character outside [A-Za-z0-9_-] is written as `-_HH` (its UTF-8 bytes
            in upper hex), and a `-` before a `_` as `-_2D`.
too long    The head, `-_h` and 12 base32 characters of the hash of (slug, tool). `h` is no upper hex digit,
            so this is never an escape. Such a name is not parsed but looked up.

OpenAI takes [A-Za-z0-9_-]{1,64}; Kimi 3 to 64 of these, a letter or `_` first. These begin with a letter.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from centuria.core.quoting import meant

#: The longest name that every provider takes.
LONGEST = 64
_SLUG_LONGEST = 16
_SLUG = re.compile(r"[a-z][a-z0-9-]{0,15}", re.ASCII)
_ESCAPE = re.compile(rb"-_([0-9A-F]{2})")
_HASHED = re.compile(r".*-_h[a-z2-7]{12}", re.ASCII)
_LEGAL = re.compile(r"[A-Za-z0-9_-]", re.ASCII)


def is_slug(text: str) -> bool:
    return _SLUG.fullmatch(text) is not None


def slug_of(server_name: str, *, taken: Collection[str] = ()) -> str:
    """The slug of one server: lower case, other characters to `-`, a letter first.

    Over 16 characters, or where it is `taken`: 11 characters, `-` and 4 of the hash of the name. With `taken`
    the answer depends on who came first; `slugs_of` names many at once and does not.
    """
    slug = _plain_slug(server_name)
    turn = 0
    while len(slug) > _SLUG_LONGEST or slug in taken:
        slug = _hashed_slug(server_name, turn)
        turn += 1
    return slug


def slugs_of(server_names: Iterable[str]) -> dict[str, str]:
    """The slugs of all servers by name, whatever their order: all that would be alike get the hash."""
    names = sorted(set(server_names))
    alike = Counter(_plain_slug(name) for name in names)
    plain = {name: _plain_slug(name) for name in names}
    slugs = {name: slug for name, slug in plain.items() if alike[slug] == 1 and len(slug) <= _SLUG_LONGEST}
    taken = {*slugs.values(), *alike}
    for name in names:
        if name not in slugs:
            slugs[name] = slug_of(name, taken=taken)
            taken.add(slugs[name])
    return {name: slugs[name] for name in names}


def _plain_slug(name: str) -> str:
    text = re.sub(r"[^a-z0-9-]", "-", name.lower()).strip("-")
    return text if text[:1].isalpha() else f"s-{text}".rstrip("-")


def _hashed_slug(name: str, turn: int) -> str:
    hashed = _base32(name if not turn else f"{name}\0{turn}")[:4]
    return f"{_plain_slug(name)[:11].rstrip('-')}-{hashed}"


def qualify(slug: str, tool: str) -> str:
    """The name of a server's tool as every model sees it. Raises `ValueError`: a bad slug, no name."""
    if not is_slug(slug):
        raise ValueError(f"{slug!r} is not a slug: a to z, 0 to 9 and -, a letter first, 16 at most.")
    if not tool:
        raise ValueError(f"A tool of {slug} has no name.")
    name = f"{slug}__{_escape(tool)}"
    if len(name) <= LONGEST:
        return name
    tail = "-_h" + _base32(slug + "\0" + tool)[:12]
    # Not cut inside an escape, and no `-` at the end that would make one of what follows.
    head = re.sub(r"-(_[0-9A-F]?)?$", "", name[: LONGEST - len(tail)])
    return head + tail


def parse(name: str) -> tuple[str, str | None] | None:
    """The (slug, tool) that a name was made of; (slug, None) for a hashed one; None if it is no such name."""
    slug, _, rest = name.partition("__")
    if not is_slug(slug) or not rest or len(name) > LONGEST:
        return None
    if _HASHED.fullmatch(name):
        return slug, None
    try:
        tool = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), rest.encode()).decode("utf-8", "surrogatepass")
    except ValueError:
        return None
    return (slug, tool) if _escape(tool) == rest else None


def unknown_tool(name: str, view: Collection[str]) -> str:
    """What a model is told that called a tool which it was not given: at most 20 that it may call."""
    names = sorted(view)
    shown = name[:LONGEST].encode("ascii", "replace").decode()
    there = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return (
        f"There is no tool {shown!r} for you."
        + meant(shown, names)
        + (f" You may call: {there}." if names else " You have no tools.")
    )


def manifest_key(server: str, tool: str, schema: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of the canonical JSON of (server, tool, schema). Another schema is another tool."""
    text = json.dumps([server, tool, schema], sort_keys=True, separators=(",", ":"), default=dict)
    return hashlib.sha256(text.encode()).hexdigest()


def _escape(tool: str) -> str:
    out: list[str] = []
    for index, char in enumerate(tool):
        if char == "-" and tool[index + 1 : index + 2] == "_":
            out.append("-_2D")
        elif _LEGAL.fullmatch(char):
            out.append(char)
        else:
            out += [f"-_{byte:02X}" for byte in char.encode("utf-8", "surrogatepass")]
    return "".join(out)


def _base32(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest).decode().lower()
