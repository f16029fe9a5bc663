"""An agent's end as the census counts it. Pure."""

from __future__ import annotations

from centuria.core.refusals import concerns_all
from centuria.errors import BudgetExceeded, CenturiaError, ModelDenied, ModelError, SlotRefused
from centuria.messages import Status

#: Kinds of `ModelError` that say that a time was up.
_TIMEOUTS = frozenset({"first_token", "silence", "total", "gate"})


def status_of(error: BaseException) -> tuple[Status, str]:
    """The status, and the cause, of an agent that ended with this error."""
    match error:
        case BudgetExceeded():
            return Status.BUDGET, str(error)
        case ModelDenied() if concerns_all(error):
            return Status.BLOCKED, str(error)
        case ModelError() if error.kind in _TIMEOUTS:
            return Status.TIMEOUT, str(error)
        case SlotRefused():
            return Status.TIMEOUT, str(error)
        case TimeoutError():
            return Status.TIMEOUT, "its time was up"
        case CenturiaError():
            return Status.FAILED, str(error)
        case _:
            return Status.FAILED, f"internal error: {type(error).__name__}: {error}"[:500]
