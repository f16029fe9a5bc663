"""The shape of a job file, as pydantic models: what the published `job.schema.json` says, and nothing more.

Defaults live in `centuria.settings`; here None means "not written". Values that only make sense together (a
template and its columns, a task and its needs) are checked where the job is built.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    StringConstraints,
    model_validator,
)

from centuria.messages import DOLLAR, Pico

Text = Annotated[str, StringConstraints(min_length=1, max_length=1_000_000)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
File = Annotated[str, StringConstraints(min_length=1, max_length=4_096)]
Names = Annotated[list[Name], Field(max_length=10_000)]
Count = Annotated[int, Field(ge=1, le=10_000)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
Priority = Annotated[int, Field(ge=0, le=9, description="0 is served first; the default is 5.")]
Price = Annotated[float, Field(ge=0, le=1_000_000, description="Dollars per million tokens.")]

#: The most dollars that a cap can be: pico-dollars must fit into 64 bits.
MOST_DOLLARS = 9_000_000


def pico(dollars: float) -> Pico:
    """Dollars, as written in decimal, in pico-dollars."""
    return int(Decimal(str(dollars)) * DOLLAR)


def dollars_or_false(value: Any) -> Any:
    """A cap: a number above 0, or false for no cap. Raises `ValueError` ("text\\nremedy")."""
    if value is False:
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and 0 < value <= MOST_DOLLARS and (value * DOLLAR) >= 1:
        return value
    if number and value == 0:
        raise ValueError("is 0, so nothing could run.\nWrite the dollars that may be spent, or `false` for no cap.")
    if number:
        raise ValueError(f"must be more than 0 and at most {MOST_DOLLARS:,} dollars.\nWrite `false` for no cap.")
    raise ValueError("must be a number of dollars, or `false` for no cap.\nWrite it without quotes and without $.")


Dollars = Annotated[
    float | Literal[False], BeforeValidator(dollars_or_false, json_schema_input_type=float | Literal[False])
]


def path_or_table(value: Any) -> Any:
    """A schema: the name of a file, or the schema itself."""
    if value is None or isinstance(value, dict) or (isinstance(value, str) and value):
        return value
    raise ValueError('must be the name of a file, or a table.\nWrite schema = "report.schema.json".')


PathOrTable = Annotated[Any, PlainValidator(path_or_table, json_schema_input_type=str | dict[str, Any])]


class Shape(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )


class RowsShape(Shape):
    """Which rows of which file become tasks."""

    file: File
    """A CSV (`.csv`, `.tsv`), JSON Lines (`.jsonl`) or JSON (`.json`) file, relative to the job file."""
    require: Names = []
    """Columns that must not be empty; a row without one is left out, and the census says why."""
    order_by: Name | None = None
    """A column; `-` before it for the largest first. Numbers are compared as numbers."""
    limit: Count | None = None
    """At most so many rows."""
    where: dict[str, JsonValue] = {}
    """Column = value, or a list of values: only these rows."""


def _table_of_rows(value: Any) -> Any:
    return {"file": value} if isinstance(value, str) else value


class JobShape(Shape):
    """What is to be done."""

    name: Name | None = None
    """The job's name in reports; by default the file's name."""
    prompt: Text | None = None
    """The template of each row's prompt: `{Column}` is replaced, `{{` and `}}` are braces."""
    system: Annotated[str, StringConstraints(max_length=1_000_000)] | None = None
    """What every subagent is told first; the same for all, so that the provider's prompt cache works."""
    rows: Annotated[RowsShape, BeforeValidator(_table_of_rows, json_schema_input_type=str | RowsShape)] | None = None
    """A file of rows, one task for each; or a table that also chooses among them."""
    id: Name | None = None
    """A column, or a template, whose value names the task; must differ in every row."""
    label: Name | None = None
    """A template for what people see beside the id."""
    max_tokens: Tokens | None = None
    """At most so many tokens an answer, reasoning included."""
    priority: Priority | None = None
    """Priority of all tasks."""
    tools: Names | None = None
    """What subagents see: servers, and tools by their full names; by default all. `{Column}` is the row's own."""
    tools_file: File | None = None
    """A file of tool servers as MCP hosts write it: `{"mcpServers": {...}}`."""
    swarm: bool | None = None
    """Whether subagents may create subagents and assign tasks to them: by default where the job is one goal."""


class ModelShape(Shape):
    """Which model, and where it is served. Keys come from the environment, never from this file."""

    name: Name | None = None
    """The model's name as its provider calls it."""
    provider: Name | None = None
    """A preset; see docs/providers.md."""
    base_url: File | None = None
    """Where the OpenAI-compatible API begins, such as `https://api.moonshot.ai/v1`."""
    key_env: Name | None = None
    """The NAME of the environment variable that holds the key."""
    context: Annotated[int, Field(ge=1024, le=100_000_000)] | None = None
    """The model's context window in tokens."""
    thinks: bool | None = None
    """Whether reasoning spends the answer's tokens."""
    sampling: dict[str, JsonValue] | None = None
    """Fields that are added to every request as they are, such as `temperature`."""
    allow_http: bool = False
    """Allow `http://` to a host that is neither this machine nor a private one."""


class CompareShape(Shape):
    """What `centuria compare` runs the job on."""

    models: Annotated[dict[Name, ModelShape], Field(max_length=50)] = {}
    """Models by a name of your own; all of them, where no --models says which."""


class PriceShape(Shape):
    """Dollars per million tokens of one model."""

    input: Price
    output: Price
    cached: Price | None = None
    cache_write: Price | None = None


class LimitsShape(Shape):
    """Caps of the run."""

    budget: Dollars | None = None
    """Dollars that the run may spend; `false` for no cap."""
    agent_budget: Dollars | None = None
    """Dollars that one subagent may spend; `false` for no cap."""
    agents: Count | None = None
    """Subagents that exist at once."""
    concurrency: Count | None = None
    """Model calls in flight at once, from the first on. Not written: as many as the provider takes, up to 100."""
    tier: Annotated[int, Field(ge=0, le=100)] | None = None
    """The account's tier at its provider (Moonshot: 0 to 5); see docs/providers.md."""
    rpm: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Requests a minute that the account may send."""
    tpm: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """Tokens a minute that the account may send and ask for."""
    tpd: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """Tokens a day that the account may send and ask for."""
    warm_first: bool | None = None
    """Let one call go ahead, so that the others find their shared beginning in the provider's prompt cache."""
    steps: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Model calls that one subagent may make."""
    tokens: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """Tokens that one subagent may use."""
    seconds: Seconds | None = None
    """Seconds that one subagent may take."""
    result_chars: Annotated[int, Field(ge=100, le=10_000_000)] | None = None
    """Characters of a tool's result that the model sees; the rest goes to a file."""
    depth: Annotated[int, Field(ge=0, le=20)] | None = None
    """How deep subagents may start subagents."""
    tasks: Count | None = None
    """Tasks of the whole run."""


class TimeoutsShape(Shape):
    """Seconds."""

    connect: Seconds | None = None
    first_token: Seconds | None = None
    silence: Seconds | None = None
    total: Seconds | None = None
    tool: Seconds | None = None
    queue: Seconds | None = None
    server_start: Seconds | None = None
    approval: Seconds | None = None
    """How long a tool call waits for a yes; after that it is refused."""


class AuthShape(Shape):
    """How a server over HTTP lets us in (OAuth), as far as it does not tell; see docs/authorization.md."""

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    """A person who logs in (`centuria login`), or the program itself by `client_id` and a secret or key."""
    client_id: Name | None = None
    """Who we are at the authorization server; by default we register there."""
    client_secret: Name | None = None
    """A reference to a variable, `"${NAME}"`, never the secret itself."""
    method: Literal["client_secret_basic", "client_secret_post"] | None = None
    """How the secret is sent; by default as the authorization server says."""
    private_key: File | None = None
    """client_credentials: a PEM file, in place of a secret."""
    algorithm: Literal["ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "EdDSA"] = "ES256"
    """client_credentials: how the key signs."""
    issuer: File | None = None
    """The one authorization server that may have our credentials; by default whichever the server names."""
    scopes: Names = []
    """What is asked for; by default all that the server offers."""
    client_metadata_url: File | None = None
    """A client ID metadata document that describes us, where the authorization server takes one."""
    redirect_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """The port of this machine that the browser comes back to; by default any that is free."""


class ToolShape(Shape):
    """One tool server: exactly one of `builtin`, `command`, `url`; or none, to tune a server of `tools_file`."""

    builtin: Literal["file_read", "code_exec", "web_search"] | None = None
    command: File | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: File | None = None
    url: File | None = None
    headers: dict[str, str] = {}
    agent_headers: dict[str, str] = {}
    """Headers that are sent with an agent's own calls alone: `{Column}` is its row's value."""
    auth: AuthShape | None = None
    elicit: Literal["decline", "defaults"] | None = None
    """What a server hears that asks a person for something in mid-call: no, or its form's defaults."""
    limit: Count | None = None
    """Calls of this server at once; with `replicas`, of each of them."""
    mode: Literal["shared", "pool", "leased"] | None = None
    """shared: one session for all; pool: any of `replicas` sessions; leased: each agent has one of them to itself."""
    replicas: Annotated[int, Field(ge=1, le=256)] | None = None
    """Sessions of the server: how many of its processes run, or connections are open."""
    idle_timeout: Seconds | None = None
    """leased: after so long without a call an agent's session goes to one that waits."""
    tool_limits: dict[str, Count] = {}
    """Calls of one of its tools at once, by the tool's own name."""
    required: bool | None = None
    """Refuse to run if this server does not start."""
    allow: Names | None = None
    """The only tools that subagents see."""
    ask: Names | None = None
    """Tools that need a yes before each call."""
    trusted: Names | None = None
    """Tools that are safe to run again (read-only or idempotent); `"*"` for all."""
    timeout: Seconds | None = None
    slug: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,15}$")] | None = None
    """What the names of its tools begin with: lower case, a letter first, at most 16."""
    roots: Annotated[list[File], Field(min_length=1)] | None = None
    """file_read: the folders that may be read."""
    seconds: Annotated[float, Field(gt=0, le=3_600)] | None = None
    """code_exec: the longest that code may run."""
    memory_mb: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """code_exec: the most memory that code may use."""
    output_chars: Annotated[int, Field(ge=100, le=10_000_000)] | None = None
    """code_exec: the most output that comes back."""
    folder: File | None = None
    """web_search: a folder of pages to search instead of the web."""
    searxng: File | None = None
    """web_search: the address of a SearXNG server."""

    @model_validator(mode="after")
    def _one_kind(self) -> ToolShape:
        kinds = [kind for kind in ("builtin", "command", "url") if getattr(self, kind) is not None]
        if len(kinds) > 1:
            raise ValueError(f"has {' and '.join(f'`{kind}`' for kind in kinds)}.\nKeep one of them.")
        return self


class TaskShape(Shape):
    """A task beside or instead of the rows."""

    id: Name
    prompt: Text
    """Taken as it is, braces included."""
    needs: Names = []
    """Tasks whose results this one is given; `"*"` for all before it."""
    allow_failed: bool = False
    """Run even if a needed task failed."""
    priority: Priority | None = None
    max_tokens: Tokens | None = None
    schema_: PathOrTable = Field(None, alias="schema")
    """A JSON Schema (a file, or a table) that the answer must satisfy."""
    tools: Names | None = None
    """The servers, and tools by their full names, that it sees, of those of [job]; by default all of them."""
    swarm: bool | None = None
    """Whether it may create subagents and assign tasks to them; by default as the job says."""
    label: Annotated[str, StringConstraints(max_length=1_000)] | None = None


class MergeShape(Shape):
    """How the results become one."""

    kind: Literal["concatenate", "table", "written"] | None = None
    schema_: PathOrTable = Field(None, alias="schema")
    """table: the JSON Schema (a file, or a table) of one row's answer."""
    text: Name | None = None
    """table: the property that holds the long text; it goes to a file of its own."""
    summary: Text | None = None
    """The prompt of a written summary."""
    max_tokens: Tokens | None = None


class CallShape(Shape):
    """A tool call of the rehearsal."""

    tool: Name
    arguments: dict[str, JsonValue] = {}
    name: Name | None = None
    """What later templates call its result; by default the tool's name."""
    each: Name | None = None
    """A list: the call is made for each of its members, which templates call `item`. Its result is a list."""


class TurnShape(Shape):
    """One answer of the scripted model: tool calls, or a text that ends the conversation."""

    calls: Annotated[list[CallShape], Field(max_length=128)] = []
    text: Text | None = None

    @model_validator(mode="after")
    def _one_thing(self) -> TurnShape:
        if bool(self.calls) == (self.text is not None):
            raise ValueError("needs either `calls` or `text`.\nTool calls go into one turn, the answer into the next.")
        return self


class ScriptShape(Shape):
    """The script of one task."""

    turn: Annotated[list[TurnShape], Field(min_length=1, max_length=1_000)]


class RoleShape(ScriptShape):
    """The script of the tasks that are assigned to one kind of subagent."""

    reads: Text | None = None
    """A template of its prompt: what stands at its placeholders is known to the script by their names."""


class RehearsalMergeShape(Shape):
    """The script of the written merge."""

    text: Text


Fault = Literal["429", "500", "reset", "stall", "cut", "rubbish"]


class RehearsalShape(Shape):
    """The scripted model of a dry run."""

    latency_ms: Annotated[float, Field(ge=0, le=600_000)] | None = None
    """How long an answer takes to begin."""
    chunk_ms: Annotated[float, Field(ge=0, le=60_000)] | None = None
    """How long each further piece of an answer takes."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    faults: dict[Fault, Annotated[float, Field(ge=0, le=1)]] = {}
    """Shares of calls that go wrong."""
    turn: Annotated[list[TurnShape], Field(max_length=1_000)] = []
    task: dict[str, ScriptShape] = {}
    agent: dict[str, RoleShape] = {}
    """Scripts by the name that `create_subagent` gave."""
    merge: RehearsalMergeShape | None = None

    @model_validator(mode="after")
    def _shares(self) -> RehearsalShape:
        if sum(self.faults.values()) > 1:
            raise ValueError("has faults that add up to more than 1.\nLower them: each is a share of all calls.")
        return self


class FileShape(Shape):
    """A job for Centuria."""

    model_config = ConfigDict(title="Centuria job file")

    job: JobShape = JobShape()
    model: ModelShape = ModelShape()
    compare: CompareShape = CompareShape()
    prices: dict[Name, PriceShape] = {}
    limits: LimitsShape = LimitsShape()
    timeouts: TimeoutsShape = TimeoutsShape()
    tools: dict[Name, ToolShape] = {}
    task: Annotated[list[TaskShape], Field(max_length=10_000)] = []
    merge: MergeShape = MergeShape.model_validate({})
    rehearsal: RehearsalShape = RehearsalShape()


def schema() -> dict[str, Any]:
    """The JSON Schema of a job file, for editors (draft 2020-12)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **FileShape.model_json_schema(by_alias=True),
    }
