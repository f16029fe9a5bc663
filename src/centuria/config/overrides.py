"""What flags and the API say over a job file: written in the job file's own shape, so that the same checks hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from centuria.config.providers import at_provider
from centuria.core.quoting import quoted


@dataclass(frozen=True, slots=True)
class Overrides:
    """None is "not said". `budget` and `agent_budget` are dollars, False for no cap; `tools` is an
    `mcpServers` file; `schema` a file, or a JSON Schema as it is.

    `limit` is the most rows that become tasks. `rows`, `tools` and `schema` are relative to the current
    folder, not to the job file.
    """

    name: str | None = None
    model: str | None = None
    provider: str | None = None
    base_url: str | None = None
    key_env: str | None = None
    budget: float | Literal[False] | None = None
    agent_budget: float | Literal[False] | None = None
    agents: int | None = None
    concurrency: int | None = None
    steps: int | None = None
    max_tokens: int | None = None
    rows: Path | None = None
    limit: int | None = None
    tools: Path | None = None
    merge: str | None = None
    schema: Path | Mapping[str, Any] | None = None
    #: Whether it was a command line that said it: mistakes are told in its words then.
    flags: bool = False

    @property
    def elsewhere(self) -> bool:
        """Whether `model` names its provider too (`openai:gpt-4.1`), so that the job's own says nothing about it."""
        said_where = self.provider is not None or self.base_url is not None
        return not said_where and at_provider(self.model or "") is not None

    def name_of(self, location: Sequence[int | str]) -> str:
        """What a place of the tables is called by who said it: `--budget`, or `budget`."""
        words = [str(part) for part in location]
        said = "tools" if words[-1:] == ["tools_file"] else words[0] if words == ["model", "name"] else words[-1]
        return f"--{said.replace('_', '-')}" if self.flags else quoted(said)

    def advice(self, remedy: str) -> str:
        """A remedy that was written for job files: without a cap is `none` for a flag, and False in Python."""
        return remedy.replace("`false`", "`none`" if self.flags else "`False`")

    def as_tables(self) -> dict[str, Any]:
        """The same in the shape of a job file."""
        job: dict[str, Any] = {"name": self.name, "max_tokens": self.max_tokens}
        job["tools_file"] = _absolute(self.tools)
        job["rows"] = _absolute(self.rows)
        model: dict[str, Any] = {"name": self.model, "provider": self.provider}
        model |= {"base_url": self.base_url, "key_env": self.key_env}
        limits: dict[str, Any] = {
            "budget": self.budget,
            "agent_budget": self.agent_budget,
            "agents": self.agents,
            "concurrency": self.concurrency,
            "steps": self.steps,
        }
        schema = self.schema if isinstance(self.schema, Mapping) else _absolute(self.schema)
        merge: dict[str, Any] = {"kind": self.merge, "schema": schema}
        tables = {"job": job, "model": model, "limits": limits, "merge": merge}
        written = {
            name: {key: item for key, item in table.items() if item is not None} for name, table in tables.items()
        }
        return {name: table for name, table in written.items() if table}


def _absolute(path: Path | None) -> str | None:
    return str(path.absolute()) if path is not None else None


def merged(raw: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both, the second one winning; another file of `rows` leaves the rest of their table."""
    result = dict(raw)
    for key, value in over.items():
        old = result.get(key)
        if key == "rows" and isinstance(old, Mapping) and isinstance(value, str):
            value = {"file": value}
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
