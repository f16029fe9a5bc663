"""Checks of answers: documents and streams, usage, limits, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from centuria.testing.torture.server.asking import Examiner, Heard, choice_of, part_of
from centuria.testing.torture.server.checks import Check, Outcome, ensure, failed, not_applicable, passed, unanswered

HELLO = "Answer with the one word: hello"
COUNT = "Count from 1 to 200 in digits, separated by single spaces. Write nothing else."
_OPTIONS = {"include_usage": True}
_ENDS = ("stop", "length")


async def _listed(server: Examiner) -> Outcome:
    heard = await server.get("/models")
    if heard.status in (404, 405):
        return failed(str(heard))
    entries = heard.value.get("data") if isinstance(heard.value, dict) else None
    names = [entry.get("id") for entry in entries or () if isinstance(entry, dict)]
    wanted = server.endpoint.model
    there = wanted in names or f"models/{wanted}" in names
    return ensure(there, f"{len(names)} models, {wanted} among them", f"{wanted} is not among {names[:5]}")


async def _plain(server: Examiner) -> Outcome:
    heard = await server.ask(server.body(HELLO, 64))
    wrong = unanswered(heard)
    if wrong is not None:
        return wrong
    if heard.is_stream:
        return failed("a stream, although none was asked for")
    choice = choice_of(heard.value)
    text, finish = part_of(choice, "message").get("content"), choice.get("finish_reason")
    fine = isinstance(text, str) and text.strip() != "" and finish in _ENDS
    return ensure(fine, f"{text!r:.40}, finish_reason {finish}", f"content {text!r:.40}, finish_reason {finish!r}")


async def _plain_usage(server: Examiner) -> Outcome:
    heard = await server.ask(server.body(HELLO, 64))
    return unanswered(heard) or _counts(part_of(heard.value, "usage"), server)


def _counts(usage: dict[str, Any], server: Examiner) -> Outcome:
    prompt, output, total = (usage.get(f"{name}_tokens") for name in ("prompt", "completion", "total"))
    if not all(type(number) is int and number > 0 for number in (prompt, output, total)):
        return failed(f"usage {usage!r:.100}")
    assert isinstance(prompt, int) and isinstance(output, int) and isinstance(total, int)
    return ensure(total >= prompt + output, f"{prompt} + {output} = {total}", f"{prompt} + {output} is not {total}")


async def _stream(server: Examiner, text: str = HELLO, max_tokens: int = 64, **more: Any) -> Heard:
    return await server.ask(server.body(text, max_tokens, stream=True, stream_options=_OPTIONS, **more))


def text_of(heard: Heard) -> str:
    """The text of a stream."""
    parts = [part_of(choice_of(chunk), "delta").get("content") for chunk in heard.chunks]
    return "".join(part for part in parts if isinstance(part, str))


async def _streamed(server: Examiner) -> Outcome:
    heard = await _stream(server)
    wrong = unanswered(heard)
    if wrong is not None:
        return wrong
    if not heard.is_stream:
        return failed(f"content type {heard.headers.get('content-type')!r}")
    text = text_of(heard)
    return ensure(bool(text.strip()), f"{len(heard.chunks)} chunks, {text!r:.40}", "no text in the stream")


async def _stream_usage(server: Examiner) -> Outcome:
    heard = await _stream(server)
    found = [part_of(chunk, "usage") or part_of(choice_of(chunk), "usage") for chunk in heard.chunks]
    told = [usage for usage in found if usage]
    wrong = unanswered(heard)
    if wrong is not None:
        return wrong
    return _counts(told[-1], server) if told else failed("no usage, although include_usage was set")


async def _framing(server: Examiner) -> Outcome:
    heard = await _stream(server)
    wrong = unanswered(heard)
    if wrong is not None:
        return wrong
    try:
        heard.body.decode()
    except UnicodeDecodeError:
        return failed("the stream is no UTF-8")
    events = [event for event in heard.events if event.strip() != "[DONE]"]
    chunks = heard.chunks
    if len(chunks) != len(events) or not chunks:
        return failed(f"{len(events)} events, {len(chunks)} of them JSON objects")
    ids = {chunk.get("id") for chunk in chunks}
    reasons = [choice["finish_reason"] for choice in map(choice_of, chunks) if choice.get("finish_reason")]
    if len(ids) != 1 or not all(isinstance(id_, str) and id_ for id_ in ids):
        return failed(f"the chunks of one answer have the ids {sorted(map(str, ids))[:4]}")
    return ensure(len(reasons) == 1, f"{len(chunks)} chunks, one id, one end", f"finish reasons {reasons}")


async def _done(server: Examiner) -> Outcome:
    heard = await _stream(server)
    wrong = unanswered(heard)
    if wrong is not None:
        return wrong
    events = heard.events
    last = events[-1] if events else "nothing"
    return ensure(last.strip() == "[DONE]", "[DONE] at the end", f"the last event is {last!r:.60}")


async def _max_tokens(server: Examiner) -> Outcome:
    body = server.body(COUNT, 8)
    body[server.endpoint.limit_field] = 8
    heard = await server.ask(body)
    wrong = unanswered(heard)
    if wrong is not None:
        return wrong
    finish, used = choice_of(heard.value).get("finish_reason"), part_of(heard.value, "usage").get("completion_tokens")
    if finish == "stop" and isinstance(used, int) and used < 8:
        return not_applicable(f"the model stopped by itself after {used} tokens")
    fine = finish == "length" and (not isinstance(used, int) or used <= 8)
    return ensure(fine, f"length after {used} tokens", f"finish_reason {finish!r} after {used} tokens, not 8")


async def _stop(server: Examiner) -> Outcome:
    heard = await server.ask(server.body(COUNT, 64, stop=["7"]))
    wrong = unanswered(heard)
    if wrong is not None:
        return wrong
    choice = choice_of(heard.value)
    text = part_of(choice, "message").get("content") or ""
    if "7" in str(text):
        return failed(f"the text goes on past the stop: {text!r:.60}")
    finish = choice.get("finish_reason")
    return ensure(finish == "stop", f"{text!r:.40}", f"finish_reason {finish!r}")


async def _keep_alive(server: Examiner) -> Outcome:
    """A plain answer, a streamed one, and a plain one again, as soon as each has ended."""
    for more in ({}, {"stream": True}, {}):
        heard = await server.ask(server.body(HELLO, 64, **more), keep=True)
        if heard.broken:
            return failed(f"a connection that was said to stay was closed: {heard.broken}")
        wrong = unanswered(heard)
        if wrong is not None:
            return wrong
        if heard.headers.get("connection", "").lower() == "close":
            return failed("connection: close")
    return passed("the connection stays, after a stream too")


async def _concurrent(server: Examiner, size: int) -> Outcome:
    everyone = await asyncio.gather(*(server.ask(server.body(f"{HELLO} ({n})", 16)) for n in range(size)))
    served = [heard for heard in everyone if heard.status == 200]
    refused = [heard for heard in everyone if heard.status == 429]
    others = [heard for heard in everyone if heard.status not in (200, 429)]
    if others:
        return failed(f"{len(served)} served, {len(refused)} told to wait, {len(others)} failed: {others[0]}")
    ids = [heard.value.get("id") for heard in served if isinstance(heard.value, dict)]
    if len(set(ids)) != len(served):
        return failed(f"{len(served)} answers with {len(set(ids))} ids")
    if not served:
        return not_applicable(f"all {size} told to wait (429)")
    return passed(f"{len(served)} served, {len(refused)} told to wait")


async def _eight(server: Examiner) -> Outcome:
    return await _concurrent(server, 8)


async def _thirty_two(server: Examiner) -> Outcome:
    return await _concurrent(server, 32)


async def _cancelled(server: Examiner) -> Outcome:
    """Hang up on four long answers, then ask: the slots must be free."""
    before = await server.ask(server.body(HELLO, 64))
    wrong = unanswered(before)
    if wrong is not None:
        return wrong
    body = server.body(COUNT, 400, stream=True)
    try:
        async with asyncio.timeout(server.patience):
            await asyncio.gather(*(_hang_up(server, body) for _ in range(4)))
    except TimeoutError:
        return failed("a stream gave no first byte")
    after = await server.ask(server.body(HELLO, 64))
    if after.status == 429:
        return failed("the next request is told to wait (429)")
    bound = max(2.0, 5 * before.seconds)
    said = f"the next request took {after.seconds:.2f} s, before it was {before.seconds:.2f} s"
    return unanswered(after) or ensure(after.seconds <= bound, said, said)


async def _hang_up(server: Examiner, body: dict[str, Any]) -> None:
    async with server.open(body) as response:
        async for _ in response.chunks():
            return


def answers() -> Sequence[Check]:
    return [
        Check("models listed", "GET /models names the model", _listed, output=0, prompt=0),
        Check("a plain answer", "a document with text and a finish reason", _plain),
        Check("usage of a plain answer", "prompt, completion and total tokens that add up", _plain_usage),
        Check("a streamed answer", "text/event-stream, and text in the deltas", _streamed),
        Check("usage of a streamed answer", "told where include_usage is set", _stream_usage),
        Check("stream framing", "UTF-8, each event a JSON object, one id, one finish reason", _framing),
        Check("[DONE]", "the last event of a stream", _done),
        Check("max_tokens", "no more tokens than that, and finish_reason length", _max_tokens, output=8),
        Check("stop", "the text ends before the stop sequence", _stop),
        Check("keep-alive", "a connection can be used again", _keep_alive, 3, 180, 192),
    ]


def crowds() -> Sequence[Check]:
    served = "each is served, or told to wait with 429; no 5xx"
    return [
        Check("8 at once", served, _eight, requests=8, prompt=480, output=128),
        Check("32 at once", served, _thirty_two, requests=32, prompt=1920, output=512),
        Check("hanging up frees the slot", "the next request is served at once", _cancelled, 6, 360, 1728),
    ]
