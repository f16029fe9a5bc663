"""Put a client on the rack: each row with an upstream of its own, and a verdict of what was seen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from centuria.messages import ToolCall, Usage
from centuria.testing.replies import Reply
from centuria.testing.torture.clients import Client, ClientResult
from centuria.testing.torture.row import Mode, Row, Step, Want
from centuria.testing.torture.rows import KEY, ROWS
from centuria.testing.upstream import FakeUpstream, Script, Seen

MESSAGES: tuple[Mapping[str, Any], ...] = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Go."},
)
TOOLS: tuple[Mapping[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search.",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    },
)
#: Seconds after the last answer until nothing may be open any more.
_QUIET = 2.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row in one mode. `wrong` is empty where the client did right; `seen` says what it did."""

    row: Row
    mode: Mode
    wrong: tuple[str, ...]
    seen: str
    requests: int
    seconds: float
    billed: tuple[Usage, ...] = field(default=(), repr=False)

    @property
    def right(self) -> bool:
        return not self.wrong


async def torture(
    make: Callable[[], Client],
    rows: Iterable[Row] = ROWS,
    *,
    modes: Sequence[Mode] = ("streamed", "whole"),
    at_once: int = 12,
    told: Callable[[Verdict, Client], None] = lambda verdict, client: None,
) -> list[Verdict]:
    """The verdicts in the order of the rows; a new client from `make` for each. `told` hears each as it falls."""
    room = asyncio.Semaphore(at_once)

    async def one(row: Row, mode: Mode) -> Verdict:
        async with room:
            client = make()
            try:
                verdict = await try_row(client, row, mode)
            except BaseException:
                await _closed(client)
                raise
            wrong = await _closed(client)
            verdict = replace(verdict, wrong=(*verdict.wrong, wrong)) if wrong else verdict
            told(verdict, client)
        return verdict

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(row, mode)) for row in rows for mode in row.modes if mode in modes]
    return [task.result() for task in tasks]


async def _closed(client: Client) -> str:
    """Close it; what goes wrong with that, or "". Never longer than `_QUIET`."""
    try:
        async with asyncio.timeout(_QUIET):
            await client.aclose()
    except Exception as error:  # the client's crash is what is to be found
        return f"it cannot be closed: {type(error).__name__}: {error}"
    return ""


async def try_row(client: Client, row: Row, mode: Mode) -> Verdict:
    """One row. Whatever the client raises is its crash."""
    now = asyncio.get_running_loop().time
    began = now()
    async with FakeUpstream(limits=row.limits) as upstream:
        upstream.script = _script(row.steps(mode), upstream)
        talk = _Talk(client, row, mode, upstream)
        await talk.run()
        try:
            await upstream.until(lambda: upstream.in_flight == 0, within=_QUIET)
        except TimeoutError:
            talk.wrong.append(f"{upstream.in_flight} requests stay open")
        talk.judge_requests()
        return Verdict(
            row,
            mode,
            tuple(dict.fromkeys(talk.wrong)),
            "; ".join(dict.fromkeys(talk.seen)),
            len(upstream.requests),
            now() - began,
            tuple(upstream.billed),
        )


def _script(steps: Sequence[Step], upstream: FakeUpstream) -> Script:
    """Each request gets the next step, the last one again and again."""
    numbers = count()

    def reply(body: dict[str, Any]) -> Reply:
        step = steps[min(next(numbers), len(steps) - 1)]
        return step(upstream.base_url) if callable(step) else step

    return reply


class _Talk:
    """One conversation, and what is wrong with it."""

    def __init__(self, client: Client, row: Row, mode: Mode, upstream: FakeUpstream) -> None:
        self._client = client
        self._row = row
        self._mode = mode
        self._upstream = upstream
        self._messages = list(MESSAGES)
        self.wrong: list[str] = []
        self.seen: list[str] = []

    async def run(self) -> None:
        for want in self._row.wants:
            first = len(self._upstream.requests)
            results = await self._ask(want)
            if results is None:
                self.wrong.append(f"no end within {want.within:g} s")
                self.seen.append("no end")
                return
            for result in results:
                self.wrong += _compare(want, result)
                self.seen.append(_words(result))
            self.wrong += _compare_requests(want, self._upstream.requests[first:])
            if results[0].error_kind:
                return
            self._messages += _continued(results[0])

    def judge_requests(self) -> None:
        """What must not happen in any row, and in this one."""
        requests = self._upstream.requests
        for seen in requests:
            if not _is_sound(seen.body) and seen.method == "POST":
                self.wrong.append("a request is no JSON in UTF-8")
        complete = len(self.seen) >= len(self._row.wants)
        for item in self._row.forbids:
            if complete and item.happened(requests):
                self.wrong.append(item.text)

    async def _ask(self, want: Want) -> list[ClientResult] | None:
        try:
            async with asyncio.timeout(want.within):
                return await asyncio.gather(*(self._chat() for _ in range(self._row.crowd)))
        except TimeoutError:
            return None

    async def _chat(self) -> ClientResult:
        task = asyncio.current_task()
        try:
            result = await self._client.chat(
                self._upstream.base_url, KEY, self._messages, TOOLS, self._mode == "streamed"
            )
            return _sound(result)
        except asyncio.CancelledError as error:
            if task is None or task.cancelling():
                raise
            return _crash(error)  # its own, and nobody's who wanted it to stop
        except Exception as error:  # the client's crash is what is to be found
            return _crash(error)


def _crash(error: BaseException) -> ClientResult:
    return ClientResult(error_kind="crash", said=f"{type(error).__name__}: {error}")


def _sound(result: object) -> ClientResult:
    """The result, if it is one: an adapter is not bound by types. Raises `TypeError`."""
    if not isinstance(result, ClientResult):
        raise TypeError(f"chat returned {type(result).__name__} and no ClientResult")
    calls: object = result.tool_calls
    if not isinstance(calls, tuple | list) or not all(isinstance(call, ToolCall) for call in calls):
        raise TypeError("tool_calls is not a tuple of ToolCall")
    usage: object = result.usage
    if usage is not None and not isinstance(usage, Usage):
        raise TypeError(f"usage is {type(usage).__name__} and no Usage")
    return result


def _compare(want: Want, result: ClientResult) -> list[str]:
    wrong = ["the key is shown"] if KEY in f"{result.said}{result!r}" else []
    if want.errors or result.error_kind:
        if result.error_kind not in (want.errors or ("",)):
            wrong.append(f"{_words(result)} instead of {' or '.join(want.errors) or 'an answer'}")
        return wrong
    if result.text != want.text:
        wrong.append(f"the text is {_short(result.text)}, not {_short(want.text)}")
    calls = tuple((call.name, _parsed(call.arguments)) for call in result.tool_calls)
    if calls != want.calls:
        wrong.append(f"the calls are {_short(calls)}, not {_short(want.calls)}")
    if want.usage == "none":
        if result.usage is not None and (result.usage.prompt or result.usage.output):
            wrong.append(f"usage is {_count(result.usage)} although none was told")
    elif want.usage is not None and not _same(result.usage, want.usage):
        wrong.append(f"usage is {_count(result.usage)}, not {_count(want.usage)}")
    return wrong


def _same(got: Usage | None, want: Usage | str) -> bool:
    if got is None or isinstance(want, str):
        return False
    return (got.prompt, got.cached, got.output) == (want.prompt, want.cached, want.output)


def _compare_requests(want: Want, requests: Sequence[Seen]) -> list[str]:
    wrong = []
    low, high = want.requests
    if not low <= len(requests) <= high:
        wrong.append(f"{len(requests)} requests, not {low if low == high else f'{low} to {high}'}")
    if want.waits and len(requests) > 1 and requests[1].at - requests[0].at < want.waits:
        wrong.append(f"asked again after {requests[1].at - requests[0].at:.2f} s, not {want.waits:g}")
    return wrong


def _continued(result: ClientResult) -> list[Mapping[str, Any]]:
    """What a host adds to the conversation: the answer as it was understood, and a result for each call."""
    if not result.tool_calls:
        return [{"role": "assistant", "content": result.text}, {"role": "user", "content": "Go on."}]
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": result.text or None,
        "tool_calls": [_wire(call) for call in result.tool_calls],
    }
    if result.reasoning is not None:
        answer["reasoning_content"] = result.reasoning
    results = [{"role": "tool", "tool_call_id": call.id, "content": "None."} for call in result.tool_calls]
    return [answer, *results]


def _wire(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _is_sound(body: bytes) -> bool:
    try:
        value = json.loads(body.decode())
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)


def _parsed(arguments: object) -> Any:
    if not isinstance(arguments, str):  # an adapter is not bound by types
        return f"no text but {arguments!r}"
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _words(result: ClientResult) -> str:
    if result.error_kind:
        return f"{result.error_kind}: {_short(result.said)}" if result.error_kind == "crash" else result.error_kind
    return f"{len(result.tool_calls)} calls" if result.tool_calls else "an answer"


def _count(usage: Usage | str | None) -> str:
    if usage is None or isinstance(usage, str):
        return "none"
    return f"{usage.prompt} ({usage.cached} cached) + {usage.output}"


def _short(value: object) -> str:
    shown = ascii(value) if not isinstance(value, str) else json.dumps(value)
    return shown if len(shown) <= 90 else f"{shown[:60]}... ({len(shown)} characters)"
