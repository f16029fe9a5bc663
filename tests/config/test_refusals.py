"""Everything that cannot work is refused before a request is sent, with one clear sentence and a remedy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from centuria.config import Overrides, load_job
from centuria.errors import CenturiaError, ConfigurationError, GraphError, JobError

ROWS = "Name,Symbol\nApple,AAPL\nNvidia,NVDA\n"
JOB = '[job]\nprompt = "Report on {Name}."\nrows = "rows.csv"\nid = "Symbol"\n'


def refusal(folder: Path, job: str | bytes, files: Mapping[str, str | bytes] | None = None) -> CenturiaError:
    for name, content in {"rows.csv": ROWS, "job.toml": job, **(files or {})}.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises((ConfigurationError, GraphError)) as caught:
        load_job(folder / "job.toml", env={})
    error = caught.value
    # "must be at least 1" is its own remedy.
    assert error.remedy or " must be " in error.message, f"no remedy: {error}"
    assert "Traceback" not in str(error)
    assert "pydantic" not in str(error)
    assert error.message.count("\n") == 0
    assert error.message.endswith(".")
    return error


@pytest.mark.parametrize(
    ("job", "sentence", "remedy"),
    [
        ('[job]\npromt = "x"\n', "job.toml: [job] has no key `promt`.", "Did you mean `prompt`?"),
        ('[jop]\nprompt = "x"\n', "job.toml: the file has no key `jop`.", "Did you mean `job`?"),
        (JOB + "[limits]\nagents = -1\n", "job.toml: [limits] agents must be at least 1, not -1.", ""),
        (JOB + '[limits]\nagents = "9"\n', "job.toml: [limits] agents must be a whole number.", ""),
        (JOB + "[limits]\nagents = 9.5\n", "job.toml: [limits] agents must be a whole number.", ""),
        (JOB + "[limits]\nagents = true\n", "job.toml: [limits] agents must be a whole number.", ""),
        (JOB + "[limits]\nbudget = -5\n", "[limits] budget must be more than 0", "`false` for no cap"),
        (JOB + "[limits]\nbudget = 0\n", "[limits] budget is 0, so nothing could run.", "`false` for no cap"),
        (JOB + '[limits]\nbudget = "$5"\n', "[limits] budget must be a number of dollars", "without quotes"),
        (JOB + "[limits]\nbudget = nan\n", "[limits] budget must be more than 0", "`false`"),
        (JOB + "[limits]\nseconds = inf\n", "[limits] seconds must be a finite number.", ""),
        (JOB + "[timeouts]\nfirst = 3\n", "[timeouts] has no key `first`.", "`first_token`"),
        (JOB + "[timeouts]\ntool = 0\n", "[timeouts] tool must be more than 0, not 0.", ""),
        (JOB + '[merge]\nkind = "tabel"\n', "[merge] kind must be one of", "Did you mean `table`?"),
        (JOB + '[merge]\nkind = "table"\n', '[merge] kind = "table" needs `schema`.', "Add the JSON Schema"),
        (JOB + '[merge]\nsummary = "{tabel}"\n', "[merge] summary asks for `tabel`.", "Did you mean `table`?"),
        (JOB + '[prices."kimi-k2.5"]\ninput = 1\n', '[prices."kimi-k2.5"] lacks `output`.', "output = ..."),
        (JOB + "[model]\nsampling = 3\n", "[model] sampling must be a table.", ""),
        (JOB + "[model]\nsampling = { top_k = nan }\n", "[model] sampling, top_k must be a finite number.", ""),
        (JOB + "[rehearsal.faults]\n430 = 0.1\n", "[rehearsal] faults, 430 must be one of '429'", ""),
        (JOB + "[rehearsal.faults]\n429 = 0.6\ncut = 0.6\n", "faults that add up to more than 1.", "Lower them"),
        (JOB + "[[rehearsal.turn]]\n", "turn, item 1 needs either `calls` or `text`.", "the answer into the next"),
        (JOB + '[rehearsal.task.APL]\nturn = [{text = "x"}]\n', "names `APL`", "Did you mean `AAPL`?"),
        ("[job]\n", "job.toml: there is nothing to do.", "Add `prompt`"),
        ('[job]\nrows = "rows.csv"\n', "[job] has `rows` but no `prompt`.", "{Column}"),
        ('[job]\nprompt = "On {Name}"\n', "[job] prompt asks for `Name`, but there are no `rows`.", "{{ and }}"),
        ('[job\nname = "x"\n', "job.toml is not TOML: Expected ']'", "text needs quotes"),
        ("[job]\nname = 1e999999\nprompt = 2024-01-01\n", "must be text in quotes", "Also:"),
        (b'[job]\nname = "caf\xe9"\n', "job.toml is not UTF-8: line 2 holds the byte 0xe9.", "UTF-8"),
        ("[job]\nname = " + "[" * 3000, "job.toml is nested too deeply.", "flatter"),
    ],
)
def test_a_job_file_with_a_mistake_is_refused_by_file_table_and_key(
    tmp_path: Path, job: str | bytes, sentence: str, remedy: str
) -> None:
    error = refusal(tmp_path, job)
    assert sentence in str(error)
    assert remedy in error.remedy


def test_several_mistakes_are_listed_and_an_unknown_key_comes_first(tmp_path: Path) -> None:
    error = refusal(tmp_path, '[job]\nprompt = 3\nrows = "rows.csv"\n[limits]\nagent = 3\nsteps = 0\n')
    assert error.message == "job.toml: [limits] has no key `agent`."
    assert "Also: job.toml: [job] prompt must be text in quotes." in error.remedy
    assert "Also: job.toml: [limits] steps must be at least 1, not 0." in error.remedy


def test_a_flood_of_mistakes_is_counted_not_printed(tmp_path: Path) -> None:
    error = refusal(tmp_path, "[job]\n" + "".join(f"x{n} = 1\n" for n in range(500)))
    assert "... and 492 more." in error.remedy
    assert len(str(error)) < 2_000


def test_a_csv_without_the_templates_column_names_the_nearest_one(tmp_path: Path) -> None:
    error = refusal(tmp_path, JOB.replace("{Name}", "{Nmae}"))
    assert error.message == "rows.csv has no column `Nmae`, which `prompt` asks for."
    assert error.remedy.startswith("Did you mean `Name`? Write {{ and }}")


def test_an_id_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, JOB.replace('"Symbol"', '"symbol"'))
    assert error.message == "rows.csv has no column `symbol`, which `id` names."


def test_duplicate_ids_name_both_rows(tmp_path: Path) -> None:
    error = refusal(tmp_path, JOB, {"rows.csv": "Name,Symbol\nA,X\nB,Y\nC,X\n"})
    assert error.message == "rows.csv: line 2 and line 4 have the same id `X`."
    assert 'id = "{A}-{B}"' in error.remedy


def test_two_equal_rows_without_an_id_are_refused(tmp_path: Path) -> None:
    job = JOB.replace('id = "Symbol"\n', "")
    error = refusal(tmp_path, job, {"rows.csv": "Name,Symbol\nA,X\nA,X\n"})
    assert error.message == "rows.csv: line 2 and line 3 are the same row."


@pytest.mark.parametrize(
    ("value", "why"), [("", "is empty"), ('"a\nb"', "line break"), ("x" * 201, "longer than 200"), ("*", '"*"')]
)
def test_an_id_that_is_no_id_is_refused_by_line(tmp_path: Path, value: str, why: str) -> None:
    error = refusal(tmp_path, JOB, {"rows.csv": f"Name,Symbol\nA,{value}\n"})
    assert why in error.message
    assert error.message.startswith("rows.csv: line ")


TASKS = '[[task]]\nid = "a"\nprompt = "x"\nneeds = ["b"]\n[[task]]\nid = "b"\nprompt = "y"\nneeds = ["{}"]\n'


@pytest.mark.parametrize(("need", "said"), [("a", "a"), ("c", "c")])
def test_a_cycle_and_an_unknown_need_are_refused_before_anything_runs(tmp_path: Path, need: str, said: str) -> None:
    error = refusal(tmp_path, TASKS.format(need))
    assert isinstance(error, GraphError)
    assert error.message.startswith("job.toml: ")
    assert said in error.message


def test_a_task_with_the_id_of_a_row_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, JOB + '[[task]]\nid = "AAPL"\nprompt = "x"\n')
    assert isinstance(error, GraphError)
    assert "AAPL" in error.message


def test_more_tasks_than_the_limit_are_refused(tmp_path: Path) -> None:
    assert isinstance(refusal(tmp_path, JOB + "[limits]\ntasks = 1\n"), GraphError)


def test_a_task_that_names_no_server_of_the_job_is_refused(tmp_path: Path) -> None:
    job = '[tools.docs]\nbuiltin = "file_read"\n[[task]]\nid = "a"\nprompt = "x"\ntools = ["doc"]\n'
    error = refusal(tmp_path, job)
    assert error.message == "job.toml: [[task]] number 1, tools: there is no server `doc`."
    assert error.remedy == "Did you mean `docs`?"


MERGE = JOB + '[merge]\nkind = "table"\nschema = "report.schema.json"\n'


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("{", "report.schema.json is not JSON: "),
        ("[]", "report.schema.json is not a JSON Schema."),
        ('{"type": "objet"}', "report.schema.json is not a JSON Schema: at type, "),
        ('{"type": "object", "properties": {"a": {"pattern": "("}}}', "at properties/a/pattern, "),
        ('{"type": "array"}', "report.schema.json does not describe an object."),
        ('{"type": "object", "$ref": "http://x.example/y"}', "refers to `http://x.example/y`, outside of itself."),
        ('{"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}', "refers to `#/$defs/b`, which is not"),
        ('{"a": ' * 5000 + "1" + "}" * 5000, "report.schema.json is nested too deeply."),
        ('{"type": "object", "default": NaN}', "NaN is not a JSON value"),
        ('{"type": "object", "title": "\\ud800"}', "not valid Unicode"),
    ],
)
def test_a_bad_schema_file_is_refused_by_name_and_place(tmp_path: Path, schema: str, sentence: str) -> None:
    error = refusal(tmp_path, MERGE, {"report.schema.json": schema})
    assert sentence in error.message


def test_a_schema_file_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    error = refusal(tmp_path, MERGE)
    assert "[merge] schema: the file report.schema.json does not exist." in error.message
    assert str(tmp_path) in error.remedy


def test_the_text_of_a_merge_must_be_a_property_of_its_schema(tmp_path: Path) -> None:
    schema = '{"type": "object", "properties": {"report": {"type": "string"}}}'
    error = refusal(tmp_path, MERGE + 'text = "reprot"\n', {"report.schema.json": schema})
    assert error.remedy == "Did you mean `report`?"


@pytest.mark.parametrize("name", ["absent.toml", ".", "a\0b"])
def test_a_job_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(JobError) as caught:
        load_job(tmp_path / name, env={})
    assert caught.value.remedy


def test_rows_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, JOB.replace("rows.csv", "row.csv"))
    assert error.message == "The file of rows row.csv does not exist."


@pytest.mark.parametrize(
    ("said", "flag", "word"),
    [
        ({"agents": 0}, "--agents must be at least 1, not 0.", "`agents` must be at least 1, not 0."),
        ({"limit": 0}, "--limit must be at least 1.", "`limit` must be at least 1."),
        ({"model": ""}, "--model must not be empty.", "`model` must not be empty."),
        ({"provider": ""}, "--provider must not be empty.", "`provider` must not be empty."),
        (
            {"budget": 0.0},
            "--budget is 0, so nothing could run. Write the dollars that may be spent, or `none` for no cap.",
            "`budget` is 0, so nothing could run. Write the dollars that may be spent, or `False` for no cap.",
        ),
    ],
)
def test_a_flag_that_cannot_work_is_refused_as_a_flag_and_an_argument_as_an_argument(
    tmp_path: Path, said: dict[str, Any], flag: str, word: str
) -> None:
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "job.toml").write_text(JOB)
    for flags, told in ((True, flag), (False, word)):
        with pytest.raises(JobError) as caught:
            load_job(tmp_path / "job.toml", Overrides(**said, flags=flags), env={})
        assert str(caught.value).startswith(told)


def test_values_that_may_be_secrets_are_never_repeated(tmp_path: Path) -> None:
    job = JOB + '[tools.x]\ncommand = "y"\nenv = { TOKEN = ["hunter2hunter2"] }\nheders = { A = "hunter2hunter2" }\n'
    assert "hunter2" not in str(refusal(tmp_path, job))
