"""usage: what the keys of a gateway used and what it cost, added up, as a table, CSV or JSON."""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from centuria.cli.keys import no_key, opened, print_table
from centuria.errors import ConfigurationError
from centuria.gateway.keyjson import exactly, held_leases
from centuria.gateway.keys import LOCAL
from centuria.gateway.ports import UsageLine
from centuria.messages import Pico
from centuria.views.words import clean, dollars

_BY = ("key", "model", "day")
_SUMS = ("requests", "attempts", "prompt", "cached", "output", "cost", "held")
_MONEY = ("cost", "held", "held_leases")
#: What a spreadsheet would take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def usage(options: argparse.Namespace) -> int:
    """`centuria usage`."""
    by = _by(options.by)
    since = _day("--since", options.since) or datetime.fromtimestamp(0, UTC)
    until = _day("--until", options.until)
    if until is not None and until < since:
        raise ConfigurationError("--until is before --since.", remedy="Write the earlier day as --since.")
    end = None if until is None else (until + timedelta(days=1)).timestamp()
    lines, names, leases = asyncio.run(_read(options, since.timestamp(), end))
    groups = _added(lines, names, by)
    if options.json:
        for group, sums in _with_leases(groups, leases, by).items():
            told = json.dumps(dict(zip(by, group, strict=True)) | _counts(sums))
            money = ", ".join([f'"{name}": {amount}' for name, amount in _in_dollars(sums).items()])
            print(f"{told[:-1]}, {money}}}")
    elif options.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([*by, *[name for name in _SUMS if name not in _MONEY], *[f"{name}_usd" for name in _MONEY]])
        for group, sums in _with_leases(groups, leases, by).items():
            writer.writerow(
                [*[_no_formula(cell) for cell in group], *_counts(sums).values(), *_in_dollars(sums).values()]
            )
    else:
        _print(by, groups)
        if leases:
            told = ", ".join([f"{clean(name, 60)} {dollars(amount)}" for name, amount in leases.items()])
            print(f"Also held, for leases of gateways that ended without a word: {told}")
    return 0


async def _read(
    options: argparse.Namespace, since: float, until: float | None
) -> tuple[Sequence[UsageLine], Mapping[str, str], Mapping[str, Pico]]:
    """The lines, the names of the keys' ids, and what is held for leases, by name. That is of no day: where only some
    days are wanted it is left out."""
    async with opened(options) as store:
        keys = await store.keys()
        names = {LOCAL.id: LOCAL.name} | {key.id: key.name for key, _ in keys}
        # A name may have been given again after its key was revoked.
        ids = [id for id, name in names.items() if options.key in (None, name)]
        if not ids:
            raise no_key(options.key)
        if options.key is None:
            lines = await store.usage(since=since, until=until)
        else:
            lines = [line for id in ids for line in await store.usage(key=id, since=since, until=until)]
    leases: dict[str, Pico] = {}
    if options.since is None and options.until is None:
        for id, amount in held_leases([each for each in keys if each[0].id in ids], lines).items():
            leases[names[id]] = leases.get(names[id], 0) + amount
    return lines, names, leases


def _added(
    lines: Sequence[UsageLine], names: Mapping[str, str], by: Sequence[str]
) -> dict[tuple[str, ...], dict[str, int]]:
    groups: dict[tuple[str, ...], dict[str, int]] = {}
    for line in lines:
        told = {"key": names.get(line.key, line.key), "model": line.model, "day": line.day}
        sums = groups.setdefault(tuple([told[name] for name in by]), dict.fromkeys(_SUMS, 0))
        for name in _SUMS:
            sums[name] += getattr(line, name)
    return dict(sorted(groups.items()))


def _with_leases(
    groups: Mapping[tuple[str, ...], Mapping[str, int]], leases: Mapping[str, Pico], by: Sequence[str]
) -> dict[tuple[str, ...], dict[str, int]]:
    """What is held for leases too, in a column of its own: that is of a key, and of no model and no day."""
    more = {group: {**sums, "held_leases": 0} for group, sums in groups.items()}
    for key, amount in leases.items():
        group = tuple([key if name == "key" else "" for name in by])
        more.setdefault(group, dict.fromkeys((*_SUMS, "held_leases"), 0))["held_leases"] += amount
    return dict(sorted(more.items()))


def _counts(sums: Mapping[str, int]) -> dict[str, int]:
    return {name: sums[name] for name in _SUMS if name not in _MONEY}


def _in_dollars(sums: Mapping[str, int]) -> dict[str, str]:
    """With twelve decimals each, so that sheets and programs add up what the books have."""
    return {f"{name}_usd": exactly(sums[name]) for name in _MONEY}


def _print(by: Sequence[str], groups: Mapping[tuple[str, ...], Mapping[str, int]]) -> None:
    if not groups:
        print("centuria: nothing was used", file=sys.stderr)
        return
    rows = [[*[clean(cell, 60) for cell in group], *_cells(sums)] for group, sums in groups.items()]
    if len(groups) > 1:
        whole = {name: sum(sums[name] for sums in groups.values()) for name in _SUMS}
        rows.append(["total", *[""] * (len(by) - 1), *_cells(whole)])
    print_table((*by, *_SUMS), rows, numbers=_SUMS)


def _cells(sums: Mapping[str, int]) -> list[str]:
    return [dollars(sums[name]) if name in _MONEY else f"{sums[name]:,}" for name in _SUMS]


def _by(text: str) -> tuple[str, ...]:
    by = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not set(by) <= set(_BY):
        raise ConfigurationError(f"--by {text!r} is unknown.", remedy="Name some of key, model, day: --by key,day")
    return by


def _day(flag: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
        return min(day, datetime(9000, 1, 1, tzinfo=UTC))  # the last day of all has none after it
    except ValueError:
        raise ConfigurationError(f"{flag} {text!r} is not a day.", remedy=f"Write {flag} 2026-11-30.") from None


def _no_formula(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell
