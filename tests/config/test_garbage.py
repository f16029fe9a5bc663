"""Whatever stands in a file, what comes out is settings or one of our errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from centuria.config import job_from_prompt, load_job, read_mcp_json, read_rows
from centuria.config.shape import FileShape
from centuria.errors import ConfigurationError, GraphError

QUICK = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("garbage")


def survives(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for read in (lambda: load_job(path, env={}), lambda: read_rows(path), lambda: read_mcp_json(path, {})):
        try:
            read()
        except (ConfigurationError, GraphError) as error:
            assert str(error)


# Pieces that reach further into the readers than random bytes do.
PIECES = st.sampled_from(
    ["[job]\n", "[[task]]\n", "[tools.a]\n", "prompt = ", "id = ", "needs = ", '"x"', '"{a}"', "[", "]", "{", "}", ",",
     "=", "\n", '"', "1", "1e400", "-1", "nan", "inf", "true", "1979-05-27", "\x00", "é", "a,b\n", "null", ": ",
     '"mcpServers":', "'''", "\\ud800", "#", "rows = ", "9" * 5000]
)  # fmt: skip


@given(content=st.binary(max_size=80) | st.lists(PIECES, max_size=14).map(lambda parts: "".join(parts).encode()))
@QUICK
def test_no_bytes_in_any_file_raise_anything_but_our_errors(folder: Path, content: bytes) -> None:
    for name in ("a.toml", "a.csv", "a.jsonl", "a.json"):
        survives(folder / name, content)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
TABLES = {name: list(field.annotation.model_fields) for name, field in FileShape.model_fields.items()
          if hasattr(field.annotation, "model_fields")}  # fmt: skip


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Any]:
    """A job whose tables and keys are right and whose values are anything."""
    job: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(sorted(TABLES)), unique=True, max_size=4)):
        keys = [key.rstrip("_") for key in TABLES[name]]
        job[name] = draw(st.dictionaries(st.sampled_from(keys), VALUES, max_size=3))
    if draw(st.booleans()):
        job["task"] = [draw(st.dictionaries(st.sampled_from(["id", "prompt", "needs", "schema"]), VALUES, max_size=4))]
    if draw(st.booleans()):
        keys_of_tools = st.sampled_from(["command", "url", "builtin", "args", "env", "roots"])
        job["tools"] = {draw(st.text(max_size=5)): draw(st.dictionaries(keys_of_tools, VALUES, max_size=3))}
    return job


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return "'null'" if value is None else repr(value).lower() if isinstance(value, float) else json.dumps(value)


@given(job=jobs())
@QUICK
def test_no_value_of_any_key_raises_anything_but_our_errors(folder: Path, job: dict[str, Any]) -> None:
    text = "".join(f"{json.dumps(name)} = {toml(table)}\n" for name, table in job.items())
    survives(folder / "b.toml", text.encode(errors="replace"))


ENTRIES = st.dictionaries(
    st.sampled_from(["command", "args", "env", "url", "type", "headers", "cwd", "disabled"]), VALUES
)


@given(servers=st.dictionaries(st.text(max_size=8), VALUES | ENTRIES, max_size=3))
@QUICK
def test_no_entry_of_a_tools_file_raises_anything_but_our_errors(folder: Path, servers: dict[str, Any]) -> None:
    survives(folder / "mcp.json", json.dumps({"mcpServers": servers}).encode())


@given(
    template=st.text(max_size=30), rows=st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=3), max_size=4)
)
@QUICK
def test_no_template_and_no_rows_raise_anything_but_our_errors(template: str, rows: list[dict[str, Any]]) -> None:
    try:
        job_from_prompt(template, rows, env={})
    except (ConfigurationError, GraphError) as error:
        assert str(error)
