"""What the model's upstream, or a tool server, lets us send, and why, in one line. Reads a `Progress`, no more."""

from __future__ import annotations

from collections.abc import Iterator

from centuria.core.progress import Progress
from centuria.core.rows import ResourceRow
from centuria.core.upstreams import UpstreamRow
from centuria.views.words import clean, counted, seconds, short


def upstream_line(progress: Progress, model: str, now: float | None = None) -> str:
    """`25 at once (HTTP 429 ..) · closed for 3 s: .. · 17 requests a second · 12 refused as too many`; "" without a
    limit. `now` is seconds since 1970; None: the run is looked back on."""
    slots = progress.resources.get(f"model:{model}")
    if slots is None:
        return ""
    return " · ".join(_parts(slots, progress.upstreams.get(model) or UpstreamRow(model), now))


def server_line(progress: Progress, slug: str, now: float | None = None) -> str:
    """The same for a tool server; "" for one that never refused a call as too many."""
    resource = f"server:{slug}"
    slots, row = progress.resources.get(resource), progress.upstreams.get(resource)
    if slots is None or row is None:
        return ""
    return " · ".join([*_parts(slots, row, now), f"refused calls as too many {counted(row.closings, 'time')}"])


def notable(progress: Progress, model: str) -> bool:
    """Whether the upstream lets us send less than the user allows, or has refused anything."""
    slots, row = progress.resources.get(f"model:{model}"), progress.upstreams.get(model)
    held_back = slots is not None and slots.limit < progress.concurrency
    return held_back or (row is not None and bool(row.refused or row.breaker or row.closed_until or row.pace))


def _parts(slots: ResourceRow, row: UpstreamRow, now: float | None) -> Iterator[str]:
    reason = slots.reasons[-1][1] if slots.reasons else ""
    yield f"{slots.limit:,} at once" + (f" ({clean(reason, 120)})" if reason else "")
    if row.breaker:
        yield f"nothing is sent: {clean(row.breaker, 200)}"
    elif now is not None and row.closed_until is not None and row.closed_until > now:
        yield f"closed for {seconds(row.closed_until - now)}: {clean(row.reason, 120)}"
    if row.pace is not None:
        yield f"{row.pace:.3g} requests a second"
    stated = [
        f"{short(limit)} {what}"
        for limit, what in (
            (row.requests, "requests a minute"),
            (row.tokens, "tokens a minute"),
            (row.daily_tokens, "tokens a day"),
        )
        if limit is not None
    ]
    if stated:
        yield f"it states {', '.join(stated)}"
    if row.refused:
        yield f"{counted(row.refused, 'request')} refused as too many"
    if row.closed >= 0.05:
        yield f"closed for {seconds(row.closed)} in all"
