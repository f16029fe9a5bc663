"""Checks of what a server must refuse, and how; and of text that must not break it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from centuria.core.retry import parse_retry_after
from centuria.errors import ContextTooLong
from centuria.model.failures import error_from, read_complaint
from centuria.testing.torture.server.answers import HELLO
from centuria.testing.torture.server.asking import NO_KEY, NO_MODEL, Examiner, Heard, choice_of, part_of
from centuria.testing.torture.server.checks import Check, Outcome, ensure, failed, not_applicable, passed, unanswered


def _refused(heard: Heard, *statuses: int) -> Outcome:
    if heard.status not in statuses:
        return failed(f"not {' or '.join(map(str, statuses))} but {heard}")
    complaint = read_complaint(heard.value)
    return ensure(
        complaint is not None, f"{heard}", f"HTTP {heard.status} without an error object: {heard.body[:60]!r}"
    )


async def _bad_json(server: Examiner) -> Outcome:
    return _refused(await server.ask(b'{"model": "x", "messages": [{"role": "user", '), 400, 422)


async def _no_messages(server: Examiner) -> Outcome:
    return _refused(await server.ask(server.body("", 16, messages=None)), 400, 422)


async def _bad_utf8(server: Examiner) -> Outcome:
    body = json.dumps(server.body("@", 16)).encode().replace(b"@", b"\xff\xfe\xf0\x9f")
    return _survived(await server.ask(body))


async def _unknown_model(server: Examiner) -> Outcome:
    return _refused(await server.ask(server.body(HELLO, 16, model=NO_MODEL)), 404, 400)


async def _bad_key(server: Examiner) -> Outcome:
    if server.endpoint.key is None:
        return not_applicable("this endpoint needs no key")
    return _refused(await server.ask(server.body(HELLO, 16), key=NO_KEY), 401)


async def _huge_max_tokens(server: Examiner) -> Outcome:
    """Answered as far as the context goes, or refused; asked as a stream, so that it can be hung up on."""
    body = server.body(HELLO, 64, stream=True)
    body[server.endpoint.limit_field] = 10**9
    heard = await server.ask(body)
    if heard.status == 200:
        return passed("it is taken as the most that there is room for")
    return not_applicable("refused for rate (429)") if heard.status == 429 else _refused(heard, 400, 422)


async def _too_long(server: Examiner) -> Outcome:
    words = int(server.endpoint.context * 1.1)
    heard = await server.ask(server.body("word " * words, 16))
    if heard.status == 200:
        counted = part_of(heard.value, "usage").get("prompt_tokens") or 0
        if isinstance(counted, int) and counted >= words * 0.9:
            return not_applicable(f"its context is longer: {counted:,} tokens were taken")
        return failed(f"cut without a word: {words:,} words became {counted:,} tokens")
    if heard.status == 429:
        return not_applicable("refused for rate (429)")
    outcome = _refused(heard, 400, 413, 422)
    error = error_from(heard.status, heard.headers, heard.body, time.time())
    if outcome.state == "pass" and not isinstance(error, ContextTooLong):
        return failed(f"refused, but not as too long: {heard}")
    return outcome


def _survived(heard: Heard) -> Outcome:
    """Answered, or refused as a bad request."""
    if heard.status == 429:
        return not_applicable("refused for rate (429)")
    if heard.status == 200:
        return passed("answered") if choice_of(heard.value) else failed(f"no choices: {heard.body[:60]!r}")
    return _refused(heard, 400, 422)


async def _unicode(server: Examiner) -> Outcome:
    text = f"{HELLO}. 😀 👩‍👩‍👧 größer 한국어 日本語 ﷽ \u202e \u2028"
    return await _text(server, text)


async def _text(server: Examiner, text: str) -> Outcome:
    heard = await server.ask(server.body(text, 64))
    return unanswered(heard) or _survived(heard)


async def _surrogate(server: Examiner) -> Outcome:
    return _survived(await server.ask(server.body(f"{HELLO} \ud83d.", 64)))


async def _nul(server: Examiner) -> Outcome:
    return _survived(await server.ask(server.body(f"{HELLO} \0.", 64)))


async def _next(server: Examiner) -> Outcome:
    """After all of that."""
    heard = await server.ask(server.body(HELLO, 64))
    return unanswered(heard) or passed("served")


async def _retry_after(server: Examiner) -> Outcome:
    """Of every 429 that was met on the way."""
    if not server.heard_429:
        return not_applicable("no 429 was met")
    for heard in server.heard_429:
        told = {name: heard.headers[name] for name in ("retry-after", "retry-after-ms") if name in heard.headers}
        if not told:
            return failed("429 without Retry-After")
        if parse_retry_after(told, time.time()) is None:
            return failed(f"429 with {told}")
    return passed(f"{len(server.heard_429)} times 429, each with a legal Retry-After")


def texts() -> Sequence[Check]:
    survives = "answered, or refused with 400; no 5xx, no hang"
    return [
        Check("text in many scripts, emoji", "answered", _unicode, prompt=120),
        Check("a lone surrogate in the prompt", survives, _surrogate),
        Check("NUL in the prompt", survives, _nul),
        Check("a body that is no UTF-8", survives, _bad_utf8),
    ]


def refusals(context: int) -> Sequence[Check]:
    def free(name: str, right: str, run: Any) -> Check:
        return Check(name, right, run, prompt=0, output=0)

    return [
        free("a body that is no JSON", "400 with an error object", _bad_json),
        free("no messages", "400 or 422 with an error object", _no_messages),
        free("an unknown model", "404 or 400 with an error object", _unknown_model),
        free("a key that is wrong", "401 with an error object", _bad_key),
        Check("max_tokens of a billion", "400, or as many as there is room for", _huge_max_tokens),
        Check("a prompt that is too long", "400 that says so", _too_long, prompt=int(context * 1.1), output=16),
        Check("a request after all of that", "is served", _next),
    ]


def manners() -> Sequence[Check]:
    return [Check("Retry-After", "on each 429, in a legal form", _retry_after, requests=0, prompt=0, output=0)]
