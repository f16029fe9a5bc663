"""The command: bad input ends in one clear sentence with its remedy, before anything is sent or left behind."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from centuria.cli import main
from centuria.cli.main import parser
from centuria.testing.upstream import FakeUpstream, Text
from tests.promises.kit import bodies, centuria, raw_server, run_folders, swarm, the_run, write_job

COMMANDS = (
    *("run", "map", "resume", "compare", "show", "runs", "watch"),
    *("cancel", "pause", "go-on", "retry", "priority", "approve", "limit"),
    *("doctor", "tools", "schema", "login", "logout", "torture"),
    *("serve", "keys", "usage"),
)
KEYS = ("MOONSHOT_API_KEY", "OPENAI_API_KEY", "CENTURIA_API_KEY", "CENTURIA_BASE_URL", "CENTURIA_MODEL")


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Centuria = Callable[..., Said]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Centuria:
    """The command, in this process: in `tmp_path`, in an environment without keys but for those given."""
    monkeypatch.chdir(tmp_path)
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("CENTURIA_RUNS", str(tmp_path / "runs"))

    def call(*arguments: str | Path, **env: str) -> Said:
        for key, value in env.items():
            monkeypatch.setenv(key, value)
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:
            assert isinstance(end.code, int)
            code = end.code
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return call


def assert_refused(said: Said, *words: str, folder: Path) -> None:
    """One sentence with its remedy on standard error, exit 2, and nothing was done."""
    assert said.code == 2, said
    assert said.out == "" and "Traceback" not in said.err
    for word in words:
        assert word in said.err, said.err
    assert said.err.startswith("centuria: ")
    assert len(said.err.strip().splitlines()) >= 2, f"a remedy is missing: {said.err}"
    assert run_folders(folder) == []


# -- bad input -------------------------------------------------------------------------------------------------------


def test_without_a_key_it_says_so_and_rehearses(here: Centuria, tmp_path: Path) -> None:
    said = here("run", "Say hello.", "--model", "kimi-k2.5", "--quiet")
    assert said.code == 0 and "MOONSHOT_API_KEY is not set" in said.err and "rehearsal" in said.err
    assert "REHEARSAL" in said.err and len(run_folders(tmp_path)) == 1


@pytest.mark.parametrize("key", ["your-api-key-here", "sk-xxxxxxxxxxxxxxxx", "<key>", "sk-...", "  "])
def test_a_placeholder_is_no_key(here: Centuria, tmp_path: Path, key: str) -> None:
    said = here("run", "Say hello.", "--model", "kimi-k2.5", MOONSHOT_API_KEY=key)
    assert_refused(said, "MOONSHOT_API_KEY", folder=tmp_path)
    assert not key.strip() or key not in said.err


def test_a_key_of_another_provider_is_not_sent(here: Centuria, tmp_path: Path) -> None:
    said = here("run", "Say hello.", "--model", "kimi-k2.5", MOONSHOT_API_KEY="sk-ant-REDACTED")
    assert_refused(said, "Anthropic", "Moonshot", folder=tmp_path)
    assert "sk-ant-REDACTED" not in said.err


def test_a_url_of_another_provider_is_refused(here: Centuria, tmp_path: Path) -> None:
    job = write_job(tmp_path, "https://api.openai.com/v1", rows=1, model={"provider": "moonshot"})
    said = here("run", job, MOONSHOT_API_KEY="sk-0123456789abcdefghijklmnop")
    assert_refused(said, "OpenAI", "Moonshot", folder=tmp_path)


def test_a_route_in_the_base_url_is_refused(here: Centuria, tmp_path: Path) -> None:
    job = write_job(tmp_path, "http://127.0.0.1:9/v1/chat/completions", rows=1)
    assert_refused(here("run", job), "/chat/completions", "http://127.0.0.1:9/v1", folder=tmp_path)


def test_a_typo_in_a_job_is_named_with_what_was_meant(here: Centuria, tmp_path: Path) -> None:
    job = write_job(tmp_path, "http://127.0.0.1:9/v1", rows=1, limits={"budgett": 2.0})
    assert_refused(here("run", job), "budgett", "budget", "job.toml", folder=tmp_path)


def test_a_job_that_is_no_toml_is_refused_with_its_line(here: Centuria, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("[job]\nname = no quotes\n")
    assert_refused(here("run", "job.toml"), "job.toml", "line 2", folder=tmp_path)


def test_a_column_that_the_rows_do_not_have_is_named(here: Centuria, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("Name,City\nAda,London\n")
    said = here("map", "Write about {Nmae}.", "rows.csv", "--model", "kimi-k2.5")
    assert_refused(said, "Nmae", "Name", folder=tmp_path)


@pytest.mark.parametrize("arguments", [["run", "nowhere.toml"], ["map", "About {Name}.", "nowhere.csv"]])
def test_a_file_that_is_not_there_is_no_goal(here: Centuria, tmp_path: Path, arguments: Sequence[str]) -> None:
    assert_refused(here(*arguments), "nowhere", folder=tmp_path)


def test_a_file_that_cannot_be_read_is_refused(here: Centuria, tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    assert_refused(here("run", "folder.toml"), "folder.toml", folder=tmp_path)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    said = here("map", "About {Name}.", "binary.csv", "--model", "kimi-k2.5")
    assert said.code == 2 and "binary.csv" in said.err and "Traceback" not in said.err
    assert run_folders(tmp_path) == []


def test_a_model_without_a_price_is_refused_under_a_cap(here: Centuria, tmp_path: Path) -> None:
    job = write_job(tmp_path, "http://127.0.0.1:9/v1", rows=1, model={"name": "brand-new"})
    assert_refused(here("run", job), '[prices."brand-new"]', "--budget none", folder=tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [["show", "nothing"], ["resume", "nothing"], ["watch", "x"], ["cancel", "x"], ["limit", "x", "agents", "1"]],
)
def test_a_run_that_is_not_there_is_named_with_what_there_is(
    here: Centuria, tmp_path: Path, arguments: Sequence[str]
) -> None:
    assert_refused(here(*arguments), "There is no run", "centuria run", folder=tmp_path)


def test_a_priority_that_cannot_be_is_refused_before_anything_is_promised(here: Centuria, tmp_path: Path) -> None:
    assert_refused(here("priority", "last", "NVDA", "12"), "A priority cannot be 12", "0 (first) to 9", folder=tmp_path)


def test_a_budget_that_is_no_amount_is_a_usage_error(here: Centuria, tmp_path: Path) -> None:
    said = here("run", "Say hello.", "--budget", "much")
    assert said.code == 2 and "'much' is not an amount" in said.err and run_folders(tmp_path) == []


@pytest.mark.parametrize("budget", ["0", "-1", "nan", "inf"])
def test_a_budget_that_cannot_be_is_refused(here: Centuria, tmp_path: Path, budget: str) -> None:
    said = here("run", "Say hello.", f"--budget={budget}", "--model", "kimi-k2.5")
    assert said.code == 2 and "Traceback" not in said.err and run_folders(tmp_path) == []
    assert said.err.startswith("centuria: --budget ") and "`false`" not in said.err


@pytest.mark.parametrize("flag", ["--budget=0", "--budget=-1", "--budget=nan", "--agents=0", "--concurrency=0"])
async def test_a_limit_that_cannot_be_is_refused_by_a_resume(tmp_path: Path, flag: str) -> None:
    async with FakeUpstream() as upstream:
        async with swarm(tmp_path) as hundred:
            await hundred.run(write_job(tmp_path, upstream, rows=1))
        before = (the_run(tmp_path) / "journal.sqlite").read_bytes()
        said = await centuria(tmp_path, "resume", "last", flag)
    assert said.code == 2 and f"centuria: {flag.partition('=')[0]} " in said.err and "Traceback" not in said.err
    assert (the_run(tmp_path) / "journal.sqlite").read_bytes() == before


def test_an_empty_goal_is_refused(here: Centuria, tmp_path: Path) -> None:
    assert_refused(here("run", "  "), "empty", folder=tmp_path)


async def test_a_status_that_is_none_is_refused_by_only(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream:
        async with swarm(tmp_path) as hundred:
            await hundred.run(write_job(tmp_path, upstream, rows=1))
        before = (the_run(tmp_path) / "journal.sqlite").read_bytes()
        said = await centuria(tmp_path, "resume", "last", "--only", "failedd")
    assert said.code == 2 and "failedd" in said.err and "failed, timeout" in said.err and "Traceback" not in said.err
    assert (the_run(tmp_path) / "journal.sqlite").read_bytes() == before


async def test_a_required_server_that_does_not_start_ends_the_run_before_it_begins(tmp_path: Path) -> None:
    async with FakeUpstream() as upstream:
        job = write_job(tmp_path, upstream, rows=2, tools={"raw": raw_server("crash", required=True)})
        said = await centuria(tmp_path, "run", job)
    assert said.code == 2 and "Traceback (most" not in said.err, said.err
    assert "required tool server raw did not start" in said.err and "required = false" in said.err
    assert upstream.requests == [] and run_folders(tmp_path) == []


async def test_a_server_that_is_not_required_is_said_to_be_down_and_the_run_goes_on(tmp_path: Path) -> None:
    async with FakeUpstream(lambda body: Text("Without it.")) as upstream:
        job = write_job(tmp_path, upstream, rows=1, tools={"raw": raw_server("crash")})
        said = await centuria(tmp_path, "run", job)
    assert said.code == 0 and "server raw is down" in said.err and "nonsense" in said.err
    assert "tools" not in bodies(upstream)[0]


def test_a_folder_that_holds_something_is_not_written_into(here: Centuria, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    said = here("run", "Say hello.", "--model", "kimi-k2.5", "--rehearse", "--out", "mine", "--quiet")
    assert_refused(said, "not empty", "--out", folder=tmp_path)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


# -- what a run elsewhere is found by --------------------------------------------------------------------------------


def test_a_run_with_its_own_folder_is_found_like_any_other(here: Centuria, tmp_path: Path) -> None:
    said = here("run", "Say hello.", "--model", "kimi-k2.5", "--rehearse", "--out", "reports", "--json", "--quiet")
    assert said.code == 0
    for name in ("last", "reports", str(tmp_path / "reports")):
        shown = here("show", name, "goal", "--json")
        assert shown.code == 0 and '"status":"ok"' in shown.out.replace(" ", "")
    assert len(here("runs", "--json").out.splitlines()) == 1


def test_a_map_runs_the_first_rows_and_writes_a_report_for_each(here: Centuria, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("Symbol,Name\nA,Ada\nB,Bob\nC,Cy\n")
    said = here("map", "About {Name}.", "rows.csv", "--id", "Symbol", "--limit", "2", "--rehearse", "--out", "r")
    assert said.code == 0 and "2 ok of 2" in said.err
    assert sorted(path.name for path in (tmp_path / "r" / "reports").iterdir()) == ["A.md", "B.md"]


# -- help and imports ------------------------------------------------------------------------------------------------


def test_the_commands_are_these(here: Centuria) -> None:
    said = here("--help")
    assert said.code == 0 and "exit codes: 0 all ok, 1 some not ok, 2 usage" in said.out
    actions = next(action for action in parser()._actions if action.choices)
    assert tuple(actions.choices or ()) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example_that_parses(here: Centuria, command: str) -> None:
    import shlex

    said = here(command, "--help")
    assert said.code == 0
    example = said.out.split("example:")[1].strip().splitlines()[0]
    words = shlex.split(example.partition(" > ")[0])
    assert words[:2] == ["centuria", command]
    parser().parse_args(words[1:])


def test_the_help_names_every_provider_and_where_the_keys_come_from(here: Centuria) -> None:
    from centuria.config.presets import BY_NAME

    said = " ".join(here("run", "--help").out.split())
    assert all(name in said for name in BY_NAME) and "openai:gpt-4.1" in said
    assert "without one the run is a rehearsal" in said
    assert "MOONSHOT_API_KEY" in here("--help").out


def test_an_unknown_command_is_a_usage_error(here: Centuria) -> None:
    said = here("fly")
    assert said.code == 2 and "fly" in said.err and said.out == ""


@pytest.mark.parametrize(
    "does", ["import centuria", "from centuria.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit: pass"]
)
def test_importing_and_asking_for_help_load_no_heavy_library(does: str) -> None:
    heavy = ("aiohttp", "mcp", "pydantic", "rich", "genai_prices", "jsonschema", "asyncio")
    asked = f"import sys\n{does}\nprint([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr.strip() == "[]"


async def test_a_reader_that_goes_away_ends_the_command_quietly(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_shell(
        f"{sys.executable} -c 'import sys; from centuria.cli import main; sys.exit(main())' schema | head -c 1",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=tmp_path,
    )
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    assert out == b"{" and b"Traceback" not in err and b"BrokenPipe" not in err, err


def test_a_rehearsal_without_a_script_answers_what_the_schema_asks_for(here: Centuria, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("Name\nA\nB\n")
    schema = {"type": "object", "properties": {"size": {"type": "number"}}, "required": ["size"]}
    (tmp_path / "s.json").write_text(json.dumps(schema))
    said = here("map", "About {Name}", "rows.csv", "--id", "Name", "--schema", "s.json", "--out", "out")
    assert said.code == 0, said.err
    assert (tmp_path / "out" / "table.csv").read_text().splitlines() == ["id,size", "A,0", "B,0"]


def test_a_prompt_that_names_no_column_is_refused_before_anything_is_paid(here: Centuria, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("Name\nA\nB\n")
    assert_refused(here("map", "About Name", "rows.csv"), "names no column", "{Name}", folder=tmp_path)


def test_a_resume_with_nothing_left_to_do_says_so(here: Centuria) -> None:
    assert here("run", "Say hello.").code == 0
    said = here("resume", "last")
    assert (said.code, "nothing was left to do" in said.err) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["rnu", "job.toml"], "there is no command 'rnu'. Did you mean run?"),
        (["keys", "lst"], "there is no action 'lst'. Did you mean list?"),
        (["job.toml"], "Did you mean: centuria run job.toml?"),
        (["Compare the banks."], "Did you mean: centuria run 'Compare the banks.'?"),
        (["xyzzy"], "There is: run, map, resume,"),
        (["run", "x", "--bugdet", "2"], "Did you mean --budget?"),
    ],
)
def test_a_word_that_is_no_command_or_flag_is_told_with_the_one_that_was_meant(
    here: Centuria, arguments: Sequence[str], meant: str
) -> None:
    said = here(*arguments)
    assert said.code == 2 and meant in said.err and said.out == ""


def test_a_map_whose_prompt_and_rows_are_swapped_is_told_the_right_order(here: Centuria, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("Name\nA\n")
    said = here("map", "c.csv", "Say {Name}.")
    assert_refused(said, "The prompt comes before the rows", "centuria map 'Say {Name}.' c.csv", folder=tmp_path)


def test_a_tool_server_that_is_not_installed_is_told_with_its_remedy_by_run_doctor_and_tools(
    here: Centuria, tmp_path: Path
) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "no-such-program-xyz"}}}')
    ran = here("run", "Say hello.", "--tools", "mcp.json", "--quiet", "--out", "r")
    assert "server a is down: It cannot be started: 'no-such-program-xyz' was not found" in ran.err
    assert "centuria doctor --tools mcp.json" in ran.err
    for said in (
        ran.err,
        here("doctor", "--offline", "--tools", "mcp.json").out,
        here("tools", "--tools", "mcp.json").err,
    ):
        assert "Install it, or write its whole path as the `command`." in said


# -- a rehearsal costs nothing ---------------------------------------------------------------------------------------


def test_what_a_rehearsal_would_cost_is_nowhere_said_to_be_spent(here: Centuria, tmp_path: Path) -> None:
    said = here("run", "Say hello.", "--quiet", "--out", "r")
    assert said.code == 0 and "cost    $0 spent (would cost $0." in said.err and " of $5.00)" in said.err
    listed, shown, task = here("runs").out, here("show", "r").out, here("show", "r", "goal").out
    assert "$0 spent (would cost $0." in listed and "rehearsal" in listed
    assert "$0 spent (would cost $0." in shown and "would cost" in shown.partition("task ")[2]
    assert "would cost $0." in task
    for text in (said.err, listed, shown, task):
        assert not re.search(r"\$0\.\d+ spent", text)


def test_a_rehearsal_without_a_price_says_what_a_real_run_will_refuse(here: Centuria, tmp_path: Path) -> None:
    said = here("run", "Say hello.", "--model", "gpt-99-unheard", "--quiet", "--out", "r")
    assert said.code == 0 and "$0 spent (would cost an unknown amount of $5.00)" in said.err
    assert "warning: A real run of this will be refused: There is a cap of $5, but no known price" in said.err
    assert '\n[prices."gpt-99-unheard"]\ninput = ..' in said.err
    (line,) = (json.loads(text) for text in (tmp_path / "r" / "results.jsonl").read_text().splitlines())
    assert line["cost"] is None, "unknown is not nothing"
    free = here("run", "Say hello.", "--model", "gpt-99-unheard", "--budget", "none", "--quiet", "--out", "s")
    assert free.code == 0 and "will be refused" not in free.err and "unpriced" in free.err
