"""A stdio server that answers one request after the other and does odd things when it is told to. Standard library.

python odd.py [modern] [bad]      modern: 2026-07-28; bad: some of its tools are none
"""

import json
import os
import sys

MODES = set(sys.argv[1:])
SCHEMA = {"type": "object"}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
tools = ["echo", "heard", "hang", "change", "huge", "ask", "pid", "wrong", "flood"]
listings = 0
subscription: object = None
cancelled: list[object] = []


def send(message: dict, *, last: bool = False) -> None:
    message = {**message, "jsonrpc": "2.0"} if last else {"jsonrpc": "2.0", **message}
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()


def result(number: object, fields: dict, *, last: bool = False) -> None:
    fields = {**fields, "resultType": "complete"} if "modern" in MODES else fields
    send({"result": fields, "id": number} if last else {"id": number, "result": fields}, last=last)


def say(number: object, text: str, *, last: bool = False) -> None:
    result(number, {"content": [{"type": "text", "text": text}], "isError": False}, last=last)


def change(times: int) -> None:
    meta = {"params": {"_meta": {SUBSCRIPTION: subscription}}} if "modern" in MODES else {}
    for _ in range(times):
        send({"method": "notifications/tools/list_changed", **meta})


def asked_back() -> dict:
    """The client's answer to a request of ours; what was on its way meanwhile is handled."""
    send({"id": "q", "method": "ping"})
    while (reply := json.loads(sys.stdin.buffer.readline())).get("id") != "q":
        handle(reply)
    return reply


def call(number: object, name: str, given: dict) -> None:
    match name:
        case "echo":
            say(number, given["text"])
        case "heard":
            say(number, json.dumps({"cancelled": cancelled, "listings": listings}))
        case "change":
            tools.append(given["name"])
            change(given["times"])
            say(number, "changed")
        case "huge":
            say(number, "x" * given["size"], last=given.get("last", False))
        case "ask":
            say(number, json.dumps(asked_back()))
        case "pid":
            say(number, str(os.getpid()))
        case "wrong":
            say(987654, "not for you")
            say(number, "for you")
        case "flood":
            for _ in range(given["times"]):
                send({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
                send({"id": 5, "method": "no/such"})
            say(number, "flooded")


def handle(message: dict) -> None:
    global listings, subscription
    number, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    match method:
        case "notifications/cancelled":
            cancelled.append(params["requestId"])
        case "server/discover" if "modern" in MODES:
            capabilities = {"tools": {"listChanged": True}}
            more = {"ttlMs": 0, "cacheScope": "private"}
            result(number, {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, **more})
        case "initialize" if "modern" not in MODES:
            more = {"capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}
            result(number, {"protocolVersion": "2025-11-25", **more})
        case "subscriptions/listen":
            subscription = number
            told = {"_meta": {SUBSCRIPTION: number}, "notifications": {"toolsListChanged": True}}
            send({"method": "notifications/subscriptions/acknowledged", "params": told})
        case "tools/list":
            listings += 1
            listed: list = [{"name": name, "inputSchema": SCHEMA} for name in tools]
            if "bad" in MODES:
                listed += [{"name": "none"}, 7, {"name": "good", "inputSchema": SCHEMA}]
            result(number, {"tools": listed, "ttlMs": 0, "cacheScope": "private"})
        case "tools/call":
            call(number, params["name"], params.get("arguments") or {})
        case str() if number is not None:
            send({"id": number, "error": {"code": -32601, "message": "Method not found"}})


for line in sys.stdin.buffer:
    handle(json.loads(line))
