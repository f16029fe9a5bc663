"""The addresses of swarms. Each is looked up by its owner: a stranger's is not there. See docs/swarms.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from centuria.errors import JournalError
from centuria.gateway.headers import idempotency_key_of
from centuria.gateway.problems import bad_request, conflict, not_found
from centuria.gateway.swarms import events
from centuria.gateway.swarms.past import Past
from centuria.gateway.swarms.records import SwarmRecord
from centuria.gateway.swarms.request import priority
from centuria.gateway.swarms.service import SwarmService
from centuria.gateway.swarms.swarmjson import ROOT, brief, links, snapshot
from centuria.gateway.swarms.texts import Show, whole, without_texts
from centuria.gateway.swarms.work import Work, not_running
from centuria.gateway.web import Reply, Request, Route, Streaming
from centuria.messages import DOLLAR

_MOST_LISTED, _MOST_SEQ = 1_000, 2**53
_NAME = 300
#: What a result has of a snapshot.
_RESULT = (
    *("id", "object", "name", "model", "status", "cause", "census", "unfinished", "tasks", "ok"),
    *("cost_usd", "held_usd", "budget_usd", "tokens", "seconds", "created_at", "ended_at"),
)


class SwarmRoutes:
    """What is done at each address, over the service."""

    def __init__(self, swarms: SwarmService) -> None:
        self._swarms = swarms

    def routes(self) -> list[Route]:
        one, agent = f"{ROOT}/{{id}}", f"{ROOT}/{{id}}/agents/{{agent}}"
        return [
            Route("POST", f"{ROOT}/spawn", self._spawn),
            Route("GET", ROOT, self._list),
            Route("GET", one, self._get),
            Route("GET", f"{one}/events", self._events),
            Route("GET", f"{one}/result", self._result),
            Route("GET", agent, self._agent),
            *(
                Route("POST", f"{place}/{name}", self._steer(act))
                for place in (one, agent)
                for name, act in (("cancel", _cancel), ("pause", _pause), ("resume", _resume))
            ),
            Route("POST", f"{agent}/retry", self._steer(_retry)),
            Route("POST", f"{agent}/priority", self._steer(_set_priority)),
            Route("POST", f"{one}/limits", self._steer(_set_limit)),
        ]

    # -- looking ------------------------------------------------------------------------------------------------------

    async def _spawn(self, request: Request) -> Reply | Streaming:
        value = request.json()
        record = await self._swarms.spawn(request.key, value, idempotency=idempotency_key_of(request.headers))
        headers = {"Location": f"{ROOT}/{record.id}", "x-centuria-swarm": record.id}
        if value.get("stream") is True:
            return await self._stream(record, 0, headers)
        status = self._swarms.status(record)
        body: dict[str, Any] = {"id": record.id, "object": "swarm", "status": status, "model": record.model}
        body |= {"budget_usd": None if record.budget is None else record.budget / DOLLAR, "links": links(record.id)}
        return Reply.of(body, 202, headers)

    async def _list(self, request: Request) -> Reply:
        limit = _number(request.query.get("limit", "20"), "limit", 1, _MOST_LISTED)
        everyone = request.key.admin and request.query.get("all") == "true"
        found = await self._swarms.listed(None if everyone else request.key.id, limit)
        data = []
        for record in found:
            work = self._swarms.working(record.id)
            told = brief(record, self._swarms.status(record), work.progress if work is not None else None)
            data.append(told | {"key": record.key.name} if everyone else told)
        return Reply.of({"object": "list", "data": data})

    async def _get(self, request: Request) -> Reply:
        record = await self._find(request)
        work = self._swarms.working(record.id)
        progress = work.progress if work is not None else None
        if work is None:
            past = await self._swarms.archive.past(record)
            progress = past.progress if past is not None else None
        return Reply.of(snapshot(record, self._swarms.status(record), progress))

    async def _events(self, request: Request) -> Streaming:
        record = await self._find(request)
        after = _number(request.query.get("after", "0"), "after", 0, _MOST_SEQ)
        last = request.headers.get("last-event-id")
        number = _number(last, "Last-Event-ID", 0, _MOST_SEQ) if last else after
        if request.query.get("brief") != "true":
            return await self._stream(record, number, {})
        agent = request.query.get("agent", "")
        return await self._stream(record, number, {}, show=without_texts(agent), texts=bool(agent))

    async def _stream(
        self, record: SwarmRecord, after: int, headers: Mapping[str, str], *, show: Show = whole, texts: bool = True
    ) -> Streaming:
        work = self._swarms.working(record.id)
        if work is not None:
            return Streaming(events.live(work, after, show=show, texts=texts), headers=headers)
        past = await self._past_of(record)
        return Streaming(events.past(record, past.folder.journal, past.progress, after, show=show), headers=headers)

    async def _result(self, request: Request) -> Reply:
        record = await self._find(request)
        if not record.ended:
            raise conflict(
                "The swarm has not ended, so it has no result yet.",
                code="swarm_running",
                remedy="Follow its events, or ask again later.",
            )
        answer, outcomes = await self._swarms.archive.result(record)
        work, past = self._swarms.working(record.id), None
        if work is None:
            past = await self._swarms.archive.past(record)
        progress = work.progress if work is not None else past.progress if past is not None else None
        told = snapshot(record, record.status, progress)
        body = {part: told[part] for part in _RESULT if part in told}
        return Reply.of(body | {"answer": answer, "outcomes": outcomes})

    async def _agent(self, request: Request) -> Reply:
        record, agent = await self._find(request), request.parts["agent"]
        work = self._swarms.working(record.id)
        if work is not None and work.stream is not None:
            with suppress(JournalError):  # then it shows what there is
                await work.stream.durable()
        told = await self._swarms.archive.conversation(record, agent)
        if told is None:
            raise not_found("The swarm has no such agent.")
        return Reply.of(told)

    # -- steering -----------------------------------------------------------------------------------------------------

    def _steer(self, act: Callable[[Work, Request], Mapping[str, Any]]) -> Any:
        async def handler(request: Request) -> Reply:
            record = await self._find(request)
            work = self._swarms.working(record.id)
            if work is None:
                past = await self._swarms.archive.past(record)
                agent = request.parts.get("agent")
                if agent is not None and (past is None or agent not in past.progress.tasks):
                    raise not_found("The swarm has no such agent.")
                raise not_running(record)
            await work.run.ready.wait()
            done = act(work, request)
            return Reply.of({"id": record.id, "status": self._swarms.status(work.record), **done}, 202)

        return handler

    async def _find(self, request: Request) -> SwarmRecord:
        """The swarm of a request's address. Raises `Problem` (404)."""
        return await self._swarms.find(request.key, request.parts["id"])

    async def _past_of(self, record: SwarmRecord) -> Past:
        past = await self._swarms.archive.past(record)
        if past is None:
            raise not_found("Nothing is kept of this swarm here.")
        return past


# -- what may be done ---------------------------------------------------------------------------------------------


def _cancel(work: Work, request: Request) -> Mapping[str, Any]:
    _body(request, ())
    work.cancel(request.parts.get("agent"), "cancelled by its owner")
    return _of(request)


def _pause(work: Work, request: Request) -> Mapping[str, Any]:
    _body(request, ())
    work.pause(request.parts.get("agent"))
    return _of(request) | {"paused": True}


def _resume(work: Work, request: Request) -> Mapping[str, Any]:
    _body(request, ())
    work.go_on(request.parts.get("agent"))
    return _of(request) | {"paused": False}


def _retry(work: Work, request: Request) -> Mapping[str, Any]:
    _body(request, ())
    work.retry(request.parts["agent"])
    return _of(request)


def _set_priority(work: Work, request: Request) -> Mapping[str, Any]:
    number = priority(_body(request, ("priority",)).get("priority"))
    work.set_priority(request.parts["agent"], number)
    return _of(request) | {"priority": number}


def _set_limit(work: Work, request: Request) -> Mapping[str, Any]:
    body = _body(request, ("resource", "limit"))
    resource, limit = body.get("resource"), body.get("limit")
    if not isinstance(resource, str) or len(resource) > _NAME:
        raise bad_request("`resource` must be a name such as server:web.", param="resource")
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise bad_request("`limit` must be a whole number; 0 is a pause.", param="limit")
    work.set_limit(resource, limit)
    return {"resource": resource, "limit": limit}


def _of(request: Request) -> dict[str, Any]:
    return {"agent": request.parts["agent"]} if "agent" in request.parts else {}


def _body(request: Request, known: tuple[str, ...]) -> Mapping[str, Any]:
    """The body, which may be empty where nothing has to be said. Raises `Problem` (400)."""
    if not request.body.strip() and not known:
        return {}
    body = request.json()
    if not isinstance(body, dict):
        raise bad_request("The body must be a JSON object.")
    for name in body:
        if name not in known:
            said = f"It has: {', '.join(known)}." if known else "Send none."
            raise bad_request("The body has a field that is not known here.", param=name[:_NAME], remedy=said)
    return body


def _number(text: str, param: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 16 or not least <= int(text) <= most:
        raise bad_request(f"`{param}` must be a whole number from {least:,} to {most:,}.", param=param)
    return int(text)
