"""What a caller is told when something goes wrong: OpenAI's shape of errors, with the types that Moonshot uses.

Sources: Moonshot's page of errors (`invalid_authentication_error`, `exceeded_current_quota_error`, ...), and the
headers that OpenAI's clients obey (`Retry-After` in whole seconds, `x-should-retry`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping

from centuria.core.quoting import did_you_mean, quoted
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
        # What a caller wrote may stand in it, with half of a surrogate pair.
        return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")


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


def not_found(
    message: str = "There is nothing at this address.",
    *,
    code: str | None = None,
    param: str | None = None,
    remedy: str = "",
) -> Problem:
    return Problem(404, "resource_not_found_error", message, code=code, param=param, remedy=remedy)


def model_not_found(name: str, known: Collection[str]) -> Problem:
    """A model that there is not, or not for this key: one and the same. `known` are those that it may use."""
    near = did_you_mean(name, list(known)) if known else ""
    return not_found(
        f"There is no model {quoted(name)} for this key.",
        code="model_not_found",
        param="model",
        remedy=f"{near} See GET /v1/models.".strip(),
    )


def unpriced(model: str) -> Problem:
    """No budget can hold for a model whose price nobody knows."""
    return bad_request(
        f"The price of {model} is not known, so no budget could hold.",
        param="model",
        remedy=f'The operator can add [prices."{model}"] to gateway.toml.',
    )


def conflict(message: str, *, code: str = "conflict", param: str | None = None, remedy: str = "") -> Problem:
    """It cannot be done as things are now."""
    return Problem(409, "invalid_request_error", message, code=code, param=param, remedy=remedy)


def idempotency_key_reused() -> Problem:
    return Problem(
        422,
        "invalid_request_error",
        "Something else was asked under this Idempotency-Key before.",
        code="idempotency_key_reused",
        param="Idempotency-Key",
        remedy="Send the same body again, or use another key.",
    )


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


def rate_limited(message: str, seconds: float, *, remedy: str = "") -> Problem:
    """`seconds`: when it will be admitted, as far as is known."""
    headers = {"Retry-After": retry_after(seconds)}
    return Problem(429, "rate_limit_reached_error", message, headers=headers, remedy=remedy)


def overloaded(message: str, seconds: float = 1.0) -> Problem:
    return Problem(503, "engine_overloaded_error", message, headers={"Retry-After": retry_after(seconds)})


def unavailable(message: str, *, code: str = "service_unavailable", seconds: float = 1.0) -> Problem:
    return Problem(503, "server_error", message, code=code, headers={"Retry-After": retry_after(seconds)})


def shutting_down() -> Problem:
    return unavailable("The gateway is shutting down.", code="shutting_down")


def store_unavailable(error: StoreUnavailable) -> Problem:
    return unavailable(str(error), code="store_unavailable")


def upstream_failed(status: int, message: str, *, code: str = "upstream_error") -> Problem:
    return Problem(status, "server_error", message, code=code)


def retry_after(seconds: float) -> str:
    """Whole seconds, one at least, a day at most."""
    return str(max(1, min(math.ceil(seconds), 86_400)))
