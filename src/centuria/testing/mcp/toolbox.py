"""The tools of the fake MCP server: deterministic, so that a wrong answer is seen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

_NUMBER = {"type": "number"}
_TEXT = {"type": "string"}


def _schema(required: Sequence[str] = (), **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


#: Name: what it says of itself, and its input schema.
TOOLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "echo": ("Say the text again.", _schema(["text"], text=_TEXT)),
    "nonce": ("Give the nonce back, with the number of the call.", _schema(["nonce"], nonce=_TEXT)),
    "add": ("Add two numbers.", _schema(["a", "b"], a=_NUMBER, b=_NUMBER)),
    "slow": ("Answer after so many seconds.", _schema(["seconds"], seconds=_NUMBER)),
    "big": ("Answer with a text of so many bytes.", _schema(["bytes"], bytes={"type": "integer"})),
    "fail": ("Fail, and say why.", _schema(["why"], why=_TEXT)),
    "counter": ("Count its calls by name.", _schema(name=_TEXT)),
    "set_tools": (
        "List these tools from now on, and tell clients of it.",
        _schema(["names"], names={"type": "array", "items": _TEXT}),
    ),
}


class Toolbox:
    """Runs the tools. `listed` are those in the catalogue; a name that is none of `TOOLS` can be listed and echoes."""

    def __init__(self, listed: Sequence[str] | None = None) -> None:
        self.listed = list(TOOLS if listed is None else listed)
        self._counts: dict[str, int] = {}

    def catalogue(self) -> list[dict[str, Any]]:
        plain = ("Say the arguments again.", _schema())
        listed = [(name, *TOOLS.get(name, plain)) for name in self.listed]
        return [{"name": name, "description": text, "inputSchema": schema} for name, text, schema in listed]

    def has(self, name: str) -> bool:
        return name in self.listed or name in TOOLS

    def recall(self, arguments: str) -> None:
        """Take note of a call of `counter` before this server started. Raises `ValueError` where it was cut off."""
        self._count(str(json.loads(arguments).get("name", "")))

    def _count(self, name: str) -> int:
        self._counts[name] = self._counts.get(name, 0) + 1
        return self._counts[name]

    async def run(self, name: str, arguments: Mapping[str, Any], number: int) -> dict[str, Any]:
        """The result of one call; arguments that do not fit are an error of the tool."""
        try:
            return await self._run(name, arguments, number)
        except (KeyError, TypeError, ValueError) as error:
            return _text(f"The arguments do not fit: {type(error).__name__}: {error}", error=True)

    async def _run(self, name: str, arguments: Mapping[str, Any], number: int) -> dict[str, Any]:
        match name:
            case "echo":
                return _text(str(arguments["text"]))
            case "nonce":
                return _data({"nonce": arguments["nonce"], "number": number})
            case "add":
                return _data({"sum": arguments["a"] + arguments["b"]})
            case "slow":
                await asyncio.sleep(float(arguments["seconds"]))
                return _text("awake")
            case "big":
                size = int(arguments["bytes"])
                return _text(("0123456789abcdef" * (size // 16 + 1))[:size])
            case "fail":
                return _text(f"It failed: {arguments['why']}", error=True)
            case "counter":
                label = str(arguments.get("name", ""))
                return _data({"name": label, "count": self._count(label)})
            case "set_tools":
                self.listed = [str(item) for item in arguments["names"]]
                return _text(f"{len(self.listed)} tools are listed now.")
        return _text(json.dumps(arguments, sort_keys=True))


def _text(text: str, *, error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": error}


def _data(data: Mapping[str, Any]) -> dict[str, Any]:
    return {**_text(json.dumps(data)), "structuredContent": data}
