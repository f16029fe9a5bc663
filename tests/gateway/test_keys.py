"""Who asks: tokens, headers, and what is remembered of them."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from centuria.gateway.keys import LOCAL, KeyRing, digest_of, new_key_id, new_token, token_of
from centuria.gateway.ports import Key
from centuria.gateway.problems import Problem, StoreUnavailable
from centuria.gateway.web import Request
from centuria.testing.gateway import MemoryStore

TOKEN = "ck-" + "a1B2" * 10
ADA = Key("key-1", "ada", budget=5)


class Wall:
    """Seconds since 1970, as the test says."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def asking(**headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request("POST", "/v1/chat/completions", named, b"", "127.0.0.1", "req-1")


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
async def store() -> MemoryStore:
    store = MemoryStore()
    await store.add_key(ADA, digest_of(TOKEN))
    return store


@pytest.fixture
async def ring(store: MemoryStore, wall: Wall) -> KeyRing:
    return KeyRing(store, wall=wall, open_on_loopback=False)


async def refused(ring: KeyRing, request: Request) -> Problem:
    with pytest.raises(Problem) as caught:
        await ring.identify(request)
    assert caught.value.status == 401
    return caught.value


def test_a_token_is_random_and_long_and_of_letters_and_digits() -> None:
    tokens = {new_token() for _ in range(200)}
    assert len(tokens) == 200
    assert all(re.fullmatch(r"ck-[0-9a-zA-Z]{40}", token) for token in tokens)
    assert len({mark for token in tokens for mark in token[3:]}) == 62
    assert new_key_id() != new_key_id()


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {TOKEN}"},
        {"authorization": f"bEARER   {TOKEN} "},
        {"x_api_key": TOKEN},
    ],
)
async def test_a_key_is_known_by_its_bearer_token_or_x_api_key(ring: KeyRing, headers: dict[str, str]) -> None:
    assert await ring.identify(asking(**headers)) == ADA


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Bearer {TOKEN}\r\nx-admin: 1"},
        {"authorization": f"Bearer {TOKEN}\0"},
        {"authorization": f"Bearer {TOKEN}, Bearer {TOKEN}"},
        {"authorization": f"Bearer {'x' * 513}"},
        {"authorization": "Bearer \ud800é"},
        {"authorization": f"Basic {TOKEN}", "x_api_key": TOKEN},
        {"x_api_key": ""},
        {"x_api_key": f"{TOKEN}\n"},
    ],
)
async def test_any_other_header_is_one_and_the_same_401(ring: KeyRing, headers: dict[str, str]) -> None:
    problem = await refused(ring, asking(**headers))
    assert problem.body() == (await refused(ring, asking(x_api_key="wrong"))).body()
    assert TOKEN[5:] not in str(problem)


@given(st.text())
def test_no_header_is_an_accident(value: str) -> None:
    for headers in ({"authorization": value}, {"authorization": f"Bearer {value}"}, {"x-api-key": value}):
        token = token_of(headers)
        assert len(token) <= 512
        assert not set(token) & set("\r\n\0")
        digest_of(token)


async def test_the_store_is_asked_once_in_thirty_seconds_for_keys_and_for_guesses(
    ring: KeyRing, store: MemoryStore, wall: Wall
) -> None:
    for _ in range(3):
        await ring.identify(asking(x_api_key=TOKEN))
        await refused(ring, asking(x_api_key="guess"))
        wall.now += 9.9
    assert store.lookups == 2
    wall.now += 0.4
    await ring.identify(asking(x_api_key=TOKEN))
    await refused(ring, asking(x_api_key="guess"))
    assert store.lookups == 4


async def test_a_revoked_key_works_thirty_seconds_more_at_most(ring: KeyRing, store: MemoryStore, wall: Wall) -> None:
    assert await ring.identify(asking(x_api_key=TOKEN)) == ADA
    await store.revoke_key(ADA.id, wall.now)
    wall.now += 30
    await refused(ring, asking(x_api_key=TOKEN))


async def test_a_clock_that_is_set_back_does_not_keep_a_revoked_key(
    ring: KeyRing, store: MemoryStore, wall: Wall
) -> None:
    await ring.identify(asking(x_api_key=TOKEN))
    await store.revoke_key(ADA.id, wall.now)
    wall.now -= 1_000
    await refused(ring, asking(x_api_key=TOKEN))


async def test_what_is_forgotten_is_asked_again(ring: KeyRing, store: MemoryStore, wall: Wall) -> None:
    await ring.identify(asking(x_api_key=TOKEN))
    await store.revoke_key(ADA.id, wall.now)
    ring.forget()
    await refused(ring, asking(x_api_key=TOKEN))


async def test_a_hundred_requests_with_a_new_token_ask_the_store_once(ring: KeyRing, store: MemoryStore) -> None:
    store.gate.clear()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ring.identify(asking(x_api_key=TOKEN))) for _ in range(100)]
        await asyncio.sleep(0)
        store.gate.set()
    assert {task.result() for task in tasks} == {ADA}
    assert store.lookups == 1


async def test_guesses_push_no_key_out_and_are_not_all_remembered(ring: KeyRing, store: MemoryStore) -> None:
    await ring.identify(asking(x_api_key=TOKEN))
    for number in range(3_000):
        await refused(ring, asking(x_api_key=f"guess {number}"))
    assert store.lookups == 3_001
    await ring.identify(asking(x_api_key=TOKEN))
    await refused(ring, asking(x_api_key="guess 2999"))
    assert store.lookups == 3_001
    await refused(ring, asking(x_api_key="guess 0"))
    assert store.lookups == 3_002


async def test_a_missing_token_is_looked_up_like_any_other(ring: KeyRing, store: MemoryStore) -> None:
    await refused(ring, asking())
    assert store.lookups == 1


async def test_a_store_that_fails_is_no_401_and_is_asked_again(ring: KeyRing, store: MemoryStore) -> None:
    store.fault = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        await ring.identify(asking(x_api_key=TOKEN))
    store.fault = None
    assert await ring.identify(asking(x_api_key=TOKEN)) == ADA


async def test_without_any_key_loopback_is_open_and_the_first_key_closes_it(wall: Wall) -> None:
    store = MemoryStore()
    ring = KeyRing(store, wall=wall, open_on_loopback=True)
    assert await ring.identify(asking()) == LOCAL
    assert await ring.identify(asking(authorization="Bearer whatever-a-client-must-send")) == LOCAL
    assert LOCAL.admin
    assert LOCAL.budget is None
    await store.add_key(ADA, digest_of(TOKEN))
    wall.now += 30
    await refused(ring, asking())
    assert await ring.identify(asking(x_api_key=TOKEN)) == ADA
    await store.revoke_key(ADA.id, wall.now)
    wall.now += 60
    await refused(ring, asking())


async def test_where_keys_are_asked_for_an_empty_store_opens_nothing(wall: Wall) -> None:
    await refused(KeyRing(MemoryStore(), wall=wall, open_on_loopback=False), asking())


async def test_no_token_is_in_any_log(ring: KeyRing, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await ring.identify(asking(x_api_key=TOKEN))
    await refused(ring, asking(x_api_key=TOKEN + "canary"))
    assert TOKEN[5:] not in caplog.text
