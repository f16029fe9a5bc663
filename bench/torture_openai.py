"""The `openai` package on the rack: an example of an adapter for `centuria.testing.torture`.

    python -m venv other && other/bin/pip install openai -e .
    other/bin/python bench/torture_openai.py [--json] [--all] [--save]

`--save` writes torture_openai.json beside this file, from which docs/torture.md has its column. It is the package as
its documentation uses it: three retries, a read time-out of a second, and a loop that adds the fragments of streamed
tool calls up by `index`. What the package leaves to its user (a retry in mid-stream, say) counts as wrong all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openai

from centuria.messages import ToolCall, Usage
from centuria.testing.torture import MAX_TOKENS, PATIENCE, ClientResult, Verdict, as_json, as_text, torture

DENIED = (openai.AuthenticationError, openai.PermissionDeniedError)
LATER = (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError, openai.ConflictError)


class OpenAIClient:
    def __init__(self) -> None:
        self._clients: dict[str, openai.AsyncOpenAI] = {}

    async def chat(
        self,
        base_url: str,
        key: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        stream: bool,
    ) -> ClientResult:
        client = self._clients.get(base_url)
        if client is None:
            client = openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=3, timeout=PATIENCE)
            self._clients[base_url] = client
        asked: dict[str, Any] = {
            "model": "kimi-k2.5",
            "messages": list(messages),
            "tools": list(tools),
            "max_tokens": MAX_TOKENS,
        }
        try:
            if not stream:
                return _whole(await client.chat.completions.create(**asked))
            return await _streamed(client, asked)
        except openai.APIStatusError as error:
            return ClientResult(error_kind=_kind(error), said=f"{error} {error!r}")
        except openai.APIError as error:
            return ClientResult(error_kind="unavailable", said=f"{error} {error!r}")

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.close()


def _kind(error: openai.APIStatusError) -> Any:
    told = f"{error.code} {error.type}"
    if isinstance(error, DENIED) or "quota" in told:
        return "denied"
    if isinstance(error, LATER) or error.status_code in (408, 425):
        return "unavailable"
    return "too_long" if "context_length" in told else "refused"


async def _streamed(client: openai.AsyncOpenAI, asked: dict[str, Any]) -> ClientResult:
    text, usage, finish = "", None, None
    reasoning: str | None = None
    calls: dict[int, list[str]] = {}
    answer = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    async for chunk in answer:
        usage = chunk.usage or usage
        if not chunk.choices:
            continue
        delta, finish = chunk.choices[0].delta, chunk.choices[0].finish_reason or finish
        text += delta.content or ""
        thought = getattr(delta, "reasoning_content", None)
        reasoning = reasoning if thought is None else (reasoning or "") + thought
        for fragment in delta.tool_calls or ():
            call = calls.setdefault(fragment.index, ["", "", ""])
            call[0] = fragment.id or call[0]
            call[1] += (fragment.function and fragment.function.name) or ""
            call[2] += (fragment.function and fragment.function.arguments) or ""
    if finish == "content_filter":
        return ClientResult(error_kind="refused")
    made = tuple(ToolCall(*call) for call in calls.values())
    return ClientResult(text, made, _usage(usage), reasoning=reasoning)


def _whole(answer: Any) -> ClientResult:
    choice = answer.choices[0]
    if choice.finish_reason == "content_filter":
        return ClientResult(error_kind="refused")
    message = choice.message
    calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ())
    reasoning = getattr(message, "reasoning_content", None)
    return ClientResult(message.content or "", calls, _usage(answer.usage), reasoning=reasoning)


def _usage(usage: Any) -> Usage | None:
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    return Usage(
        prompt=usage.prompt_tokens, cached=(details and details.cached_tokens) or 0, output=usage.completion_tokens
    )


def _save(verdicts: Sequence[Verdict]) -> None:
    rows: dict[str, dict[str, bool]] = {}
    for verdict in verdicts:
        rows.setdefault(verdict.row.name, {})[verdict.mode] = verdict.right
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(modes)}" for name, modes in rows.items())
    text = f'{{"client": "openai {openai.__version__}", "rows": {{\n{lines}\n}}}}\n'
    Path(__file__).with_suffix(".json").write_text(text)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", action="store_true")
    options.add_argument("--all", action="store_true", help="the rows that are right as well")
    options.add_argument("--save", action="store_true", help="write torture_openai.json")
    flags = options.parse_args()
    verdicts = asyncio.run(torture(OpenAIClient, at_once=4))
    if flags.save:
        _save(verdicts)
    print(json.dumps(as_json(verdicts)) if flags.json else as_text(verdicts, every=flags.all))


if __name__ == "__main__":
    main()
