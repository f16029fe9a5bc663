"""From what the user chose and the environment holds to one endpoint, or to a rehearsal because there is no key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from centuria.config.presets import (
    BY_NAME,
    PRESETS,
    RESERVED,
    SAMPLING,
    Preset,
    by_host,
    by_variable,
    dialect_of,
    family,
)
from centuria.config.urls import check_base_url, check_key, check_variable, host_of, is_local, is_private
from centuria.core.quoting import did_you_mean, nearest, quoted
from centuria.errors import ProviderError
from centuria.settings import Endpoint, Secret

#: How the tags of Ollama's models look: `latest`, `4b`, `8x22b-instruct-q4_K_M`, `e4b`, `480b-cloud`, `v1.5`.
_TAG = re.compile(
    r"(latest|cloud|mini|tiny|nano|small|medium|large|preview|base|chat|code|instruct|text|thinking|vision"
    r"|v\d[\w.]*|[a-z]?\d+(\.\d+)?(x\d+(\.\d+)?)?[bkmt]|q\d\w*|bf16|fp\d+)([-_][\w.]+)*",
    re.ASCII | re.IGNORECASE,
)

#: The provider of a rehearsal, when nothing at all is chosen.
DEFAULT = "moonshot"


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """What a job file, flags or the API say about the model; None: not said. `key_env` is the name of a variable."""

    name: str | None = None
    provider: str | None = None
    base_url: str | None = None
    key_env: str | None = None
    context: int | None = None
    thinks: bool | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    allow_http: bool = False


@dataclass(frozen=True, slots=True)
class NoKey:
    """There is no key, so the run is a rehearsal. `endpoint` is where it would have gone, `text` what is missing."""

    endpoint: Endpoint
    variables: tuple[str, ...]
    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class _Address:
    """A base URL, and where it was written; `named`: the user wrote it, it is no preset's."""

    url: str
    source: str
    named: bool


def resolve(choice: ModelChoice, env: Mapping[str, str]) -> Endpoint | NoKey:
    """Which provider, URL, model and key: what is chosen, then the base URL's host, then the model's name,
    then the first provider whose key is set.

    `CENTURIA_BASE_URL` and `CENTURIA_MODEL` stand in for what is not chosen. Raises `ProviderError`: an unknown
    provider, a bad URL or key, a key or URL of another provider, a custom server without a URL or a model.
    """
    if choice.key_env is not None:
        check_variable(choice.key_env, "[model] key_env")
    model = choice.name or env.get("CENTURIA_MODEL") or None
    named = at_provider(model or "") if choice.provider is None and choice.base_url is None else None
    if named is not None:  # a base URL of the environment is for what is not chosen
        provider, model = named
        choice = replace(choice, provider=provider)
        env = {name: value for name, value in env.items() if name != "CENTURIA_BASE_URL"}
    written = _written_url(choice, env)
    preset = _pick(choice, written, model, env)
    if model and written is None:
        _check_colon(model, preset, chosen=choice.provider is not None)
    address = _address(preset, written, choice, env)
    _check_belongs(preset, address, choice)
    model = model or preset.model
    if not model:
        raise ProviderError(f"No model is named for {preset.title}.", remedy="Add `name` to [model], or pass --model.")
    endpoint = _endpoint(preset, address.url, model, choice)
    variable = _key_variable(preset, choice, env)
    if variable is None:
        return _without_key(preset, endpoint, address, choice)
    check_key(env[variable], variable, preset, local=is_private(host_of(address.url)))
    return replace(endpoint, key=Secret(env[variable]))


def at_provider(text: str) -> tuple[str, str] | None:
    """The provider and the model of `openai:gpt-4.1`; None for a name without a provider that is known.

    Raises `ProviderError` where no model follows.
    """
    head, colon, rest = text.partition(":")
    if not colon or head.lower() not in BY_NAME:
        return None
    if not rest:
        raise ProviderError(f"No model is named for {head}.", remedy=f"Write {head}:MODEL.")
    return head.lower(), rest


def _check_colon(model: str, preset: Preset, *, chosen: bool) -> None:
    """Refuse a provider that is mistyped before a colon, and what is no tag of Ollama after it.

    A provider that was chosen may call its models as it likes, but for the name of another one.
    """
    head, colon, rest = model.partition(":")
    if not colon or "/" in head or _TAG.fullmatch(rest) or (chosen and not preset.models):
        return
    near = nearest(head.lower(), BY_NAME)
    if near:
        raise ProviderError(f"There is no provider {quoted(head)}.", remedy=f"Did you mean {near}:{rest}?")
    if not chosen:
        raise ProviderError(
            f"{quoted(head)} is no provider that is known, and {quoted(rest)} no tag of a model of Ollama.",
            remedy=f'Write PROVIDER:NAME ({", ".join(BY_NAME)}), or choose: --provider NAME, or provider = "NAME".',
        )


def _written_url(choice: ModelChoice, env: Mapping[str, str]) -> _Address | None:
    """The URL that the user named: in the job or by a flag, else by CENTURIA_BASE_URL."""
    for url, source in (
        (choice.base_url, "The base URL"),
        (env.get("CENTURIA_BASE_URL"), "CENTURIA_BASE_URL"),
    ):
        if url:
            return _Address(check_base_url(url, source, allow_http=choice.allow_http), source, named=True)
    return None


def _pick(choice: ModelChoice, written: _Address | None, model: str | None, env: Mapping[str, str]) -> Preset:
    if choice.provider:
        preset = BY_NAME.get(choice.provider.lower())
        if preset is None:
            raise ProviderError(
                f"The provider {quoted(choice.provider)} is not known.",
                remedy=did_you_mean(choice.provider, BY_NAME),
            )
        return preset
    if written is not None:
        return by_host(host_of(written.url)) or _owner_of_variable(choice) or BY_NAME["custom"]
    owner = _owner_of_variable(choice)
    if owner is not None:
        return owner
    if model:
        fitting = _serving(model)
        with_key = [preset for preset in fitting if _has_key(preset, env)]
        if fitting:
            return (with_key or fitting)[0]
    with_key = [preset for preset in PRESETS if preset.needs_key and _has_key(preset, env)]
    return with_key[0] if with_key else _blank(env)


def _owner_of_variable(choice: ModelChoice) -> Preset | None:
    return by_variable(choice.key_env) if choice.key_env else None


def _serving(model: str) -> list[Preset]:
    """The presets that a model's name points to, its maker first."""
    if "/" in model:
        return [BY_NAME["openrouter"]]
    if ":" in model:
        # "qwen3:4b": the tags of Ollama.
        return [BY_NAME["ollama"]]
    makers = [preset for preset in PRESETS if model.lower().startswith(preset.models or ("\0",))]
    return sorted(makers, key=lambda preset: preset.name == "holysheep")


def _has_key(preset: Preset, env: Mapping[str, str]) -> bool:
    return any(env.get(variable, "").strip() for variable in preset.keys)


def _blank(env: Mapping[str, str]) -> Preset:
    """No key at all: a variable that is set but empty is a mistake to be told, so its provider is chosen."""
    makers = [preset for preset in PRESETS if preset.needs_key and preset.base_url]
    set_empty = [preset for preset in makers if any(key in env for key in preset.keys)]
    return set_empty[0] if set_empty else BY_NAME[DEFAULT]


def _address(preset: Preset, written: _Address | None, choice: ModelChoice, env: Mapping[str, str]) -> _Address:
    if written is not None:
        return written
    own = env.get(preset.url_variable, "") if preset.url_variable else ""
    if own and preset.url_variable:
        return _Address(
            check_base_url(own, preset.url_variable, allow_http=choice.allow_http), preset.url_variable, True
        )
    if not preset.base_url:
        raise ProviderError(
            f"No base URL is named for {preset.title}.",
            remedy="Add `base_url` to [model], or set CENTURIA_BASE_URL.",
        )
    return _Address(preset.base_url, "The base URL", named=False)


def _check_belongs(preset: Preset, address: _Address, choice: ModelChoice) -> None:
    """The provider, the host and the key's variable must be of one house."""
    host = host_of(address.url)
    owner = by_host(host)
    named = by_variable(choice.key_env) if choice.key_env else None
    if owner is not None and preset.name != owner.name:
        right = f"Use {preset.base_url}" if preset.base_url else "Use your server's own URL"
        raise ProviderError(
            f"{address.source} belongs to {owner.title}, but the provider is {preset.title}.",
            remedy=f'{right}, or provider = "{owner.name}".',
        )
    if owner is not None and named is not None and named.name not in (owner.name, "custom"):
        raise ProviderError(
            f"The key in {choice.key_env} belongs to {named.title}, but the base URL to {owner.title}.",
            remedy=f"Use {owner.keys[0]}, or {named.title}'s own base URL"
            + (f" {named.base_url}." if named.base_url else "."),
        )
    strange = owner is None and not is_private(host) and preset.name != "custom"
    if strange and (choice.key_env is None or not choice.provider):
        raise ProviderError(
            f"The key of {preset.title} would be sent to {host}, which does not belong to {preset.title}.",
            remedy='If you mean that, say provider = "custom" and name the key\'s variable in key_env.',
        )


def _key_variable(preset: Preset, choice: ModelChoice, env: Mapping[str, str]) -> str | None:
    """The variable that holds the key; one that is set but empty only if there is no better one."""
    variables = (choice.key_env,) if choice.key_env else preset.keys
    there = [variable for variable in variables if variable in env]
    empty = there[0] if there and preset.needs_key else None
    return next((variable for variable in there if env[variable].strip()), empty)


def _without_key(preset: Preset, endpoint: Endpoint, address: _Address, choice: ModelChoice) -> Endpoint | NoKey:
    if not preset.needs_key or (address.named and is_local(host_of(address.url)) and choice.key_env is None):
        return endpoint
    variables = (choice.key_env,) if choice.key_env else preset.keys
    get = f" (from {preset.get_key})" if preset.get_key else ""
    return NoKey(
        endpoint,
        variables,
        f"There is no key for {preset.title}: {' or '.join(variables)} is not set.",
        f"Set {variables[0]}{get} to run on {endpoint.model}.",
    )


def _endpoint(preset: Preset, url: str, model: str, choice: ModelChoice) -> Endpoint:
    known = family(model)
    # The weights served elsewhere take any sampling.
    fixed = known is not None and known.fixed and preset.name in ("moonshot", "holysheep")
    _check_sampling(choice.sampling, model, fixed=fixed)
    thinking = choice.sampling.get("thinking")
    switched_off = isinstance(thinking, Mapping) and thinking.get("type") == "disabled"
    thinks = (known.thinks if known else preset.thinks and model == preset.model) and not switched_off
    # A server of one's own may give a model less room than its maker does.
    own = preset.name in ("ollama", "custom") or known is None
    return Endpoint(
        provider=preset.name,
        base_url=url,
        model=model,
        context=choice.context or (preset.context if own or known is None else known.context),
        thinks=thinks if choice.thinks is None else choice.thinks,
        limit_field=preset.limit_field,
        sampling=dict(choice.sampling),
        dialect=dialect_of(preset, model),
    )


def _check_sampling(sampling: Mapping[str, Any], model: str, *, fixed: bool) -> None:
    for name in sampling:
        if name in RESERVED:
            raise ProviderError(f"[model] sampling cannot set `{name}`: {RESERVED[name]}.", remedy="Remove it.")
        if fixed and name in SAMPLING:
            raise ProviderError(
                f"[model] sampling sets `{name}`, but {model} has a fixed sampling and refuses any other.",
                remedy="Remove it.",
            )
