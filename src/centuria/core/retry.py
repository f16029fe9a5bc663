"""When to try again, and what `Retry-After` says. Pure: the dice and the time are passed in."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from centuria.errors import CenturiaError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`delays` are the seconds before the second, third, ... attempt; jitter adds its share at most."""

    delays: tuple[float, ...] = (1.0, 2.0, 4.0)
    jitter: float = 0.25
    max_wait: float = 300.0

    def delay(self, failures: int, error: CenturiaError, dice: float) -> float | None:
        """Seconds to wait before the next attempt after `failures` failed ones (1..). None: stop.

        Only what can succeed is tried again. `dice` is in [0, 1). The error's `retry_after` is the least
        wait; what is added to it keeps those apart that were told the same. One above `max_wait` means stop.
        """
        failures = max(1, failures)
        if not error.retryable or failures > len(self.delays):
            return None
        delay = self.delays[failures - 1]
        dice = min(1.0, dice) if dice > 0 else 0.0  # a NaN is 0
        spread = delay * self.jitter * dice
        asked: float | None = getattr(error, "retry_after", None)
        if asked is not None and asked > self.max_wait:
            return None
        if asked is not None and asked > 0:
            return min(max(delay, asked) + spread, max(self.max_wait, asked))
        return min(delay + spread, self.max_wait)


#: The longest wait that is ever read, in seconds (31 years): finite, so that arithmetic stays sane.
_LONGEST = 1e9
_NUMBER = re.compile(r"\d{1,30}(\.\d{0,30})?", re.ASCII)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
#: RFC 9110, 5.6.7: IMF-fixdate, RFC 850, asctime.
_DATES = tuple(
    re.compile(form, re.ASCII | re.IGNORECASE)
    for form in (
        rf"[a-z]{{3}}, (?P<day>\d\d) (?P<month>[a-z]{{3}}) (?P<year>\d{{4}}) {_CLOCK} (gmt|utc)",
        rf"[a-z]{{6,9}}, (?P<day>\d\d)-(?P<month>[a-z]{{3}})-(?P<year>\d\d) {_CLOCK} (gmt|utc)",
        rf"[a-z]{{3}} (?P<month>[a-z]{{3}}) (?P<day>[ \d]\d) {_CLOCK} (?P<year>\d{{4}})",
    )
)


def parse_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds from `now` (since 1970) until a retry is welcome, by `retry-after-ms`, else `Retry-After`.

    Milliseconds, whole or fractional seconds, or an HTTP date in any of its three legal forms; names in any
    case. A date counts from the response's own `Date`, else from `now`; one that has passed is 0.0. None: there is
    none, or it is empty, negative or no such value. Huge values are given as they are (at most 1e9): the caller
    clamps. Never raises.
    """
    found = {name.lower(): str(value).strip() for name, value in headers.items()}
    millis, value = found.get("retry-after-ms", ""), found.get("retry-after", "")
    if _NUMBER.fullmatch(millis):
        return min(float(millis) / 1000, _LONGEST)
    if _NUMBER.fullmatch(value):
        return min(float(value), _LONGEST)
    when = _http_date(value, now)
    # A date is by the upstream's clock, and so is the one beside it: whether ours is right does not matter then.
    sent = _http_date(found.get("date", ""), now)
    since = now if sent is None else sent
    return None if when is None or not math.isfinite(since) else min(max(0.0, when - since), _LONGEST)


def _http_date(text: str, now: float) -> float | None:
    match = next((match for form in _DATES if (match := form.fullmatch(text))), None)
    if match is None:
        return None
    try:
        year = int(match["year"])
        if year < 100:
            # Two digits: the year that is not more than 50 years ahead.
            this = datetime.fromtimestamp(now, UTC).year
            year += this - this % 100
            year -= 100 if year > this + 50 else 0
        month = _MONTHS.index(match["month"].lower()) + 1
        day, hour, minute = int(match["day"]), int(match["hour"]), int(match["minute"])
        second = min(59, int(match["second"]))  # a leap second is legal
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
