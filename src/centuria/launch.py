"""What a run is started from, kept in its folder so that it can be started again. Never a key."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from centuria import __version__, pricelist
from centuria.config import (
    LoadedJob,
    ModelChoice,
    NoKey,
    Overrides,
    account_limits,
    check_price,
    load_job,
    overridden,
    read_mcp_json,
    resolve,
)
from centuria.core.blotting import secret_name, secrets_in
from centuria.core.prices import Price
from centuria.core.rates import RateLimits
from centuria.errors import ConfigurationError, JournalError, PriceMissing
from centuria.events import RunStarted
from centuria.folder import RunFolder, file_stem
from centuria.journal import JournalReader
from centuria.messages import Status
from centuria.model.replay import about_of
from centuria.settings import MERGE, Endpoint, Job, ToolServer

#: What `Launch.save` writes.
JOB = "job.json"
_SCHEMA = 1
#: Long, without a break, and with digits among the letters.
_KEY_LIKE = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9_+=.\-]{16,}")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a job came from, to read its tool servers again: their keys are not kept. Absolute paths."""

    job_file: str | None = None
    tools_file: str | None = None


@dataclass(frozen=True, slots=True)
class Resume:
    """Going on with a broken or unsatisfying run: with all that is not ok, or with `only` these statuses."""

    only: frozenset[Status] | None = None


@dataclass(frozen=True, slots=True)
class Tape:
    """Files of model exchanges: `record` is written, `replay` answers in the model's place, `paced` at the speed that
    was recorded instead of at once."""

    record: Path | None = None
    replay: Path | None = None
    paced: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that one run is composed from. `remark` is what the user should know before it starts."""

    run: str
    folder: RunFolder
    job: Job
    endpoint: Endpoint
    price: Price | None
    rehearse: bool
    choice: ModelChoice = field(default_factory=ModelChoice)
    prices: Mapping[str, Mapping[str, float]] | None = None
    origin: Origin = field(default_factory=Origin)
    resume: Resume | None = None
    remark: str = ""
    tape: Tape = field(default_factory=Tape)
    #: What the account may send, as far as it is known.
    account: RateLimits = field(default_factory=RateLimits)
    #: Values of the environment that could be keys: tool servers' arguments may have been filled with them.
    confidential: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def about(self) -> dict[str, Any]:
        """What a recording of this run tells of it: enough to replay it where nothing of its environment is."""
        endpoint = self.endpoint
        told: dict[str, Any] = {"centuria": __version__, "run": self.run, "job": self.job.name}
        told |= {"provider": endpoint.provider, "model": endpoint.model, "base_url": endpoint.base_url}
        return told | {"rehearsal": self.rehearse}

    @property
    def secrets(self) -> frozenset[str]:
        """Every key that this run knows, as it is."""
        own = {self.endpoint.key.value} if self.endpoint.key is not None else set()
        servers = self.job.servers
        variables = {value for server in servers for name, value in server.env.items() if secret_name(name)}
        headers = {value for server in servers for value in secrets_in(server.headers)}
        clients = {
            server.auth.client_secret.value
            for server in servers
            if server.auth is not None and server.auth.client_secret is not None
        }
        return frozenset(own | variables | headers | clients | secrets_in(self.endpoint.headers))

    @property
    def priced(self) -> bool:
        """Whether it is known what the model costs."""
        return self.price is not None

    @property
    def refused_when_real(self) -> PriceMissing | None:
        """Why this rehearsal could not be a real run: it has a cap, and nobody knows what the model costs."""
        if not self.rehearse or self.tape.replay is not None:
            return None
        try:
            check_price(self.endpoint, self.job.limits, pricelist.load(self.prices))
        except PriceMissing as error:
            return error
        return None

    def save(self) -> None:
        """Write `job.json` into the run's folder, without keys and without values that could be keys."""
        known = self.confidential | self.secrets
        servers = tuple(_without_keys(server, known) for server in self.job.servers)
        saved = _Saved(
            schema=_SCHEMA,
            run=self.run,
            job=replace(self.job, servers=servers),
            choice=self.choice,
            prices=dict(self.prices or {}),
            origin=self.origin,
            rehearse=self.rehearse,
            secret_servers=tuple(
                whole.slug for whole, kept in zip(self.job.servers, servers, strict=True) if whole != kept
            ),
            replay=_absolute(self.tape.replay),
        )
        self.folder.write(JOB, _adapter().dump_json(saved, indent=1).decode())


@dataclass(frozen=True, slots=True)
class _Saved:
    schema: int
    run: str
    job: Job
    choice: ModelChoice
    prices: Mapping[str, Mapping[str, float]]
    origin: Origin
    rehearse: bool
    secret_servers: tuple[str, ...]
    replay: str | None = None


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(_Saved)


def _without_keys(server: ToolServer, known: Set[str]) -> ToolServer:
    """A server without what could be a key; where it was reached by one, without its arguments and query."""
    auth = replace(server.auth, client_secret=None) if server.auth is not None else None
    server = replace(server, env={}, headers={}, agent_headers={}, auth=auth)
    texts = (server.command or "", server.url or "", *server.args)
    flags = (arg.partition("=")[0] for arg in server.args if arg.startswith("-"))
    told = any(value and value in text for value in known for text in texts) or any(
        secret_name(flag.strip("-")) for flag in flags
    )
    if server.url is not None:
        parts = urlsplit(server.url)
        bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
        return replace(server, url=bare, args=() if told else server.args)
    return replace(server, args=()) if told else server


def _confidential(env: Mapping[str, str]) -> frozenset[str]:
    """The values of the environment that could be keys, by their variable's name or by their looks."""
    return frozenset(
        value for name, value in env.items() if len(value) >= 8 and (secret_name(name) or _KEY_LIKE.fullmatch(value))
    )


def new_run_id(name: str, now: float) -> str:
    """An id that sorts by time, tells the job's name, and never meets another: `20260131-142501-reports-3f9c`."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{file_stem(name)[:40].strip('-.') or 'run'}-{secrets.token_hex(2)}"


def prepare(
    loaded: LoadedJob,
    env: Mapping[str, str],
    *,
    run: str,
    folder: RunFolder,
    rehearse: bool = False,
    tools_file: Path | None = None,
    tape: Tape | None = None,
) -> Launch:
    """Check model, key and price, and decide whether this is a rehearsal: nothing is sent, nothing is written.

    `tools_file` is the `mcpServers` file that was named beside the job; a resume reads it again. A replay (`tape`)
    needs no key and no price. Raises `ConfigurationError` with its remedy.
    """
    tape = tape or Tape()
    if tape.replay is not None and rehearse:
        raise ConfigurationError("A replay cannot be a rehearsal too.", remedy="Give --replay or --rehearse.")
    check_no_merge(loaded.job)
    if tape.replay is not None:
        endpoint, price, remark, rehearse = _as_recorded(tape.replay, loaded.job, loaded.model, loaded.prices)
    else:
        endpoint, price, remark, rehearse = _endpoint(loaded.job, loaded.model, loaded.prices, env, rehearse=rehearse)
    return Launch(
        run=run,
        folder=folder,
        job=loaded.job,
        endpoint=endpoint,
        price=price,
        rehearse=rehearse,
        choice=loaded.model,
        prices=loaded.prices,
        origin=Origin(_absolute(loaded.path), _absolute(tools_file)),
        remark=remark,
        tape=tape,
        account=account_limits(loaded.job.limits, endpoint.provider),
        confidential=_confidential(env),
    )


def check_no_merge(job: Job) -> None:
    """Raises `ConfigurationError` where a task has the id of the merge."""
    if any(task.id == MERGE for task in job.tasks):
        raise ConfigurationError(
            f"A task cannot have the id {MERGE!r}.", remedy="It names the merge itself: choose another."
        )


def _absolute(path: Path | None) -> str | None:
    return str(path.absolute()) if path is not None else None


def _endpoint(
    job: Job,
    choice: ModelChoice,
    prices: Mapping[str, Mapping[str, float]],
    env: Mapping[str, str],
    *,
    rehearse: bool,
) -> tuple[Endpoint, Price | None, str, bool]:
    """Where the run goes and what it costs there. A rehearsal needs no key, and reads none."""
    resolved = resolve(choice, {} if rehearse else env)
    remark = ""
    if isinstance(resolved, NoKey):
        endpoint = resolved.endpoint
        if not rehearse:
            remark = f"{resolved.text} This is a rehearsal: a scripted model, no cost. {resolved.remedy}"
        rehearse = True
    else:
        endpoint = resolved
    table = pricelist.load(prices)
    if not rehearse:
        check_price(endpoint, job.limits, table)
    return endpoint, table.find(endpoint.provider, endpoint.model), remark, rehearse


def _as_recorded(
    path: Path, job: Job, choice: ModelChoice, prices: Mapping[str, Mapping[str, float]]
) -> tuple[Endpoint, Price | None, str, bool]:
    """Where the recorded run went, as far as the job does not say, and whether that was a rehearsal."""
    about = about_of(path)
    told = {name: about[name] for name in ("provider", "model", "base_url") if isinstance(about.get(name), str)}
    if choice.provider is None and choice.base_url is None:
        choice = replace(choice, provider=told.get("provider"))
    if choice.provider == "custom" and choice.base_url is None:
        choice = replace(choice, base_url=told.get("base_url"))
    choice = replace(choice, name=choice.name or told.get("model"))
    endpoint, price, _, _ = _endpoint(job, choice, prices, {}, rehearse=True)
    return endpoint, price, "", about.get("rehearsal") is True


def prepare_resume(
    folder: RunFolder,
    env: Mapping[str, str],
    *,
    only: frozenset[Status] | None = None,
    edited: LoadedJob | None = None,
    overrides: Overrides | None = None,
    tape: Tape | None = None,
) -> Launch:
    """A run's own settings again, with what the user changed: an edited job, other limits, model or tools file.

    What began as a replay goes on as one. Raises `ConfigurationError`, `JournalError`.
    """
    saved, said = _load(folder, edited), overrides or Overrides()
    if edited is not None:
        job, choice, prices = edited.job, edited.model, edited.prices
    else:
        job = replace(saved.job, servers=_servers(saved, env, said.tools))
        choice, prices = saved.choice, saved.prices
    job, choice = overridden(job, choice, said)
    tape = tape or Tape()
    if tape.replay is None and saved.replay is not None:
        tape = replace(tape, replay=Path(saved.replay))
    if tape.replay is not None:
        endpoint, price, remark, rehearse = _as_recorded(tape.replay, job, choice, prices)
    else:
        endpoint, price, remark, rehearse = _endpoint(job, choice, prices, env, rehearse=saved.rehearse)
    if rehearse and not saved.rehearse and tape.replay is None:
        raise ConfigurationError(f"This run was no rehearsal, and there is no key now. {remark}".strip())
    return Launch(
        run=saved.run,
        folder=folder,
        job=job,
        endpoint=endpoint,
        price=price,
        rehearse=rehearse,
        choice=choice,
        prices=prices,
        origin=_origin(saved, edited, said),
        resume=Resume(only),
        remark=remark,
        tape=tape,
        account=account_limits(job.limits, endpoint.provider),
        confidential=_confidential(env),
    )


def _origin(saved: _Saved, edited: LoadedJob | None, said: Overrides) -> Origin:
    """Where the next resume finds the tool servers' keys."""
    job_file = saved.origin.job_file if edited is None else _absolute(edited.path)
    tools_file = saved.origin.tools_file if edited is None else None
    return Origin(job_file, _absolute(said.tools) or tools_file)


def _load(folder: RunFolder, edited: LoadedJob | None = None) -> _Saved:
    """What the run was started with. A file that cannot be read is no obstacle where the job is given again."""
    try:
        saved: _Saved = _adapter().validate_json(folder.read(JOB))
        _check_limits(saved.job)
    except (OSError, ValueError) as error:
        if edited is not None:
            return _as_journaled(folder, edited)
        raise JournalError(
            f"{folder.path / JOB} cannot be read: {type(error).__name__}.",
            remedy="Give the job again: centuria resume RUN --job job.toml.",
        ) from error
    if saved.schema > _SCHEMA:
        raise JournalError("This run was made by a newer Centuria.", remedy="Upgrade: pip install -U centuria.")
    return saved


def _check_limits(job: Job) -> None:
    """Raises `ValueError` for limits with which a run could not end."""
    limits = job.limits
    if min(limits.agents, limits.concurrency, limits.steps, limits.tasks) < 1:
        raise ValueError("a limit below 1")


def _as_journaled(folder: RunFolder, edited: LoadedJob) -> _Saved:
    """What the journal alone tells of a run's start."""
    with JournalReader(folder.journal) as reader:
        run = reader.meta.run
        first = next((record.event for record in reader.records()), None)
    rehearse = isinstance(first, RunStarted) and first.rehearsal
    return _Saved(_SCHEMA, run, edited.job, edited.model, edited.prices, Origin(), rehearse, ())


def _servers(saved: _Saved, env: Mapping[str, str], tools_file: Path | None) -> tuple[ToolServer, ...]:
    """The run's tool servers, with their keys read again from where they were first written."""
    servers = {server.slug: server for server in saved.job.servers}
    again: list[ToolServer] = []
    job_file = Path(saved.origin.job_file) if saved.origin.job_file else None
    if tools_file is None and saved.origin.tools_file:
        tools_file = Path(saved.origin.tools_file)
    if saved.secret_servers or tools_file is not None:
        if job_file is not None and job_file.is_file():
            again += load_job(job_file, env=env).job.servers
        if tools_file is not None:
            again += read_mcp_json(tools_file, env)
    servers |= {server.slug: server for server in again if server.slug in servers}
    known = {server.slug for server in again}
    missing = [slug for slug in saved.secret_servers if slug not in known]
    if missing:
        raise ConfigurationError(
            f"The environment, headers and secrets of the tool servers {', '.join(missing)} are not in a run's folder.",
            remedy="Give them again: centuria resume RUN --tools mcp.json, or --job job.toml.",
        )
    return tuple(servers.values())
