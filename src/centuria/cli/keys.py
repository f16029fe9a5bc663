"""keys add, list, budget, revoke: who may use a gateway. They work beside one that serves, or before there is any."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from centuria.config.shape import dollars_or_false, pico
from centuria.errors import ConfigurationError
from centuria.gateway.keyjson import all_fields
from centuria.gateway.keys import LOCAL, digest_of, new_key_id, new_token
from centuria.gateway.ports import Balance, Key, Store
from centuria.gateway.reading import read_place
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.store import open_store
from centuria.messages import Pico
from centuria.views.words import clean, dollars

_NAME_CAP = 100
_MOST = 10**12


def add(options: argparse.Namespace) -> int:
    """`centuria keys add`: the token on standard output, how to use it on standard error."""
    key = _new_key(options)
    token = new_token()

    async def work() -> None:
        async with opened(options, make=True) as store:
            await store.add_key(key, digest_of(token))

    asyncio.run(work())
    if options.json:
        print(json.dumps(all_fields(key, Balance()) | {"token": token}))
        return 0
    print(f"centuria: the key {key.name}, shown once: only its SHA-256 is kept.", file=sys.stderr)
    print(token)
    url, where = _hints(options)
    print(
        f"  Use it: export OPENAI_API_KEY=<the key> OPENAI_BASE_URL={url}\n"
        f"  Revoke it: centuria keys revoke {shlex.quote(key.name)}{where}",
        file=sys.stderr,
    )
    return 0


def _hints(options: argparse.Namespace) -> tuple[str, str]:
    """Where the gateway is as far as its file says, and the flag that names the same store."""
    known = GatewaySettings(models={})
    where = f" --store {shlex.quote(options.store)}" if options.store else ""
    if options.config is not None:
        known = read_place(options.config)
        where = f" --config {shlex.quote(str(options.config))}"
    # What listens everywhere is at this machine's own address, too.
    host = "127.0.0.1" if known.host == "0.0.0.0" else "::1" if known.host == "::" else known.host  # noqa: S104
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{known.port or '<port>'}/v1", where


def list_keys(options: argparse.Namespace) -> int:
    """`centuria keys list`: one line a key, the oldest first."""

    async def work() -> Sequence[tuple[Key, Balance]]:
        async with opened(options) as store:
            return await store.keys()

    keys = asyncio.run(work())
    if options.json:
        for key, balance in keys:
            print(json.dumps(all_fields(key, balance)))
    elif not keys:
        print("centuria: there are no keys; make one: centuria keys add NAME", file=sys.stderr)
    else:
        print_table(("name", "budget", "spent", "held", "limits", "created", "revoked"), [_row(*each) for each in keys])
    return 0


def revoke(options: argparse.Namespace) -> int:
    """`centuria keys revoke`."""

    async def work() -> None:
        async with opened(options) as store:
            found = [key for key, _ in await store.keys() if key.name == options.name and key.revoked is None]
            if not found or not await store.revoke_key(found[0].id, time.time()):
                raise no_key(options.name)

    asyncio.run(work())
    print(f"centuria: {options.name} is revoked; within 30 seconds no gateway takes it any more", file=sys.stderr)
    return 0


def change_budget(options: argparse.Namespace) -> int:
    """`centuria keys budget`."""
    budget = _budget(options.budget)
    if budget is None:
        raise ConfigurationError("A budget cannot be taken away.", remedy="Make another key: centuria keys add NAME")

    async def work() -> Balance:
        async with opened(options) as store:
            found = [(key, balance) for key, balance in await store.keys() if key.name == options.name]
            working = [(key, balance) for key, balance in found if key.revoked is None]
            if not working:
                raise no_key(options.name)
            key, balance = working[0]
            if not await store.change_budget(key.id, budget):
                raise ConfigurationError(
                    f"The key {clean(options.name)} has no budget.",
                    remedy="Make another one that has: centuria keys add NAME --budget DOLLARS",
                )
            return balance

    taken = asyncio.run(work())
    left = max(0, budget - taken.spent - taken.held - taken.leased)
    print(
        f"centuria: the budget of {options.name} is {dollars(budget)}: {dollars(taken.spent)} spent, "
        f"{dollars(taken.held)} held, {dollars(taken.leased)} leased by gateways that work, {dollars(left)} left",
        file=sys.stderr,
    )
    return 0


@asynccontextmanager
async def opened(options: argparse.Namespace, *, make: bool = False) -> AsyncIterator[Store]:
    """The store that the flags name. Without `make` it must be there already. Raises `ConfigurationError`."""
    where = options.store or GatewaySettings(models={}).store
    if options.config is not None:
        where = read_place(options.config).store
    if not make and "://" not in where and not Path(where).is_file():
        raise ConfigurationError(
            f"There is no store {where}.",
            remedy="Name it: --store FILE or --config gateway.toml; or make the first key: centuria keys add NAME",
        )
    store = await open_store(where)
    try:
        yield store
    finally:
        await store.aclose()


def no_key(name: str) -> ConfigurationError:
    return ConfigurationError(f"There is no key called {clean(name)!r}.", remedy="See them: centuria keys list")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """In columns; those of `numbers` to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if name in numbers else cell.ljust(width)
            for name, cell, width in zip(header, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _new_key(options: argparse.Namespace) -> Key:
    name: str = options.name
    if not 0 < len(name) <= _NAME_CAP or clean(name) != name or name.startswith("-") or name == LOCAL.name:
        raise ConfigurationError(
            f"{clean(name)!r} cannot be a key's name.",
            remedy=f"Use 1 to {_NAME_CAP} letters, digits and signs, but not {LOCAL.name!r}: that is nobody's key.",
        )
    return Key(
        id=new_key_id(),
        name=name,
        budget=_budget(options.budget),
        rpm=_limit("--rpm", options.rpm),
        tpm=_limit("--tpm", options.tpm),
        models=_names("--models", options.models),
        tools=_names("--tools", options.tools, none=True),
        admin=options.admin,
        created=time.time(),
    )


def _budget(value: float | bool | None) -> Pico | None:
    if value is None:
        return None
    try:
        checked = dollars_or_false(value)
    except ValueError as error:
        text, _, _ = str(error).partition("\n")
        raise ConfigurationError(f"--budget {text}", remedy="Give dollars, such as --budget 20, or none.") from None
    return None if checked is False else pico(checked)


def _limit(flag: str, value: int | None) -> int | None:
    if value is not None and not 1 <= value <= _MOST:
        raise ConfigurationError(
            f"{flag} is {value}, so nothing could run.", remedy=f"Give 1 or more, such as {flag} 600."
        )
    return value


def _names(flag: str, text: str | None, *, none: bool = False) -> frozenset[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")] if text.strip() or not none else []
    if (not names and not none) or not all(names):
        raise ConfigurationError(f"{flag} {text!r} has an empty name in it.", remedy=f"Write {flag} A,B.")
    return frozenset(names)


def _row(key: Key, balance: Balance) -> Sequence[str]:
    return (
        key.name,
        "none" if key.budget is None else dollars(key.budget),
        dollars(balance.spent),
        dollars(balance.held),
        _limits(key) or "-",
        _day(key.created),
        "" if key.revoked is None else _day(key.revoked),
    )


def _limits(key: Key) -> str:
    said = [
        "admin" if key.admin else "",
        f"{key.rpm} rpm" if key.rpm else "",
        f"{key.tpm} tpm" if key.tpm else "",
        f"models {','.join(sorted(key.models))}" if key.models is not None else "",
        f"tools {','.join(sorted(key.tools)) or 'none'}" if key.tools is not None else "",
    ]
    return clean("; ".join([each for each in said if each]), 200)


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
