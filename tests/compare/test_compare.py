"""A comparison as a whole: real runs on upstreams of different characters, one budget, and one table from journals."""

from __future__ import annotations

import asyncio
import csv
import json
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from centuria import Comparison, ConfigurationError
from centuria.compare import Comparing, prepare_again, prepare_comparison, tabulate
from centuria.config import load_job
from centuria.core.comparison import Agreement, Proportion
from centuria.core.money import Ledger
from centuria.errors import JournalError
from centuria.events import fold
from centuria.journal import JournalReader
from centuria.messages import DOLLAR, Usage
from centuria.testing.upstream import FakeUpstream, HttpError, Reply, Reset, Silence, Text
from tests.compare.kit import PRICE, calls, careless, compare_job, dreaming, refusing, right, upstreams
from tests.promises.kit import (
    Body,
    begin,
    billed,
    centuria,
    processes_naming,
    prompt,
    raw_server,
    run_folders,
    swarm,
    turn,
    until,
    write_job,
)
from tests.promises.kit import fold as folded

#: 16,000 output tokens cost exactly ten cents; a prompt costs nothing.
TEN_CENTS = {"input": 0.0, "output": 6.25}
TIMED = {
    "run",
    "base_url",
    "seconds",
    "first_token_p50",
    "first_token_p99",
    "call_p50",
    "call_p99",
    "held",
}


def untimed(line: Mapping[str, Any]) -> dict[str, str]:
    """A line of the table without what no two runs have alike, and without what is 0, none or the same for all."""
    same = {"provider": "custom", "rehearsal": "0", "status": "ok", "exit_code": "0", "tasks": "6", "ok": "6"}
    return {
        name: str(value)
        for name, value in line.items()
        if name not in TIMED and str(value) not in ("", "0", "0.0") and same.get(name) != str(value)
    }


def lines(comparison: Comparison) -> dict[str, dict[str, str]]:
    with (comparison.folder / "comparison.csv").open(newline="") as file:
        return {line["label"]: line for line in csv.DictReader(file)}


# -- the table -------------------------------------------------------------------------------------------------------


async def test_three_models_of_different_characters_come_out_as_exactly_this_table(tmp_path: Path) -> None:
    failures = HttpError(429, "rate_limit_reached_error", headers={"retry-after-ms": "1"}), Reset()
    async with upstreams(right, careless, refusing(dreaming, *failures), latency=0.01) as servers:
        job = compare_job(tmp_path, servers)
        async with swarm(tmp_path) as hundred:
            comparison = await hundred.compare(job)
    found = {label: untimed(line) for label, line in lines(comparison).items()}
    assert found["a"] == {
        "label": "a",
        "model": "model-a",
        "cost": "0.012",
        "prompt_tokens": "4800",
        "output_tokens": "7200",
        "critical_steps": "2",
        "serial_steps": "12",
        "attempts": "6",
        "first_attempt_valid": "6",
        "first_attempt_share": "1.0",
        "first_attempt_low": "0.6096657120978346",
        "first_attempt_high": "1.0",
        "repaired_valid": "6",
        "repaired_share": "1.0",
        "repaired_low": "0.6096657120978346",
        "repaired_high": "1.0",
        "tool_calls": "6",
        "answers": "12",
        "requests": "12",
    }
    assert found["b"] == {
        "label": "b",
        "model": "model-b",
        "cost": "0.015",
        "prompt_tokens": "6000",
        "output_tokens": "9000",
        "critical_steps": "3",
        "serial_steps": "15",
        "attempts": "6",
        "first_attempt_valid": "3",
        "first_attempt_share": "0.5",
        "first_attempt_low": "0.1876163064826506",
        "first_attempt_high": "0.8123836935173494",
        "repaired_valid": "5",
        "repaired_share": "0.8333333333333334",
        "repaired_low": "0.4364971778135299",
        "repaired_high": "0.9699466302516934",
        "tool_calls": "9",
        "schema_failures": "4",
        "answers": "15",
        "requests": "15",
        "trigger_f1": "1.0",
        "trigger_pairs": "9",
        "trigger_tp": "6",
        "trigger_tn": "3",
    }
    assert found["c"] == {
        "label": "c",
        "model": "model-c",
        "cost": "0.01",
        "prompt_tokens": "4000",
        "output_tokens": "6000",
        "critical_steps": "3",
        "serial_steps": "10",
        "attempts": "2",
        "first_attempt_high": "0.6576197724933469",
        "repaired_valid": "2",
        "repaired_share": "1.0",
        "repaired_low": "0.3423802275066531",
        "repaired_high": "1.0",
        "tool_calls": "4",
        "unknown_tool_failures": "1",
        "json_failures": "1",
        "answers": "10",
        "truncated_answers": "1",
        "requests": "12",
        "http_429": "1",
        "http_no_answer": "1",
        "trigger_f1": "0.5",
        "trigger_pairs": "6",
        "trigger_tp": "2",
        "trigger_fn": "4",
    }
    assert comparison.exit_code == 0 and sum(row.spent for row in comparison.rows) == 37 * DOLLAR // 1000
    assert sum(billed(server, PRICE) for server in servers) == sum(row.spent for row in comparison.rows)
    assert [row.held > 0 for row in comparison.rows] == [False, False, True], "what was cut may have been billed"


async def test_the_folder_holds_all_of_it_and_the_table_is_made_of_it_again(tmp_path: Path) -> None:
    async with upstreams(right, careless) as servers, swarm(tmp_path) as hundred:
        comparison = await hundred.compare(compare_job(tmp_path, servers))
    folder, runs = comparison.folder, [row.candidate.run for row in comparison.rows]
    names = ["comparison.csv", "comparison.html", "comparison.json", "comparison.md"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*runs, *names])
    assert all((folder / run / "report.html").exists() and (folder / run / "results.jsonl").exists() for run in runs)
    texts = {name: (folder / name).read_text() for name in names}
    for name in ("comparison.csv", "comparison.html", "comparison.md"):
        (folder / name).unlink()
    moved = folder.rename(tmp_path / "elsewhere")
    assert tabulate(moved).table == comparison.table
    assert {name: (moved / name).read_text() for name in names} == texts
    turned = tabulate(moved, reference="b")
    assert turned.row("b").agreement is None and turned.row("a").agreement == Agreement(tp=6, tn=3)


async def test_each_run_is_one_like_any_other_and_found_by_its_id(tmp_path: Path) -> None:
    async with upstreams(right, careless) as servers, swarm(tmp_path) as hundred:
        comparison = await hundred.compare(compare_job(tmp_path, servers, rows=1))
    listed = await centuria(tmp_path, "runs", "--json")
    assert sorted(line["run"] for line in listed.lines) == sorted(row.candidate.run for row in comparison.rows)
    for row in comparison.rows:
        shown = (await centuria(tmp_path, "show", row.candidate.run, "--json")).data
        assert shown["model"] == row.candidate.model and shown["status"] == "ok"


async def test_a_model_that_is_named_twice_is_held_against_itself(tmp_path: Path) -> None:
    async with upstreams(right) as servers:
        job = compare_job(tmp_path, servers, rows=3)
        async with swarm(tmp_path) as hundred:
            comparison = await hundred.compare(job, ["a", "a"])
    assert [row.candidate.label for row in comparison.rows] == ["a", "a (2)"]
    again = comparison.row("a (2)").agreement
    assert again == Agreement(tp=3, tn=3) and again.f1 == 1.0


# -- one budget ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_turn", [False, True])
async def test_the_runs_together_never_spend_more_than_the_budget(tmp_path: Path, in_turn: bool) -> None:
    answer = Text("A whole report.", usage=Usage(10, output=16_000))
    async with upstreams(lambda body: answer, lambda body: answer, latency=0.05) as servers:
        job = compare_job(tmp_path, servers, rows=20, echoes=False, limits={"budget": 1.0}, job={"max_tokens": 16_000})
        ten_cents(job)
        async with swarm(tmp_path, concurrency=20) as hundred:
            comparison = await hundred.compare(job, in_turn=in_turn)
    assert sum(billed(server, TEN_CENTS) for server in servers) == comparison.table.spent == DOLLAR
    assert sum(len(server.requests) for server in servers) == 10
    assert sum(row.ok for row in comparison.rows) == 10 and comparison.exit_code == 3
    assert {row.census.get("budget", 0) + row.ok for row in comparison.rows} == {20}
    if in_turn:  # at once, it is a matter of who begins first
        assert [row.ok for row in comparison.rows] == [10, 0]


async def test_at_no_moment_is_more_than_the_budget_reserved_whatever_the_journals_are_read_for(tmp_path: Path) -> None:
    """Merged by their clocks, the journals of all runs are one ledger that keeps the cap."""
    async with upstreams(right, careless, latency=0.02) as servers:
        job = compare_job(tmp_path, servers, rows=12, limits={"budget": 0.08})
        async with swarm(tmp_path) as hundred:
            comparison = await hundred.compare(job)
    assert comparison.exit_code == 0 and comparison.table.spent <= 8 * DOLLAR // 100
    for row in comparison.rows:
        with JournalReader(comparison.folder / row.candidate.folder / "journal.sqlite") as reader:
            ledger = Ledger()
            fold(ledger, [record.event for record in reader.records()])
        assert ledger.spent("run") == row.spent and not ledger.open_holds()


async def test_a_resumed_comparison_goes_on_under_what_is_left_of_the_budget(tmp_path: Path) -> None:
    answer = Text("A whole report.", usage=Usage(10, output=16_000))
    async with upstreams(lambda body: answer, lambda body: answer) as servers:
        job = compare_job(tmp_path, servers, rows=10, echoes=False, limits={"budget": 1.0}, job={"max_tokens": 16_000})
        ten_cents(job)
        async with swarm(tmp_path) as hundred:
            first = await hundred.compare(job)
        folder = first.folder
        assert first.table.spent == DOLLAR
        nothing_left = await Comparing(prepare_again(folder, {})).execute()
        assert nothing_left.table.spent == DOLLAR and nothing_left.exit_code == 3
        more = await Comparing(prepare_again(folder, {}, budget=1.5)).execute()
        assert more.table.spent == 3 * DOLLAR // 2 and more.table.budget == 3 * DOLLAR // 2
        enough = await Comparing(prepare_again(folder, {}, budget=5.0)).execute()
    assert enough.exit_code == 0 and enough.table.spent == 2 * DOLLAR
    assert sum(billed(server, TEN_CENTS) for server in servers) == 2 * DOLLAR
    assert sum(len(server.requests) for server in servers) == 20, "nothing was paid twice"


def ten_cents(job: Path) -> None:
    text = job.read_text()
    for letter in "ab":
        text = text.replace(
            f'[prices."model-{letter}"]\ninput = 1.0\noutput = 1.0\n',
            f'[prices."model-{letter}"]\ninput = 0.0\noutput = 6.25\n',
        )
    job.write_text(text)


# -- what goes wrong -------------------------------------------------------------------------------------------------


async def test_one_model_that_refuses_everything_leaves_the_others_alone(tmp_path: Path) -> None:
    denied = HttpError(401, "invalid_authentication_error", "no")
    async with upstreams(lambda body: denied, right) as servers, swarm(tmp_path) as hundred:
        comparison = await hundred.compare(compare_job(tmp_path, servers, rows=3))
    refused, other = comparison.rows
    assert (refused.status, refused.census) == ("failed", {"blocked": 3})
    assert other.status == "ok" and other.agreement == Agreement()
    assert refused.attempts["4xx"] >= 1 and comparison.exit_code == 1
    assert "no task ended ok" in (comparison.folder / "comparison.md").read_text()


async def test_a_run_that_cannot_start_is_a_row_with_its_cause_and_the_others_go_on(tmp_path: Path) -> None:
    async with upstreams(right, right) as servers:
        job = compare_job(tmp_path, servers, rows=1)
        plan = prepare_comparison(load_job(job, env={}), ["a", "b"], {}, root=tmp_path / "runs")
        in_the_way = plan.folder.path / plan.parts[0].candidate.folder
        comparing = Comparing(plan)
        plan.folder.create()
        (in_the_way / "thesis").mkdir(parents=True)
        object.__setattr__(plan, "fresh", False)
        comparison = await comparing.execute()
    assert [row.status for row in comparison.rows] == ["failed", "ok"]
    assert "is not empty" in comparison.row("a").cause and comparison.exit_code == 2
    assert (in_the_way / "thesis").is_dir()


async def test_closing_the_swarm_keeps_what_there_is_and_makes_the_table(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        return Silence() if prompt(body).endswith("n1.") else right(body)

    async with upstreams(script, right) as servers, asyncio.timeout(60):
        job = compare_job(tmp_path, servers, rows=2)
        async with swarm(tmp_path) as hundred:
            work = asyncio.ensure_future(hundred.compare(job))
            await servers[0].until(lambda: servers[0].in_flight == 1 and len(servers[0].requests) == 3, within=30)
            await servers[1].until(lambda: len(servers[1].requests) == 4 and not servers[1].in_flight, within=30)
            await until(lambda: list((tmp_path / "runs").glob("compare-*/*-b-*/report.html")))
            (run_a,) = (tmp_path / "runs").glob("compare-*/*-a-*")
            await until(lambda: folded(run_a).progress.ended_count == 1)
        comparison = await work
    assert comparison.row("a").census == {"ok": 1, "cancelled": 1} and comparison.row("b").status == "ok"
    assert comparison.exit_code == 130 and lines(comparison)["a"]["held"] != "0.0"


async def test_a_comparison_is_neither_recorded_nor_replayed(tmp_path: Path) -> None:
    async with swarm(tmp_path, record=tmp_path / "tape") as hundred:
        with pytest.raises(ConfigurationError, match="neither recorded"):
            await hundred.compare("Say hello.", ["kimi-k2.5"])
    assert run_folders(tmp_path) == []


# -- the command -----------------------------------------------------------------------------------------------------


async def test_the_command_prints_the_table_and_a_line_for_each_model_meanwhile(tmp_path: Path) -> None:
    async with upstreams(right, careless) as servers:
        job = compare_job(tmp_path, servers)
        said = await centuria(tmp_path, "compare", job, "--models", "a,b", "--reference", "b")
    assert said.code == 0, said.err
    head, *table = said.out.splitlines()
    assert head == "promise: 2 models, $0.027 of $5.00 together"
    cells = {line.partition("  ")[0]: line.split("  ") for line in table}
    first = [cell.strip() for cell in cells["tool calls: first attempt"] if cell]
    assert first[1:] == ["100.0 % (6 of 6) [61.0–100.0]", "50.0 % (3 of 6) [18.8–81.2]"]
    assert "reference: b" in said.out
    assert "a | 100% 6 ok of 6" in said.err and "b | 100% 6 ok of 6" in said.err


async def test_json_is_one_value_with_everything(tmp_path: Path) -> None:
    async with upstreams(right, dreaming) as servers:
        said = await centuria(tmp_path, "compare", compare_job(tmp_path, servers), "--json", "--quiet")
    assert said.code == 0 and said.err == ""
    one, other = said.data["models"]
    assert (one["label"], one["first_attempt_share"], one["trigger_f1"]) == ("a", 1.0, None)
    assert (other["unknown_tool_failures"], other["json_failures"], other["truncated_answers"]) == (1, 1, 1)
    assert (said.data["budget"], said.data["reference"]) == (5.0, "a") and Path(said.data["folder"]).is_dir()


async def test_a_model_at_a_url_needs_no_table(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: Text(f"I am {body['model']}.")) as upstream:
        job = write_job(tmp_path, "http://127.0.0.1:9/v1", rows=2)
        host = upstream.base_url.removeprefix("http://").removesuffix("/v1")
        spec = f"{upstream.base_url}#one,{upstream.base_url}#two"
        said = await centuria(
            tmp_path, "compare", job, "--models", spec, "--budget", "none", "--limit", "1", "--json", "--quiet"
        )
    assert said.code == 0, said.err
    assert [model["label"] for model in said.data["models"]] == [f"one@{host}", f"two@{host}"]
    assert [(model["tasks"], model["cost"]) for model in said.data["models"]] == [(1, None), (1, None)]
    assert sorted(seen.json["model"] for seen in upstream.requests) == ["one", "two"]


async def test_models_without_a_price_are_all_refused_at_once_before_anything_is_sent(tmp_path: Path) -> None:
    async with upstreams(right, right) as servers:
        job = compare_job(tmp_path, servers)
        job.write_text(job.read_text().replace('[prices."model-a"]', '[prices."x"]').replace('model-b"]', 'y"]'))
        said = await centuria(tmp_path, "compare", job)
    assert said.code == 2 and said.out == ""
    assert "a: There is a cap of $5" in said.err and '[prices."model-a"]' in said.err
    assert "Also: b: There is a cap of $5" in said.err and '[prices."model-b"]' in said.err
    assert servers[0].requests == servers[1].requests == [] and run_folders(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare"], ["no job", "compare job.toml --models"]),
        (["compare", "job.toml"], ["No models are named", "[compare.models.NAME]"]),
        (["compare", "job.toml", "--models", "openai:"], ["openai:MODEL"]),
        (["compare", "job.toml", "--models", "a,b", "--reference", "c"], ["`c`", "none of the models"]),
        (["compare", "--resume", "nowhere"], ["nowhere", "comparison.json"]),
        (["compare", "--table", "nowhere"], ["nowhere", "comparison.json"]),
        (["compare", "job.toml", "--resume", "nowhere"], ["a job cannot be given"]),
        (["compare", "--table", "nowhere", "--budget", "1"], ["--budget cannot be given"]),
        (["compare", "--resume", "nowhere", "--in-turn"], ["--in-turn cannot be given"]),
    ],
)
async def test_what_cannot_be_meant_is_refused_with_a_remedy(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    write_job(tmp_path, "http://127.0.0.1:9/v1", rows=1)
    said = await centuria(tmp_path, *arguments)
    assert said.code == 2 and "Traceback" not in said.err and len(said.err.strip().splitlines()) >= 2, said.err
    assert all(word in said.err for word in words), said.err
    assert run_folders(tmp_path) == []


async def test_without_a_key_a_model_s_run_is_a_rehearsal_and_the_table_says_so(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: Text("Real.", usage=Usage(400, output=600))) as upstream:
        models = {"mine": {"name": "mine", "base_url": upstream.base_url}}
        job = write_job(tmp_path, upstream, rows=2, compare={"models": models}, price=PRICE)
        job.write_text(job.read_text() + '[prices."mine"]\ninput = 1.0\noutput = 1.0\n')
        said = await centuria(tmp_path, "compare", job, "--models", "mine,moonshot:kimi-k2.5")
    assert said.code == 0, said.err
    assert "MOONSHOT_API_KEY is not set" in said.err and "rehearsal" in said.err
    assert "REHEARSAL of 1: a scripted model, no cost" in said.out and "not paid" in said.out
    assert "2 models, $0.002000 of $5.00" in said.out, "the rehearsal took nothing of the budget"
    assert len(upstream.requests) == 2


async def test_ctrl_c_keeps_partial_results_and_a_resume_finishes_what_it_interrupted(tmp_path: Path) -> None:
    silent = True

    def script(body: Body) -> Reply:
        return Silence() if silent and prompt(body).endswith("n1.") and turn(body) == 1 else right(body)

    async with upstreams(script, right) as servers:
        command = await begin(tmp_path, "compare", compare_job(tmp_path, servers, rows=2), "--in-turn", "--quiet")
        await until(lambda: written(tmp_path, "n0") == 1 and len(servers[0].requests) == 4)
        command.interrupt()
        said = await command.end()
        assert said.code == 130, said.err
        (folder,) = (path for path in run_folders(tmp_path) if path.name.startswith("compare-"))
        rows = tabulate(folder).rows
        assert [row.status for row in rows] == ["cancelled", "cancelled"] and rows[0].census == {
            "ok": 1,
            "cancelled": 1,
        }
        assert servers[1].requests == [] and rows[1].tasks == 0 and "interrupted" in rows[1].cause
        assert f"centuria compare --resume runs/{folder.name}" in said.err
        silent = False
        again = await centuria(tmp_path, "compare", "--resume", folder, "--json", "--quiet")
    assert again.code == 0, again.err
    assert [(model["status"], model["ok"]) for model in again.data["models"]] == [("ok", 2), ("ok", 2)]
    assert len(servers[0].requests) == 5 and len(servers[1].requests) == 4, "what was answered is not asked again"
    assert not (folder / "waiting").exists()
    assert again.data["models"][0]["first_attempt_share"] == 1.0


def written(folder: Path, task: str) -> int:
    """In how many runs this task has ended and its result is on disk."""
    return len(list((folder / "runs").glob(f"compare-*/*/reports/{task}.md")))


def ended(folder: Path, task: str) -> bool:
    """Whether this task has an outcome in a journal."""
    for journal in (folder / "runs").glob("compare-*/*/journal.sqlite"):
        with suppress(JournalError), JournalReader(journal) as reader:  # it may be there and not begun yet
            return any(outcome.task == task for outcome in reader.outcomes())
    return False


async def test_a_killed_comparison_is_resumed_and_loses_nothing(tmp_path: Path) -> None:
    silent = True

    def script(body: Body) -> Reply:
        return Silence() if silent and prompt(body).endswith("n1.") else right(body)

    async with upstreams(script, script) as servers:
        command = await begin(tmp_path, "compare", compare_job(tmp_path, servers, rows=2), "--quiet")
        await until(lambda: written(tmp_path, "n0") == 2 and all(len(server.requests) == 3 for server in servers))
        command.kill()
        await command.end()
        (folder,) = (path for path in run_folders(tmp_path) if path.name.startswith("compare-"))
        await until(lambda: not processes_naming(str(folder)))
        assert [row.status for row in tabulate(folder).rows] == ["broken off", "broken off"]
        silent = False
        again = await centuria(tmp_path, "compare", "--resume", folder, "--json", "--quiet")
    assert again.code == 0, again.err
    assert [(model["ok"], model["attempts"]) for model in again.data["models"]] == [(2, 2), (2, 2)]
    assert [len(server.requests) for server in servers] == [5, 5]
    assert all(model["held"] > 0 for model in again.data["models"]), "what was cut may have been billed"


async def test_what_failed_is_a_result_and_a_resume_leaves_it(tmp_path: Path) -> None:
    async with upstreams(lambda body: HttpError(400, "invalid_request_error", "no"), right) as servers:
        async with swarm(tmp_path) as hundred:
            first = await hundred.compare(compare_job(tmp_path, servers, rows=2))
        sent = [len(server.requests) for server in servers]
        again = await centuria(tmp_path, "compare", "--resume", first.folder, "--json", "--quiet")
    assert first.row("a").census == {"failed": 2} and again.code == 1
    assert [len(server.requests) for server in servers] == sent
    assert again.data["models"][0]["failed"] == 2


async def test_of_a_run_that_was_cancelled_a_resume_runs_again_what_had_not_failed(tmp_path: Path) -> None:
    silent = True

    def script(body: Body) -> Reply:
        if prompt(body).endswith("n0."):
            return HttpError(400, "invalid_request_error", "no")
        return Silence() if silent else right(body)

    async with upstreams(script) as servers, asyncio.timeout(60):
        async with swarm(tmp_path) as hundred:
            work = asyncio.ensure_future(hundred.compare(compare_job(tmp_path, servers, rows=2)))
            await until(lambda: ended(tmp_path, "n0") and servers[0].in_flight == 1)
        first = await work
        silent = False
        again = await Comparing(prepare_again(first.folder, {})).execute()
    assert first.row("a").census == {"failed": 1, "cancelled": 1}
    assert again.row("a").census == {"ok": 1, "failed": 1} and again.exit_code == 1
    assert [prompt(seen.json) for seen in servers[0].requests].count("Report on n0.") == 1


async def test_two_cannot_work_on_one_comparison(tmp_path: Path) -> None:
    async with upstreams(lambda body: Silence(), right) as servers:
        command = await begin(tmp_path, "compare", compare_job(tmp_path, servers, rows=1), "--quiet")
        await servers[0].until(lambda: servers[0].in_flight == 1, within=30)
        (folder,) = (path for path in run_folders(tmp_path) if path.name.startswith("compare-"))
        second = await centuria(tmp_path, "compare", "--resume", folder)
        watched = await centuria(tmp_path, "compare", "--table", folder, "--json")
        command.interrupt(signal.SIGTERM)
        assert (await command.end()).code == 130
    assert second.code == 2 and "being worked on now" in second.err
    assert watched.data["models"][0]["unfinished"] == 1


def test_a_damaged_state_is_said_and_leaves_the_runs(tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text('{"schema": 1, "models": [{"folder": "../.."}]}')
    with pytest.raises(Exception, match="cannot be read") as caught:
        tabulate(tmp_path)
    assert "centuria show" in str(caught.value)
    state: dict[str, Any] = {"schema": 1, "name": "x", "budget": None, "reference": "a", "in_turn": False}
    row = {"label": "a", "run": "r", "folder": "../../etc", "provider": "p", "model": "m", "base_url": "u"}
    (tmp_path / "comparison.json").write_text(json.dumps({**state, "models": [row]}))
    with pytest.raises(Exception, match="cannot be read"):
        tabulate(tmp_path)


async def test_an_agent_that_assigns_wrongly_is_judged_as_by_any_tool(tmp_path: Path) -> None:
    def script(body: Body) -> Reply:
        if turn(body) == 0:
            return calls(("assign_task", json.dumps({"agent": 7})), ("create_subagent", "{"))
        return Text("Then I do it myself.", usage=Usage(1, output=1))

    async with FakeUpstream(script) as upstream:
        models = {"a": {"name": "kimi-k2.5", "base_url": upstream.base_url}}
        job = write_job(tmp_path, upstream, job={"prompt": "Reach the goal."}, compare={"models": models})
        async with swarm(tmp_path) as hundred:
            comparison = await hundred.compare(job)
    assert comparison.row("a").accuracy.faults == {"schema": 1, "json": 1}
    assert comparison.row("a").accuracy.first == Proportion(0, 1)


def test_a_server_that_is_required_and_does_not_start_fails_each_model_s_run_with_the_reason(tmp_path: Path) -> None:
    broken = {"tools": {"raw": raw_server("crash", required=True)}}

    async def main() -> Comparison:
        async with upstreams(right) as servers:
            job = compare_job(tmp_path, servers, rows=1, echoes=False, **broken)
            async with swarm(tmp_path) as hundred:
                return await hundred.compare(job)

    comparison = asyncio.run(main())
    assert "required tool server raw did not start" in comparison.row("a").cause
    assert (comparison.row("a").status, comparison.exit_code) == ("failed", 2)
