"""What keys used and have left, as JSON: dollars, tokens, days in UTC."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from centuria.gateway.keyjson import all_fields, balance_fields, held_leases, in_dollars
from centuria.gateway.ports import Store, UsageLine
from centuria.gateway.problems import Problem, bad_request
from centuria.gateway.web import Reply, Request, Route

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,9})?")


class Usage:
    """The routes of usage and keys, over the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def routes(self) -> list[Route]:
        return [Route("GET", "/v1/usage", self.usage), Route("GET", "/v1/keys", self.keys, "admin")]

    async def usage(self, request: Request) -> Reply:
        """Attempts by key, model and day; those of the caller's key, or of all keys (or of `key`) for an admin.
        What is held of these keys beyond their attempts is told apart: it is of no day.

        `since` and `until` are days (YYYY-MM-DD, both included) or seconds since 1970. Raises `Problem` (400).
        """
        query = request.query
        since = _moment(query, "since", end=False) or 0.0
        until = _moment(query, "until", end=True)
        if until is not None and until < since:
            raise bad_request("`until` is before `since`.", param="until")
        whose = query.get("key") or None if request.key.admin else request.key.id
        found = {key.id: (key, balance) for key, balance in await self._store.keys()}
        lines = await self._store.usage(key=whose, since=since, until=until)
        ever = lines if not since and until is None else await self._store.usage(key=whose)
        leases = held_leases([each for id, each in found.items() if whose in (None, id)], ever)
        names = {id: key.name for id, (key, _) in found.items()} | {request.key.id: request.key.name}
        own = found.get(request.key.id)
        return Reply.of(
            {
                "object": "list",
                "data": [_line(line, names) for line in lines],
                "held_leases": [
                    {"key_id": id, "key": names[id], "held_usd": in_dollars(held)} for id, held in leases.items()
                ],
                "since": since,
                "until": until,
                "all_keys": request.key.admin and whose is None,
                "balance": None if own is None else balance_fields(*own),
            }
        )

    async def keys(self, request: Request) -> Reply:
        """All keys with their balances, never what they are known by."""
        return Reply.of({"object": "list", "data": [all_fields(*row) for row in await self._store.keys()]})


def _line(line: UsageLine, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "key_id": line.key,
        "key": names.get(line.key, line.key),
        "model": line.model,
        "day": line.day,
        "requests": line.requests,
        "attempts": line.attempts,
        "prompt_tokens": line.prompt,
        "cached_tokens": line.cached,
        "output_tokens": line.output,
        "cost_usd": in_dollars(line.cost),
        "held_usd": in_dollars(line.held),
    }


def _moment(query: Mapping[str, str], name: str, *, end: bool) -> float | None:
    """Seconds since 1970; of a day its begin, or with `end` that of the day after it."""
    text = query.get(name, "")
    if not text:
        return None
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        if not _DAY.fullmatch(text):
            raise _no_moment(name)
        day = date.fromisoformat(text) + timedelta(days=int(end))
    except (ValueError, OverflowError):
        raise _no_moment(name) from None
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def _no_moment(name: str) -> Problem:
    return bad_request(
        f"`{name}` is no day and no time.", param=name, remedy="Write YYYY-MM-DD, or seconds since 1970."
    )
