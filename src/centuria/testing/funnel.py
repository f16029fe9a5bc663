"""The gateway's funnel over any `Transport`, with one attempt a call and its own books: for tests of what asks it.

funnel = TransportFunnel(Provider(script), price=KIMI)
...
assert funnel.spent["key-1"] == provider.charged
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from centuria.core.prices import Price, cost, worst
from centuria.errors import ModelError
from centuria.gateway.ports import AttemptEnd, AttemptRow
from centuria.gateway.problems import Problem, out_of_budget, upstream_failed
from centuria.messages import CallKey, Pico, Usage
from centuria.model.answer import AnswerDecoder
from centuria.ports import Caller, HttpRequest, HttpResponse, Transport

_URL = "http://upstream.invalid/v1/chat/completions"


class TransportFunnel:
    """Reserve, attempt, settle. `problem(call)` may refuse a call before anything is sent.

    `url` is where chat completions are. `rows` are the attempts that ended, `spent` and `held` what each key has paid and may have to, `calls` every call
    that came, `open` those that are being answered.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        price: Price,
        url: str = _URL,
        problem: Callable[[Any], Problem | None] = lambda call: None,
        wall: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._transport = transport
        self._price = price
        self._url = url
        self.problem = problem
        self._wall = wall
        self.calls: list[Any] = []
        self.rows: list[AttemptRow] = []
        self.spent: Counter[str] = Counter()
        self.held: Counter[str] = Counter()
        self._reserved: Counter[str] = Counter()
        self.open = 0

    @asynccontextmanager
    async def ask(self, call: Any) -> AsyncIterator[_Answer]:
        """Raises `Problem`; leaving early ends the attempt and settles it."""
        self.calls.append(call)
        refusal = self.problem(call)
        if refusal is not None:
            raise refusal
        body = json.dumps({"model": call.models[0], **call.fields}).encode()
        most = worst(self._price, len(body), int(call.fields.get("max_tokens", 16_384)))
        key = call.key
        if key.budget is not None and key.budget < self.spent[key.id] + self.held[key.id] + most:
            raise out_of_budget("This key's budget does not last for the request.")
        self._reserved[key.id] += most
        self.open += 1
        answer: _Answer | None = None
        try:
            async with asyncio.timeout_at(call.deadline), self._transport.send(self._request(call, body)) as response:
                if response.status != 200:
                    said = b"".join([chunk async for chunk in response.chunks()]).decode("utf-8", "replace")
                    raise upstream_failed(response.status, said[:500])
                answer = _Answer(response)
                yield answer
        except ModelError as error:
            raise upstream_failed(502, error.message) from None
        finally:
            self.open -= 1
            self._reserved[key.id] -= most
            self._settle(call, answer, most)

    def _request(self, call: Any, body: bytes) -> HttpRequest:
        task = call.agent.partition("/")[2] or call.agent
        turn = sum(message["role"] == "assistant" for message in call.fields["messages"])
        return HttpRequest(
            "POST",
            self._url,
            {"Content-Type": "application/json"},
            body,
            caller=Caller(CallKey(task, 0, turn, 0), "run"),
        )

    def _settle(self, call: Any, answer: _Answer | None, most: Pico) -> None:
        usage = answer.usage if answer is not None else None
        paid = 0 if usage is None else cost(self._price, usage)
        held = most if answer is not None and usage is None else 0
        end: AttemptEnd = "failed" if answer is None else "done" if usage is not None else "client_closed"
        self.spent[call.key.id] += paid
        self.held[call.key.id] += held
        used = usage or Usage()
        self.rows.append(
            AttemptRow(
                request=call.request,
                attempt=call.first_attempt,
                at=self._wall(),
                key=call.key.id,
                model=call.models[0],
                deployment=call.models[0],
                route=call.route,
                end=end,
                agent=call.agent,
                status=200 if answer is not None else 502,
                streamed=call.stream,
                prompt=used.prompt,
                cached=used.cached,
                output=used.output,
                cost=paid,
                held=held,
            )
        )


class _Answer:
    """What an upstream answers, looked into for its usage."""

    def __init__(self, response: HttpResponse) -> None:
        self._response = response
        self._decoder = AnswerDecoder()
        self.status = response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def usage(self) -> Usage | None:
        return self._decoder.usage

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._response.chunks():
            self._decoder.feed(chunk)
            yield chunk
        self._decoder.close()
