"""Events as bytes and back: what a journal keeps, and what an older one is read from."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, get_args

from centuria.errors import JournalError
from centuria.events import CallClosed, Fact, TaskEnded
from centuria.messages import safe_text

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import SchemaSerializer

#: Raised when a reader of older code could misread a newer journal; new optional fields do not raise it.
SCHEMA = 1
#: Parsed answers and tool results nested deeper than this are cut: the decoder reads 200 levels.
DEPTH = 100
CUT = "(nested too deeply to be kept; the text holds all of it)"


@cache
def _adapter() -> TypeAdapter[Any]:
    from pydantic import Field, TypeAdapter

    return TypeAdapter(Annotated[Fact, Field(discriminator="kind")])


@cache
def _serializer(fact: Any) -> SchemaSerializer:
    """The one for facts of this class: half the time of one for all, and there are some thirty facts an agent."""
    from pydantic import ConfigDict, TypeAdapter

    # Infinity and NaN are no JSON, but a tool's numbers may hold them, and they must come back as they were. (None
    # never comes; without it, pydantic lets no dataclass have a configuration from outside.)
    adapter: TypeAdapter[Any] = TypeAdapter(fact | None, config=ConfigDict(ser_json_inf_nan="constants"))
    return adapter.serializer


def warm() -> None:
    """Make what the first event of each kind would make on its way (0.2 s in all): for those who measure time."""
    for fact in get_args(Fact):
        _serializer(fact)


def encode(event: Fact) -> bytes:
    """The event as compact JSON. Never fails for what a model or a tool wrote.

    Lone surrogates become U+FFFD, structured values are cut below `DEPTH` levels, and what is no JSON value in
    them becomes its text; everything else decodes to an equal event.
    """
    serializer = _serializer(type(event))  # type: ignore[arg-type]
    try:
        if not _too_deep(_structured(event)):
            return serializer.to_json(event)
    except ValueError:  # pydantic's serialization errors are ValueErrors
        pass
    return serializer.to_json(_cleaned(event))


def decode(data: bytes | str) -> Fact:
    """The event that `encode` wrote. Fields that this version does not know are ignored.

    Raises `JournalError` where the bytes are no event of this schema, or one of a kind that this version does not know.
    """
    from pydantic import ValidationError

    try:
        event: Fact = _adapter().validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "union_tag_invalid":
            kind = str(first["ctx"]["tag"])[:80]
            raise JournalError(
                f"It is a fact of a kind that this version does not know: {kind!r}.",
                remedy="Read it with the version of Centuria that wrote it.",
            ) from None
        place = "".join(f"{part}: " for part in first["loc"])
        raise JournalError(f"It is not a fact of this schema: {place}{first['msg']}.") from None
    return event


def _structured(event: Fact) -> Any:
    """The one part of an event whose shape others decide."""
    if isinstance(event, TaskEnded):
        return event.outcome.structured
    if isinstance(event, CallClosed) and event.result is not None:
        return event.result.structured
    return None


def _too_deep(value: Any) -> bool:
    if value is None:
        return False
    level = [value]
    for _ in range(DEPTH):
        below = [part for part in level if isinstance(part, dict | list | tuple)]
        if not below:
            return False
        level = [child for part in below for child in (part.values() if isinstance(part, dict) else part)]
    return any(isinstance(part, dict | list | tuple) for part in level)


def _cleaned(value: Any, depth: int = DEPTH + 2) -> Any:
    """The event, or a part of it, as JSON can hold it. The event and its outcome are two levels above the value."""
    if value is None or isinstance(value, bool | int | float | Enum):
        return value
    if isinstance(value, str):
        return safe_text(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _cleaned(getattr(value, f.name), depth - 1) for f in fields(value)})
    if not isinstance(value, dict | list | tuple):
        return safe_text(str(value))
    if depth <= 0:
        return CUT
    if isinstance(value, dict):
        return {safe_text(str(name)): _cleaned(part, depth - 1) for name, part in value.items()}
    return type(value)(_cleaned(part, depth - 1) for part in value)
