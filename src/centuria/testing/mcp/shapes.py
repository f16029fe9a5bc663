"""Answers as they should be, and spoiled in every way that has a name. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

Message = dict[str, Any]


def encoded(message: Any) -> bytes:
    """One message on one line."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def result(number: Any, value: Any) -> Message:
    return {"jsonrpc": "2.0", "id": number, "result": value}


def failure(number: Any, code: int, message: str, data: Any = None) -> Message:
    error: Message = {"code": code, "message": message}
    return {"jsonrpc": "2.0", "id": number, "error": error if data is None else {**error, "data": data}}


def notification(method: str, params: Mapping[str, Any] | None = None) -> Message:
    return {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": dict(params)})}


def answers(answer: Message, hits: Mapping[str, float], dice: Random) -> list[bytes]:
    """What is sent in place of this answer: usually the answer."""
    if "wrong-type" in hits:
        answer = {**answer, "result": dice.choice([[answer.get("result")], "done", 42])}
    if "missing-fields" in hits:
        answer = {**answer, "result": {"isError": False}}
    if "bad-rpc" in hits:
        answer = dice.choice(_BAD_RPC)(answer)
    if "wrong-id" in hits:
        answer = {**answer, "id": f"nobody-{answer.get('id')}"}
    line = encoded(answer)
    if "bad-bytes" in hits:
        line = line.replace(b'"text":"', b'"text":"caf\xe9 \\ud800 ', 1)
    if "bad-json" in hits:
        line = line[: len(line) // 2]
    return [line] * (2 if "twice" in hits else 1)


def _no_version(answer: Message) -> Message:
    return {"id": answer["id"], "result": answer.get("result")}


def _both(answer: Message) -> Message:
    return {**answer, "jsonrpc": "1.0", "error": {"code": 0, "message": "and an error"}}


def _neither(answer: Message) -> Message:
    return {"jsonrpc": "2.0", "id": answer["id"]}


_BAD_RPC = (_no_version, _both, _neither)
