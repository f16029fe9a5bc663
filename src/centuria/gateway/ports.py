"""The gateway's port to what is durable, and the rows that it keeps.

Store   store.sqlite.SqliteStore   store.postgres.PostgresStore   testing.gateway.MemoryStore
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar

from centuria.messages import Pico

#: How an attempt ended: with an answer, with an error, without anybody knowing what it cost, or with nobody to read it.
AttemptEnd = Literal["done", "failed", "lost", "client_closed"]
Route = Literal["chat", "tools", "swarm"]
_Model = TypeVar("_Model")


@dataclass(frozen=True, slots=True)
class Key:
    """Who asks. `budget` in pico-dollars for the key's whole life, `rpm` requests and `tpm` tokens a minute (None: no
    limit); `models` and `tools` are names that it may use (None: all). An `admin` sees and steers what is others'."""

    id: str
    name: str
    budget: Pico | None = None
    rpm: int | None = None
    tpm: int | None = None
    models: frozenset[str] | None = None
    tools: frozenset[str] | None = None
    admin: bool = False
    created: float = 0.0
    revoked: float | None = None

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models

    def visible(self, models: Mapping[str, _Model]) -> dict[str, _Model]:
        """Those of these models that it may use, in their order."""
        return {name: each for name, each in models.items() if self.may_use(name)}


class AttemptRow(NamedTuple):
    """One request to an upstream. `at` is seconds since 1970; `model` the gateway's name of it, `deployment` where it
    went. Unique by (`request`, `attempt`). `cost` was paid; `held` is what a lost attempt may have cost at most.
    Times in milliseconds; `error` never holds a key."""

    request: str
    attempt: int
    at: float
    key: str
    model: str
    deployment: str
    route: Route
    end: AttemptEnd
    agent: str = ""
    status: int = 0
    streamed: bool = False
    prompt: int = 0
    cached: int = 0
    cache_written: int = 0
    output: int = 0
    reasoning: int = 0
    cost: Pico = 0
    held: Pico = 0
    queued_ms: float = 0.0
    first_token_ms: float | None = None
    total_ms: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Balance:
    """A key's money, in pico-dollars: `leased` is what gateways may spend without asking again."""

    spent: Pico = 0
    held: Pico = 0
    leased: Pico = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """What a key was granted, and what of its budget is then spent, held and leased by nobody. In pico-dollars."""

    granted: Pico
    left: Pico


@dataclass(frozen=True, slots=True)
class UsageLine:
    """Attempts of one key, model and day (UTC, YYYY-MM-DD), added up."""

    key: str
    model: str
    day: str
    requests: int
    attempts: int
    prompt: int
    cached: int
    output: int
    cost: Pico
    held: Pico


@dataclass(frozen=True, slots=True)
class Document:
    """Something small that is a key's own: a registered tool, a swarm, an answered call. `body` is JSON."""

    id: str
    body: str
    at: float


class Store(Protocol):
    """What outlives the process. Every method raises `StoreUnavailable` while nothing can be read or written.

    Keys are found by the SHA-256 of their token alone, which is all that is stored of it. Documents are only ever found
    by their owner's id.
    """

    async def add_key(self, key: Key, digest: bytes) -> None:
        """Raises `ConfigurationError` where a key that is not revoked has this name."""
        ...

    async def find_key(self, digest: bytes) -> Key | None:
        """The key with this SHA-256, revoked or not."""
        ...

    async def keys(self) -> Sequence[tuple[Key, Balance]]: ...

    async def revoke_key(self, id: str, at: float) -> bool:
        """False where there is no such key, or it was revoked before."""
        ...

    async def change_budget(self, id: str, budget: Pico) -> bool:
        """Less than what is spent, held and leased of it leaves nothing. False where no key that works has a budget by
        this id: one that has none gets none, for a gateway may be spending of it without a lease."""
        ...

    async def start(self, gateway: str) -> None:
        """This gateway begins, under an id that no process had before: what gateways that are no more leased is held.

        Raises `ConfigurationError` where another one works with a store that is for one gateway alone.
        """
        ...

    async def beat(self, gateway: str) -> None:
        """This gateway lives; to be said every 15 seconds or so. Holds the leases of those who said so last a minute
        ago."""
        ...

    async def extend_lease(self, gateway: str, key: str, least: Pico, wanted: Pico) -> Lease:
        """Lease more of the key's budget to this gateway: what `core.accounts.lease_size` makes of what is left of it.

        Durable when it returns; nothing where even `least` is not left, or there is no such key or budget.
        `spent + held + leased <= budget`, as long as no attempt costs more than was reserved for it.
        """
        ...

    async def write(self, gateway: str, rows: Sequence[AttemptRow]) -> None:
        """Keep these rows, all or none, durably; each takes its `cost + held` from the gateway's lease of its key, as
        far as that reaches, into what the key has spent and held. A row that is there already changes nothing.

        Of a gateway that was thought to have ended, what was held for its lease pays in place of the lease."""
        ...

    async def return_leases(self, gateway: str, *, key: str | None = None) -> None:
        """A gateway ends in order, or has done with one key: what it leased and did not spend is free again."""
        ...

    async def hold_leases(self, gateway: str) -> None:
        """This gateway ended without a word: what it had leased is held, for nobody knows what was spent of it."""
        ...

    async def usage(
        self, *, key: str | None = None, since: float = 0.0, until: float | None = None
    ) -> Sequence[UsageLine]: ...

    async def attempts(self, request: str, *, key: str | None = None) -> Sequence[AttemptRow]:
        """The rows of one request, in order; `key`: only where they are this key's."""
        ...

    # Documents: raises `Problem` (413) for a body above 1 MiB, and (400) for an id that cannot be kept (NUL in it).

    async def insert(self, kind: str, owner: str, document: Document) -> bool:
        """False where this owner has a document of this kind and id: nothing is changed then."""
        ...

    async def put(self, kind: str, owner: str, document: Document) -> None: ...

    async def get(self, kind: str, owner: str | None, id: str) -> Document | None:
        """`owner` None: whoever's it is, for whoever may see it, of a kind whose ids are never two owners'."""
        ...

    async def find(self, kind: str, owner: str | None, *, limit: int = 100) -> Sequence[tuple[str, Document]]:
        """The newest ones first, each with its owner; `owner` None: those of all, for whoever may see them."""
        ...

    async def delete(self, kind: str, owner: str, id: str) -> bool: ...

    async def aclose(self) -> None: ...
