"""Checks of values against JSON Schemas, where the library behind them gives way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jsonschema.exceptions import ValidationError

from centuria.core.checking import errors_of


class PanicException(BaseException):
    """As a library's Rust part raises it."""


class Panics:
    def iter_errors(self, value: object) -> Iterator[ValidationError]:
        yield ValidationError("one")
        raise PanicException("__eq__ failed!: RecursionError")


def test_a_panic_in_a_recursion_that_is_too_deep_is_a_recursion_error() -> None:
    found = errors_of(Panics(), {})  # type: ignore[arg-type]
    assert next(found).message == "one"
    with pytest.raises(RecursionError):
        next(found)


def test_a_check_may_be_left_half_way() -> None:
    found = errors_of(Panics(), {})  # type: ignore[arg-type]
    next(found)
    found.close()  # type: ignore[attr-defined]
