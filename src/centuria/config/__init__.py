"""Configuration: job files, rows, tool servers, providers and the environment, to frozen settings.

Everything is checked before a request is sent or a cent is spent; each error is one sentence with its remedy.
"""

from centuria.config.accounts import account_limits
from centuria.config.candidates import Contender, contenders, pinned, reference_of
from centuria.config.doctor import Finding, check_price, diagnose
from centuria.config.job import (
    GOAL,
    SUMMARY_NAMES,
    LoadedJob,
    job_from_goal,
    job_from_prompt,
    job_from_tasks,
    load_job,
    overridden,
)
from centuria.config.mcp_json import read_mcp_json
from centuria.config.overrides import Overrides
from centuria.config.presets import PRESETS, Preset
from centuria.config.providers import ModelChoice, NoKey, resolve
from centuria.config.rows import Choice, Table, read_rows, rows_from
from centuria.config.schemas import load_schema
from centuria.config.shape import schema as job_schema
from centuria.config.tasks import check_id

__all__ = [
    "GOAL",
    "PRESETS",
    "SUMMARY_NAMES",
    "Choice",
    "Contender",
    "Finding",
    "LoadedJob",
    "ModelChoice",
    "NoKey",
    "Overrides",
    "Preset",
    "Table",
    "account_limits",
    "check_id",
    "check_price",
    "contenders",
    "diagnose",
    "job_from_goal",
    "job_from_prompt",
    "job_from_tasks",
    "job_schema",
    "load_job",
    "load_schema",
    "overridden",
    "pinned",
    "read_mcp_json",
    "read_rows",
    "reference_of",
    "resolve",
    "rows_from",
]
