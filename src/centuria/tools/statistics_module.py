"""The sandbox's `statistics`, which it does not have itself: the standard library's functions, fenced in.

They run in the server's process on what untrusted code passes in, so kind, count, size and time are capped.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

MAX_VALUES = 100_000
MAX_GROUPS = 1000
#: Seconds that one call of the tool may spend in here.
MAX_SECONDS = 3.0
# Beyond this, exact arithmetic on one number alone costs seconds.
_MAX_BITS = 4096
_MAX_EXPONENT = 1000

_OF_NUMBERS = (
    *("mean", "fmean", "geometric_mean", "harmonic_mean", "median", "median_low", "median_high"),
    *("pstdev", "pvariance", "stdev", "variance"),
)

NAMES = (*_OF_NUMBERS, "mode", "multimode", "quantiles")


class Statistics:
    """The functions for one call of the tool; the time that they take together is limited."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent = 0.0

    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """By name. They raise TypeError and ValueError, as in the standard library, and TimeoutError."""
        made = {name: self._of_numbers(name) for name in _OF_NUMBERS}
        return {**made, "mode": self._mode, "multimode": self._multimode, "quantiles": self._quantiles}

    def _of_numbers(self, name: str) -> Callable[..., Any]:
        function = getattr(statistics, name)

        def limited(data: Any) -> Any:
            return self._timed(lambda: function(_numbers(data, name)))

        limited.__name__ = name
        return limited

    def _mode(self, data: Any) -> Any:
        return self._timed(lambda: statistics.mode(_values(data, "mode")))

    def _multimode(self, data: Any) -> Any:
        return self._timed(lambda: statistics.multimode(_values(data, "multimode")))

    def _quantiles(self, data: Any, *, n: int = 4, method: str = "exclusive") -> Any:
        if not isinstance(n, int) or not 1 <= n <= MAX_GROUPS:
            raise ValueError(f"n must be an integer from 1 to {MAX_GROUPS}")
        if method not in ("exclusive", "inclusive"):
            raise ValueError('method must be "exclusive" or "inclusive"')
        chosen: Any = method
        return self._timed(lambda: statistics.quantiles(_numbers(data, "quantiles"), n=n, method=chosen))

    def _timed(self, work: Callable[[], Any]) -> Any:
        if self._spent > MAX_SECONDS:
            raise TimeoutError(f"statistics took more than {MAX_SECONDS:g} seconds in this call")
        began = self._clock()
        try:
            return work()
        finally:
            self._spent += self._clock() - began


def _values(data: Any, name: str) -> list[Any]:
    if not isinstance(data, list | tuple | set | frozenset | range):
        raise TypeError(f"{name}() takes a list, tuple, set or range here; make one with list(...)")
    if len(data) > MAX_VALUES:
        raise ValueError(f"{name}() takes at most {MAX_VALUES:,} values here, not {len(data):,}")
    values = list(data)
    for value in values:
        if not isinstance(value, int | float | Decimal | str | bool):
            raise TypeError(f"{name}() takes numbers and strings here, not {type(value).__name__}")
    return values


def _numbers(data: Any, name: str) -> list[Any]:
    values = _values(data, name)
    for value in values:
        if isinstance(value, str):
            raise TypeError(f"{name}() takes numbers, not str; convert with float(...)")
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise ValueError(f"{name}() takes integers of at most {_MAX_BITS:,} bits here")
        if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) > _MAX_EXPONENT:
            raise ValueError(f"{name}() takes decimals up to 1e{_MAX_EXPONENT} here")
    return values
