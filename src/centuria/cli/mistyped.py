"""Words of the command line that are not there: refused with the one that was probably meant.

Only the standard library is imported here, as in `main`.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from centuria.core.quoting import meant


class Parser(argparse.ArgumentParser):
    """As the standard library's, and so are the parsers of its commands."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Called for each value of an argument that has choices: here those are commands and actions."""
        if action.choices is None or value in action.choices:
            return
        there = [str(choice) for choice in action.choices]
        remedy = meant(str(value), there) or _as_job(str(value)) or f" There is: {', '.join(there)}."
        raise argparse.ArgumentError(None, f"there is no {str(action.metavar).lower()} {str(value)[:80]!r}.{remedy}")


def _as_job(word: str) -> str:
    """A job file or a goal, without the command that runs it."""
    looks = word.endswith(".toml") or len(word.split()) > 1
    return f" Did you mean: centuria run {shlex.quote(word)}?" if looks else ""


def refuse_flags(command: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    """Flags that a command does not have, with its own usage and the flag that may have been meant."""
    there = [word for action in command._actions for word in action.option_strings]
    near = meant(unknown[0].partition("=")[0], there)
    command.error(f"unrecognized arguments: {' '.join(unknown)}.{near}")
