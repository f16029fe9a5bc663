"""Jobs: what a file, a template with rows, or a goal comes to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from centuria.config import GOAL, Choice, LoadedJob, Overrides, job_from_goal, job_from_prompt, load_job
from centuria.core.calls import content_id
from centuria.errors import JobError
from centuria.messages import DOLLAR
from centuria.settings import Limits, Rehearsal, Timeouts

ROWS = "Name,Symbol,Cap\nApple,AAPL,3\nNvidia,NVDA,5\nAnsys,ANSS,\n"
SCHEMA = {"type": "object", "properties": {"report": {"type": "string"}, "score": {"type": "number"}}}
JOB = """
[job]
prompt = "Report on {Name} ({Symbol}) as {{json}}."
system = "Be brief."
rows = { file = "rows.csv", require = ["Cap"], order_by = "-Cap" }
id = "Symbol"
label = "{Name}"
max_tokens = 9000
[merge]
kind = "table"
schema = "s.json"
text = "report"
[[task]]
id = "summary"
needs = ["*"]
prompt = "Sum up {all}."
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    return tmp_path


def load(folder: Path, text: str = JOB, overrides: Overrides | None = None) -> LoadedJob:
    (folder / "reports.toml").write_text(text)
    return load_job(folder / "reports.toml", overrides, env={})


def test_rows_become_tasks_in_order_and_written_tasks_come_after_them(folder: Path) -> None:
    job = load(folder).job
    assert [task.id for task in job.tasks] == ["NVDA", "AAPL", "summary"]
    nvidia, _, summary = job.tasks
    assert nvidia.prompt == "Report on Nvidia (NVDA) as {json}."
    assert (nvidia.label, nvidia.max_tokens, nvidia.schema) == ("Nvidia", 9000, SCHEMA)
    assert nvidia.variables["Cap"] == "5"
    assert (summary.prompt, summary.needs, summary.schema) == ("Sum up {all}.", ("*",), None)
    assert [(row.id, row.label, row.reason) for row in job.left_out] == [("ANSS", "Ansys", "no Cap")]
    assert job.name == "reports"
    assert job.merge.text == "report"


def test_what_is_not_written_has_the_settings_defaults(folder: Path) -> None:
    job = load(folder).job
    assert job.limits == Limits()
    assert job.timeouts == Timeouts()
    assert job.rehearsal == Rehearsal()


def test_a_job_called_job_is_named_after_its_folder(folder: Path) -> None:
    (folder / "job.toml").write_text(JOB)
    assert load_job(folder / "job.toml", env={}).job.name == folder.name


def test_dollars_become_pico_dollars_exactly_and_false_is_no_cap(folder: Path) -> None:
    limits = load(folder, JOB + "[limits]\nbudget = 0.1\nagent_budget = 0.000001\n").job.limits
    assert (limits.budget, limits.agent_budget) == (DOLLAR // 10, 10**6)
    assert load(folder, JOB + "[limits]\nbudget = false\n").job.limits.budget is None
    assert load(folder, JOB + "[limits]\nbudget = 7\n").job.limits.budget == 7 * DOLLAR


def test_flags_win_over_the_file(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other") / "few.csv"
    other.write_text("Name,Symbol,Cap\nIntel,INTC,1\nAMD,AMD,2\n")
    over = Overrides(name="n", model="m", budget=False, agents=7, max_tokens=11, rows=other, limit=1)
    loaded = load(folder, JOB + "[limits]\nbudget = 1\nagents = 3\nsteps = 4\n", over)
    job = loaded.job
    assert (job.name, loaded.model.name) == ("n", "m")
    assert (job.limits.budget, job.limits.agents, job.limits.steps) == (None, 7, 4)
    # The other file's rows are chosen as the job says: the largest Cap first.
    assert [(task.id, task.max_tokens) for task in job.tasks] == [("AMD", 11), ("summary", 11)]


def test_rows_without_an_id_are_named_by_their_content(folder: Path) -> None:
    job = load(folder, JOB.replace('id = "Symbol"\n', "")).job
    row = {"Name": "Nvidia", "Symbol": "NVDA", "Cap": "5"}
    assert job.tasks[0].id == content_id("Report on {Name} ({Symbol}) as {{json}}.", row, ())


def test_an_id_may_be_a_template(folder: Path) -> None:
    assert load(folder, JOB.replace('id = "Symbol"', 'id = "{Symbol}-{Name}"')).job.tasks[0].id == "NVDA-Nvidia"


def specs(folder: Path, text: str) -> dict[str, str]:
    return {task.id: task.spec for task in load(folder, text).job.tasks}


def test_an_edit_changes_the_specs_of_the_affected_tasks_and_of_no_others(folder: Path) -> None:
    before = specs(folder, JOB)
    assert specs(folder, JOB.replace("max_tokens = 9000", "max_tokens = 5")) == before
    assert specs(folder, JOB.replace('label = "{Name}"', "")) == before

    changed = specs(folder, JOB.replace("Sum up", "Add up"))
    assert {task for task in before if before[task] != changed[task]} == {"summary"}

    (folder / "rows.csv").write_text(ROWS.replace("Apple", "Apple Inc."))
    changed = specs(folder, JOB)
    assert {task for task in before if before[task] != changed[task]} == {"AAPL", "summary"}
    (folder / "rows.csv").write_text(ROWS)

    for edit in (("Be brief.", "Be long."), ("Report on", "Write on")):
        changed = specs(folder, JOB.replace(*edit))
        assert all(before[task] != changed[task] for task in before)


def test_a_new_row_makes_the_tasks_that_need_all_rows_new_as_well(folder: Path) -> None:
    before = specs(folder, JOB)
    (folder / "rows.csv").write_text(ROWS + "Intel,INTC,1\n")
    after = specs(folder, JOB)
    assert after["AAPL"] == before["AAPL"]
    assert after["summary"] != before["summary"]


def test_a_long_chain_of_needs_is_read_without_deep_recursion(folder: Path) -> None:
    tasks = [f'[[task]]\nid = "t{n}"\nprompt = "x"\nneeds = ["t{n + 1}"]\n' for n in range(3000)]
    job = load(folder, "".join(tasks) + '[[task]]\nid = "t3000"\nprompt = "x"\n').job
    assert len({task.spec for task in job.tasks}) == 3001


def test_the_script_of_a_rehearsal_is_read(folder: Path) -> None:
    script = """
[rehearsal]
latency_ms = 5
faults = { 429 = 0.1, cut = 0.05 }
[[rehearsal.turn]]
calls = [{ tool = "code_exec", arguments = { code = "{Cap}" }, name = "calc" }, { tool = "file_read" }]
[[rehearsal.turn]]
text = "{calc.rank}"
[rehearsal.task.summary]
turn = [{ text = "all" }]
[rehearsal.merge]
text = "merged"
"""
    rehearsal = load(folder, JOB + script).job.rehearsal
    assert [call.name for call in rehearsal.turns[0].calls] == ["calc", "file_read"]
    assert rehearsal.turns[1].text == "{calc.rank}"
    assert rehearsal.tasks["summary"][0].text == "all"
    assert (rehearsal.summary, rehearsal.latency_ms, rehearsal.faults) == ("merged", 5, {"429": 0.1, "cut": 0.05})


def test_written_tasks_alone_get_the_schema_of_the_table(folder: Path) -> None:
    text = '[merge]\nkind = "table"\nschema = "s.json"\n[[task]]\nid = "a"\nprompt = "x"\n'
    assert load(folder, text).job.tasks[0].schema == SCHEMA


def test_a_schema_may_stand_in_the_job_file(folder: Path) -> None:
    text = '[[task]]\nid = "a"\nprompt = "x"\nschema = { type = "object" }\n'
    assert load(folder, text).job.tasks[0].schema == {"type": "object"}


def test_the_kept_source_is_json_and_holds_no_secret(folder: Path) -> None:
    text = (
        JOB
        + """
[tools.a]
command = "x"
args = ["--token", "sk-proj-abcdefghijklmnop", "plain"]
env = { A = "hunter2-secret", B = "${B:-}" }
[tools.b]
url = "https://user:hunter2@example.com/mcp?key=hunter2"
headers = { Authorization = "Bearer ${B:-}", X = "Bearer hunter2" }
"""
    )
    source = load(folder, text).job.source
    kept = json.dumps(source)
    assert "hunter2" not in kept
    assert "sk-proj" not in kept
    assert source["tools"]["a"]["env"] == {"A": "***", "B": "${B:-}"}
    assert source["tools"]["b"]["headers"]["Authorization"] == "Bearer ${B:-}"
    assert source["tools"]["b"]["url"] == "https://***@example.com/mcp?***"
    assert source["job"]["rows"]["file"] == "rows.csv"


def test_a_prompt_and_rows_make_the_same_tasks_as_a_file_with_them(folder: Path) -> None:
    from_file = load(folder, '[job]\nprompt = "On {Name}."\nrows = "rows.csv"\nid = "Symbol"\n').job.tasks
    by_path = job_from_prompt("On {Name}.", folder / "rows.csv", id="Symbol", env={}).job.tasks
    rows = [dict(task.variables) for task in from_file]
    by_list = job_from_prompt("On {Name}.", rows, id="Symbol", env={}).job.tasks
    assert from_file == by_path == by_list


def test_a_prompt_and_rows_take_choices_and_flags(folder: Path) -> None:
    loaded = job_from_prompt(
        "On {Name}.",
        folder / "rows.csv",
        id="Symbol",
        choice=Choice(require=("Cap",), order_by="Cap"),
        overrides=Overrides(limit=1, merge="table", schema=folder / "s.json"),
        env={},
    )
    assert [(task.id, task.schema) for task in loaded.job.tasks] == [("AAPL", SCHEMA)]


def test_a_prompt_that_asks_for_a_missing_column_is_refused(folder: Path) -> None:
    with pytest.raises(JobError, match="has no column `Nane`, which `prompt` asks for"):
        job_from_prompt("On {Nane}.", [{"Name": "x"}], env={})


def test_a_nested_value_that_one_row_lacks_is_refused_by_row() -> None:
    rows = [{"a": {"b": 1}}, {"a": {"c": 1}}]
    with pytest.raises(JobError, match=r"row 2: The template asks for \{a.b\}"):
        job_from_prompt("On {a.b}.", rows, env={})


def test_an_empty_prompt_is_refused_by_row() -> None:
    with pytest.raises(JobError, match="row 2: the prompt of this row is empty"):
        job_from_prompt("{q}", [{"q": "x"}, {"q": " "}], env={})


def test_a_goal_is_one_task_with_its_braces_untouched() -> None:
    job = job_from_goal("Compare {these} {{banks}}.", env={}).job
    assert [(task.id, task.prompt) for task in job.tasks] == [(GOAL, "Compare {these} {{banks}}.")]
    with pytest.raises(JobError, match="prompt must not be empty"):
        job_from_goal("", env={})


def test_a_job_file_with_only_a_prompt_is_one_goal(folder: Path) -> None:
    job = load(folder, '[job]\nprompt = "Answer as {{x}}."\npriority = 2\n').job
    assert [(task.id, task.prompt, task.priority) for task in job.tasks] == [(GOAL, "Answer as {x}.", 2)]


SERVERS = "".join(f'[tools.{name}]\ncommand = "x"\n' for name in ("file", "web", "my_db"))


def seen(folder: Path, text: str) -> dict[str, tuple[set[str] | None, set[str]]]:
    tasks = load(folder, text + SERVERS).job.tasks
    return {task.id: (None if task.servers is None else set(task.servers), set(task.tools)) for task in tasks}


def test_a_job_grants_servers_and_single_tools_and_a_task_narrows_them(folder: Path) -> None:
    job = """
[job]
prompt = "Go {Name}"
rows = "rows.csv"
id = "Symbol"
tools = ["file", "web__search", "my_db"]
[[task]]
id = "same"
prompt = "x"
[[task]]
id = "less"
prompt = "x"
tools = ["web", "my_db", "file__read"]
[[task]]
id = "none"
prompt = "x"
tools = []
"""
    found = seen(folder, job)
    assert found["AAPL"] == found["same"] == ({"file", "my-db"}, {"web__search"})
    assert found["less"] == ({"my-db"}, {"web__search", "file__read"})
    assert found["none"] == (set(), set())
    assert seen(folder, '[[task]]\nid = "a"\nprompt = "x"\n') == {"a": (None, set())}
    assert seen(folder, '[job]\nprompt = "x"\ntools = ["web"]\n') == {GOAL: ({"web"}, set())}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ('["fiel"]', "[job] tools: there is no server `fiel`."),
        ('["fiel__read"]', "[job] tools: there is no server `fiel`."),
        ('["web"]\n[[task]]\nid = "b"\nprompt = "x"\ntools = ["file"]', "`file` is not among the `tools` of [job]."),
        ('["web"]\n[[task]]\nid = "b"\nprompt = "x"\ntools = ["file__a"]', "`file__a` is not among the `tools` of"),
    ],
)
def test_what_is_not_there_cannot_be_granted(folder: Path, names: str, message: str) -> None:
    with pytest.raises(JobError) as error:
        seen(folder, f'[job]\nprompt = "x"\ntools = {names}\n')
    assert message in str(error.value)


def test_a_rows_own_tools_are_checked_row_by_row(folder: Path) -> None:
    job = '[job]\nprompt = "Go {Name}"\nrows = "rows.csv"\nid = "Symbol"\ntools = ["{Tools}"]\n'
    (folder / "rows.csv").write_text('Name,Symbol,Tools\nApple,AAPL,"file, web__search"\nNvidia,NVDA,\n')
    assert seen(folder, job) == {"AAPL": ({"file"}, {"web__search"}), "NVDA": (set(), set())}
    (folder / "rows.csv").write_text("Name,Symbol,Tools\nApple,AAPL,file\nNvidia,NVDA,fiel\n")
    with pytest.raises(JobError, match=r"line 3: tools: there is no server `fiel`"):
        seen(folder, job)
    with pytest.raises(JobError, match=r"no column `Tool`, which `tools` asks for"):
        seen(folder, job.replace("{Tools}", "{Tool}"))
