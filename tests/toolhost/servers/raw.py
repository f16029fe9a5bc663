"""A server of few lines that starts at once and misbehaves on request. Standard library only.

python raw.py [MODE..]      modes: mute, crash, refuse, stubborn, garbage, pages, loop, many, odd, keeps
first=FILE: all but the first process that finds no FILE list one tool more; one=FILE: all but the first crash.
"""

import json
import os
import signal
import sys
import threading
import time

MODES = set(sys.argv[1:])
LOCK = threading.Lock()
NAMED = dict(mode.split("=", 1) for mode in MODES if "=" in mode)
TOOLS = ("add", "echo", "fail", "pid", "sleep", "die", "huge", "bad_bytes", "environment", "overlap", "write")
#: Tools of the mode "odd": one that is none, one that no provider can be given, one that few take as it is.
ODD = {
    "text_only": {"type": "string"},
    "endless": {"type": "object", "properties": {"text": {"type": "string", "description": "more " * 60_000}}},
    "filter": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "text": {"$ref": "#/definitions/text"},
            "size": {"type": ["integer", "null"], "exclusiveMinimum": 0},
            "required": {"type": "boolean"},
        },
        "required": ["text"],
        "anyOf": [{"required": ["text"]}, {"required": ["size"]}],
        "definitions": {"text": {"type": "string", "format": "uri", "title": "Text"}},
    },
}
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "additionalProperties": True}
kept = []
busy = 0
most = 0


def send(message: object) -> None:
    data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
    with LOCK:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def answer(number: object, text: str) -> None:
    send({"id": number, "result": {"content": [{"type": "text", "text": text}], "isError": False}})


def call(number: object, name: str, arguments: dict) -> None:  # noqa: C901 - one case for each tool
    global busy, most
    match name:
        case "echo":
            answer(number, arguments["text"])
        case "add":
            total = {"sum": arguments["a"] + arguments["b"]}
            text = [{"type": "text", "text": json.dumps(total)}]
            send({"id": number, "result": {"content": text, "structuredContent": total, "isError": False}})
        case _ if name in ODD or name.startswith("note_"):
            answer(number, f"{name}: {json.dumps(arguments)}")
        case "fail":
            text = [{"type": "text", "text": f"ValueError: {arguments['why']}"}]
            send({"id": number, "result": {"content": text, "isError": True}})
        case "pid":
            answer(number, str(os.getpid()))
        case "sleep":
            time.sleep(arguments["seconds"])
            answer(number, "awake")
        case "die":
            print("I was told to die", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case "huge":
            answer(number, "x" * arguments["size"])
        case "bad_bytes":
            head = f'{{"jsonrpc":"2.0","id":{json.dumps(number)},"result":{{"content":[{{"type":"text","text":"'
            with LOCK:
                sys.stdout.buffer.write(b"\xff\xfe no JSON at all\n" + head.encode() + b'caf\xe9 \\ud800"}]}}\n')
                sys.stdout.buffer.flush()
        case "environment":
            answer(number, json.dumps(dict(os.environ)))
        case "overlap":
            with LOCK:
                busy += 1
                most = max(most, busy)
            time.sleep(0.02)
            with LOCK:
                busy -= 1
            answer(number, str(most))
        case "keep":
            kept.append(arguments["text"])
            answer(number, " ".join(kept))
        case "write":
            with open(arguments["path"], "a") as file:
                file.write(arguments["text"] + "\n")
            with open(arguments["path"]) as file:
                again = len(file.readlines()) > 1
            if arguments.get("die") and not (again and arguments.get("once")):
                os.kill(os.getpid(), signal.SIGKILL)
            answer(number, "written")


def listing(cursor: str | None) -> dict:
    tools = [{"name": name, "description": name, "inputSchema": SCHEMA} for name in TOOLS]
    if "many" in MODES:
        tools += [{"name": f"note_{n}", "description": f"Keeps note {n}.", "inputSchema": SCHEMA} for n in range(200)]
    if "odd" in MODES:
        tools += [{"name": name, "description": name, "inputSchema": schema} for name, schema in ODD.items()]
    if "loop" in MODES:
        return {"tools": tools, "nextCursor": "again"}
    if "pages" in MODES:
        page = int(cursor or 0)
        more = {"nextCursor": str(page + 1)} if page + 1 < len(tools) else {}
        return {"tools": tools[page : page + 1], **more}
    return {"tools": tools}


def is_first(path: str) -> bool:
    try:
        open(path, "x").close()
    except FileExistsError:
        return False
    return True


def compare() -> None:
    """Find out whether this is the first process of several."""
    global TOOLS
    if "one" in NAMED and not is_first(NAMED["one"]):
        sys.exit("only one of me may run")
    if "keeps" in MODES:
        TOOLS += ("keep",)
    if "first" in NAMED and not is_first(NAMED["first"]):
        TOOLS += ("another",)


def main() -> None:
    compare()
    if "crash" in MODES:
        print("Traceback: no module named nonsense", file=sys.stderr)
        sys.exit(3)
    if "stubborn" in MODES:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        message = json.loads(line)
        number, method = message.get("id"), message.get("method")
        if "mute" in MODES or number is None:
            continue
        if "garbage" in MODES:
            sys.stdout.buffer.write(b"Welcome!\n[1, 2]\n{broken\n\x00\xff\n\n")
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "raw", "version": "1"}
            send(
                {
                    "id": number,
                    "result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info},
                }
            )
        elif method == "tools/list":
            send({"id": number, "result": listing((message.get("params") or {}).get("cursor"))})
        elif method == "tools/call":
            params = message["params"]
            threading.Thread(
                target=call, args=(number, params["name"], params.get("arguments") or {}), daemon=True
            ).start()
        else:
            send({"id": number, "error": {"code": -32601, "message": "Method not found"}})
    while "stubborn" in MODES:
        time.sleep(60)


main()
