"""The flags of keys and usage. Only the standard library is imported here, as in `main`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    Add = Callable[[Commands, str, str, str, str], argparse.ArgumentParser]


def add_keys_and_usage(commands: Commands, add: Add, budget: Callable[[str], float | bool]) -> None:
    """`add` makes one command, `budget` reads an amount of dollars."""
    keys = add(
        commands,
        "keys",
        "keys:list_keys",
        "make, list, raise the budget of and revoke the keys of a gateway",
        "centuria keys add ada --budget 20 --rpm 600\n  centuria keys list\n  centuria keys budget ada 30\n"
        "  centuria keys revoke ada",
    )
    actions = keys.add_subparsers(metavar="ACTION", required=True)
    _add_key(actions, add, budget)
    listing = add(
        actions, "list", "keys:list_keys", "list the keys, with what they spent and may spend", "centuria keys list"
    )
    _where(listing)
    listing.add_argument("--json", action="store_true", help="as JSON lines")
    change = add(
        actions,
        "budget",
        "keys:change_budget",
        "change the budget of a key that has one, for its whole life; a gateway that works knows it within a second",
        "centuria keys budget ada 30",
    )
    change.add_argument("name", metavar="NAME", help="its name (see: centuria keys list)")
    change.add_argument("budget", metavar="DOLLARS", type=budget, help="with all that it has spent so far")
    _where(change)
    revoke = add(
        actions,
        "revoke",
        "keys:revoke",
        "end a key: within 30 seconds no gateway takes it any more",
        "centuria keys revoke ada",
    )
    revoke.add_argument("name", metavar="NAME", help="its name (see: centuria keys list)")
    _where(revoke)
    _add_usage(commands, add)


def _add_key(actions: Commands, add: Add, budget: Callable[[str], float | bool]) -> None:
    key = add(
        actions,
        "add",
        "keys:add",
        "make a key, whose token is shown once",
        "centuria keys add ada --budget 20 --rpm 600 --models kimi-k2.5 --tools web_search,code_exec\n"
        "  KEY=$(centuria keys add ci --budget 2)               standard output is the token alone\n"
        "  centuria keys add root --admin --config gateway.toml",
    )
    key.add_argument("name", metavar="NAME", help="what it is called; no two keys that work have the same")
    key.add_argument("--budget", metavar="DOLLARS", type=budget, help="for its whole life, or none (default: none)")
    key.add_argument("--rpm", metavar="N", type=int, help="requests a minute (default: no limit)")
    key.add_argument("--tpm", metavar="N", type=int, help="tokens a minute (default: no limit)")
    key.add_argument("--models", metavar="A,B,..", help="the models that it may use (default: all)")
    key.add_argument("--tools", metavar="X,Y,..", help='the tools that it may use, or "" for none (default: all)')
    key.add_argument("--admin", action="store_true", help="may see and steer what is others'")
    _where(key)
    key.add_argument("--json", action="store_true", help="as JSON")


def _add_usage(commands: Commands, add: Add) -> None:
    usage = add(
        commands,
        "usage",
        "usage:usage",
        "show what the keys of a gateway used and what it cost",
        "centuria usage --by key,day --since 2026-11-01\n  centuria usage --key ada --csv > ada.csv",
    )
    usage.add_argument("--key", metavar="NAME", help="only this key (default: all)")
    usage.add_argument("--since", metavar="DATE", help="from this day on, YYYY-MM-DD in UTC")
    usage.add_argument("--until", metavar="DATE", help="up to this day and with it")
    usage.add_argument("--by", metavar="WHAT,..", default="key,model", help="key, model, day (default: key,model)")
    _where(usage)
    form = usage.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="as CSV")
    form.add_argument("--json", action="store_true", help="as JSON lines")


def _where(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group()
    where.add_argument("--store", metavar="FILE", help="a SQLite file, or postgresql://... (default: gateway.db)")
    where.add_argument("--config", metavar="FILE", type=Path, help="the gateway.toml that names the store")
