"""A gateway's store in memory, for tests: it can fail and hang, and be left as by a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from centuria.core.accounts import lease_size
from centuria.gateway.ports import AttemptRow, Balance, Document, Key, Lease, UsageLine
from centuria.gateway.problems import StoreUnavailable
from centuria.gateway.store.rows import attempt_of, attempt_values, check_document, draw, name_taken
from centuria.messages import Pico


class MemoryStore:
    """`fault`: what every method raises while it is set. `gate`: while it is clear every method waits.

    `writes` and `extensions` count what succeeded. Dropping a `Books` without its end is a crash; the next `start`, of
    another gateway, holds what the first one leased.
    """

    def __init__(self) -> None:
        self.fault: StoreUnavailable | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.writes = 0
        self.extensions = 0
        self.lookups = 0
        self._keys: dict[str, Key] = {}
        self._digests: dict[bytes, str] = {}
        self._balances: dict[str, Balance] = {}
        #: By gateway and key: what is leased, and what is held of a lease that was given up.
        self._leases: dict[tuple[str, str], tuple[Pico, Pico]] = {}
        self._attempts: dict[tuple[str, int], AttemptRow] = {}
        #: By kind, owner and id.
        self.documents: dict[tuple[str, str, str], Document] = {}

    async def _ready(self) -> None:
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault

    async def add_key(self, key: Key, digest: bytes) -> None:
        await self._ready()
        if digest in self._digests or any(k.name == key.name and k.revoked is None for k in self._keys.values()):
            raise name_taken(key.name)
        self._keys[key.id] = key
        self._digests[digest] = key.id
        self._balances[key.id] = Balance()

    async def find_key(self, digest: bytes) -> Key | None:
        await self._ready()
        self.lookups += 1
        id = self._digests.get(digest)
        return None if id is None else self._keys[id]

    async def keys(self) -> Sequence[tuple[Key, Balance]]:
        await self._ready()
        return [(key, self._balances[key.id]) for key in sorted(self._keys.values(), key=lambda k: (k.created, k.id))]

    async def revoke_key(self, id: str, at: float) -> bool:
        await self._ready()
        key = self._keys.get(id)
        if key is None or key.revoked is not None:
            return False
        self._keys[id] = replace(key, revoked=at)
        return True

    async def change_budget(self, id: str, budget: Pico) -> bool:
        await self._ready()
        key = self._keys.get(id)
        if key is None or key.revoked is not None or key.budget is None:
            return False
        self._keys[id] = replace(key, budget=budget)
        return True

    async def start(self, gateway: str) -> None:
        await self._ready()
        for other in {owner for owner, _ in self._leases}:
            self._hold(other)
        self._leases.clear()

    async def beat(self, gateway: str) -> None:
        await self._ready()

    async def extend_lease(self, gateway: str, key: str, least: Pico, wanted: Pico) -> Lease:
        await self._ready()
        self.extensions += 1
        known = self._keys.get(key)
        if known is None or known.budget is None:
            return Lease(0, 0)
        balance = self._balances[key]
        left = max(0, known.budget - balance.spent - balance.held - balance.leased)
        granted = lease_size(left, least, wanted)
        leased, forfeited = self._leases.get((gateway, key), (0, 0))
        self._leases[gateway, key] = (leased + granted, forfeited)
        self._balances[key] = replace(balance, leased=balance.leased + granted)
        return Lease(granted, left - granted)

    async def write(self, gateway: str, rows: Sequence[AttemptRow]) -> None:
        await self._ready()
        self.writes += 1
        for each in rows:
            row = attempt_of(attempt_values(each))
            if (row.request, row.attempt) not in self._attempts:
                self._attempts[row.request, row.attempt] = row
                self._pay(gateway, row)

    def _pay(self, gateway: str, row: AttemptRow) -> None:
        leased, forfeited = self._leases.get((gateway, row.key), (0, 0))
        of_lease, of_held = draw(row.cost + row.held, leased, forfeited)
        if (gateway, row.key) in self._leases:
            self._leases[gateway, row.key] = (leased - of_lease, forfeited - of_held)
        if row.key in self._balances:
            was = self._balances[row.key]
            self._balances[row.key] = Balance(
                was.spent + row.cost, was.held + row.held - of_held, was.leased - of_lease
            )

    async def return_leases(self, gateway: str, *, key: str | None = None) -> None:
        await self._ready()
        for owner, id in list(self._leases):
            if owner == gateway and key in (None, id):
                leased, forfeited = self._leases.pop((owner, id))
                was = self._balances[id]
                self._balances[id] = replace(was, leased=was.leased - leased, held=was.held - forfeited)

    async def hold_leases(self, gateway: str) -> None:
        await self._ready()
        self._hold(gateway)

    def _hold(self, gateway: str) -> None:
        for (owner, id), (leased, forfeited) in self._leases.items():
            if owner == gateway:
                self._leases[owner, id] = (0, forfeited + leased)
                was = self._balances[id]
                self._balances[id] = replace(was, leased=was.leased - leased, held=was.held + leased)

    async def usage(
        self, *, key: str | None = None, since: float = 0.0, until: float | None = None
    ) -> Sequence[UsageLine]:
        await self._ready()
        groups: dict[tuple[str, str, str], list[AttemptRow]] = {}
        for row in self._attempts.values():
            if key in (None, row.key) and since <= row.at and (until is None or row.at < until):
                day = datetime.fromtimestamp(row.at, UTC).strftime("%Y-%m-%d")
                groups.setdefault((day, row.key, row.model), []).append(row)
        return [_added(group, rows) for group, rows in sorted(groups.items())]

    async def attempts(self, request: str, *, key: str | None = None) -> Sequence[AttemptRow]:
        await self._ready()
        rows = [row for row in self._attempts.values() if row.request == request and key in (None, row.key)]
        return sorted(rows, key=lambda row: row.attempt)

    async def insert(self, kind: str, owner: str, document: Document) -> bool:
        check_document(owner, document)
        await self._ready()
        if (kind, owner, document.id) in self.documents:
            return False
        self.documents[kind, owner, document.id] = document
        return True

    async def put(self, kind: str, owner: str, document: Document) -> None:
        check_document(owner, document)
        await self._ready()
        self.documents[kind, owner, document.id] = document

    async def get(self, kind: str, owner: str | None, id: str) -> Document | None:
        await self._ready()
        found = [doc for (k, who, i), doc in self.documents.items() if (k, i) == (kind, id) and owner in (None, who)]
        return found[0] if found else None

    async def find(self, kind: str, owner: str | None, *, limit: int = 100) -> Sequence[tuple[str, Document]]:
        await self._ready()
        found = [(who, doc) for (k, who, _), doc in self.documents.items() if k == kind and owner in (None, who)]
        return sorted(found, key=lambda pair: (pair[1].at, pair[1].id), reverse=True)[:limit]

    async def delete(self, kind: str, owner: str, id: str) -> bool:
        await self._ready()
        return self.documents.pop((kind, owner, id), None) is not None

    async def aclose(self) -> None:
        """Nothing to close."""


def _added(group: tuple[str, str, str], rows: Sequence[AttemptRow]) -> UsageLine:
    day, key, model = group
    return UsageLine(
        key,
        model,
        day,
        requests=len({row.request for row in rows}),
        attempts=len(rows),
        prompt=sum(row.prompt for row in rows),
        cached=sum(row.cached for row in rows),
        output=sum(row.output for row in rows),
        cost=sum(row.cost for row in rows),
        held=sum(row.held for row in rows),
    )
