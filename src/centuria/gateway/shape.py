"""The shape of gateway.toml, as pydantic models. Defaults live in `settings`; here None means "not written"."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from centuria.config.shape import (
    Count,
    Dollars,
    File,
    Name,
    Names,
    PriceShape,
    Seconds,
    Shape,
    TimeoutsShape,
    Tokens,
    ToolShape,
)

Bytes = Annotated[int, Field(ge=1_024, le=2**31)]


class GatewayShape(Shape):
    """Where the gateway listens and what it keeps."""

    host: Name | None = None
    """The address to listen at; `127.0.0.1` for this machine alone."""
    port: Annotated[int, Field(ge=0, le=65_535)] | None = None
    """The port to listen at; 0 for any that is free."""
    store: File | None = None
    """A file (SQLite), or `postgresql://...` where several gateways share keys and budgets."""
    hosts: Names = Field(default_factory=list)
    """Host names under which clients reach it, besides those of this machine."""
    origins: Names = Field(default_factory=list)
    """Web sites whose pages may call it."""
    bare_names: bool | None = None
    """Show tools under their servers' own names, where these differ."""


class DeploymentShape(Shape):
    """One place where a model is served. Several with the same `name` share its load."""

    name: Name
    """The model's name as callers say it."""
    model: Name | None = None
    """Its name at the provider; by default the same."""
    provider: Name | None = None
    """A preset; see docs/providers.md."""
    base_url: File | None = None
    """Where the OpenAI-compatible API begins."""
    key_env: Name | None = None
    """The NAME of the environment variable that holds the provider's key."""
    context: Annotated[int, Field(ge=1024, le=100_000_000)] | None = None
    thinks: bool | None = None
    allow_http: bool = False
    """Allow `http://` to a host that is neither this machine nor a private one."""
    concurrency: Count | None = None
    """Requests there at once. Not written: as many as it takes, up to 100."""
    tier: Annotated[int, Field(ge=0, le=100)] | None = None
    rpm: Annotated[int, Field(ge=1, le=10**9)] | None = None
    tpm: Annotated[int, Field(ge=1, le=10**12)] | None = None
    tpd: Annotated[int, Field(ge=1, le=10**12)] | None = None
    max_tokens: Tokens | None = None
    """The longest answer where a request does not say; it is reserved for each."""
    limit_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """The name under which it obeys a limit on the answer; by default as the provider's preset has it."""
    hedge_after: Seconds | None = None
    """Seconds after which a request that this model has not begun to answer goes to another deployment, too. The
    quicker one counts, and both are paid for."""


class CapsShape(Shape):
    """What one request may have: bytes and seconds."""

    header: Bytes | None = None
    body: Bytes | None = None
    bodies: Bytes | None = None
    stall: Seconds | None = None
    send: Seconds | None = None
    read: Seconds | None = None
    request: Seconds | None = None
    queue: Seconds | None = None
    waiting: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    waiting_all: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    connections: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    attempts: Annotated[int, Field(ge=1, le=100)] | None = None
    grace: Annotated[float, Field(ge=0, le=3_600)] | None = None
    mcp_sessions: Annotated[int, Field(ge=1, le=10_000)] | None = None


class SwarmsShape(Shape):
    """What one swarm may have."""

    folder: File | None = None
    running: Count | None = None
    agents: Count | None = None
    tasks: Count | None = None
    budget: Dollars | None = None


class RemoteToolsShape(Shape):
    """MCP servers that callers may bring by their URL: none, unless their hosts are named here."""

    hosts: Names = Field(default_factory=list)
    private: bool = False
    """Allow hosts whose address is a private one."""


class GatewayFileShape(Shape):
    """A gateway."""

    gateway: GatewayShape = GatewayShape()
    model: Annotated[list[DeploymentShape], Field(max_length=1_000)] = Field(default_factory=list)
    prices: dict[Name, PriceShape] = Field(default_factory=dict)
    tools: dict[Name, ToolShape] = Field(default_factory=dict)
    tools_file: File | None = None
    remote_tools: RemoteToolsShape = RemoteToolsShape()
    timeouts: TimeoutsShape = TimeoutsShape()
    caps: CapsShape = CapsShape()
    swarms: SwarmsShape = SwarmsShape()
