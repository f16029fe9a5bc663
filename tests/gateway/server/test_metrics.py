"""Metrics in Prometheus' text format: exact, cumulative, and safe whatever models are called."""

from __future__ import annotations

import re
from pathlib import Path

from centuria.gateway.metrics import Tally
from centuria.gateway.ports import AttemptRow
from centuria.messages import DOLLAR
from centuria.settings import ToolServer
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


async def test_calls_of_the_operators_tools_are_told_by_server_and_tool_and_those_of_keys_are_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("Hello.")
    files = ToolServer("files", "files", builtin="file_read", options={"roots": [str(tmp_path)]}, required=True)
    async with FakeUpstream() as upstream, serving(one(upstream, servers=(files,))) as served:
        admin = await served.add_key("a", admin=True)
        entry = {"name": "mine", "tool": "files__file_read", "limit": 1}
        url = f"{served.url}/v1/mcp/tools"
        async with served.session.post(url, json=entry, headers=admin) as got:
            assert got.status in (200, 201), await got.text()
        asked = {"path": "a.txt"}
        async with served.session.post(f"{url}/mine/invoke", json=asked, headers=admin) as got:
            assert got.status == 200, await got.text()
        found = values((await served.get("/metrics", admin)).body.decode())
    told = {name: value for name, value in found.items() if name.startswith("centuria_tool_")}
    assert "mine" not in str(told)
    assert told['centuria_tool_limit{resource="tool:files__file_read"}'] > 1
    assert told['centuria_tool_limit{resource="server:files"}'] > 1
    for what in ("in_use", "waiting"):
        assert [value for name, value in told.items() if what in name] == [0] * (len(told) // 3)


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
