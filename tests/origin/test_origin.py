"""The programs of the article that Centuria answers run against the gateway, base URL and key aside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from centuria.gateway.settings import GatewaySettings
from centuria.settings import Timeouts, ToolServer
from centuria.testing.upstream import Calls, FakeUpstream, HttpError, Reply, Silence, Text
from tests.gateway.programs import run
from tests.gateway.served import deployment, serving
from tests.servers.installed import CLIENTS_PYTHON, require

pytestmark = pytest.mark.timeout(300)
HERE = Path(__file__).parent
TOOLS = ("web_search", "code_exec", "file_read")
REMEDIES = ("section6", "remedy1", "remedy2", "remedy3", "remedy4", "remedy5")
PAGE = "# Solar panels\nThe market of solar panels grows by 7 % a year.\n"


def document() -> dict[str, list[str]]:
    """The document's lines by block."""
    blocks: dict[str, list[str]] = {}
    for line in (HERE / "origin.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            blocks[line[3:]] = lines = []
        elif not line.startswith("#"):
            lines.append(line)
    return blocks


class Model:
    """Each agent calls one of the three tools, by its number, and then says what it was told."""

    def __init__(self) -> None:
        self.failed = False
        self.told: dict[str, str] = {}

    def __call__(self, body: Mapping[str, Any]) -> Reply:
        words, last = str(body["messages"][-1]["content"]), body["messages"][-1]
        if last["role"] == "tool":
            asked = next(str(one["content"]) for one in body["messages"] if one["role"] == "user")
            self.told[asked] = words
            return Text("Done.")
        if words == "fail once" and not self.failed:
            self.failed = True
            return HttpError(404, "resource_not_found_error", "There is no such page.")
        if words == "wait for ever":
            return Silence()
        number = words.rpartition("#")[2]
        if not number.isdigit():
            return Text("Well.")
        assert {one["function"]["name"] for one in body["tools"]} == set(TOOLS)
        assert body["max_tokens"] == 4096
        assert "mcp_tools" not in body
        name = TOOLS[int(number) % 3]
        arguments: dict[str, Any] = {"query": "solar panels"}
        if name == "code_exec":
            arguments = {"code": f"print({number} * 2)"}
        elif name == "file_read":
            arguments = {"path": "solar.md"}
        return Calls(((name, json.dumps(arguments)),))


@dataclass(frozen=True, slots=True)
class Played:
    printed: str
    results: Mapping[str, Any]
    model: Model
    asked: int
    aborted: int


@cache
def play(*names: str) -> Played:
    return asyncio.run(_play(names))


async def _play(names: tuple[str, ...]) -> Played:
    require("clients")
    with TemporaryDirectory() as place:
        folder = Path(place)
        pages = folder / "pages"
        pages.mkdir()
        (pages / "solar.md").write_text(PAGE)
        servers = (
            ToolServer("web", "web", builtin="web_search", options={"folder": str(pages)}, required=True),
            ToolServer("code", "code", builtin="code_exec", required=True),
            ToolServer("files", "files", builtin="file_read", options={"roots": [str(pages)]}, required=True),
        )
        model = Model()
        async with FakeUpstream(model) as upstream:
            settings = GatewaySettings(
                {"kimi-k2.5": (deployment(upstream),)},
                store=str(folder / "gateway.db"),
                servers=servers,
                bare_names=True,
                timeouts=Timeouts(server_start=90.0),  # three programs begin at once, on a machine that may be busy
            )
            async with serving(settings) as served:
                env = {"GATEWAY": served.url, "KEY": await served.token("article")}
                code, out, said = await run([CLIENTS_PYTHON, HERE / "play.py", *names], env)
                assert code == 0, said[-4000:]
                if "remedy5" in names:
                    await upstream.until(lambda: upstream.in_flight == 0)
                asked, aborted = len(upstream.requests), upstream.aborted
    results = {} if names == ("section4",) else json.loads(out)
    return Played(out, results, model, asked, aborted)


@pytest.fixture
def remedies() -> Mapping[str, Any]:
    return play(*REMEDIES).results


@pytest.mark.parametrize("name", list(document()))
def test_the_programs_are_the_documents_line_by_line(name: str) -> None:
    text = (HERE / "programs" / f"{name}.py").read_text(encoding="utf-8")
    assert [line.strip() for line in text.splitlines() if line.strip()] == document()[name]


def test_nothing_but_the_base_url_and_the_key_differs_when_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY", "http://127.0.0.1:8080")
    monkeypatch.setenv("KEY", "ck-1")
    source = (HERE / "play.py").read_text(encoding="utf-8").partition("\nif sys.argv")[0]
    space: dict[str, Any] = {"__file__": str(HERE / "play.py"), "__name__": "drivers"}
    exec(compile(source, "play.py", "exec"), space)
    changed: dict[str, list[tuple[str, str]]] = {}
    for name in document():
        before = (HERE / "programs" / f"{name}.py").read_text(encoding="utf-8")
        lines = zip(before.splitlines(), space["differing"](before).splitlines(), strict=True)
        changed[name] = [(one.strip(), other.strip()) for one, other in lines if one != other]
    url = (
        'HOLYSHEEP_BASE_URL = "https://api.holysheep.ai/v1"',
        'HOLYSHEEP_BASE_URL = "http://127.0.0.1:8080/v1"',
    )
    key = ('HOLYSHEEP_API_KEY = "YOUR_HOLYSHEEP_API_KEY"', 'HOLYSHEEP_API_KEY = "ck-1"')
    prefix = (
        'if not HOLYSHEEP_BASE_URL.startswith("https://api.holysheep.ai"):',
        'if not HOLYSHEEP_BASE_URL.startswith("http://127.0.0.1:8080"):',
    )
    assert changed == {
        **{name: [url, key] for name in ("section4", "section6", "remedy1")},
        "remedy2": [url, prefix],
        **{name: [] for name in ("remedy3", "remedy4", "remedy5")},
    }


def test_a_hundred_subagents_with_three_mcp_tools_are_all_done() -> None:
    played = play("section4")
    assert played.printed == "완료: 100/100\n"
    assert played.asked == 200
    assert len(played.model.told) == 100
    for number in range(100):
        told = played.model.told[f"분석 작업 #{number}"]
        assert (str(number * 2) if number % 3 == 1 else "solar panels") in told


def test_the_documents_scheduler_gets_a_hundred_results_and_keeps_no_slot(remedies: Mapping[str, Any]) -> None:
    told = remedies["section6"]
    assert told["left"] == dict.fromkeys(TOOLS, 0)
    assert len(told["results"]) == 100
    _check(told["results"])


def _check(results: list[tuple[str, str]]) -> None:
    for number, (tool, said) in enumerate(results):
        assert (str(number * 2) if tool == "code_exec" else "solar panels") in said


def test_the_remedy_for_timeouts_tries_again_and_gets_its_answer(remedies: Mapping[str, Any]) -> None:
    assert play(*REMEDIES).model.failed
    assert remedies["remedy1"] == {"text": "Well."}


def test_the_remedy_for_wrong_keys_takes_a_key_of_the_gateway(remedies: Mapping[str, Any]) -> None:
    assert remedies["remedy2"]["with"] is True
    assert "HOLYSHEEP_API_KEY" in remedies["remedy2"]["without"]


def test_the_remedy_for_too_many_calls_gets_every_result(remedies: Mapping[str, Any]) -> None:
    assert len(remedies["remedy3"]["results"]) == 60
    _check(remedies["remedy3"]["results"])


def test_the_tools_of_a_hundred_agents_are_registered_without_a_conflict(remedies: Mapping[str, Any]) -> None:
    told = remedies["remedy4"]
    assert told["made"] == [[201, [f"{tool}__agent-{number:03d}" for tool in TOOLS]] for number in range(100)]
    status, said = told["invoked"]
    assert status == 200
    assert "solar panels" in said


def test_the_remedy_for_deadlocks_ends_what_never_would_and_its_upstream_too(remedies: Mapping[str, Any]) -> None:
    told = remedies["remedy5"]
    assert "solar panels" in told["in_time"]
    assert told["never"] == {"status": "partial", "reason": "deadlock_timeout"}
    assert play(*REMEDIES).aborted == 1
