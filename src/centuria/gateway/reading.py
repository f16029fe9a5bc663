"""gateway.toml and the environment to the frozen settings of a gateway: checked before anything listens."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from centuria.config import ModelChoice, NoKey, account_limits, read_mcp_json, resolve
from centuria.config.problems import Problems, from_validation, where
from centuria.config.reading import SMALL, read_text
from centuria.config.servers import servers_from
from centuria.config.shape import Shape, pico
from centuria.core.prices import FREE
from centuria.core.quoting import quoted
from centuria.errors import JobError, ProviderError
from centuria.gateway.settings import Caps, Deployment, GatewaySettings, SwarmLimits
from centuria.gateway.shape import DeploymentShape, GatewayFileShape, GatewayShape, SwarmsShape
from centuria.pricelist import load as load_prices
from centuria.settings import Endpoint, Limits, Timeouts


def read_gateway(file: Path | None, env: Mapping[str, str], *, rehearse: bool = False) -> GatewaySettings:
    """The settings that a file says, or without one those of the environment alone: one model, no tools.

    With `rehearse` no model needs a key, and none costs anything. Raises `JobError` for the file, `ProviderError` for a
    model without a key or with a wrong one.
    """
    if file is None:
        return _settings(GatewayFileShape(), Path.cwd(), "", env, rehearse=rehearse)
    shape = _shape(read_text(file, limit=SMALL, what="The gateway file"), file.name)
    return _settings(shape, file.absolute().parent, file.name, env, rehearse=rehearse)


def read_place(file: Path) -> GatewaySettings:
    """Where a file says that its gateway listens and what it keeps; no model, tool or variable is looked at.

    Raises `JobError`.
    """
    shape = _shape(read_text(file, limit=SMALL, what="The gateway file"), file.name)
    return _placed(GatewaySettings(models={}), shape.gateway, file.absolute().parent)


def _shape(text: str, name: str) -> GatewayFileShape:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{name} is not TOML: {error}.", remedy="Mend it there.") from None
    problems = Problems(name)
    _look_for_slips(raw, problems)
    problems.check()
    try:
        return GatewayFileShape.model_validate(raw)
    except ValidationError as error:
        from_validation(error, GatewayFileShape, problems)
    problems.check()
    raise AssertionError("a validation error without a problem")


def _look_for_slips(raw: Mapping[str, Any], problems: Problems) -> None:
    """What is written as in other programs' files: told in words that fit, not as a type or a key that is wrong."""
    models = raw.get("model")
    if isinstance(models, Mapping):
        problems.add("[model] is one table, and a gateway has a list of them.", "Write [[model]].")
    for written in [models] if isinstance(models, Mapping) else models if isinstance(models, list) else ():
        for key in sorted(_KEYS.intersection(written)) if isinstance(written, Mapping) else ():
            problems.add(
                f"[[model]] has {quoted(key)}: no key stands in this file.",
                'Write key_env = "NAME", the environment variable that holds it.',
            )


_KEYS = frozenset({"api_key", "apikey", "key", "token"})


def _settings(
    shape: GatewayFileShape, folder: Path, name: str, env: Mapping[str, str], *, rehearse: bool
) -> GatewaySettings:
    own, remote = shape.gateway, shape.remote_tools
    _check_roots(shape, name)
    included = read_mcp_json(folder / shape.tools_file, env) if shape.tools_file else ()
    settings = GatewaySettings(
        models=_models(shape, env, rehearse=rehearse),
        hedge={one.name: one.hedge_after for one in shape.model if one.hedge_after is not None},
        tools_file=folder / shape.tools_file if shape.tools_file else None,
        servers=servers_from(shape.tools, included, folder=folder, env=env, file=name),
        hosts=frozenset(host.lower() for host in own.hosts),
        origins=frozenset(own.origins),
        bare_names=bool(own.bare_names),
        remote_hosts=frozenset(host.lower() for host in remote.hosts),
        remote_private=remote.private,
        timeouts=replace(Timeouts(), **_written(shape.timeouts)),
        caps=replace(Caps(), **_written(shape.caps)),
        swarms=_swarms(shape.swarms, folder),
        rehearsal=rehearse,
    )
    return _placed(settings, own, folder)


def _placed(settings: GatewaySettings, own: GatewayShape, folder: Path) -> GatewaySettings:
    store = own.store if own.store is None or "://" in own.store else str(folder / own.store)
    said: dict[str, Any] = {"host": own.host, "port": own.port, "store": store}
    return replace(settings, **{key: value for key, value in said.items() if value is not None})


def _check_roots(shape: GatewayFileShape, name: str) -> None:
    """A job's files are its own folder's by default; a gateway's folder is nobody's but the operator's."""
    problems = Problems(name)
    for tool, written in shape.tools.items():
        if written.builtin == "file_read" and not written.roots:
            problems.add(
                f"{where(('tools', tool))} has no `roots`, so it would show every key the gateway's own folder.",
                'Name the folders that all keys may read, such as roots = ["documents"].',
            )
    problems.check()


def _written(shape: Shape) -> dict[str, Any]:
    return shape.model_dump(exclude_none=True)


def _swarms(shape: SwarmsShape, folder: Path) -> SwarmLimits:
    limits = replace(SwarmLimits(), **{key: value for key, value in _written(shape).items() if key not in _OWN})
    if shape.folder is not None:
        limits = replace(limits, folder=folder / shape.folder)
    return replace(limits, budget=pico(shape.budget)) if shape.budget else limits


_OWN = ("folder", "budget")


def _models(shape: GatewayFileShape, env: Mapping[str, str], *, rehearse: bool) -> dict[str, tuple[Deployment, ...]]:
    prices = load_prices({name: _written(price) for name, price in shape.prices.items()})
    found: dict[str, list[Deployment]] = {}
    names: set[str] = set()
    listed: Sequence[DeploymentShape | None] = shape.model or [None]
    for written in listed:
        endpoint = _endpoint(written, env, rehearse=rehearse)
        known = endpoint.model if written is None else written.name
        name = f"{endpoint.provider}/{endpoint.model}"
        number = 2
        while name in names:
            name, number = f"{endpoint.provider}/{endpoint.model}-{number}", number + 1
        names.add(name)
        price = FREE if rehearse else prices.find(endpoint.provider, known if known in shape.prices else endpoint.model)
        deployment = Deployment(name, endpoint, price)
        found.setdefault(known, []).append(deployment if written is None else _tuned(deployment, written))
    return {name: tuple(each) for name, each in found.items()}


def _endpoint(written: DeploymentShape | None, env: Mapping[str, str], *, rehearse: bool) -> Endpoint:
    choice = ModelChoice()
    if written is not None:
        choice = ModelChoice(
            name=written.model or written.name,
            provider=written.provider,
            base_url=written.base_url,
            key_env=written.key_env,
            context=written.context,
            thinks=written.thinks,
            allow_http=written.allow_http,
        )
    endpoint = resolve(choice, env)
    if isinstance(endpoint, NoKey):
        if rehearse:
            return endpoint.endpoint
        of = "" if written is None else f"[[model]] {quoted(written.name)}: "
        raise ProviderError(f"{of}{endpoint.text}", remedy=f"{endpoint.remedy} Or try it without a key: --rehearse.")
    return endpoint


def _tuned(deployment: Deployment, written: DeploymentShape) -> Deployment:
    limits = Limits(tier=written.tier, rpm=written.rpm, tpm=written.tpm, tpd=written.tpd)
    known = account_limits(limits, deployment.endpoint.provider)
    most = written.concurrency or known.concurrency or deployment.concurrency
    if written.concurrency is not None:
        known = replace(known, concurrency=written.concurrency)
    endpoint = deployment.endpoint
    return replace(
        deployment,
        endpoint=replace(endpoint, limit_field=written.limit_field or endpoint.limit_field),
        concurrency=most,
        concurrency_written=written.concurrency is not None,
        known=known,
        max_tokens=written.max_tokens or deployment.max_tokens,
    )
