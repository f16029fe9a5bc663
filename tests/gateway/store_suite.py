"""What every store does, whichever it is: `test_store` runs it on memory and SQLite, the system tests on PostgreSQL."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace

import pytest

from centuria.errors import ConfigurationError
from centuria.gateway.keys import digest_of
from centuria.gateway.ports import AttemptRow, Balance, Document, Key, Lease, Store
from centuria.gateway.problems import Problem
from centuria.messages import DOLLAR, Pico

CENT = DOLLAR // 100
FULL = Key(
    "k-full",
    "full",
    budget=5 * DOLLAR,
    rpm=60,
    tpm=100_000,
    models=frozenset({"a", "b"}),
    tools=frozenset(),
    admin=True,
    created=12.5,
)


def attempt(request: str, key: str, cost: Pico = 0, *, number: int = 1, held: Pico = 0, at: float = 0.0) -> AttemptRow:
    return AttemptRow(request, number, at, key, "kimi", "moonshot/kimi", "chat", "done", cost=cost, held=held)


async def with_key(store: Store, budget: Pico | None = DOLLAR, *, id: str = "k1") -> Key:
    key = Key(id, f"name of {id}", budget=budget)
    await store.add_key(key, digest_of(id))
    return key


async def balance(store: Store, id: str = "k1") -> Balance:
    return next(money for key, money in await store.keys() if key.id == id)


class StoreSuite:
    # -- keys ---------------------------------------------------------------------------------------------------------

    async def test_a_key_is_found_by_its_digest_as_it_was_added(self, store: Store) -> None:
        await store.add_key(FULL, digest_of("token"))
        assert await store.find_key(digest_of("token")) == FULL
        assert await store.find_key(digest_of("another")) is None
        assert await store.keys() == [(FULL, Balance())]

    async def test_a_key_without_limits_has_none_when_it_is_read(self, store: Store) -> None:
        key = Key("k", "plain")
        await store.add_key(key, digest_of("token"))
        assert await store.find_key(digest_of("token")) == key

    async def test_a_name_is_taken_until_its_key_is_revoked(self, store: Store) -> None:
        await store.add_key(Key("k1", "ada"), digest_of("1"))
        with pytest.raises(ConfigurationError, match="'ada'") as caught:
            await store.add_key(Key("k2", "ada"), digest_of("2"))
        assert "keys revoke ada" in caught.value.remedy
        assert await store.find_key(digest_of("2")) is None
        assert await store.revoke_key("k1", 7.0)
        await store.add_key(Key("k2", "ada"), digest_of("2"))
        assert [(key.id, key.revoked) for key, _ in await store.keys()] == [("k1", 7.0), ("k2", None)]

    async def test_a_budget_that_is_raised_can_be_leased_and_one_that_is_lowered_cannot(self, store: Store) -> None:
        await with_key(store, CENT)
        assert (await store.extend_lease("g", "k1", CENT, CENT)).granted == CENT
        assert (await store.extend_lease("g", "k1", CENT, CENT)).granted == 0
        assert await store.change_budget("k1", 3 * CENT)
        assert (await store.extend_lease("g", "k1", CENT, CENT)).granted == 2 * CENT
        assert await store.change_budget("k1", CENT)
        assert await store.extend_lease("g", "k1", 1, 1) == Lease(0, 0)
        assert [key.budget for key, _ in await store.keys()] == [CENT]

    async def test_only_a_key_that_works_and_has_a_budget_gets_another(self, store: Store) -> None:
        await with_key(store, None)
        assert not await store.change_budget("k1", CENT)
        assert not await store.change_budget("nobody", CENT)
        await with_key(store, CENT, id="k2")
        await store.revoke_key("k2", 7.0)
        assert not await store.change_budget("k2", 2 * CENT)

    async def test_a_key_is_revoked_once_and_stays_found(self, store: Store) -> None:
        await with_key(store)
        assert await store.revoke_key("k1", 7.0)
        assert not await store.revoke_key("k1", 8.0)
        assert not await store.revoke_key("nobody", 8.0)
        found = await store.find_key(digest_of("k1"))
        assert found is not None
        assert found.revoked == 7.0

    # -- leases -------------------------------------------------------------------------------------------------------

    async def test_a_lease_is_what_is_wanted_or_five_cents_or_a_hundredth_of_what_is_left(self, store: Store) -> None:
        await with_key(store, 100 * DOLLAR)
        assert await store.extend_lease("g", "k1", CENT, CENT) == Lease(DOLLAR, 99 * DOLLAR)
        assert await store.extend_lease("g", "k1", CENT, 49 * DOLLAR) == Lease(49 * DOLLAR, 50 * DOLLAR)
        assert await store.extend_lease("g", "k1", 48 * DOLLAR, 49 * DOLLAR) == Lease(49 * DOLLAR, DOLLAR)
        assert await store.extend_lease("g", "k1", CENT, CENT) == Lease(5 * CENT, 95 * CENT)
        assert await balance(store) == Balance(leased=DOLLAR + 98 * DOLLAR + 5 * CENT)

    async def test_of_a_small_rest_all_is_leased_if_it_is_enough_and_nothing_if_not(self, store: Store) -> None:
        await with_key(store, 3 * CENT)
        assert await store.extend_lease("g", "k1", 4 * CENT, 4 * CENT) == Lease(0, 3 * CENT)
        assert await store.extend_lease("g", "k1", 2 * CENT, 4 * CENT) == Lease(3 * CENT, 0)
        assert await store.extend_lease("g", "k1", 1, 1) == Lease(0, 0)

    async def test_there_is_no_lease_without_a_budget_or_a_key(self, store: Store) -> None:
        await with_key(store, None)
        assert await store.extend_lease("g", "k1", 1, 1) == Lease(0, 0)
        assert await store.extend_lease("g", "nobody", 1, 1) == Lease(0, 0)

    async def test_gateways_that_lease_at_once_never_get_more_than_there_is(self, store: Store) -> None:
        await with_key(store, 12 * CENT)
        leases = await asyncio.gather(*[store.extend_lease(f"g{n}", "k1", CENT, CENT) for n in range(8)])
        assert sorted(lease.granted for lease in leases) == [0] * 5 + [2 * CENT, 5 * CENT, 5 * CENT]
        assert await balance(store) == Balance(leased=12 * CENT)

    async def test_what_is_written_is_taken_from_the_lease(self, store: Store) -> None:
        await with_key(store)
        await store.extend_lease("g", "k1", 50 * CENT, 50 * CENT)
        await store.write("g", [attempt("r1", "k1", 7 * CENT), attempt("r2", "k1", 1 * CENT, held=2 * CENT)])
        assert await balance(store) == Balance(spent=8 * CENT, held=2 * CENT, leased=40 * CENT)

    async def test_a_row_that_costs_more_than_the_lease_empties_it_and_is_kept_as_it_is(self, store: Store) -> None:
        await with_key(store)
        await store.extend_lease("g", "k1", 5 * CENT, 5 * CENT)
        await store.write("g", [attempt("r1", "k1", 7 * CENT)])
        assert await balance(store) == Balance(spent=7 * CENT)
        assert await store.extend_lease("g", "k1", 94 * CENT, 94 * CENT) == Lease(0, 93 * CENT)

    async def test_rows_that_are_written_at_once_never_take_more_than_the_lease(self, store: Store) -> None:
        await with_key(store)
        await store.extend_lease("g", "k1", 5 * CENT, 5 * CENT)
        await asyncio.gather(*[store.write("g", [attempt(f"r{number}", "k1", CENT)]) for number in range(8)])
        assert await balance(store) == Balance(spent=8 * CENT)

    async def test_a_gateway_does_not_pay_with_the_lease_of_another(self, store: Store) -> None:
        await with_key(store)
        await store.extend_lease("g1", "k1", 10 * CENT, 10 * CENT)
        await store.extend_lease("g2", "k1", 20 * CENT, 20 * CENT)
        await store.write("g1", [attempt("r1", "k1", 4 * CENT)])
        await store.return_leases("g1")
        assert await balance(store) == Balance(spent=4 * CENT, leased=20 * CENT)

    async def test_a_row_that_is_there_changes_nothing(self, store: Store) -> None:
        await with_key(store)
        await store.extend_lease("g", "k1", 50 * CENT, 50 * CENT)
        first = attempt("r1", "k1", 7 * CENT)
        await store.write("g", [first, attempt("r1", "k1", 9 * CENT), attempt("r1", "k1", CENT, number=2)])
        await store.write("g", [attempt("r1", "k1", 30 * CENT)])
        assert await balance(store) == Balance(spent=8 * CENT, leased=42 * CENT)
        assert [row.cost for row in await store.attempts("r1")] == [7 * CENT, CENT]

    async def test_leases_go_back_of_one_key_or_of_all(self, store: Store) -> None:
        await with_key(store)
        await with_key(store, id="k2")
        await store.extend_lease("g", "k1", 50 * CENT, 50 * CENT)
        await store.extend_lease("g", "k2", 50 * CENT, 50 * CENT)
        await store.return_leases("g", key="k1")
        assert (await balance(store), await balance(store, "k2")) == (Balance(), Balance(leased=50 * CENT))
        await store.return_leases("g")
        assert await balance(store, "k2") == Balance()

    async def test_the_lease_of_a_gateway_that_ended_without_a_word_is_held(self, store: Store) -> None:
        await with_key(store)
        await store.extend_lease("g", "k1", 50 * CENT, 50 * CENT)
        await store.write("g", [attempt("r1", "k1", 7 * CENT)])
        await store.hold_leases("g")
        assert await balance(store) == Balance(spent=7 * CENT, held=43 * CENT)
        await store.hold_leases("g")
        assert await balance(store) == Balance(spent=7 * CENT, held=43 * CENT)

    async def test_a_gateway_that_was_not_dead_after_all_pays_with_what_was_held_for_it(self, store: Store) -> None:
        await with_key(store)
        await store.start("g")
        await store.extend_lease("g", "k1", 50 * CENT, 50 * CENT)
        await store.hold_leases("g")
        await store.write("g", [attempt("r1", "k1", 7 * CENT, held=3 * CENT)])
        assert await balance(store) == Balance(spent=7 * CENT, held=43 * CENT)
        await store.return_leases("g")
        assert await balance(store) == Balance(spent=7 * CENT, held=3 * CENT)

    @pytest.mark.parametrize("seed", range(4))
    async def test_whatever_gateways_do_a_budget_holds_as_long_as_each_spends_what_it_leased(
        self, store: Store, seed: int
    ) -> None:
        dice = random.Random(seed)
        budget = 40 * CENT
        await with_key(store, budget)
        #: What each gateway believes to have, also when it was taken for dead.
        purses = {"g1": 0, "g2": 0, "g3": 0}
        paid = 0
        for number in range(150):
            gateway = dice.choice(list(purses))
            match dice.randrange(8):
                case 0 | 1:
                    least = dice.randint(1, 8 * CENT)
                    purses[gateway] += (await store.extend_lease(gateway, "k1", least, least * 2)).granted
                case 2:
                    await store.hold_leases(gateway)
                case 3:
                    await store.return_leases(gateway)
                    purses[gateway] = 0
                case _:
                    cost = dice.randint(0, min(purses[gateway], CENT))
                    held = dice.randint(0, min(purses[gateway] - cost, CENT // 10))
                    await store.write(gateway, [attempt(f"r{number}", "k1", cost, held=held)])
                    purses[gateway] -= cost + held
                    paid += cost + held
            money = await balance(store)
            assert min(money.spent, money.held, money.leased) >= 0
            assert money.spent + money.held + money.leased == paid + sum(purses.values()) <= budget

    # -- attempts -----------------------------------------------------------------------------------------------------

    async def test_a_row_is_read_as_it_was_written(self, store: Store) -> None:
        row = AttemptRow(
            "r1", 2, 1.5, "k1", "kimi", "moonshot/kimi", "swarm", "client_closed",
            agent="a/1", status=200, streamed=True, prompt=1, cached=2, cache_written=3, output=4, reasoning=5,
            cost=6, held=7, queued_ms=8.5, first_token_ms=9.5, total_ms=10.5, error="cut",
        )  # fmt: skip
        plain = attempt("r1", "k1")
        await store.write("g", [row, plain])
        assert await store.attempts("r1") == [plain, row]
        assert await store.attempts("r1", key="k1") == [plain, row]
        assert await store.attempts("r1", key="k2") == []
        assert await store.attempts("r2") == []
        assert await store.attempts("r\0") == []

    async def test_nothing_that_an_upstream_says_keeps_rows_out(self, store: Store) -> None:
        odd = attempt("r1", "k1", 10**30, held=-5)._replace(
            agent="nul \0, half \ud800",
            error="x" * 10_000,
            prompt=10**40,
            output=-1,
            first_token_ms=math.nan,
            total_ms=math.inf,
        )
        await with_key(store, None)
        await store.write("g", [odd, attempt("r2", "k1", 5)])
        [kept] = await store.attempts("r1")
        assert (kept.agent, len(kept.error)) == ("nul \ufffd, half \ufffd", 500)
        assert (kept.prompt, kept.output, kept.held) == (10**12, 0, 0)
        assert (kept.first_token_ms, kept.total_ms) == (0.0, 0.0)
        assert (await balance(store)).spent == kept.cost + 5 == 10**16 + 5

    async def test_many_rows_are_one_write(self, store: Store) -> None:
        await with_key(store)
        await with_key(store, id="k2")
        rows = [attempt(f"r{n}", f"k{1 + n % 2}", 1 + n % 2) for n in range(333)]
        await store.write("g", rows)
        await store.write("g", [*rows[100:], attempt("new", "k1", 1000)])
        await store.write("g", [])
        assert (await balance(store)).spent == 167 + 1000
        assert (await balance(store, "k2")).spent == 166 * 2

    async def test_usage_is_added_up_by_key_model_and_day(self, store: Store) -> None:
        day = 86_400.0
        await store.write(
            "g",
            [
                attempt("r1", "k1", 5, at=10.0)._replace(prompt=1, cached=1, output=2),
                attempt("r1", "k1", 5, number=2, at=11.0)._replace(prompt=2, output=3, held=9),
                attempt("r2", "k1", 5, at=day - 0.001),
                attempt("r3", "k1", 7, at=day),
                attempt("r4", "k1", 1, at=day)._replace(model="other"),
                attempt("r5", "k2", 2, at=day * 20_000),
            ],
        )
        lines = await store.usage()
        assert [(line.key, line.model, line.day, line.requests, line.attempts, line.cost) for line in lines] == [
            ("k1", "kimi", "1970-01-01", 2, 3, 15),
            ("k1", "kimi", "1970-01-02", 1, 1, 7),
            ("k1", "other", "1970-01-02", 1, 1, 1),
            ("k2", "kimi", "2024-10-04", 1, 1, 2),
        ]
        first = lines[0]
        assert (first.prompt, first.cached, first.output, first.held) == (3, 1, 5, 9)
        assert [line.cost for line in await store.usage(key="k2")] == [2]
        assert [line.cost for line in await store.usage(since=day, until=day * 2)] == [7, 1]
        assert await store.usage(key="k3") == []

    # -- documents ----------------------------------------------------------------------------------------------------

    async def test_a_document_is_its_owners_alone(self, store: Store) -> None:
        mine = Document("d", '{"a": 1}', 5.0)
        await store.put("swarm", "ada", mine)
        assert await store.get("swarm", "ada", "d") == mine
        assert await store.get("swarm", "bob", "d") is None
        assert await store.get("swarm", None, "d") == mine
        assert await store.get("swarm", None, "e") is None
        assert await store.get("tool", None, "d") is None
        assert await store.get("tool", "ada", "d") is None
        assert await store.find("swarm", "bob") == []
        assert not await store.delete("swarm", "bob", "d")
        assert await store.find("swarm", None) == [("ada", mine)]
        assert await store.delete("swarm", "ada", "d")
        assert not await store.delete("swarm", "ada", "d")
        assert await store.get("swarm", "ada", "d") is None

    async def test_an_insert_never_overwrites_and_a_put_does(self, store: Store) -> None:
        assert await store.insert("answer", "ada", Document("d", "1", 1.0))
        assert not await store.insert("answer", "ada", Document("d", "2", 2.0))
        assert await store.get("answer", "ada", "d") == Document("d", "1", 1.0)
        assert await store.insert("answer", "bob", Document("d", "3", 1.0))
        await store.put("answer", "ada", Document("d", "4", 4.0))
        assert await store.get("answer", "ada", "d") == Document("d", "4", 4.0)

    async def test_one_of_many_inserts_at_once_succeeds(self, store: Store) -> None:
        done = await asyncio.gather(*[store.insert("a", "ada", Document("d", f"{n}", 1.0)) for n in range(8)])
        assert sorted(done) == [False] * 7 + [True]

    async def test_documents_come_newest_first_and_not_too_many(self, store: Store) -> None:
        for number, at in enumerate([3.0, 1.0, 2.0, 3.0]):
            await store.put("swarm", "ada", Document(f"d{number}", "{}", at))
        assert [document.id for _, document in await store.find("swarm", "ada")] == ["d3", "d0", "d2", "d1"]
        assert [document.id for _, document in await store.find("swarm", None, limit=2)] == ["d3", "d0"]

    async def test_a_document_that_is_too_large_or_has_no_possible_name_is_refused(self, store: Store) -> None:
        largest = Document("d", '"' + "é" * (2**19 - 1) + '"', 0.0)
        await store.put("swarm", "ada", largest)
        assert await store.get("swarm", "ada", "d") == largest
        with pytest.raises(Problem) as caught:
            await store.put("swarm", "ada", replace(largest, body=largest.body + " "))
        assert caught.value.status == 413
        for id in ("a\0b", "\ud800", "x" * 501):
            with pytest.raises(Problem) as caught:
                await store.insert("swarm", "ada", Document(id, "{}", 0.0))
            assert caught.value.status == 400
            assert await store.get("swarm", "ada", id) is None
            assert not await store.delete("swarm", "ada", id)

    async def test_values_are_values_whatever_they_look_like(self, store: Store) -> None:
        sly = "'; DROP TABLE keys; --"
        await store.add_key(Key(sly, sly), digest_of(sly))
        await store.put(sly, sly, Document(sly, '"%s $1 ?"', 0.0))
        await store.write("g", [attempt(sly, sly)._replace(error=sly)])
        assert [key.name for key, _ in await store.keys()] == [sly]
        assert await store.find(sly, sly) == [(sly, Document(sly, '"%s $1 ?"', 0.0))]
        assert [row.error for row in await store.attempts(sly, key=sly)] == [sly]
