"""Metrics in Prometheus' text format: exact, cumulative, and safe whatever models are called."""

from __future__ import annotations

import re

from centuria.gateway.metrics import Tally
from centuria.gateway.ports import AttemptRow
from centuria.messages import DOLLAR
from centuria.testing import FakeUpstream
from centuria.testing.replies import Text
from tests.gateway.served import one, serving, usage

LINE = re.compile(r'[a-z_]+(\{[a-z]+="(\\.|[^"\\\n])*"(,[a-z]+="(\\.|[^"\\\n])*")*\})? -?[0-9.e+-]+')


def row(number: int, **more: object) -> AttemptRow:
    fields = {
        "request": f"r{number}", "attempt": 1, "at": 0.0, "key": "k", "model": "m", "deployment": "d/m",
        "route": "chat", "end": "done", "prompt": 1_234_567, "output": 3, "cost": DOLLAR // 8,
    }  # fmt: skip
    return AttemptRow(**{**fields, **more})  # type: ignore[arg-type]


def values(text: str) -> dict[str, float]:
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


def test_counters_are_exact_however_large_and_buckets_add_up() -> None:
    tally = Tally()
    for number in range(9):
        tally.record(row(number, total_ms=100.0 * number, first_token_ms=None if number else 40.0))
    found = values("".join(tally.lines([])))
    assert found['centuria_tokens_total{model="m",kind="prompt"}'] == 9 * 1_234_567
    assert found['centuria_dollars_total{model="m",kind="cost"}'] == 9 / 8
    assert found['centuria_attempts_total{model="m",end="done"}'] == 9
    assert found['centuria_attempt_seconds_bucket{le="0.25"}'] == 3
    assert found['centuria_attempt_seconds_bucket{le="+Inf"}'] == found["centuria_attempt_seconds_count"] == 9
    assert found["centuria_first_token_seconds_count"] == 1


def test_a_models_name_breaks_out_of_no_label() -> None:
    tally = Tally()
    tally.record(row(1, model='m"} 1\nfake_metric{x="\\'))
    lines = [line for line in "".join(tally.lines([("gauge", {"x": 'a"\n'}, 1.5)])).splitlines() if line[0] != "#"]
    assert all(LINE.fullmatch(line) for line in lines)
    assert not any(line.startswith("fake_metric") for line in lines)


async def test_the_page_of_metrics_is_for_admins_and_tells_what_is_under_way() -> None:
    async with FakeUpstream(lambda body: Text("Hi.", usage=usage())) as upstream, serving(one(upstream)) as served:
        admin = await served.add_key("a", admin=True)
        assert (await served.ask(admin)).status == 200
        await served.until_quiet()
        got = await served.get("/metrics", admin)
        assert got.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = values(got.body.decode())
        assert found["centuria_in_flight"] == found["centuria_reserved_dollars"] == found["centuria_rows_pending"] == 0
        assert found['centuria_attempts_total{model="kimi",end="done"}'] == 1
        assert found['centuria_upstream_limit{deployment="fake/kimi-k2.5"}'] == 200
