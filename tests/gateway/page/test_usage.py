"""What keys used: each sees its own, an admin sees all, and nobody sees a secret."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from centuria.gateway.ports import AttemptRow
from centuria.messages import DOLLAR
from tests.gateway.page.asking import ADMIN, ADMIN_TOKEN, ALICE, ALICE_TOKEN, Gateway


def at(day: int, hour: int = 12) -> float:
    return datetime(2026, 11, day, hour, tzinfo=UTC).timestamp()


def row(number: int, key: str, day: int, cents: int, *, hour: int = 12, model: str = "kimi-k2.5") -> AttemptRow:
    return AttemptRow(
        request=f"req-{number}",
        attempt=1,
        at=at(day, hour),
        key=key,
        model=model,
        deployment="fake/kimi",
        route="chat",
        end="done",
        prompt=1_000,
        cached=200,
        output=100,
        cost=cents * DOLLAR // 100,
    )


async def gateway() -> Gateway:
    one = await Gateway().begin()
    await one.store.start("gw")
    await one.store.extend_lease("gw", ALICE.id, 0, 3 * DOLLAR)
    rows = [
        row(1, ALICE.id, 10, 50),
        row(2, ALICE.id, 10, 25, hour=23),
        row(3, ALICE.id, 11, 100, hour=0, model="gpt-4.1"),
        row(4, ADMIN.id, 10, 300),
    ]
    await one.store.write("gw", rows)
    return one


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_a_key_sees_its_own_usage_and_what_it_has_left() -> None:
    told = (await (await gateway()).ask("GET", "/v1/usage", **bearer(ALICE_TOKEN))).json
    assert {line["key_id"] for line in told["data"]} == {ALICE.id}
    assert sum(line["cost_usd"] for line in told["data"]) == pytest.approx(1.75)
    first = told["data"][0]
    assert (first["day"], first["model"], first["requests"], first["key"]) == ("2026-11-10", "kimi-k2.5", 2, "alice")
    assert (first["prompt_tokens"], first["cached_tokens"], first["output_tokens"]) == (2_000, 400, 200)
    assert told["all_keys"] is False
    assert told["balance"] == {
        "budget_usd": 20,
        "spent_usd": 1.75,
        "held_usd": 0,
        "leased_usd": 1.25,
        "left_usd": 17.0,
    }


async def test_what_is_held_for_leases_of_an_ended_gateway_is_told_apart_whatever_the_days() -> None:
    one = await gateway()
    await one.store.hold_leases("gw")
    for query, token in (("", ALICE_TOKEN), ("?since=2026-11-12", ALICE_TOKEN), ("", ADMIN_TOKEN)):
        told = (await one.ask("GET", f"/v1/usage{query}", **bearer(token))).json
        assert told["held_leases"] == [{"key_id": ALICE.id, "key": "alice", "held_usd": 1.25}]
    told = (await one.ask("GET", f"/v1/usage?key={ADMIN.id}", **bearer(ADMIN_TOKEN))).json
    assert told["held_leases"] == []


async def test_a_key_cannot_ask_for_the_usage_of_another_one() -> None:
    told = (await (await gateway()).ask("GET", f"/v1/usage?key={ADMIN.id}", **bearer(ALICE_TOKEN))).json
    assert {line["key_id"] for line in told["data"]} == {ALICE.id}


async def test_an_admin_sees_all_keys_or_the_one_that_is_asked_for() -> None:
    one = await gateway()
    told = (await one.ask("GET", "/v1/usage", **bearer(ADMIN_TOKEN))).json
    assert {line["key"] for line in told["data"]} == {"alice", "operator"}
    assert told["all_keys"] is True
    told = (await one.ask("GET", f"/v1/usage?key={ALICE.id}", **bearer(ADMIN_TOKEN))).json
    assert {line["key_id"] for line in told["data"]} == {ALICE.id}


@pytest.mark.parametrize(
    ("query", "cents"),
    [
        ("since=2026-11-11", 100),
        ("until=2026-11-10", 75),
        ("since=2026-11-10&until=2026-11-10", 75),
        ("since=2026-11-12", 0),
        (f"since={at(10, 13)}", 125),
        (f"since={at(10)}&until={at(10, 23)}", 50),
    ],
)
async def test_days_are_counted_whole_and_moments_to_the_second(query: str, cents: int) -> None:
    told = (await (await gateway()).ask("GET", f"/v1/usage?{query}", **bearer(ALICE_TOKEN))).json
    assert round(100 * sum(line["cost_usd"] for line in told["data"])) == cents


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("since=yesterday", "since"),
        ("since=2026-13-01", "since"),
        ("until=9999-12-31", "until"),
        ("until=nan", "until"),
        ("since=20261101", None),
        ("until=2026-11-10T00:00", "until"),
        ("since=2026-11-12&until=2026-11-10", "until"),
    ],
)
async def test_what_is_no_day_is_refused_and_named(query: str, param: str | None) -> None:
    answer = await (await gateway()).ask("GET", f"/v1/usage?{query}", **bearer(ALICE_TOKEN))
    if param is None:
        assert answer.status == 200
    else:
        assert (answer.status, answer.json["error"]["param"]) == (400, param)


async def test_keys_are_for_admins_and_tell_balances_but_no_secret() -> None:
    one = await gateway()
    refused = await one.ask("GET", "/v1/keys", **bearer(ALICE_TOKEN))
    assert refused.status == 403
    answer = await one.ask("GET", "/v1/keys", **bearer(ADMIN_TOKEN))
    admin, alice = sorted(answer.json["data"], key=lambda key: key["name"] == "alice")
    assert (alice["name"], alice["budget_usd"], alice["spent_usd"], alice["models"]) == (
        "alice",
        20,
        1.75,
        ["kimi-k2.5"],
    )
    assert (admin["admin"], admin["budget_usd"], admin["left_usd"], admin["spent_usd"]) == (True, None, None, 3)
    for secret in (ALICE_TOKEN, ADMIN_TOKEN, "digest", "token"):
        assert secret.encode() not in answer.body


async def test_without_a_key_there_is_neither() -> None:
    one = await gateway()
    assert (await one.ask("GET", "/v1/usage")).status == 401
    assert (await one.ask("GET", "/v1/keys")).status == 401
