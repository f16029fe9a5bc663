"""What is published about configuration is what the code does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import centuria.config
from centuria.config import accounts, job_schema, load_job
from centuria.config.job import read_toml
from centuria.config.presets import as_markdown

ROOT = Path(__file__).parents[2]
PUBLISHED = Path(centuria.config.__file__).with_name("job.schema.json")


def example(folder: Path) -> Path:
    text = (ROOT / "docs" / "job-file.md").read_text()
    (found,) = re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    (folder / "job.toml").write_text(found)
    (folder / "companies.csv").write_text("Name,Symbol,Market Cap\nApple,AAPL,3\nAnsys,ANSS,\nNvidia,NVDA,5\n")
    (folder / "mcp.json").write_text('{"mcpServers": {"github": {"command": "github-mcp-server"}}}')
    schema = {"type": "object", "properties": {"report": {"type": "string"}, "score": {"type": "number"}}}
    (folder / "report.schema.json").write_text(json.dumps(schema))
    return folder / "job.toml"


def test_the_example_of_the_docs_loads(tmp_path: Path) -> None:
    job = load_job(example(tmp_path), env={}).job
    assert [task.id for task in job.tasks] == ["NVDA", "AAPL", "outlook"]
    assert [server.slug for server in job.servers] == ["file", "code", "web", "db", "news", "crm", "browser", "github"]
    assert job.servers[-1].limit == 2


def keys(schema: dict[str, Any]) -> set[str]:
    parts = [schema, *schema["$defs"].values()]
    return {key for part in parts for key in part.get("properties", {})}


def test_the_example_and_the_text_show_every_key(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "job-file.md").read_text()
    for key in keys(job_schema()):
        assert re.search(rf"[`\[.{{ ]{key}\b", text), f"{key} is not documented"


def test_the_published_schema_is_current() -> None:
    # Write it anew: json.dumps(centuria.config.job_schema(), indent=2) and a line break.
    assert PUBLISHED.read_text() == json.dumps(job_schema(), indent=2) + "\n"


def test_the_published_schema_accepts_the_example_and_refuses_a_typo(tmp_path: Path) -> None:
    schema = json.loads(PUBLISHED.read_text())
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    job = read_toml(example(tmp_path))
    assert list(validator.iter_errors(job)) == []
    job["limits"]["agent"] = 3
    assert len(list(validator.iter_errors(job))) == 1


@pytest.mark.parametrize("budget", [False, 5, 0.5])
@pytest.mark.parametrize("rows", ["a.csv", {"file": "a.csv"}])
def test_the_published_schema_knows_both_forms_of_a_value(budget: object, rows: object) -> None:
    job = {"job": {"prompt": "x", "rows": rows}, "limits": {"budget": budget}}
    assert Draft202012Validator(job_schema()).is_valid(job)


def test_the_table_of_providers_in_the_docs_is_current() -> None:
    text = (ROOT / "docs" / "providers.md").read_text()
    (table,) = re.findall(r"<!-- presets -->\n(.*?)\n<!-- /presets -->", text, re.DOTALL)
    assert table == as_markdown()


def test_the_table_of_tiers_in_the_docs_is_current() -> None:
    text = (ROOT / "docs" / "providers.md").read_text()
    (table,) = re.findall(r"<!-- tiers -->\n(.*?)\n<!-- /tiers -->", text, re.DOTALL)
    assert table == accounts.as_markdown()


def test_importing_the_package_does_not_import_its_configuration() -> None:
    code = "import sys, centuria; sys.exit('centuria.config' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
