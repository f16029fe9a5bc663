"""All swarms of the gateway: spawned, at work, resumed after a restart, and put away at their end."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self

from centuria.config import ModelChoice
from centuria.core.quoting import quoted
from centuria.core.rates import RateLimits
from centuria.errors import CenturiaError
from centuria.folder import RunFolder
from centuria.gateway.ports import Document, Key, Store
from centuria.gateway.problems import (
    Problem,
    StoreUnavailable,
    bad_request,
    not_found,
    out_of_budget,
    rate_limited,
)
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.swarms.kept import KIND, OPEN, Kept, Place, digest_of, id_for, is_id, new_id
from centuria.gateway.swarms.past import Past, read_past
from centuria.gateway.swarms.transport import Ask, FunnelTransport
from centuria.gateway.swarms.wanted import USUAL_BUDGET, Wanted, job_of, wanted
from centuria.gateway.swarms.work import Work, concluded
from centuria.gateway.web import Request
from centuria.launch import Launch, Resume
from centuria.messages import Pico
from centuria.ports import HostedTool, ToolHost
from centuria.run import Run
from centuria.settings import Endpoint, Job

_log = logging.getLogger("centuria.gateway")
#: Seconds by which a run waits longer than the funnel, so that it is the funnel that gives up, and knows why.
_LONGER = 5.0
#: Seconds between two tries to put a swarm away, and how many there are; the next start does it otherwise.
_PUT_AWAY = (0.5, 2.0, 8.0)
#: How many swarms that have ended are held in memory, for those who look at them again.
_PAST = 8
#: Where a run would go if it went anywhere: every request of it is taken by the funnel.
_NOWHERE = "http://gateway.invalid/v1"


class Tools(Protocol):
    """`tools.service.ToolService`, as far as swarms need it."""

    def visible(self, key: Key) -> Sequence[HostedTool]: ...

    def host_for(self, key: Key, names: Sequence[str] | None) -> ToolHost: ...


class Swarms:
    """An async context manager: swarms at work are its tasks, and leaving it interrupts them, to be resumed.

    `ask` is the funnel's; `tools` None: there are none. `stop` bounds the seconds that an end may take.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        ask: Ask,
        tools: Tools | None = None,
        *,
        wall: Callable[[], float] = time.time,
        stop: float = 10.0,
    ) -> None:
        self.settings = settings
        self.limits = settings.swarms
        self._store = store
        self._ask = ask
        self._tools = tools
        self._wall = wall
        self._stop = stop
        self._place = Place(settings.swarms.folder.absolute())
        self._group = asyncio.TaskGroup()
        self._working: dict[str, Work] = {}
        #: Swarms of each key that work or are about to.
        self._running: Counter[str] = Counter()
        self._past: OrderedDict[str, Past] = OrderedDict()
        self._open = False

    # -- lifetime -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Go on with what the last process left. Raises `ConfigurationError`, `StoreUnavailable`."""
        await asyncio.to_thread(self._place.take)
        try:
            left = await self._store.find(OPEN, None, limit=100_000)
            keys = {key.id: key for key, _ in await self._store.keys()} if left else {}
            await self._group.__aenter__()
        except BaseException:
            self._place.leave()
            raise
        self._open = True
        for owner, mark in reversed(left):
            document = await self._store.get(KIND, owner, mark.id)
            if document is not None:
                await self._take_up(Kept.read(document), keys)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        try:
            await self._wait_for_all()
            await self._group.__aexit__(None, None, None)  # an error of the block stays what it is
        finally:
            self._place.leave()

    def stop(self) -> None:
        """Begin no swarm any more, and interrupt those that work: their streams of events end now. Whoever leaves the
        block waits for them."""
        self._open = False
        for work in self._working.values():
            work.interrupt()

    async def _wait_for_all(self) -> None:
        try:
            async with asyncio.timeout(self._stop):
                for work in tuple(self._working.values()):
                    await work.over.wait()
        except TimeoutError:
            for work in self._working.values():
                _log.warning("%s did not stop within %g s", work.kept.id, self._stop)
                work.interrupt(again=True)

    async def _take_up(self, kept: Kept, keys: dict[str, Key]) -> None:
        """A swarm that had not ended when the last process did."""
        if kept.ended:
            await self._store.delete(OPEN, kept.key.id, kept.id)
            return
        if kept.place != self._place.id:
            return  # another gateway's, which has its folder
        key = keys.get(kept.key.id, kept.key)
        kept = kept.for_key(key)
        try:
            folder = self._place.folder(kept.id)
            past = await asyncio.to_thread(read_past, folder)
            if past is not None and past.progress.status not in ("", "running"):
                ended = past.progress
                await self._put_away(concluded(kept, ended, ended.status, ended.cause, ended.ended_at or self._wall()))
                return
            if key.revoked is not None:
                said = "Its key was revoked."
                progress = past.progress if past is not None else None
                await self._put_away(concluded(kept, progress, "cancelled", said, self._wall()))
                return
            if past is None:  # nothing was sent: there would be a fact
                await asyncio.to_thread(shutil.rmtree, folder.path, ignore_errors=True)
            self._begin(kept, wanted(kept.request, self.limits), resume=past is not None)
        except CenturiaError as problem:
            _log.warning("%s cannot be resumed: %s", kept.id, problem)
            await self._put_away(concluded(kept, None, "failed", f"It cannot be resumed. {problem}", self._wall()))

    # -- finding ------------------------------------------------------------------------------------------------------

    async def find(self, request: Request) -> Kept:
        """The swarm of a request's address, for its owner and for admins. Raises `Problem` (404)."""
        id, key = request.parts["id"], request.key
        document = await self._store.get(KIND, key.id, id) if is_id(id) else None
        if document is None and key.admin and is_id(id):
            others = await self._store.find(KIND, None, limit=100_000)
            document = next((other for _, other in others if other.id == id), None)
        if document is None:
            raise not_found("There is no such swarm.")
        work = self._working.get(id)
        return work.kept if work is not None else Kept.read(document)

    async def listed(self, owner: str | None, limit: int) -> list[Kept]:
        """The newest ones of an owner, or of all."""
        found = [Kept.read(document) for _, document in await self._store.find(KIND, owner, limit=limit)]
        return [self._working[kept.id].kept if kept.id in self._working else kept for kept in found]

    def working(self, id: str) -> Work | None:
        """The swarm at work, and for a moment after its end."""
        return self._working.get(id)

    def status(self, kept: Kept) -> str:
        """starting, running, interrupted (it goes on when the gateway is back), or how it ended."""
        if kept.ended:
            return kept.status
        work = self._working.get(kept.id)
        if work is None or work.interrupted:
            return "interrupted"
        return "running" if work.begun.is_set() else "starting"

    def folder(self, id: str) -> RunFolder:
        return self._place.folder(id)

    async def past(self, kept: Kept) -> Past | None:
        """What is kept of a swarm that does not work; None where nothing is. Raises `JournalError`."""
        found = self._past.get(kept.id)
        if found is None:
            found = await asyncio.to_thread(read_past, self._place.folder(kept.id))
            if found is not None and kept.ended:
                self._past[kept.id] = found
                if len(self._past) > _PAST:
                    self._past.popitem(last=False)
        return found

    # -- spawning -----------------------------------------------------------------------------------------------------

    async def spawn(self, key: Key, value: Any, *, idempotency: str | None = None) -> Kept:
        """Begin a swarm, or find the one that was begun with this `Idempotency-Key`. Raises `Problem`."""
        found = wanted(value, self.limits)
        digest = digest_of(value)
        id = new_id() if idempotency is None else id_for(key.id, idempotency)
        if idempotency is not None:
            known = await self._known(key, id, digest)
            if known is not None:
                return known
        model = self._model(key, found.model)
        self._check_tools(key, found.mcp_tools)
        budget = await self._budget(key, model, found.budget)
        request = {name: item for name, item in value.items() if item is not None and name != "stream"}
        kept = Kept(id, key, request, model, budget, digest, self._place.id, self._wall())
        self._job(kept, found)  # what is wrong with it is said before anything is kept
        self._take_turn(key)
        try:
            if not await self._store.insert(KIND, key.id, kept.document()):
                known = await self._known(key, id, digest)
                if known is None:
                    raise bad_request("The swarm was removed just now.")
                return known
            await self._store.put(OPEN, key.id, Document(id, "{}", kept.at))
            self._begin(kept, found, resume=False)
        finally:
            self._give_turn(key)
        return kept

    async def _known(self, key: Key, id: str, digest: str) -> Kept | None:
        document = await self._store.get(KIND, key.id, id)
        if document is None:
            return None
        known = Kept.read(document)
        if known.digest != digest:
            raise Problem(
                422,
                "invalid_request_error",
                "This Idempotency-Key was used with another body.",
                code="idempotency_key_reused",
                remedy="Send the same body again, or use another key.",
            )
        return self._working[id].kept if id in self._working else known

    def _take_turn(self, key: Key) -> None:
        if not self._open:
            raise Problem(503, "server_error", "The gateway is stopping.", headers={"Retry-After": "5"})
        if self._running[key.id] >= self.limits.running:
            raise rate_limited(
                f"{self.limits.running} swarms of this key work already, which is as many as may.", self._soon(key)
            )
        self._running[key.id] += 1

    def _give_turn(self, key: Key) -> None:
        self._running[key.id] -= 1
        if not self._running[key.id]:
            del self._running[key.id]

    def _soon(self, key: Key) -> float:
        """Seconds until one of the key's swarms ends, as far as that can be told."""
        now, found = self._wall(), []
        for work in self._working.values():
            if work.kept.key.id == key.id and work.progress is not None:
                eta = work.progress.eta(now)
                found.append(10.0 if eta is None else eta)
        return min(found, default=10.0)

    def _model(self, key: Key, name: str | None) -> str:
        allowed = [model for model in self.settings.models if key.models is None or model in key.models]
        if name is None and allowed:
            return allowed[0]
        if name not in allowed:
            said = "This key may use no model." if name is None else f"There is no model {quoted(name)} for this key."
            raise Problem(
                404, "resource_not_found_error", said, code="model_not_found", param="model", remedy="See /v1/models."
            )
        return name

    def _check_tools(self, key: Key, names: Sequence[str]) -> None:
        known = {tool.name for tool in self._tools.visible(key)} if self._tools is not None and names else set()
        for name in names:
            if name not in known:
                raise bad_request(
                    f"There is no tool {quoted(name)} for this key.", param="mcp_tools", remedy="See GET /v1/mcp/tools."
                )

    async def _budget(self, key: Key, model: str, asked: Pico | None) -> Pico | None:
        """The swarm's own cap: what was asked for, within what the gateway allows and the key has left."""
        caps = [cap for cap in (asked, self.limits.budget) if cap is not None]
        if any(deployment.price is None for deployment in self.settings.models[model]):
            if caps or key.budget is not None:
                raise bad_request(
                    f"No price is known for {model}, so no budget could hold.",
                    param="model",
                    remedy="Choose another model, or tell its price in gateway.toml.",
                )
            return None
        if key.budget is not None:
            balances = {known.id: balance for known, balance in await self._store.keys()}
            balance = balances.get(key.id)
            left = key.budget - (balance.spent + balance.held if balance is not None else 0)
            if left <= 0:
                raise out_of_budget("This key's budget is spent.")
            caps.append(left)
        return min(caps) if asked is not None or key.budget is not None else min([USUAL_BUDGET, *caps])

    # -- working ------------------------------------------------------------------------------------------------------

    def _begin(self, kept: Kept, found: Wanted, *, resume: bool) -> None:
        work = Work(kept, self._run(kept, found, resume=resume))
        self._working[kept.id] = work
        self._running[kept.key.id] += 1
        self._group.create_task(self._attend(work), name=kept.id)

    async def _attend(self, work: Work) -> None:
        try:
            await work.perform(self._wall)
        except Exception:  # the edge: it was told to its owner, and here is what the operator needs
            _log.exception("%s failed", work.kept.id)
        finally:
            self._give_turn(work.kept.key)
        if work.kept.ended:
            await self._put_away(work.kept)
        del self._working[work.kept.id]

    async def _put_away(self, kept: Kept) -> None:
        """Its document says how it ended. Where that cannot be kept, its folder still says it, at the next start."""
        for pause in (*_PUT_AWAY, None):
            try:
                await self._store.put(KIND, kept.key.id, kept.document())
                await self._store.delete(OPEN, kept.key.id, kept.id)
                return
            except StoreUnavailable as error:
                if pause is None or not self._open:
                    _log.warning("%s ended, and is not put away: %s", kept.id, error)
                    return
                await asyncio.sleep(pause)

    def _run(self, kept: Kept, found: Wanted, *, resume: bool) -> Run:
        deployments = self.settings.models[self._model(kept.key, kept.model)]
        own = deployments[0].endpoint
        endpoint = Endpoint(
            provider=own.provider,
            base_url=_NOWHERE,
            model=kept.model,
            context=min(each.endpoint.context for each in deployments),
            thinks=any(each.endpoint.thinks for each in deployments),
            dialect=own.dialect,
        )
        prices = [each.price for each in deployments if each.price is not None]
        unpriced = len(prices) < len(deployments)
        launch = Launch(
            run=kept.id,
            folder=self._place.folder(kept.id),
            job=self._job(kept, found),
            endpoint=endpoint,
            price=None if unpriced else max(prices, key=lambda price: (price.output, price.input)),
            rehearse=False,
            choice=ModelChoice(name=kept.model),
            resume=Resume(only=frozenset()) if resume else None,
            account=RateLimits(),
        )
        seconds = self.settings.caps.request
        transport = FunnelTransport(self._ask, kept.key, kept.id, kept.model, seconds=seconds)
        return Run(launch, transport=transport, host=self._host(kept.key, found.mcp_tools), wall=self._wall)

    def _host(self, key: Key, names: Sequence[str]) -> ToolHost | None:
        return self._tools.host_for(key, names) if self._tools is not None and names else None

    def _job(self, kept: Kept, found: Wanted) -> Job:
        own, longest = self.settings.timeouts, self.settings.caps.request + _LONGER
        timeouts = replace(own, first_token=longest, total=longest, silence=own.silence + _LONGER)
        return job_of(found, self.limits, budget=kept.budget, timeouts=timeouts)
