"""The floor: the same agents as a bare loop on one aiohttp session. No journal, no budget, no retries, no time-outs."""

from __future__ import annotations

import time

began = time.perf_counter()

import asyncio
import itertools
import json
from typing import Any

import aiohttp
from worker import MODEL, PROMPT, SYSTEM, Arguments, Window, arguments, report

import_s = time.perf_counter() - began
_MCP = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
_numbers = itertools.count(1)


class Floor:
    def __init__(self, session: aiohttp.ClientSession, given: Arguments) -> None:
        self._session = session
        self._given = given
        self._tools: list[dict[str, Any]] = []

    async def open(self) -> None:
        """The tool server's session and its catalogue, once for all agents."""
        if not self._given.tools:
            return
        client = {"name": "floor", "version": "1"}
        opening = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        await self._rpc("initialize", opening)
        for tool in (await self._rpc("tools/list", {}))["tools"]:
            function = {"name": tool["name"], "description": tool["description"], "parameters": tool["inputSchema"]}
            self._tools.append({"type": "function", "function": function})

    async def agent(self, number: int) -> str:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": PROMPT.format(n=number)},
        ]
        while True:
            answer = await self._ask(messages)
            if not answer.get("tool_calls"):
                return str(answer["content"])
            messages.append(answer)
            for call in answer["tool_calls"]:
                text = await self._call(call["function"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})

    async def _call(self, function: dict[str, Any]) -> str:
        if not self._tools:
            return f"There is no tool named {function['name']}."
        asked = {"name": function["name"], "arguments": json.loads(function["arguments"])}
        return str((await self._rpc("tools/call", asked))["content"][0]["text"])

    async def _rpc(self, method: str, params: dict[str, Any]) -> Any:
        body = {"jsonrpc": "2.0", "id": next(_numbers), "method": method, "params": params}
        async with self._session.post(f"{self._given.url}/mcp", json=body, headers=_MCP) as response:
            return (await response.json())["result"]

    async def _ask(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": 4096}
        if self._tools:
            body["tools"] = self._tools
        if self._given.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with self._session.post(f"{self._given.url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            if not self._given.stream:
                return dict((await response.json())["choices"][0]["message"])
            return await _streamed(response)


async def _streamed(response: aiohttp.ClientResponse) -> dict[str, Any]:
    text, calls = "", []
    rest = b""
    async for data in response.content.iter_any():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                delta = choice["delta"]
                text += delta.get("content") or ""
                for part in delta.get("tool_calls") or ():
                    if "id" in part:
                        calls.append(part)
                    else:
                        calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


async def main(given: Arguments) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        floor = Floor(session, given)
        await floor.open()
        await floor.agent(-1)
        window = Window()
        texts = await asyncio.gather(*(floor.agent(number) for number in range(given.agents)))
        window.close()
    ok = sum(text.split(" ")[0] in ("FINAL", "") for text in texts)
    report(window, agents=given.agents, ok=ok, import_s=import_s)


asyncio.run(main(arguments()))
