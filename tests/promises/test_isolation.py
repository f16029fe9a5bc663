"""Promise 4: every agent sees only its own tools and its own context, and siblings send identical prefixes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from centuria.events import CallOpened, Notice
from centuria.journal import JournalReader
from centuria.testing.upstream import Calls, FakeUpstream, Reply, Seen, Text
from tests.core.schema_rules import kimi
from tests.promises.kit import (
    Body,
    begin,
    bodies,
    census,
    centuria,
    prompt,
    raw_server,
    swarm,
    tool_names,
    tool_texts,
    turn,
    write_job,
)
from tests.toolhost.servers.rawhttp import RawHttp


def _member(seen: Seen, name: str) -> bytes:
    """A member of the body, byte for byte as it was sent."""
    text = seen.body.decode()
    at = text.index(f'"{name}":') + len(name) + 3
    _, end = json.JSONDecoder().raw_decode(text, at)
    return text[at:end].encode()


async def test_siblings_send_byte_identical_tools_and_system_message(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        return Text("Here.") if turn(body) else Calls((("a__echo", '{"text": "hello"}'),))

    async with FakeUpstream(script) as upstream:
        tools = {"a": raw_server(limit=10), "b": raw_server("pages", limit=10)}
        job = write_job(tmp_path, upstream, rows=12, tools=tools)
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert census(report) == {"ok": 12} and len(upstream.requests) == 24
    assert len({_member(seen, "tools") for seen in upstream.requests}) == 1
    assert len({json.dumps(body["messages"][0]) for body in bodies(upstream)}) == 1
    first = bodies(upstream)[0]
    assert first["messages"][0]["role"] == "system"
    names = tool_names(first)
    assert {name.partition("__")[0] for name in names} == {"a", "b"} and len(names) == len(set(names)) == 22
    heads = {seen.body[: seen.body.index(b"Report on")] for seen in upstream.requests}
    assert len(heads) == 1, "what comes before a task's own words is the same for all"


async def test_a_task_never_sees_nor_reaches_the_tools_of_a_server_that_it_was_not_given(tmp_path: Path) -> None:
    stolen = tmp_path / "stolen.txt"
    attempt = json.dumps({"path": str(stolen), "text": "mine"})

    def script(body: Body) -> Reply:
        return Text(tool_texts(body)[0]) if turn(body) else Calls((("b__write", attempt),))

    async with FakeUpstream(script) as upstream:
        tasks = [
            {"id": "thief", "prompt": "Be a thief.", "tools": ["a"]},
            {"id": "none", "prompt": "Have nothing.", "tools": []},
            {"id": "owner", "prompt": "Be the owner.", "tools": ["b"]},
        ]
        tools = {"a": raw_server(), "b": raw_server()}
        job = write_job(tmp_path, upstream, tasks=tasks, tools=tools)
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    seen = {prompt(body): tool_names(body) for body in bodies(upstream)}
    assert seen["Have nothing."] == []
    assert {name[:3] for name in seen["Be a thief."]} == {"a__"}
    assert {name[:3] for name in seen["Be the owner."]} == {"b__"}
    refusal = report.outcomes["thief"].text
    assert "b__write" in refusal and "a__" in refusal, "it is told what it may call"
    assert "b__write" in report.outcomes["none"].text
    assert report.outcomes["owner"].text == "written" and stolen.read_text() == "mine\n"


async def test_a_task_sees_and_reaches_the_single_tools_that_it_was_granted(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        if turn(body):
            return Text(" / ".join(tool_texts(body)))
        return Calls((("a__echo", '{"text": "heard"}'), ("a__pid", "{}"), ("b__echo", '{"text": "there"}')))

    async with FakeUpstream(script) as upstream:
        tasks = [
            {"id": "one", "prompt": "One.", "tools": ["a__echo"]},
            {"id": "two", "prompt": "Two.", "tools": ["b", "a__echo"]},
            {"id": "all", "prompt": "All."},
        ]
        job = write_job(
            tmp_path,
            upstream,
            job={"tools": ["a__echo", "a__pid", "b"]},
            tasks=tasks,
            tools={"a": raw_server(), "b": raw_server()},
        )
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    seen = {prompt(body): tool_names(body) for body in bodies(upstream)}
    assert seen["One."] == ["a__echo"]
    assert len(seen["Two."]) == 12 and "a__pid" not in seen["Two."]
    assert len(seen["All."]) == 13 and "a__sleep" not in seen["All."]
    told = {task: end.text.split(" / ") for task, end in report.outcomes.items()}
    assert told["one"][0] == "heard" and all("You may call: a__echo." in text for text in told["one"][1:])
    assert told["two"][0] == "heard" and "no tool 'a__pid'" in told["two"][1] and told["two"][2] == "there"
    assert told["all"][1].isdigit()


async def test_each_row_sees_its_own_tools(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream:
        rows = [
            {"Name": "x", "Kind": "a", "Tools": ["b__echo", "b__pid"]},
            {"Name": "y", "Kind": "b", "Tools": "a__add, a__echo"},
            {"Name": "z", "Kind": "b", "Tools": ""},
        ]
        job = write_job(
            tmp_path,
            upstream,
            rows=rows,
            job={"tools": ["{Kind}__sleep", "{Tools}"]},
            tools={"a": raw_server(), "b": raw_server()},
        )
        async with swarm(tmp_path) as hundred:
            await hundred.run(job)
    assert {prompt(body)[-2]: tool_names(body) for body in bodies(upstream)} == {
        "x": ["a__sleep", "b__echo", "b__pid"],
        "y": ["a__add", "a__echo", "b__sleep"],
        "z": ["b__sleep"],
    }


async def test_a_schema_that_no_provider_takes_costs_its_tool_alone(tmp_path: Path) -> None:
    ended: list[str] = []

    def script(body: Body) -> Reply:
        if turn(body):
            ended.extend(tool_texts(body))
            return Text("Done.")
        return Calls((("raw__endless", "{}"), ("raw__filter", '{"text": "t", "size": 0}')))

    async with FakeUpstream(script) as upstream:
        job = write_job(
            tmp_path, upstream, tasks=[{"id": "a", "prompt": "Go."}], tools={"raw": raw_server("odd")}, name="odd.toml"
        )
        run = await (await begin(tmp_path, "run", job, "--yes", env={"CENTURIA_API_KEY": "value-of-the-key-123"})).end()
    assert run.code == 0, run.err
    offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in bodies(upstream)[0]["tools"]}
    assert not offered.keys() & {"raw__endless", "raw__text_only"} and len(offered) == 12
    assert all(kimi(schema) == [] for schema in offered.values())
    assert offered["raw__filter"]["properties"]["text"] == {"type": "string", "description": '[format: "uri"]'}
    assert "no tool 'raw__endless'" in ended[0]
    assert "0 is less than or equal to the minimum of 0" in ended[1], "the tool's own schema judges the arguments"
    assert "The tool endless of raw is left out: its input schema has 300," in run.out + run.err
    assert "The tool text_only of raw is left out: What the server says of it is not valid" in run.out + run.err
    listed = await centuria(tmp_path, "tools", job)
    assert "raw__filter" in listed.out and "raw__endless" not in listed.out
    assert "The tool endless of raw is left out" in listed.err and "The tool text_only of raw" in listed.err
    checked = await centuria(tmp_path, "doctor", job, "--offline", env={"CENTURIA_API_KEY": "value-of-the-key-123"})
    assert "endless is left out: its input schema has 300," in checked.out


async def test_with_too_many_tools_agents_search_them_and_each_finds_its_own_alone(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        match turn(body):
            case 0:
                return Calls((("search_tools", '{"query": "keeps note 17"}'),))
            case 1:
                names = [one["name"] for one in json.loads(tool_texts(body)[0])["tools"]]
                wrapped = {"name": names[0], "arguments": {"text": "kept"}}
                return Calls(
                    (("call_tool", json.dumps(wrapped)), ("call_tool", '{"name": "b__note_1", "arguments": {}}'))
                )
        return Text(" / ".join(tool_texts(body)[1:]))

    async with FakeUpstream(script) as upstream:
        tools = {"a": raw_server("many", limit=10), "b": raw_server("many")}
        job = write_job(tmp_path, upstream, rows=6, job={"tools": ["a"]}, tools=tools)
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert census(report) == {"ok": 6}
    assert {tuple(tool_names(body)) for body in bodies(upstream)} == {("search_tools", "call_tool")}
    assert len({_member(seen, "tools") for seen in upstream.requests}) == 1
    for end in report.outcomes.values():
        kept, refused = end.text.split(" / ")
        assert kept == 'note_17: {"text": "kept"}'
        assert "no tool 'b__note_1'" in refused
    with JournalReader(report.folder / "journal.sqlite") as journal:
        events = [record.event for record in journal.records()]
    notices = [event.text for event in events if isinstance(event, Notice) and "search" in event.text]
    assert len(notices) == 1 and "211 tools" in notices[0] and "128 functions" in notices[0]
    called = [event.name for event in events if isinstance(event, CallOpened) and event.call == "tool"]
    assert Counter(called) == {"search_tools": 6, "a__note_17": 6, "b__note_1": 6}


async def test_a_rehearsal_reaches_the_tools_of_its_script_through_the_search(tmp_path: Path) -> None:
    rehearsal = {
        "latency_ms": 0,
        "turn": [
            {"calls": [{"tool": "note_7", "arguments": {"text": "{Name}"}, "name": "kept"}]},
            {"text": "It says {kept}."},
        ],
    }
    turns = json.dumps(rehearsal["turn"]).replace('": ', '" = ')
    job = write_job(tmp_path, "http://127.0.0.1:9/v1", rows=3, tools={"a": raw_server("many", limit=5)})
    job.write_text(job.read_text() + f"[rehearsal]\nlatency_ms = 0\nturn = {turns}\n")
    async with swarm(tmp_path, rehearse=True) as hundred:
        report = await hundred.run(job)
    assert {task: end.text for task, end in report.outcomes.items()} == {
        f"n{n}": f'It says note_7: {{"text": "n{n}"}}.' for n in range(3)
    }


async def test_each_agent_calls_a_shared_server_in_its_own_name(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        if turn(body):
            return Text(tool_texts(body)[0])
        return Calls((("web__echo", json.dumps({"text": prompt(body).split()[-1]})),))

    async with RawHttp().serving() as server, FakeUpstream(script) as upstream:
        rows = [{"Name": f"n{number}", "User": f"user-{number}"} for number in range(10)]
        web = {"url": server.url, "limit": 10, "agent_headers": {"X-User": "{User}"}}
        job = write_job(tmp_path, upstream, rows=rows, job={"prompt": "Ask as {User}"}, tools={"web": web})
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert census(report) == {"ok": 10}
    calls = [(m["params"]["arguments"]["text"], h["x-user"]) for m, h in server.requests if m["method"] == "tools/call"]
    assert sorted(calls) == [(row["User"], row["User"]) for row in rows]
    assert not any("x-user" in headers for message, headers in server.requests if message["method"] != "tools/call")


async def test_no_request_holds_a_word_of_another_agents_context(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        secret = prompt(body).split()[-1]
        if turn(body) < 2:
            return Calls((("raw__echo", json.dumps({"text": f"heard-{secret}"})),), text=f"thinking of {secret}")
        return Text(f"done {secret}")

    async with FakeUpstream(script, latency=0.01) as upstream:
        rows = [{"Name": f"n{number}", "Secret": f"secret-{number:03}-x"} for number in range(20)]
        job = write_job(
            tmp_path,
            upstream,
            rows=rows,
            job={"prompt": "Keep {Secret}"},
            tools={"raw": raw_server(limit=10)},
        )
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert census(report) == {"ok": 20} and len(upstream.requests) == 60
    for seen in upstream.requests:
        own = prompt(seen.json).split()[-1]
        others = [row["Secret"] for row in rows if row["Secret"] != own]
        assert not any(other in seen.body.decode() for other in others)
    assert {task: end.text for task, end in report.outcomes.items()} == {
        row["Name"]: f"done {row['Secret']}" for row in rows
    }


async def test_a_task_is_given_the_results_that_it_needs_and_no_others(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: Text(f"result of {prompt(body)[:5]}")) as upstream:
        tasks = [
            {"id": "left", "prompt": "Left."},
            {"id": "right", "prompt": "Right"},
            {"id": "end", "prompt": "End of it.", "needs": ["left"]},
        ]
        async with swarm(tmp_path) as hundred:
            await hundred.run(write_job(tmp_path, upstream, tasks=tasks))
    last = prompt(bodies(upstream)[-1])
    assert "result of Left." in last and "result of Right" not in last


async def test_tool_servers_are_not_given_the_programs_keys(tmp_path: Path) -> None:
    keys = {
        "CENTURIA_API_KEY": "value-of-the-model-key-123",
        "OPENAI_API_KEY": "value-of-the-openai-key-123",
        "AWS_SECRET_ACCESS_KEY": "value-of-the-cloud-key-123",
        "GIVEN": "value-that-is-given",
    }

    def script(body: Body) -> Reply:
        return Text("Here.") if turn(body) else Calls((("raw__environment", "{}"),))

    async with FakeUpstream(script) as upstream:
        tools = {"raw": raw_server(env={"MINE": "${GIVEN}"})}
        job = write_job(tmp_path, upstream, tasks=[{"id": "spy", "prompt": "Spy."}], tools=tools)
        ended = await (await begin(tmp_path, "run", job, "--yes", env=keys)).end()
    assert ended.code == 0, ended.err
    seen = json.loads(tool_texts(bodies(upstream)[-1])[0])
    assert seen["MINE"] == "value-that-is-given"
    assert not [name for name, value in seen.items() if value.startswith("value-of-")]
    assert upstream.requests[0].headers["authorization"] == "Bearer value-of-the-model-key-123"
    kept = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert kept and not [path for path in kept if b"value-" in path.read_bytes().replace(b"value-that", b"")]
    assert "value-" not in ended.out + ended.err


@pytest.mark.parametrize("given", ["value-that-is-given"])
async def test_the_values_of_a_servers_environment_are_not_kept_with_the_run(tmp_path: Path, given: str) -> None:
    async with FakeUpstream() as upstream:
        tools = {"raw": raw_server(env={"MINE": given})}
        job = write_job(tmp_path, upstream, rows=1, tools=tools)
        async with swarm(tmp_path) as hundred:
            report = await hundred.run(job)
    assert given not in (report.folder / "job.json").read_text()
