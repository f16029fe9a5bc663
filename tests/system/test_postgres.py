"""The store in PostgreSQL, on a real server: the suite of all stores, several gateways, and a server that goes away."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count

import asyncpg
import pytest

from centuria.errors import BudgetExceeded, ConfigurationError
from centuria.gateway.books import Books
from centuria.gateway.ports import Balance, Store
from centuria.gateway.problems import StoreUnavailable
from centuria.gateway.store import open_store
from tests.gateway.store_suite import CENT, StoreSuite, attempt, balance, with_key
from tests.system.postgres import PostgresServer


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


async def run(server: PostgresServer, sql: str) -> None:
    connection = await asyncpg.connect(server.url)
    await connection.execute(sql)
    await connection.close()


@pytest.fixture
async def store(server: PostgresServer) -> AsyncIterator[Store]:
    """An empty one."""
    await run(server, "DROP SCHEMA IF EXISTS centuria CASCADE")
    store = await open_store(server.url)
    yield store
    await store.aclose()


class TestPostgres(StoreSuite):
    """All of the suite."""


async def test_gateways_that_start_at_once_make_the_tables_once(server: PostgresServer) -> None:
    await run(server, "DROP SCHEMA IF EXISTS centuria CASCADE")
    stores = await asyncio.gather(*[open_store(server.url) for _ in range(6)])
    await with_key(stores[0])
    assert [len(await each.keys()) for each in stores] == [1] * 6
    for each in stores:
        await each.aclose()


async def test_a_newer_schema_is_refused(server: PostgresServer, store: Store) -> None:
    await run(server, "UPDATE centuria.meta SET schema = 2")
    with pytest.raises(ConfigurationError, match="newer Centuria"):
        await open_store(server.url)


async def test_a_user_who_may_not_make_the_tables_is_told_what_to_grant(server: PostgresServer, store: Store) -> None:
    await run(server, "DROP SCHEMA centuria CASCADE; CREATE ROLE poor LOGIN")
    with pytest.raises(ConfigurationError, match="may not make its tables") as caught:
        await open_store(server.url.replace("centuria@", "poor@"))
    assert "GRANT CREATE" in caught.value.remedy


async def test_a_wrong_url_says_how_one_looks(server: PostgresServer) -> None:
    with pytest.raises(ConfigurationError, match="no PostgreSQL URL"):
        await open_store("postgresql://host:port/x")


async def test_the_leases_of_a_gateway_without_a_sign_of_life_are_held_by_another(
    server: PostgresServer, store: Store
) -> None:
    await with_key(store)
    for gateway in ("dead", "alive"):
        await store.start(gateway)
        await store.extend_lease(gateway, "k1", 10 * CENT, 10 * CENT)
    await store.beat("alive")
    assert await balance(store) == Balance(leased=20 * CENT)
    await run(server, "UPDATE centuria.gateways SET beat = now() - interval '61 seconds' WHERE id = 'dead'")
    await store.beat("alive")
    assert await balance(store) == Balance(held=10 * CENT, leased=10 * CENT)
    # It was asleep, no more, and goes on.
    await store.beat("dead")
    await store.write("dead", [attempt("r1", "k1", 4 * CENT)])
    assert await balance(store) == Balance(spent=4 * CENT, held=6 * CENT, leased=10 * CENT)
    await store.return_leases("dead")
    assert await balance(store) == Balance(spent=4 * CENT, leased=10 * CENT)


async def test_two_gateways_never_spend_more_than_the_one_budget(server: PostgresServer, store: Store) -> None:
    key = await with_key(store, 20 * CENT)
    other = await open_store(server.url)
    admitted = 0

    async def ask(books: Books, name: str) -> None:
        nonlocal admitted
        try:
            reservation = await books.reserve(key, CENT, patience=5)
        except BudgetExceeded:
            return
        admitted += 1
        await asyncio.sleep(0)
        books.settle(reservation, attempt(name, "k1", CENT))

    async with Books(store, gateway="a", wall=time.time) as one, Books(other, gateway="b", wall=time.time) as two:
        async with asyncio.TaskGroup() as group:
            for number in range(60):
                group.create_task(ask(one, f"a{number}"))
                group.create_task(ask(two, f"b{number}"))
        await asyncio.gather(one.flush(), two.flush())
        money = await balance(store)
        assert money.spent + money.held + money.leased <= 20 * CENT
    assert await balance(store) == Balance(spent=admitted * CENT)
    assert 15 <= admitted <= 20
    await other.aclose()


async def test_gateways_that_do_everything_at_once_never_wait_for_each_other_for_ever(store: Store) -> None:
    """A deadlock would be an error of one of them."""
    dice = random.Random(1)
    keys = [(await with_key(store, 1_000 * CENT, id=f"k{number}")).id for number in range(4)]
    numbers = count()

    async def work(gateway: str) -> None:
        await store.start(gateway)
        for _ in range(40):
            match dice.randrange(4):
                case 0:
                    await store.extend_lease(gateway, dice.choice(keys), CENT, CENT)
                case 1:
                    some = dice.choices(keys, k=6)
                    await store.write(gateway, [attempt(f"r{next(numbers)}", key, CENT // 10) for key in some])
                case 2:
                    await store.hold_leases(gateway)
                case _:
                    await store.return_leases(gateway, key=dice.choice([*keys, None]))

    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(work(f"g{number}"))
    for number in range(8):
        await store.return_leases(f"g{number}")
    money = [balance for _, balance in await store.keys()]
    assert all((each.held, each.leased) == (0, 0) for each in money)
    assert sum(each.spent for each in money) == next(numbers) * CENT // 10


async def test_a_server_that_crashes_loses_nothing_and_the_gateway_goes_on_by_itself(
    server: PostgresServer, store: Store
) -> None:
    key = await with_key(store)
    async with Books(store, gateway="g", wall=time.time) as books:
        first = await books.reserve(key, CENT, patience=5)
        second = await books.reserve(key, CENT, patience=5)
        books.settle(first, attempt("r1", "k1", CENT))
        await books.flush()
        await asyncio.to_thread(server.stop)
        try:
            books.settle(second, attempt("r2", "k1", CENT))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await books.flush()
            with pytest.raises(StoreUnavailable, match="PostgreSQL"):
                await books.reserve(key, CENT, patience=5)
            assert books.failing_since is not None
            assert books.pending() == 1
        finally:
            await asyncio.to_thread(server.start)
        async with asyncio.timeout(30):
            await books.flush()
        books.release(await books.reserve(key, CENT, patience=5))
    assert await balance(store) == Balance(spent=2 * CENT)
