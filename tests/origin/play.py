"""The drivers: each runs one of the document's programs against a gateway and prints what came of it as JSON.

The programs are as the document has them. What differs is put in when they are read: the base URL, with which the
prefix changes that remedy 2 requires, and the key. Remedies 3 to 5 are pieces without imports: they get those of
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import aiohttp

PROGRAMS = Path(__file__).parent / "programs"
GATEWAY, KEY = os.environ["GATEWAY"], os.environ["KEY"]
WHERE, WHO = '"https://api.holysheep.ai', 'HOLYSHEEP_API_KEY = "YOUR_HOLYSHEEP_API_KEY"'


def differing(text):
    return text.replace(WHERE, f'"{GATEWAY}').replace(WHO, f'HOLYSHEEP_API_KEY = "{KEY}"')


def load(name, **names):
    text = differing((PROGRAMS / f"{name}.py").read_text(encoding="utf-8"))
    space = {"__name__": "program", **names}
    exec(compile(text, f"{name}.py", "exec"), space)
    return SimpleNamespace(**space)


def piece(name):
    return load(name, asyncio=asyncio, aiohttp=aiohttp, HOLYSHEEP_BASE_URL=f"{GATEWAY}/v1", HOLYSHEEP_API_KEY=KEY)


def arguments(tool, number=0):
    return {
        "web_search": {"query": "solar panels"},
        "code_exec": {"code": f"print({number} * 2)"},
        "file_read": {"path": "solar.md"},
    }[tool]


def said(result):
    return result["content"][0]["text"]


async def section6():
    scheduler = load("section6").MCPToolScheduler(max_concurrent_per_tool=10)
    tools = ["web_search", "code_exec", "file_read"]
    asked = [
        scheduler.request_tool(f"agent-{i:03d}", tools[i % 3], arguments(tools[i % 3], i), priority=i % 10)
        for i in range(100)
    ]
    results = await asyncio.gather(*asked)
    return {"results": [[tools[i % 3], said(one)] for i, one in enumerate(results)], "left": scheduler.active_counts}


async def remedy1():
    program = load("remedy1")
    payload = {"model": "kimi-k2.5", "messages": [{"role": "user", "content": "fail once"}], "max_tokens": 64}
    async with aiohttp.ClientSession() as session:
        answer = await program.safe_subagent_call(session, payload)
    return {"text": answer["choices"][0]["message"]["content"]}


async def remedy2():
    refused = ""
    try:
        load("remedy2").validate_config()
    except ValueError as error:
        refused = str(error)
    os.environ["HOLYSHEEP_API_KEY"] = KEY
    return {"without": refused, "with": load("remedy2").validate_config()}


async def remedy3():
    call = piece("remedy3").throttled_tool_call
    tools = ["web_search", "code_exec", "file_read"]
    asked = [call(tools[i % 3], arguments(tools[i % 3], i)) for i in range(60)]
    return {"results": [[tools[i % 3], said(one)] for i, one in enumerate(await asyncio.gather(*asked))]}


async def remedy4():
    build = piece("remedy4").build_agent_scoped_tools
    headers = {"Authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.get(f"{GATEWAY}/v1/mcp/tools") as reply:
            listed = {tool["name"]: tool for tool in (await reply.json())["data"]}
        base = [listed[name] for name in ("web_search", "code_exec", "file_read")]
        made = []
        for i in range(100):
            async with session.post(f"{GATEWAY}/v1/mcp/tools", json=build(base, f"agent-{i:03d}")) as reply:
                made.append([reply.status, [tool["name"] for tool in (await reply.json())["tools"]]])
        async with session.post(
            f"{GATEWAY}/v1/mcp/tools/web_search__agent-007/invoke", json=arguments("web_search")
        ) as reply:
            invoked = [reply.status, said(await reply.json())]
    return {"made": made, "invoked": invoked}


async def remedy5():
    guard, call = piece("remedy5").run_with_deadlock_guard, piece("remedy3").throttled_tool_call
    section4 = load("section4")
    orchestrator = section4.KimiSwarmOrchestrator()
    waiting = orchestrator.run_swarm([{"id": "agent-000", "prompt": "wait for ever"}], ["web_search"])
    return {
        "in_time": said(await guard(call("web_search", arguments("web_search")))),
        "never": await guard(waiting, timeout_seconds=2),
    }


async def main(names):
    return {name: await globals()[name]() for name in names}


if sys.argv[1:] == ["section4"]:
    exec(compile(differing((PROGRAMS / "section4.py").read_text(encoding="utf-8")), "section4.py", "exec"))
else:
    print(json.dumps(asyncio.run(main(sys.argv[1:]))))
