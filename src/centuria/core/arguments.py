"""A tool call's arguments: the model's JSON text, read strictly and held against the tool's own schema. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from centuria.core.checking import TooMuchWork, bounded, errors_of
from centuria.core.strict_json import strict_json
from centuria.messages import Fault, safe_text

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

#: Characters of arguments, beyond which they are not even read.
MAX_ARGUMENTS = 1_000_000
_MAX_COMPLAINTS = 5


class BadArguments(ValueError):
    """The arguments cannot be used; `str(error)` tells the model why, `fault` is of what kind that is."""

    def __init__(self, message: str, fault: Fault = "") -> None:
        super().__init__(message)
        self.fault: Fault = fault


def parse_arguments(text: str) -> dict[str, Any]:
    """The JSON object that a model wrote; nothing at all is `{}`. Raises `BadArguments`."""
    if len(text) > MAX_ARGUMENTS:
        raise BadArguments(f"The arguments are longer than {MAX_ARGUMENTS:,} characters.", "json")
    if not text.strip():
        return {}
    try:
        value = strict_json(text)
        suspect = "\\u" in text or not text.isascii()  # only then can half a surrogate pair be in it
        if suspect and safe_text(escaped := json.dumps(value, ensure_ascii=False)) != escaped:
            value = json.loads(safe_text(escaped))
    except RecursionError:
        raise BadArguments("The arguments are nested too deeply.", "json") from None
    except ValueError as error:
        raise BadArguments(f"The arguments are not valid JSON: {error}.", "json") from None
    if not isinstance(value, dict):
        raise BadArguments(f"The arguments must be a JSON object, not {_kind(value)}.", "schema")
    return value


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


class ArgumentCheck:
    """A compiled schema: its own `$schema` dialect, else draft 2020-12; no remote references, no `format`.

    A schema that is no schema, or takes too long to check, holds nothing: the server itself must judge then. Nor does a
    pattern that needs look-around or back-references, which no linear search can have.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for
        from referencing import Registry

        self._validator: Validator | None = None
        self._plain = _plain_types(schema)
        dialect = validator_for(dict(schema), default=Draft202012Validator)
        try:
            dialect.check_schema(dict(schema))
            self._validator = bounded(dialect)(dict(schema), registry=Registry())
        except (SchemaError, RecursionError):
            pass

    def complaint(self, arguments: Mapping[str, Any]) -> str | None:
        """What is wrong, with the place and what is expected there; None where all is well."""
        if self._validator is None or (self._plain is not None and _fits(arguments, *self._plain)):
            return None
        from referencing.exceptions import Unresolvable

        try:
            found = list(islice(_leaves(errors_of(self._validator, arguments)), _MAX_COMPLAINTS))
        except (Unresolvable, RecursionError, TooMuchWork):
            return None  # it refers to what is not there, or to itself without end, or multiplies
        return "; ".join(map(_describe, found)) or None


#: What JSON's types are here, where nothing finer is said. A float that is whole is an integer too: that is looked at.
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_SAYS_NOTHING = frozenset({"$schema", "$id", "title", "description", "default", "examples"})
_Plain = tuple[Mapping[str, tuple[type, ...]], frozenset[str], bool]


def _plain_types(schema: Mapping[str, Any]) -> _Plain | None:
    """The types of the properties, the required ones, and whether others may be there, of a schema that says no more;
    None of any other."""
    said = set(schema) - _SAYS_NOTHING
    properties, required = schema.get("properties", {}), schema.get("required", [])
    others = schema.get("additionalProperties", True)
    if not said <= {"type", "properties", "required", "additionalProperties"} or schema.get("type") != "object":
        return None
    if not (isinstance(properties, dict) and isinstance(required, list) and isinstance(others, bool)):
        return None
    types: dict[str, tuple[type, ...]] = {}
    for name, property_ in properties.items():
        if not isinstance(property_, dict) or set(property_) - _SAYS_NOTHING != {"type"}:
            return None
        kind = property_["type"]
        if not isinstance(kind, str) or kind not in _TYPES:
            return None
        types[name] = _TYPES[kind]
    return types, frozenset(map(str, required)), others


def _fits(
    arguments: Mapping[str, Any], types: Mapping[str, tuple[type, ...]], required: frozenset[str], others: bool
) -> bool:
    """Whether they surely fit: most do, and need no more to be looked at."""
    for name, value in arguments.items():
        allowed = types.get(name)
        if allowed is None:
            if not others:
                return False
        elif type(value) not in allowed:
            return False
    return required <= arguments.keys()


def _leaves(errors: Iterator[ValidationError]) -> Iterator[ValidationError]:
    """Where a schema has alternatives, what is wrong with the one that came closest."""
    for error in errors:
        best = error
        while best.context:
            best = min(best.context, key=lambda one: (-len(one.absolute_path), len(one.message)))
        yield best


def _describe(error: ValidationError) -> str:
    message = error.message if len(error.message) <= 300 else error.message[:200] + " ... " + error.message[-90:]
    if error.validator in ("required", "additionalProperties", "type", "enum"):
        return f"at {error.json_path}: {message}"
    expected = json.dumps({error.validator: error.validator_value}, default=str, ensure_ascii=False)
    return f"at {error.json_path}: {message} (expected: {expected[:200]})"
