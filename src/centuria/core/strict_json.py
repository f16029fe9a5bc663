"""JSON as its standard has it, from what a model wrote. Pure."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def strict_json(text: str) -> Any:
    """The value of a JSON text. Raises `ValueError` and `RecursionError`.

    NaN and Infinity are no JSON, and a number that is too large to be one would become infinite: whoever writes such a
    value again writes what no other reader takes.
    """
    return _DECODER.decode(text)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


#: Made once: `json.loads` makes another for every text that it is given hooks for.
_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
