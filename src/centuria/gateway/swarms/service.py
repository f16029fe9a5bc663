"""All swarms of the gateway: spawned, at work, resumed after a restart, and put away at their end."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from centuria.errors import CenturiaError, ConfigurationError
from centuria.gateway.headers import digest_of_asked
from centuria.gateway.ports import Document, Key, Store
from centuria.gateway.problems import (
    StoreUnavailable,
    idempotency_key_reused,
    not_found,
    rate_limited,
    shutting_down,
    unavailable,
)
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.swarms.archive import Archive
from centuria.gateway.swarms.policy import SwarmPolicy, Tools
from centuria.gateway.swarms.records import KIND, OPEN, RunsFolder, SwarmRecord, id_for, is_id, new_id
from centuria.gateway.swarms.request import SwarmRequest, parse_request
from centuria.gateway.swarms.transport import Ask, FunnelTransport
from centuria.gateway.swarms.work import Work, concluded
from centuria.run import Run
from centuria.settings import Job

_log = logging.getLogger("centuria.gateway")
#: Seconds between two tries to put a swarm away, and how many there are; the next start does it otherwise.
_PUT_AWAY = (0.5, 2.0, 8.0)
#: Swarms that are taken up at a start.
_MOST_LEFT = 100_000


class SwarmService:
    """An async context manager: swarms at work are its tasks, and leaving it interrupts them, to be resumed.

    `ask` is the funnel's; `tools` None: there are none. An end takes `patience` seconds at most, if it can; keys
    are looked at every `look` seconds.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        ask: Ask,
        tools: Tools | None = None,
        *,
        wall: Callable[[], float] = time.time,
        patience: float = 10.0,
        look: float = 15.0,
    ) -> None:
        self.limits = settings.swarms
        self._store = store
        self._ask = ask
        self._wall = wall
        self._patience = patience
        self._look = look
        self._rehearsal = settings.rehearsal
        self._seconds = settings.caps.request
        self._policy = SwarmPolicy(settings, store, tools)
        self._runs = RunsFolder(settings.swarms.folder.absolute())
        self._settling = asyncio.Lock()
        #: The folder of runs is ours, and all that was left in it was taken up.
        self._settled = False
        self._group = asyncio.TaskGroup()
        self._working: dict[str, Work] = {}
        #: Those that are being kept, to be begun: the same request again waits for the same swarm.
        self._accepting: dict[str, asyncio.Task[SwarmRecord | CenturiaError]] = {}
        #: Swarms of each key that work or are about to.
        self._running: Counter[str] = Counter()
        self.archive = Archive(self._runs, settings.swarms)
        self._open = False

    # -- lifetime -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Go on with what the last process left. Raises `StoreUnavailable`.

        Where another gateway works in the folder of runs, this one works without swarms until that one has ended.
        """
        await self._group.__aenter__()
        self._open = True
        self._watch = self._group.create_task(self._watch_keys(), name="keys")
        try:
            if self._runs.exists:
                await self._settle_in()
        except ConfigurationError as error:
            _log.warning("There are no swarms for now: %s", error)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._watch.cancel()
        try:
            await self._wait_for_all()
            await self._group.__aexit__(None, None, None)  # an error of the block stays what it is
        finally:
            self._runs.unlock()

    def stop(self) -> None:
        """Begin no swarm any more, and interrupt those that work: their streams of events end now. Whoever leaves the
        block waits for them."""
        self._open = False
        for work in self._working.values():
            work.interrupt()

    async def _watch_keys(self) -> None:
        """Whose key is revoked has no swarm a moment later."""
        while True:
            await asyncio.sleep(self._look)
            if not self._working:
                continue
            try:
                revoked = {key.id for key, _ in await self._store.keys() if key.revoked is not None}
            except StoreUnavailable:
                continue
            for work in self._working.values():
                if work.record.key.id in revoked and not work.over.is_set():
                    work.run.cancel(cause="its key was revoked")

    async def _wait_for_all(self) -> None:
        try:
            async with asyncio.timeout(self._patience):
                for work in tuple(self._working.values()):
                    await work.over.wait()
        except TimeoutError:
            for work in self._working.values():
                _log.warning("%s did not stop within %g s", work.record.id, self._patience)
                work.interrupt(again=True)

    async def _settle_in(self) -> None:
        """Have the folder of runs, and go on with what the last process left there. Raises `ConfigurationError`,
        `StoreUnavailable`."""
        async with self._settling:
            if self._settled:
                return
            await asyncio.to_thread(self._runs.lock)
            try:
                left = await self._store.find(OPEN, None, limit=_MOST_LEFT)
                keys = {key.id: key for key, _ in await self._store.keys()} if left else {}
                for owner, mark in reversed(left):
                    document = await self._store.get(KIND, owner, mark.id)
                    if document is None:
                        await self._store.delete(OPEN, owner, mark.id)
                    else:
                        await self._take_up(SwarmRecord.read(document), keys)
                self._settled = True
            except BaseException:
                if not self._working:
                    self._runs.unlock()
                raise

    async def _take_up(self, record: SwarmRecord, keys: Mapping[str, Key]) -> None:
        """A swarm that had not ended when the last process did."""
        if record.id in self._working:
            return  # an earlier try, which failed later on
        if record.ended:
            await self._store.delete(OPEN, record.key.id, record.id)
            return
        if record.place != self._runs.id:
            return  # another gateway's, which has its folder
        if record.rehearsal != self._rehearsal:
            # Half of it would be real and half of it not: it goes on when its gateway is what it was.
            _log.warning("%s waits for a gateway that is %s rehearsal", record.id, "a" if record.rehearsal else "no")
            return
        record = record.for_key(keys.get(record.key.id, record.key))
        try:
            folder = self._runs.folder(record.id)
            past = await self.archive.past(record)
            if past is not None and past.progress.status not in ("", "running"):
                ended = past.progress
                at = ended.ended_at or self._wall()
                await self._put_away(concluded(record, ended, ended.status, ended.cause, at))
                return
            if record.key.revoked is not None:
                progress = past.progress if past is not None else None
                await self._put_away(concluded(record, progress, "cancelled", "its key was revoked", self._wall()))
                return
            if past is None:  # nothing was sent: there would be a fact
                await asyncio.to_thread(shutil.rmtree, folder.path, ignore_errors=True)
            request = await self.archive.request(record)
            job = await asyncio.to_thread(self._policy.job, record, request)
            self._begin(record, request, job, resume=past is not None)
        except StoreUnavailable:
            raise
        except CenturiaError as problem:
            _log.warning("%s cannot be resumed: %s", record.id, problem)
            await self._put_away(concluded(record, None, "failed", f"it cannot be resumed: {problem}", self._wall()))

    # -- finding ------------------------------------------------------------------------------------------------------

    async def find(self, key: Key, id: str) -> SwarmRecord:
        """A swarm, for its owner and for admins. Raises `Problem` (404)."""
        document = await self._store.get(KIND, None if key.admin else key.id, id) if is_id(id) else None
        if document is None:
            raise not_found("There is no such swarm.")
        work = self._working.get(id)
        return work.record if work is not None else SwarmRecord.read(document)

    async def listed(self, owner: str | None, limit: int) -> list[SwarmRecord]:
        """The newest ones of an owner, or of all."""
        found = [SwarmRecord.read(document) for _, document in await self._store.find(KIND, owner, limit=limit)]
        return [self._working[record.id].record if record.id in self._working else record for record in found]

    def working(self, id: str) -> Work | None:
        """The swarm at work, and for a moment after its end."""
        return self._working.get(id)

    def status(self, record: SwarmRecord) -> str:
        """starting, running, interrupted (it goes on when the gateway is back), or how it ended."""
        if record.ended:
            return record.status
        work = self._working.get(record.id)
        if work is None or work.interrupted:
            return "interrupted"
        return "running" if work.begun.is_set() else "starting"

    # -- spawning -----------------------------------------------------------------------------------------------------

    async def spawn(self, key: Key, value: Any, *, idempotency: str | None = None) -> SwarmRecord:
        """Begin a swarm, or find the one that was begun with this `Idempotency-Key`. Raises `Problem`."""
        request, digest = parse_request(value, self.limits), digest_of_asked(value)
        await self._check_open()
        id = new_id() if idempotency is None else id_for(key.id, idempotency)
        known = None if idempotency is None else await self._known(key, id, digest)
        if known is not None:
            return known
        model = self._policy.model(key, request.model)
        self._policy.host(key, request.mcp_tools, id)
        budget = await self._policy.budget(key, model, request.budget)
        place, now = self._runs.id, self._wall()
        record = SwarmRecord(id, key, request.title, model, budget, digest, place, now, rehearsal=self._rehearsal)
        # What is wrong is said before anything is kept.
        job = await asyncio.to_thread(self._policy.job, record, request)
        done: SwarmRecord | CenturiaError
        if (work := self._working.get(id)) is not None:  # begun since it was looked for above
            done = work.record
        else:
            if id not in self._accepting:
                self._take_turn(key)
                self._accepting[id] = self._group.create_task(self._accept(record, request, job, value))
            # Whoever goes away from now on leaves a swarm behind, and never half of one.
            done = await asyncio.shield(self._accepting[id])
        if isinstance(done, CenturiaError):
            raise done
        if done.digest != digest:
            raise idempotency_key_reused()
        return done

    async def run_swarm(self, key: Key, arguments: Any) -> str:
        """A whole swarm as one call: its merged answer, and a line about what did not go well. `arguments` as the body
        of `spawn`. Whoever gives the call up cancels the swarm. Raises `Problem` for what cannot be begun."""
        if isinstance(arguments, dict):
            arguments = {name: item for name, item in arguments.items() if name != "stream"}
        record = await self.spawn(key, arguments)
        work = self.working(record.id)
        if work is not None:
            try:
                await work.over.wait()
            except asyncio.CancelledError:
                if not work.over.is_set():
                    work.cancel(None, "its caller gave it up")
                raise
            record = work.record
        if not record.ended:
            raise unavailable(f"The gateway stops; the swarm {record.id} goes on when it is back.")
        answer, _ = await self.archive.result(record)
        if record.status == "ok":
            return answer
        said = f"The swarm {record.id} ended as {record.status}: {record.cause}."
        said += f" {record.ok} of {record.tasks} tasks are ok."
        return f"{said}\n\n{answer}" if answer else said

    async def _accept(
        self, record: SwarmRecord, request: SwarmRequest, job: Job, value: Any
    ) -> SwarmRecord | CenturiaError:
        """Keep it, durably, and begin it."""
        owner = record.key.id
        try:
            await asyncio.to_thread(self._runs.write_request, record, value)
            await self._store.put(OPEN, owner, Document(record.id, "{}", record.at))
            if await self._store.insert(KIND, owner, record.document()):
                self._begin(record, request, job, resume=False)
                return record
            return await self._known(record.key, record.id, record.digest) or record
        except OSError as error:
            return unavailable(f"The request cannot be kept: {error.strerror or type(error).__name__}.")
        except CenturiaError as error:
            return error
        except Exception:  # the edge: the swarms that work go on
            _log.exception("%s could not be begun", record.id)
            return unavailable("The swarm could not be begun.")
        finally:
            del self._accepting[record.id]
            self._give_turn(record.key)

    async def _check_open(self) -> None:
        """Raises `Problem` while no swarm can be begun."""
        if not self._open:
            raise shutting_down()
        try:
            await self._settle_in()
        except ConfigurationError as error:
            _log.warning("There are no swarms for now: %s", error)
            said = "There are no swarms for now: the gateway's folder of runs cannot be used, or is another gateway's."
            raise unavailable(said, code="no_swarms") from None

    async def _known(self, key: Key, id: str, digest: str) -> SwarmRecord | None:
        document = await self._store.get(KIND, key.id, id)
        if document is None:
            return None
        known = SwarmRecord.read(document)
        if known.digest != digest:
            raise idempotency_key_reused()
        return self._working[id].record if id in self._working else known

    def _take_turn(self, key: Key) -> None:
        if self._running[key.id] >= self.limits.running:
            said = f"{self.limits.running} swarms of this key work already, which is as many as may."
            raise rate_limited(said, self._soon(key))
        self._running[key.id] += 1

    def _give_turn(self, key: Key) -> None:
        self._running[key.id] -= 1
        if not self._running[key.id]:
            del self._running[key.id]

    def _soon(self, key: Key) -> float:
        """Seconds until one of the key's swarms ends, as far as that can be told."""
        now, found = self._wall(), []
        for work in self._working.values():
            if work.record.key.id == key.id and work.progress is not None:
                eta = work.progress.eta(now)
                found.append(10.0 if eta is None else eta)
        return min(found, default=10.0)

    # -- working ------------------------------------------------------------------------------------------------------

    def _begin(self, record: SwarmRecord, request: SwarmRequest, job: Job, *, resume: bool) -> None:
        """Raises `Problem` where its model or its tools are there no more."""
        launch = self._policy.launch(record, job, self._runs.folder(record.id), resume=resume)
        transport = FunnelTransport(self._ask, record.key, record.id, record.model, seconds=self._seconds)
        host = self._policy.host(record.key, request.mcp_tools, record.id)
        work = self._working[record.id] = Work(record, Run(launch, transport=transport, host=host, wall=self._wall))
        self._running[record.key.id] += 1
        if not self._open:
            work.interrupt()
        self._group.create_task(self._attend(work), name=record.id)

    async def _attend(self, work: Work) -> None:
        """One swarm, to its end. Whatever goes wrong with it, the others go on."""
        try:
            await self._perform(work)
            if work.record.ended:
                await self._put_away(work.record)
        except Exception:  # the edge
            _log.exception("%s is not put away", work.record.id)
        finally:
            del self._working[work.record.id]

    async def _perform(self, work: Work) -> None:
        try:
            await work.perform(self._wall)
        except Exception:  # the edge: it was told to its owner, and here is what the operator needs
            _log.exception("%s failed", work.record.id)
        finally:
            self._give_turn(work.record.key)

    async def _put_away(self, record: SwarmRecord) -> None:
        """Its document says how it ended. Where that cannot be kept, its folder still says it, at the next start."""
        for pause in (*_PUT_AWAY, None):
            try:
                await self._store.put(KIND, record.key.id, record.document())
                await self._store.delete(OPEN, record.key.id, record.id)
                return
            except StoreUnavailable as error:
                if pause is None or not self._open:
                    _log.warning("%s ended, and is not put away: %s", record.id, error)
                    return
                await asyncio.sleep(pause)
