"""A server over stdio whose tools ask in mid-call, of either era: `python nosy.py 2025-11-25` or `... 2026-07-28`.

Each tool says what it heard. Not the SDK's: a server of the older era asks by a request of its own, one of the newer by
a result that is none yet.
"""

import json
import sys
from typing import Any

VERSION = sys.argv[1]
MODERN = VERSION >= "2026"
PRESET = {"type": "object", "properties": {"size": {"type": "integer", "default": 3}}, "required": ["size"]}
OPEN = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TEXT = {"role": "user", "content": {"type": "text", "text": "2+2?"}}
QUESTIONS: dict[str, dict[str, Any]] = {
    "preset": {"method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": PRESET}},
    "needs_a_name": {"method": "elicitation/create", "params": {"message": "Whose?", "requestedSchema": OPEN}},
    "needs_a_model": {"method": "sampling/createMessage", "params": {"messages": [TEXT], "maxTokens": 9}},
    "needs_folders": {"method": "roots/list", "params": {}},
}
INFO = {"capabilities": {"tools": {}}, "serverInfo": {"name": "nosy", "version": "1"}}


def send(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def call(params: dict[str, Any]) -> dict[str, Any]:
    question = QUESTIONS[params["name"]]
    if not MODERN:
        send({"id": "question", **question})
        heard = json.loads(sys.stdin.readline())
        heard = heard.get("result", heard.get("error"))
    elif "inputResponses" not in params:
        return {"resultType": "input_required", "inputRequests": {"question": question}, "requestState": "s"}
    else:
        heard = params["inputResponses"]["question"]
    return {"resultType": "complete", "content": [{"type": "text", "text": json.dumps(heard)}], "isError": False}


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "server/discover" if MODERN:
            return {
                "supportedVersions": [VERSION],
                "resultType": "complete",
                "ttlMs": 0,
                "cacheScope": "public",
                **INFO,
            }
        case "initialize" if not MODERN:
            return {"protocolVersion": VERSION, **INFO}
        case "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in QUESTIONS]
            return {"tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
        case "tools/call":
            return call(params)
    return None


for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    result = result_of(asked["method"], asked.get("params") or {})
    error = {"error": {"code": -32601, "message": "Method not found"}}
    send({"id": asked["id"], **({"result": result} if result is not None else error)})
