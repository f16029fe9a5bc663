"""The only way to a key's money: reserve before a request leaves, settle when it is over, and rows that become durable.

A reservation draws on a lease that the store made durable ahead (`core.accounts`), so no request waits for a commit of
its own. One task writes what was settled meanwhile, all in one transaction. While the store fails nothing new is
reserved; what was settled stays here and is tried again each second.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from types import TracebackType

from centuria.core.accounts import Account, Ask, Decision
from centuria.errors import BudgetExceeded
from centuria.gateway.ports import AttemptRow, Key, Store
from centuria.gateway.problems import StoreUnavailable
from centuria.gateway.rowwriter import RowWriter, answered, told
from centuria.messages import DOLLAR, Pico

_log = logging.getLogger("centuria.gateway")

#: Seconds after which what the store said is left of a budget is asked again: other gateways spend and give back.
_HEARD_FOR = 1.0
#: Seconds between two signs of life, and after which a key that does nothing gives its lease back.
_BEAT = 15
_IDLE = 30
#: Leases that go back in one second: each is a commit of its own.
_AT_ONCE = 20
#: Seconds that the end waits for the store.
_END = 10.0


class Reservation:
    """Money that is set aside for one attempt, until `Books.settle` or `Books.release`."""

    __slots__ = ("amount", "desk", "open")

    def __init__(self, desk: _Desk, amount: Pico) -> None:
        self.desk = desk
        self.amount = amount
        self.open = True


class _Desk:
    """One key's account, with those who wait there."""

    __slots__ = ("account", "asked", "busy", "heard", "key", "touched", "waiters")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.account = Account(limited=key.budget is not None)
        #: True: reserved; False: refused; an error: the store cannot be asked.
        self.waiters: dict[int, asyncio.Future[bool | StoreUnavailable]] = {}
        #: The store is being asked, or given back to.
        self.busy = False
        #: There may be a lease in the store.
        self.asked = False
        self.heard = 0.0
        self.touched = 0


class Books:
    """An async context manager, for one gateway. `gateway` is what it is called, to which a part is added that is this
    process's alone; `wall` is seconds since 1970.

    At the end what was settled is written, within 10 seconds, and leases go back. If that fails, or the process is
    killed, the store holds them: what it says was spent or is held is never less than what was paid.
    """

    def __init__(self, store: Store, *, gateway: str, wall: Callable[[], float]) -> None:
        self._store = store
        # The leases of an earlier process, or of another machine's, are not this one's.
        self._gateway = f"{gateway}-{secrets.token_hex(6)}"
        self._rows = RowWriter(store, gateway=self._gateway, wall=wall)
        self._desks: dict[str, _Desk] = {}
        self._tickets = count()
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []
        self._asking: set[asyncio.Task[None]] = set()
        self._seconds = 0
        self._open = False

    async def __aenter__(self) -> Books:
        """Raises `StoreUnavailable`; `ConfigurationError` where the store is another gateway's."""
        await self._store.start(self._gateway)
        await self._group.__aenter__()
        self._tasks = [self._group.create_task(self._rows.run()), self._group.create_task(self._tick())]
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        for desk in self._desks.values():
            _dismiss(desk, _ending())
        try:
            await self._end()
        finally:
            for task in [*self._tasks, *self._asking]:
                task.cancel()
            # The group is told of a cancellation, which may be its own; any other error stays what it is.
            cancelled = isinstance(error, asyncio.CancelledError)
            await self._group.__aexit__(*((kind, error, trace) if cancelled else (None, None, None)))

    # -- reserve, settle, release -------------------------------------------------------------------------------------

    async def reserve(self, key: Key, amount: Pico, *, patience: float) -> Reservation:
        """Set `amount` pico-dollars of the key's budget aside. Waits for what is only reserved, `patience` seconds.

        Raises `BudgetExceeded` at once for what can never fit, or when it did not fit in time; `StoreUnavailable` while
        the store fails or too much waits to be written. Returns without waiting where the lease has room.
        """
        if amount < 0:
            raise ValueError(f"{amount} cannot be reserved")
        if not self._open:
            raise _ending()
        self._rows.check()
        desk = self._desks.get(key.id)
        if desk is None:
            desk = self._desks[key.id] = _Desk(key)
        desk.touched = self._seconds
        if not desk.account.take(amount):
            await self._wait(desk, amount, patience)
        return Reservation(desk, amount)

    def settle(self, reservation: Reservation, row: AttemptRow) -> None:
        """The attempt is over: `row.cost + row.held` is taken from the lease, and the row will be durable soon.

        Once for each reservation: raises `ValueError` for one that is over, and for a row of another key.
        """
        desk = reservation.desk
        if not reservation.open or row.key != desk.key.id:
            raise ValueError("a reservation is settled once, with a row of its own key")
        reservation.open = False
        self._rows.add(row)
        desk.touched = self._seconds
        self._tell(desk, desk.account.settle(reservation.amount, row.cost + row.held))

    def release(self, reservation: Reservation) -> None:
        """Nothing was sent. Does nothing to a reservation that is over."""
        if reservation.open:
            reservation.open = False
            self._tell(reservation.desk, reservation.desk.account.release(reservation.amount))

    async def flush(self) -> None:
        """Return when everything that is settled so far is durable, however long the store fails."""
        await self._rows.flush()

    def reserved(self) -> Pico:
        """What all keys have reserved now."""
        return sum([desk.account.reserved for desk in self._desks.values()])

    def pending(self) -> int:
        """Rows that are not durable yet."""
        return self._rows.pending

    @property
    def failing_since(self) -> float | None:
        """Seconds since 1970: since when rows cannot be written. None: they can."""
        return self._rows.failing_since

    def waiting(self) -> int:
        """Reservations that wait for money."""
        return sum([len(desk.waiters) for desk in self._desks.values()])

    # -- those who wait -----------------------------------------------------------------------------------------------

    async def _wait(self, desk: _Desk, amount: Pico, patience: float) -> None:
        loop = asyncio.get_running_loop()
        ticket = next(self._tickets)
        future: asyncio.Future[bool | StoreUnavailable] = loop.create_future()
        desk.waiters[ticket] = future
        if loop.time() >= desk.heard + _HEARD_FOR:
            desk.account.left = None
        self._tell(desk, desk.account.wait(ticket, amount))
        taken = False
        try:
            async with asyncio.timeout(None if patience == math.inf else patience):
                answer = await future
            if answer is True:
                taken = True
                return
        except TimeoutError:
            if desk.busy:
                raise StoreUnavailable(f"The gateway's store did not answer within {patience:g} s.") from None
            raise _too_late(desk, amount, patience) from None
        finally:
            del desk.waiters[ticket]
            if not taken:
                granted = future.done() and not future.cancelled() and future.result() is True
                account = desk.account
                self._tell(desk, account.release(amount) if granted else account.leave(ticket))
        if isinstance(answer, StoreUnavailable):
            raise StoreUnavailable(answer.message, remedy=answer.remedy)
        raise _exceeded(desk, amount)

    def _tell(self, desk: _Desk, decisions: Iterable[Decision]) -> None:
        """Wake those of whom something was decided, and ask the store for the next one."""
        todo = deque(decisions)
        while todo:
            decision = todo.popleft()
            future = desk.waiters.get(decision.ticket)
            if future is not None and not future.done():
                future.set_result(decision.granted)
            elif decision.granted:  # whoever waited has just been cancelled
                todo += desk.account.release(decision.amount)
        if not desk.busy and desk.account.waiting:
            self._ask(desk)

    def _ask(self, desk: _Desk) -> None:
        ask = desk.account.ask()
        if ask is not None and self._open:
            desk.busy = desk.asked = True
            task = self._group.create_task(self._extend(desk, ask))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _extend(self, desk: _Desk, ask: Ask) -> None:
        """One at a time for each key."""
        try:
            lease = await self._store.extend_lease(self._gateway, desk.key.id, ask.least, ask.wanted)
        except Exception as error:
            failure = told(error)
            _dismiss(desk, failure)
            return
        finally:
            desk.busy = False
        desk.heard = asyncio.get_running_loop().time()
        self._tell(desk, desk.account.extended(lease.granted, lease.left))

    # -- every second, and the end ------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._seconds += 1
            for desk in list(self._desks.values()):
                if desk.account.waiting:
                    desk.account.left = None
                    self._tell(desk, [])
            try:
                await self._give_back_idle()
                if self._seconds % _BEAT == 0:
                    await answered(self._store.beat(self._gateway))
            except Exception as error:
                # The edge of this task: it is all tried again soon.
                _log.debug("the store failed beside the rows: %s", told(error))

    async def _give_back_idle(self) -> None:
        """So that other gateways can have it, and a crash holds little. Also takes away what an attempt that cost more
        than its reservation, or an answer of the store that was lost, has left of a lease."""
        idle = [desk for desk in self._desks.values() if self._seconds - desk.touched >= _IDLE]
        for desk in idle[:_AT_ONCE]:
            if not self._rows.pending and _is_idle(desk):
                await self._give_back(desk)

    async def _give_back(self, desk: _Desk) -> None:
        if desk.asked:
            desk.account.give_back()
            desk.busy = True
            try:
                await answered(self._store.return_leases(self._gateway, key=desk.key.id))
                desk.asked = False
            finally:
                desk.busy = False
                self._tell(desk, [])
        if _is_idle(desk) and not desk.asked:
            del self._desks[desk.key.id]

    async def _end(self) -> None:
        try:
            async with asyncio.timeout(_END):
                await self.flush()
                if self._asking:
                    await asyncio.wait(self._asking)
                idle = [desk for desk in self._desks.values() if _is_idle(desk)]
                if len(idle) == len(self._desks):
                    await answered(self._store.return_leases(self._gateway))
                else:
                    for desk in idle:
                        await self._give_back(desk)
        except TimeoutError:
            paid = self._rows.unpaid() / DOLLAR
            _log.error("%d rows ($%.4f) could not be written; the store will hold leases", self._rows.pending, paid)
        except StoreUnavailable as error:
            _log.error("leases could not be given back; the store will hold them: %s", error)


def _dismiss(desk: _Desk, failure: StoreUnavailable) -> None:
    """Nobody who waits here can be served."""
    for ticket in desk.account.empty():
        future = desk.waiters[ticket]
        if not future.done():
            future.set_result(failure)


def _is_idle(desk: _Desk) -> bool:
    return not (desk.busy or desk.waiters or desk.account.reserved or desk.account.waiting)


def _ending() -> StoreUnavailable:
    return StoreUnavailable("The gateway is ending.")


def _exceeded(desk: _Desk, amount: Pico) -> BudgetExceeded:
    left = desk.account.affordable
    return BudgetExceeded(
        f"The key {desk.key.name} has ${left / DOLLAR:.6f} of its budget left, this may cost ${amount / DOLLAR:.6f}.",
        affordable=left,
        node=desk.key.name,
        remedy="Ask for fewer tokens or a cheaper model, or have its budget raised.",
    )


def _too_late(desk: _Desk, amount: Pico, patience: float) -> BudgetExceeded:
    return BudgetExceeded(
        f"The budget of the key {desk.key.name} is reserved by requests that still run: ${amount / DOLLAR:.6f} "
        f"did not come free within {patience:g} s.",
        affordable=desk.account.affordable,
        node=desk.key.name,
        remedy="Send fewer requests at once, or use a key with a larger budget.",
    )
