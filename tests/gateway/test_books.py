"""Reserve, settle, release: who is admitted, what is durable, and what happens while the store fails."""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from centuria.errors import BudgetExceeded
from centuria.gateway import rowwriter
from centuria.gateway.books import Books, Reservation
from centuria.gateway.ports import AttemptRow, Balance, Key, Lease
from centuria.gateway.problems import StoreUnavailable
from centuria.gateway.rowwriter import GATHER
from centuria.gateway.store.sqlite import SqliteStore
from centuria.messages import DOLLAR
from centuria.testing.clock import virtual_clock
from centuria.testing.gateway import MemoryStore
from tests.gateway.store_suite import CENT, attempt, balance, with_key
from tests.waiting import until


def open_books(store: MemoryStore) -> Books:
    return Books(store, gateway="g", wall=lambda: 1_000.0 + asyncio.get_running_loop().time())


async def refused(books: Books, key: Key, amount: int, patience: float = 5.0) -> BudgetExceeded:
    with pytest.raises(BudgetExceeded) as caught:
        await books.reserve(key, amount, patience=patience)
    return caught.value


def now() -> float:
    return asyncio.get_running_loop().time()


# -- who is admitted --------------------------------------------------------------------------------------------------


@virtual_clock
async def test_a_hundred_at_once_on_a_budget_for_two_admit_two_and_refuse_the_rest() -> None:
    store = MemoryStore()
    key = await with_key(store, CENT)
    outcomes: list[str] = []

    async def ask(books: Books, number: int) -> None:
        try:
            reservation = await books.reserve(key, CENT // 2, patience=60)
        except BudgetExceeded:
            outcomes.append("refused")
            return
        outcomes.append("admitted")
        await asyncio.sleep(1)
        assert outcomes.count("refused") == 0, "what is only reserved is waited for"
        books.settle(reservation, attempt(f"r{number}", "k1", CENT // 2))

    async with open_books(store) as books, asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(ask(books, number))
    assert (outcomes.count("admitted"), outcomes.count("refused")) == (2, 98)
    assert await balance(store) == Balance(spent=CENT)
    assert now() < 2


@virtual_clock
async def test_what_can_never_fit_is_refused_at_once_with_what_would() -> None:
    store = MemoryStore()
    key = await with_key(store, CENT)
    async with open_books(store) as books:
        error = await refused(books, key, CENT + 1)
        assert error.affordable == CENT
        assert error.node == key.name
        assert "$0.010000" in str(error)
        assert now() == 0
        books.release(await books.reserve(key, CENT, patience=1))


@virtual_clock
async def test_money_that_does_not_come_free_in_time_is_refused_then() -> None:
    store = MemoryStore()
    key = await with_key(store, CENT)
    async with open_books(store) as books:
        held = await books.reserve(key, CENT, patience=1)
        error = await refused(books, key, CENT, patience=7)
        assert now() == 7
        assert "reserved by requests that still run" in str(error)
        assert books.waiting() == 0
        books.release(held)
        books.release(await books.reserve(key, CENT, patience=1))


@virtual_clock
async def test_those_who_wait_are_served_in_order() -> None:
    store = MemoryStore()
    key = await with_key(store, 4 * CENT)
    order: list[int] = []

    async def ask(books: Books, number: int, amount: int) -> None:
        reservation = await books.reserve(key, amount, patience=60)
        order.append(number)
        await asyncio.sleep(1)
        books.release(reservation)

    async with open_books(store) as books, asyncio.TaskGroup() as group:
        for number, cents in enumerate([3, 4, 1, 1, 2]):
            group.create_task(ask(books, number, cents * CENT))
    assert order == [0, 1, 2, 3, 4]


@virtual_clock
async def test_with_a_lease_nobody_waits_for_the_store() -> None:
    store = MemoryStore()
    key = await with_key(store, 100 * DOLLAR)
    async with open_books(store) as books:
        books.release(await books.reserve(key, CENT, patience=1))
        store.gate.clear()
        for number in range(100):
            books.settle(await books.reserve(key, CENT, patience=1), attempt(f"r{number}", "k1", CENT))
        assert store.extensions == 1
        assert books.pending() == 100
        store.gate.set()
    assert await balance(store) == Balance(spent=DOLLAR)
    assert store.writes == 1


@virtual_clock
async def test_many_who_need_a_lease_ask_the_store_once() -> None:
    store = MemoryStore()
    key = await with_key(store, 100 * DOLLAR)
    async with open_books(store) as books:
        store.gate.clear()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(books.reserve(key, 30 * CENT, patience=9)) for _ in range(100)]
            await asyncio.sleep(1)
            assert books.waiting() == 100
            store.gate.set()
        # The first one who came asked for itself; then all others together.
        assert store.extensions == 2
        assert books.reserved() == 30 * DOLLAR
        for task in tasks:
            books.release(task.result())
        assert books.reserved() == 0


@virtual_clock
async def test_a_key_without_a_budget_needs_no_lease_and_its_rows_are_written() -> None:
    store = MemoryStore()
    key = await with_key(store, None)
    async with open_books(store) as books:
        books.settle(await books.reserve(key, 10**18, patience=1), attempt("r1", "k1", 5))
        await books.flush()
        assert store.extensions == 0
        assert await balance(store) == Balance(spent=5)


@virtual_clock
async def test_a_caller_who_is_cancelled_leaves_nothing_reserved_at_any_moment() -> None:
    store = MemoryStore()
    key = await with_key(store, CENT)
    async with open_books(store) as books:
        for steps in range(12):
            first = await books.reserve(key, CENT, patience=1)
            task = asyncio.create_task(books.reserve(key, CENT, patience=60))
            other = asyncio.create_task(books.reserve(key, CENT, patience=60))
            for step in range(12):
                if step == steps:
                    task.cancel()
                if step == 5:
                    books.release(first)
                await asyncio.sleep(0)
            if not task.cancelled():
                books.release(task.result())
            books.release(await other)
            assert books.reserved() == 0
            assert books.waiting() == 0


@virtual_clock
async def test_a_caller_who_is_cancelled_just_when_it_is_served_keeps_nothing() -> None:
    store = MemoryStore()
    key = await with_key(store, CENT)
    async with open_books(store) as books:
        first = await books.reserve(key, CENT, patience=1)
        task = asyncio.create_task(books.reserve(key, CENT, patience=60))
        await asyncio.sleep(1)
        books.release(first)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert books.reserved() == 0
        books.release(await books.reserve(key, CENT, patience=1))


@virtual_clock
async def test_a_reservation_is_over_once() -> None:
    store = MemoryStore()
    key = await with_key(store)
    async with open_books(store) as books:
        reservation = await books.reserve(key, CENT, patience=1)
        with pytest.raises(ValueError, match="own key"):
            books.settle(reservation, attempt("r1", "k2", CENT))
        books.settle(reservation, attempt("r1", "k1", CENT))
        with pytest.raises(ValueError, match="once"):
            books.settle(reservation, attempt("r1", "k1", CENT))
        books.release(reservation)
        assert books.reserved() == 0
        with pytest.raises(ValueError, match="-1"):
            await books.reserve(key, -1, patience=1)
    assert await balance(store) == Balance(spent=CENT)


# -- the store fails --------------------------------------------------------------------------------------------------


@virtual_clock
async def test_while_rows_cannot_be_written_nothing_is_reserved_and_then_it_goes_on_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    key = await with_key(store)
    async with open_books(store) as books:
        reservations = [await books.reserve(key, CENT, patience=1) for _ in range(3)]
        books.settle(reservations[0], attempt("r0", "k1", CENT))
        await books.flush()
        store.fault = StoreUnavailable("The disk is full.", remedy="Free some space.")
        books.settle(reservations[1], attempt("r1", "k1", CENT))
        books.settle(reservations[2], attempt("r2", "k1", CENT))
        await asyncio.sleep(10)
        with pytest.raises(StoreUnavailable, match="disk is full") as caught:
            await books.reserve(key, CENT, patience=1)
        assert caught.value.remedy == "Free some space."
        assert books.pending() == 2
        assert books.failing_since == pytest.approx(1_000, abs=2 * GATHER)
        store.fault = None
        async with asyncio.timeout(1.1):
            await books.flush()
        assert books.failing_since is None
        books.release(await books.reserve(key, CENT, patience=1))
    assert await balance(store) == Balance(spent=3 * CENT)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


@virtual_clock
async def test_a_key_whose_budget_is_raised_goes_on_within_a_second() -> None:
    store = MemoryStore()
    key = await with_key(store, CENT)
    async with open_books(store) as books:
        books.settle(await books.reserve(key, CENT, patience=1), attempt("r1", "k1", CENT))
        assert "have its budget raised" in (await refused(books, key, CENT)).remedy
        assert await store.change_budget("k1", 2 * CENT)
        await asyncio.sleep(1)
        books.release(await books.reserve(key, CENT, patience=1))


@virtual_clock
async def test_a_lease_that_cannot_be_had_fails_those_who_need_it_and_nobody_later() -> None:
    store = MemoryStore()
    key = await with_key(store)
    async with open_books(store) as books:
        store.fault = StoreUnavailable("The disk is full.")
        waiting = [asyncio.create_task(books.reserve(key, CENT, patience=9)) for _ in range(3)]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 3
        store.fault = None
        books.release(await books.reserve(key, CENT, patience=1))


class GivesUp(MemoryStore):
    """The first lease, rows, beat and return are given up by whatever the store itself waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.given_up: set[str] = set()

    def _give_up_once(self, what: str) -> None:
        if what not in self.given_up:
            self.given_up.add(what)
            raise asyncio.CancelledError

    async def write(self, gateway: str, rows: Sequence[AttemptRow]) -> None:
        self._give_up_once("write")
        await super().write(gateway, rows)

    async def beat(self, gateway: str) -> None:
        self._give_up_once("beat")
        await super().beat(gateway)

    async def return_leases(self, gateway: str, *, key: str | None = None) -> None:
        self._give_up_once("return")
        await super().return_leases(gateway, key=key)

    async def extend_lease(self, gateway: str, key: str, least: int, wanted: int) -> Lease:
        self._give_up_once("extend")
        return await super().extend_lease(gateway, key, least, wanted)


@virtual_clock
async def test_a_lease_that_the_store_gave_up_is_asked_for_again() -> None:
    store = GivesUp()
    key = await with_key(store, CENT)
    async with open_books(store) as books:
        books.release(await books.reserve(key, CENT // 2, patience=5))
        assert now() <= 1.1


@virtual_clock
async def test_rows_are_written_and_leases_go_back_though_the_store_gave_up_once() -> None:
    store = GivesUp()
    key = await with_key(store, DOLLAR)
    async with open_books(store) as books:
        books.settle(await books.reserve(key, CENT, patience=5), attempt("r1", "k1", CENT))
        async with asyncio.timeout(5):
            await books.flush()
        assert (await balance(store)).spent == CENT
        await asyncio.sleep(60)
        assert store.given_up == {"extend", "write", "beat", "return"}
        assert (await balance(store)).leased == 0


@virtual_clock
async def test_a_store_that_does_not_answer_in_time_is_unavailable_rather_than_without_money() -> None:
    store = MemoryStore()
    key = await with_key(store)
    async with open_books(store) as books:
        store.gate.clear()
        with pytest.raises(StoreUnavailable, match="did not answer within 3 s"):
            await books.reserve(key, CENT, patience=3)
        store.gate.set()


async def test_a_file_that_another_program_holds_is_waited_for_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rowwriter, "RETRY", 0.02)
    path = tmp_path / "gateway.db"
    store = SqliteStore(path, patience=0.02)
    key = await with_key(store)
    async with Books(store, gateway="g", wall=time.time) as books, asyncio.timeout(60):
        reservations = [await books.reserve(key, CENT, patience=1) for _ in range(4)]
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for number, reservation in enumerate(reservations):
                books.settle(reservation, attempt(f"r{number}", "k1", CENT))
            await until(lambda: books.failing_since is not None)
            with pytest.raises(StoreUnavailable, match="locked"):
                await books.reserve(key, CENT, patience=1)
            other.execute("ROLLBACK")
        await books.flush()
        books.release(await books.reserve(key, CENT, patience=1))
    assert await balance(store) == Balance(spent=4 * CENT)
    await store.aclose()


@virtual_clock
async def test_too_many_rows_that_wait_refuse_new_reservations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowwriter, "MOST_PENDING", 10)
    store = MemoryStore()
    key = await with_key(store, None)
    async with open_books(store) as books:
        store.gate.clear()
        for number in range(10):
            books.settle(await books.reserve(key, 1, patience=1), attempt(f"r{number}", "k1", 1))
        with pytest.raises(StoreUnavailable, match="cannot keep up"):
            await books.reserve(key, 1, patience=1)
        store.gate.set()
        await books.flush()
        books.release(await books.reserve(key, 1, patience=1))


@virtual_clock
async def test_an_error_of_the_store_that_nobody_foresaw_loses_no_row() -> None:
    store = MemoryStore()
    key = await with_key(store, None)
    written, whole = [], store.write

    async def write(gateway: str, rows: Any) -> None:
        written.append(len(rows))
        if len(written) < 3:
            raise KeyError("a slip of the pen")
        await whole(gateway, rows)

    store.write = write  # type: ignore[method-assign]
    async with open_books(store) as books:
        books.settle(await books.reserve(key, 1, patience=1), attempt("r1", "k1", 1))
        await books.flush()
    assert await balance(store) == Balance(spent=1)
    assert written == [1, 1, 1]


# -- leases come and go -----------------------------------------------------------------------------------------------


@virtual_clock
async def test_a_key_that_does_nothing_for_a_while_gives_its_lease_back() -> None:
    store = MemoryStore()
    key = await with_key(store, 100 * DOLLAR)
    async with open_books(store) as books:
        books.settle(await books.reserve(key, CENT, patience=1), attempt("r1", "k1", CENT))
        await asyncio.sleep(29)
        assert await balance(store) == Balance(spent=CENT, leased=DOLLAR - CENT)
        await asyncio.sleep(3)
        assert await balance(store) == Balance(spent=CENT)
        busy = await books.reserve(key, CENT, patience=1)
        await asyncio.sleep(100)
        assert (await balance(store)).leased > 0, "what is reserved stays leased"
        books.release(busy)


@virtual_clock
async def test_who_comes_while_a_lease_goes_back_gets_a_new_one() -> None:
    store = MemoryStore()
    key = await with_key(store)
    went_back, whole = asyncio.Event(), store.return_leases

    async def slowly(gateway: str, *, key: str | None = None) -> None:
        await went_back.wait()
        await whole(gateway, key=key)

    store.return_leases = slowly  # type: ignore[method-assign]
    async with open_books(store) as books:
        books.release(await books.reserve(key, CENT, patience=1))
        await asyncio.sleep(32)  # it is on its way
        waiting = asyncio.create_task(books.reserve(key, CENT, patience=9))
        await asyncio.sleep(1)
        assert not waiting.done()
        went_back.set()
        reservation = await waiting
        assert (await balance(store)).leased >= CENT
        books.settle(reservation, attempt("r1", "k1", CENT))
    assert await balance(store) == Balance(spent=CENT)


@virtual_clock
async def test_money_that_another_gateway_gives_back_is_found_by_who_comes_later() -> None:
    store = MemoryStore()
    key = await with_key(store, 10 * CENT)
    async with open_books(store) as books:
        await store.extend_lease("other", "k1", 10 * CENT, 10 * CENT)
        await refused(books, key, CENT)
        asked = store.extensions
        for _ in range(20):
            await refused(books, key, CENT)
        assert store.extensions == asked, "a key without money does not trouble the store"
        await store.return_leases("other")
        await asyncio.sleep(1)
        books.release(await books.reserve(key, CENT, patience=0.5))


@virtual_clock
async def test_an_attempt_that_costs_more_than_its_reservation_is_written_as_it_is_and_pays_for_itself() -> None:
    store = MemoryStore()
    key = await with_key(store)
    async with open_books(store) as books:
        books.settle(await books.reserve(key, CENT, patience=1), attempt("r1", "k1", 80 * CENT))
        await books.flush()
        assert await balance(store) == Balance(spent=80 * CENT)
        assert (await refused(books, key, 21 * CENT)).affordable <= 20 * CENT
        await asyncio.sleep(35)
        books.release(await books.reserve(key, 20 * CENT, patience=1))


@virtual_clock
async def test_money_that_another_gateway_gives_back_is_found_while_one_waits() -> None:
    store = MemoryStore()
    key = await with_key(store, 10 * CENT)
    async with open_books(store) as books:
        mine = await books.reserve(key, 5 * CENT, patience=1)
        await store.extend_lease("other", "k1", 5 * CENT, 5 * CENT)
        waiting = asyncio.create_task(books.reserve(key, 5 * CENT, patience=60))
        await asyncio.sleep(3)
        assert not waiting.done()
        await store.return_leases("other")
        async with asyncio.timeout(2):
            books.release(await waiting)
        books.release(mine)


# -- the end ----------------------------------------------------------------------------------------------------------


@virtual_clock
async def test_at_the_end_everything_is_written_and_leases_go_back() -> None:
    store = MemoryStore()
    key = await with_key(store)
    async with open_books(store) as books:
        for number in range(30):
            books.settle(await books.reserve(key, CENT, patience=1), attempt(f"r{number}", "k1", CENT))
    assert await balance(store) == Balance(spent=30 * CENT)
    with pytest.raises(StoreUnavailable, match="ending"):
        await books.reserve(key, CENT, patience=1)


@virtual_clock
async def test_the_end_waits_ten_seconds_for_a_store_that_fails_and_leaves_the_lease_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    key = await with_key(store)
    async with open_books(store) as books:
        books.settle(await books.reserve(key, CENT, patience=1), attempt("r1", "k1", CENT))
        store.fault = StoreUnavailable("The disk is full.")
        began = now()
    assert now() - began == pytest.approx(10)
    assert "1 rows ($0.0100) could not be written" in caplog.text
    store.fault = None
    async with open_books(store):
        assert await balance(store) == Balance(held=5 * CENT)


@virtual_clock
async def test_what_is_still_reserved_at_the_end_stays_leased_until_it_is_held() -> None:
    store = MemoryStore()
    key = await with_key(store)
    other = await with_key(store, id="k2")
    async with open_books(store) as books:
        await books.reserve(key, CENT, patience=1)
        books.release(await books.reserve(other, CENT, patience=1))
    assert (await balance(store), await balance(store, "k2")) == (Balance(leased=5 * CENT), Balance())
    async with open_books(store):
        assert await balance(store) == Balance(held=5 * CENT)


@virtual_clock
async def test_those_who_wait_at_the_end_are_told() -> None:
    store = MemoryStore()
    key = await with_key(store, CENT)
    async with open_books(store) as books:
        await books.reserve(key, CENT, patience=1)
        waiting = asyncio.create_task(books.reserve(key, CENT, patience=math.inf))
        await asyncio.sleep(1)
    with pytest.raises(StoreUnavailable, match="ending"):
        await waiting


@virtual_clock
async def test_an_error_inside_the_books_comes_out_as_it_is() -> None:
    store = MemoryStore()
    with pytest.raises(LookupError):
        async with open_books(store):
            raise LookupError


@virtual_clock
async def test_a_cancelled_gateway_still_writes_its_rows() -> None:
    store = MemoryStore()
    key = await with_key(store)

    async def work() -> None:
        async with open_books(store) as books:
            books.settle(await books.reserve(key, CENT, patience=1), attempt("r1", "k1", CENT))
            await asyncio.sleep(1_000)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await balance(store) == Balance(spent=CENT)


@virtual_clock
async def test_a_reservation_has_what_was_asked() -> None:
    store = MemoryStore()
    key = await with_key(store)
    async with open_books(store) as books:
        reservation = await books.reserve(key, CENT, patience=1)
        assert isinstance(reservation, Reservation)
        assert reservation.amount == books.reserved() == CENT
        books.release(reservation)
        assert books.reserved() == 0
