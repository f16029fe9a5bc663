"""What a caller is told when something goes wrong: OpenAI's shape of errors, with the types that Moonshot uses.

Sources: Moonshot's page of errors (`invalid_authentication_error`, `exceeded_current_quota_error`, ...), and the
headers that OpenAI's clients obey (`Retry-After` in whole seconds, `x-should-retry`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from centuria.errors import CenturiaError


class StoreUnavailable(CenturiaError):
    """The gateway's store can be neither written nor read just now: full, read-only, locked, or not reachable."""

    retryable = True


class Problem(CenturiaError):
    """A request that is answered with an error. `status` is HTTP's, `type` is what programs look at."""

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.type = type
        self.code = code or type
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The JSON body, which is also the data of an error inside a stream."""
        error = {"message": str(self), "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}, ensure_ascii=False).encode()


def bad_request(message: str, *, param: str | None = None, code: str | None = None, remedy: str = "") -> Problem:
    return Problem(400, "invalid_request_error", message, param=param, code=code, remedy=remedy)


def unauthenticated() -> Problem:
    """One and the same for a key that is missing, wrong or revoked."""
    return Problem(
        401,
        "invalid_authentication_error",
        "The gateway does not know this key.",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
        remedy="Send `Authorization: Bearer KEY` with a key that `centuria keys add` made.",
    )


def forbidden(message: str, *, remedy: str = "") -> Problem:
    return Problem(403, "permission_denied_error", message, remedy=remedy)


def not_found(message: str = "There is nothing at this address.") -> Problem:
    return Problem(404, "resource_not_found_error", message)


def too_large(cap: int) -> Problem:
    return Problem(413, "invalid_request_error", f"The body is larger than {cap:,} bytes.", code="request_too_large")


def out_of_budget(message: str, remedy: str = "") -> Problem:
    """Waiting does not help: no `Retry-After`, and clients that obey it are told not to try again. The type is
    Moonshot's, the code OpenAI's: some clients tell it from a rate limit by the one, some by the other."""
    return Problem(
        429,
        "exceeded_current_quota_error",
        message,
        code="insufficient_quota",
        headers={"x-should-retry": "false"},
        remedy=remedy,
    )


def rate_limited(message: str, seconds: float) -> Problem:
    """`seconds`: when it will be admitted, as far as is known."""
    return Problem(429, "rate_limit_reached_error", message, headers={"Retry-After": retry_after(seconds)})


def overloaded(message: str, seconds: float = 1.0) -> Problem:
    return Problem(503, "engine_overloaded_error", message, headers={"Retry-After": retry_after(seconds)})


def unavailable(message: str, *, code: str = "service_unavailable", seconds: float = 1.0) -> Problem:
    return Problem(503, "server_error", message, code=code, headers={"Retry-After": retry_after(seconds)})


def upstream_failed(status: int, message: str, *, code: str = "upstream_error") -> Problem:
    return Problem(status, "server_error", message, code=code)


def retry_after(seconds: float) -> str:
    """Whole seconds, one at least, a day at most."""
    return str(max(1, min(math.ceil(seconds), 86_400)))
