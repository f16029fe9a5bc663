"""Frozen settings of a gateway: what `reading` makes of gateway.toml, and every other room is built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from centuria.core.prices import Price
from centuria.core.rates import RateLimits
from centuria.messages import Pico
from centuria.settings import Endpoint, Timeouts, ToolServer


@dataclass(frozen=True, slots=True)
class Deployment:
    """One place where a model of the gateway is served. `name` is unique: `PROVIDER/MODEL`, with a number if need be.

    `price` None: unpriced, so only keys without a budget may use it. At most `concurrency` requests are there at once,
    from the first on only where `concurrency_written`. `max_tokens` is asked for where a request states no limit.
    `image_tokens` is what a picture counts as at most; a film, a recording and a file as the whole `context`.
    """

    name: str
    endpoint: Endpoint
    price: Price | None = None
    concurrency: int = 100
    concurrency_written: bool = False
    known: RateLimits = field(default_factory=RateLimits)
    max_tokens: int = 16_384
    image_tokens: int = 20_000


@dataclass(frozen=True, slots=True)
class Caps:
    """What one request may have. Sizes in bytes, times in seconds.

    `header` and `body` cap what a client sends, `send` and `read` how slowly it may send and read, `stall` is the
    longest silence of one that sends its headers. `request` bounds a request as a whole, `queue` its wait for a place;
    at most `waiting` requests of one key wait, `waiting_all` of all keys. `connections` are open at once. A request has
    `attempts` attempts at most, over retries and fallbacks. `grace` is how long streams may go on after SIGTERM.
    One key may have `mcp_sessions` open at `/mcp`. The bodies of all requests under way take `bodies` at most, those of
    one key the half of it.
    """

    header: int = 32_768
    body: int = 20 * 2**20
    stall: float = 10.0
    send: float = 30.0
    read: float = 60.0
    request: float = 600.0
    queue: float = 120.0
    waiting: int = 2_000
    waiting_all: int = 10_000
    connections: int = 10_000
    attempts: int = 4
    grace: float = 30.0
    mcp_sessions: int = 500
    bodies: int = 512 * 2**20


@dataclass(frozen=True, slots=True)
class SwarmLimits:
    """What one swarm may have: `running` work at once for one key, each with `agents` subagents, `tasks` tasks and
    `budget` pico-dollars; the runs' folders are below `folder`."""

    folder: Path = Path("gateway-runs")
    running: int = 4
    agents: int = 100
    tasks: int = 1_000
    budget: Pico | None = None


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """One gateway. `models`: the deployments of each model, by the name that callers use.

    `store` is a file (SQLite) or a `postgresql://` URL. `hosts` and `origins` are accepted besides loopback ones.
    `servers` are the operator's MCP servers, those of `tools_file` among them; `bare_names` shows their tools under
    their own names. `remote_hosts` may be named by callers as MCP servers over HTTPS, private addresses only with
    `remote_private`.
    """

    models: Mapping[str, tuple[Deployment, ...]]
    host: str = "127.0.0.1"
    port: int = 8080
    store: str = "gateway.db"
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    servers: tuple[ToolServer, ...] = ()
    tools_file: Path | None = None
    bare_names: bool = False
    remote_hosts: frozenset[str] = frozenset()
    remote_private: bool = False
    caps: Caps = field(default_factory=Caps)
    swarms: SwarmLimits = field(default_factory=SwarmLimits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    #: Seconds after which a model that has not begun to answer is asked a second time elsewhere; none: never.
    hedge: Mapping[str, float] = field(default_factory=dict)
    #: A scripted model answers in every model's place: nothing is paid, and all that is told says so.
    rehearsal: bool = False
