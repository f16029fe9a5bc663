"""From a JSON Schema, whoever wrote it, to its normal form. Pure, and bounded whatever the schema is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any
from urllib.parse import unquote

from centuria.core.schemas.dialects import WORDS
from centuria.core.schemas.forms import ANYTHING, NOTHING, TYPES, Form, Node, both, either
from centuria.core.strict_json import strict_json

#: Schemas that are looked at, those behind references each time.
MOST_NODES = 2_000
#: How deep schemas may stand in each other, of whatever kind.
_MOST_LEVELS = 40
_MOST_VALUES = 1_000
_MOST_NAMES = 1_000
_MOST_BRANCHES = 256
_NOTE = 240

#: Keywords that say something which no form can hold.
_NOTED = (
    "not",
    "contains",
    "minContains",
    "maxContains",
    "patternProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "contentEncoding",
    "contentMediaType",
    "examples",
    "deprecated",
)
_OF_TYPE: Mapping[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "additionalItems", "contains", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "contentEncoding", "contentMediaType"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_ANNOTATIONS = frozenset({"required", "title", "description", "$comment", "type"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})


class TooLarge(Exception):
    """More schemas than are looked at."""


@dataclass(slots=True)
class Reader:
    """Reads one schema. `unroll`: how often a schema may stand in itself; `depth`: of objects in objects that are
    looked into. Raises `TooLarge`."""

    root: Mapping[str, Any]
    unroll: int
    depth: int
    seen: int = 0
    old: bool = field(init=False)

    def __post_init__(self) -> None:
        dialect = self.root.get("$schema")
        # Before 2019 nothing beside a `$ref` counted.
        self.old = isinstance(dialect, str) and "draft-0" in dialect

    def read(self, schema: Any, depth: int = 0, trail: tuple[str, ...] = (), level: int = 0) -> Node:
        """The normal form of a schema inside the root. `trail` are the references that led to it."""
        self.seen += 1
        if self.seen > MOST_NODES:
            raise TooLarge
        if schema is False:
            return NOTHING
        if not isinstance(schema, Mapping):
            return ANYTHING
        if level > _MOST_LEVELS:
            return _outline(schema, "its parts are left out")
        node = ANYTHING if "$ref" in schema and self.old else self._own(schema, depth, trail, level)
        for part in self._parts(schema, depth, trail, level):
            node = both(node, part)
        return replace(node, text=_text(schema) or node.text, default=_default(schema) or node.default)

    # -- what a schema says itself -----------------------------------------------------------------------------------

    def _own(self, schema: Mapping[str, Any], depth: int, trail: tuple[str, ...], level: int) -> Node:
        notes = tuple(f"{word}: {brief(schema[word])}" for word in _NOTED if word in schema)
        if "if" in schema:
            rules = {word: schema[word] for word in ("if", "then", "else") if word in schema}
            notes += (f"rule: {brief(rules)}",)
        names, guessed = _types(schema)
        choices = _choices(schema)
        if choices is not None and names is None:
            names = list(dict.fromkeys(map(kind_of, choices)))
            if "number" in names and "integer" in names:
                names.remove("integer")
        if names is None:
            return ANYTHING.noting(*notes)
        forms = [self._form(name, schema, depth, trail, level) for name in names]
        if choices is not None:
            forms = _chosen(forms, choices)
        node = Node(tuple(forms), notes=notes, guessed=guessed)
        if schema.get("nullable") is True and "null" not in names:
            node = replace(node, forms=(*forms, Form("null")))
        return node

    def _form(self, name: str, schema: Mapping[str, Any], depth: int, trail: tuple[str, ...], level: int) -> Form:
        words = {word: schema[word] for word in WORDS[name] if word != "enum" and _sound(word, schema.get(word))}
        for word, value in words.items():
            if word in _COUNTS:
                words[word] = int(value)
        if name == "object":
            return self._object(words, schema, depth, trail, level)
        if name == "array":
            return self._array(words, schema, depth, trail, level)
        return Form(name, words)

    def _object(
        self, words: Mapping[str, Any], schema: Mapping[str, Any], depth: int, trail: tuple[str, ...], level: int
    ) -> Form:
        written = schema.get("properties")
        written = written if isinstance(written, Mapping) else {}
        required = _names(schema.get("required"))
        extra = self._extra(schema, depth, trail, level)
        if depth >= self.depth:
            notes = ("its properties are left out: " + brief(list(islice(written, 30))),) if written else ()
            return Form("object", words, notes=notes)
        properties: dict[str, Node] = {}
        never: list[str] = []
        for name, part in islice(written.items(), _MOST_NAMES):
            node = self.read(part, depth + 1, trail, level + 1)
            if node.nothing:
                never.append(name)
            else:
                properties[name] = node
        for name in required:
            if name not in properties and extra is not False:
                properties[name] = extra if isinstance(extra, Node) else ANYTHING
        return Form(
            "object",
            words,
            properties,
            tuple(name for name in required if name in properties),
            True if len(written) > _MOST_NAMES else extra,
            notes=(f"never give: {brief(never)}",) if never and extra is not False else (),
        )

    def _extra(self, schema: Mapping[str, Any], depth: int, trail: tuple[str, ...], level: int) -> Node | bool:
        """What properties may be that are not named. Patterns open what is closed otherwise."""
        written = schema.get("additionalProperties", True)
        patterns = schema.get("patternProperties")
        patterns = patterns if isinstance(patterns, Mapping) else {}
        if len(patterns) == 1 and written is False:
            written = next(iter(patterns.values()))
        elif patterns or depth >= self.depth:
            return True
        if written is False or written is True:
            return bool(written)
        node = self.read(written, depth + 1, trail, level + 1)
        return False if node.nothing else True if node == ANYTHING else node

    def _array(
        self, words: dict[str, Any], schema: Mapping[str, Any], depth: int, trail: tuple[str, ...], level: int
    ) -> Form:
        rest, first = schema.get("items", True), schema.get("prefixItems")
        if isinstance(rest, list):  # how tuples were written before 2020
            rest, first = schema.get("additionalItems", True), rest
        if not isinstance(first, list) or not first:
            items = self.read(rest, depth, trail, level + 1)
            if items.nothing:
                return Form("array", {**words, "maxItems": 0})
            return Form("array", words, items=None if items == ANYTHING else items)
        parts = [self.read(part, depth, trail, level + 1) for part in first[:MOST_NODES]]
        most = words.get("maxItems")
        others = NOTHING if most is not None and most <= len(parts) else self.read(rest, depth, trail, level + 1)
        if others.nothing:
            words = {**words, "maxItems": min(len(parts), most if most is not None else len(parts))}
        note = f"in this order: {brief(first)}"
        items = either([part for part in [*parts, others] if not part.nothing])
        return Form("array", words, items=None if items.forms is None or items.nothing else items, notes=(note,))

    # -- what it says through others ---------------------------------------------------------------------------------

    def _parts(self, schema: Mapping[str, Any], depth: int, trail: tuple[str, ...], level: int) -> list[Node]:
        parts: list[Node] = []
        for word in ("$ref", "$dynamicRef", "$recursiveRef"):
            if word in schema:
                parts.append(self._referred(schema[word], depth, trail, level))
        if "$ref" in schema and self.old:
            return parts
        if isinstance(schema.get("allOf"), list):
            parts += [self.read(part, depth, trail, level + 1) for part in schema["allOf"][:MOST_NODES]]
        for word in ("anyOf", "oneOf"):
            branches = schema.get(word)
            if isinstance(branches, list) and branches:
                parts.append(self._branches(branches, depth, trail, level))
        return parts

    def _branches(self, branches: Sequence[Any], depth: int, trail: tuple[str, ...], level: int) -> Node:
        if all(isinstance(branch, Mapping) and _only_requires(branch) for branch in branches):
            groups = [_names(branch.get("required")) for branch in branches[:50]]
            common = [name for name in groups[0] if all(name in group for group in groups)]
            told = " | ".join(" + ".join(name for name in group if name not in common) or "none" for group in groups)
            node = ANYTHING.noting(f"give one of these groups: {told[:_NOTE]}")
            if not common:
                return node
            form = Form("object", properties=dict.fromkeys(common, ANYTHING), required=tuple(common))
            return replace(node, forms=(form,), guessed=True)
        if len(branches) > _MOST_BRANCHES:
            if all(isinstance(branch, Mapping) and "const" in branch for branch in branches):
                return self.read({"enum": [branch["const"] for branch in branches]}, depth, trail, level + 1)
            return either([_outline(branch, "") for branch in branches if isinstance(branch, Mapping)])
        nodes = [self.read(branch, depth, trail, level + 1) for branch in branches]
        possible = [node for node in nodes if not node.nothing]
        return either(possible) if possible else ANYTHING

    def _referred(self, reference: Any, depth: int, trail: tuple[str, ...], level: int) -> Node:
        target = self._resolve(reference) if isinstance(reference, str) else None
        if target is None:
            return ANYTHING.noting(f"as {brief(reference)} says")
        if not isinstance(target, Mapping):
            return self.read(target, depth, trail, level + 1)
        if trail.count(reference) >= self.unroll:
            name = reference.rpartition("/")[2]
            return _outline(target, "as above" if name in ("", "#") else f"a {name[:60]}, as above")
        return self.read(target, depth, (*trail, reference), level + 1)

    def _resolve(self, reference: str) -> Any:
        """What a reference into the schema itself leads to; None where it leads elsewhere, or nowhere."""
        if reference == "#":
            return self.root
        if not reference.startswith("#/"):
            return self._anchored(reference[1:]) if reference.startswith("#") else None
        found: Any = self.root
        for part in unquote(reference[2:]).split("/")[:_MOST_LEVELS]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdecimal() and len(key) < 9 and int(key) < len(found):
                found = found[int(key)]
            else:
                return None
        return found

    def _anchored(self, anchor: str) -> Any:
        for place in ("$defs", "definitions"):
            definitions = self.root.get(place)
            for part in islice(definitions.values(), _MOST_NAMES) if isinstance(definitions, Mapping) else ():
                if isinstance(part, Mapping) and anchor in (part.get("$anchor"), part.get("$dynamicAnchor")):
                    return part
        return None


# -- small parts -----------------------------------------------------------------------------------------------------


def brief(value: Any, limit: int = _NOTE) -> str:
    """A value as JSON, cut where it is long; written no further than that."""
    parts, size = [], 0
    try:
        for part in json.JSONEncoder(ensure_ascii=False, default=str).iterencode(value):
            parts.append(part[: limit + 1])
            size += len(parts[-1])
            if size > limit:
                break
    except (ValueError, RecursionError):
        parts.append("...")
    text = "".join(parts)
    return text if len(text) <= limit else text[:limit] + "..."


def kind_of(value: Any) -> str:
    """The JSON type of a value; a number without a fraction is an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def _types(schema: Mapping[str, Any]) -> tuple[list[str] | None, bool]:
    """The types that a schema names, or else those that its keywords are for (guessed); None: any."""
    written = schema.get("type")
    names = written if isinstance(written, list) else [written] if isinstance(written, str) else []
    known = [name for name in TYPES if name in names]
    if "number" in known and "integer" in known:
        known.remove("integer")
    if known or names:
        return (known or None), False
    guesses = [name for name, words in _OF_TYPE.items() if any(word in schema for word in words)]
    if "enum" in schema or "const" in schema:
        return None, False
    return (guesses or None), bool(guesses)


def _choices(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    choices = schema.get("enum")
    return choices if isinstance(choices, list) and choices else None


def _chosen(forms: Sequence[Form], choices: Sequence[Any]) -> list[Form]:
    """The forms with their share of the values that a schema allows."""
    shares: dict[str, list[Any]] = {}
    for choice in choices:
        shares.setdefault(kind_of(choice), []).append(choice)
    found: list[Form] = []
    for form in forms:
        own = list(shares.get(form.type, ()))
        if form.type == "number":
            own = [choice for choice in choices if kind_of(choice) in ("integer", "number")]
        if not own:
            continue
        if form.type in ("object", "array") or len(own) > _MOST_VALUES or not all(map(_finite, own)):
            found.append(replace(form, notes=(*form.notes, f"one of: {brief(own, 2 * _NOTE)}")))
        elif form.type == "null" or (form.type == "boolean" and len(set(own)) == 2):
            found.append(form)
        else:
            found.append(replace(form, words={**form.words, "enum": list(dict.fromkeys(own))}))
    return found or list(forms)


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _names(required: Any) -> list[str]:
    listed = required[:_MOST_NAMES] if isinstance(required, list) else []
    return list(dict.fromkeys(name for name in listed if isinstance(name, str)))


def _only_requires(branch: Mapping[str, Any]) -> bool:
    return "required" in branch and branch.keys() <= _ANNOTATIONS and branch.get("type", "object") == "object"


def _sound(word: str, value: Any) -> bool:
    """Whether a keyword's value is one."""
    if word in _COUNTS:
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53 and value % 1 == 0
    if word in _NUMBERS:
        sound = isinstance(value, int | float) and not isinstance(value, bool) and _finite(value)
        return sound and (word != "multipleOf" or value > 0)
    if word == "uniqueItems":
        return value is True
    return isinstance(value, str) and 0 < len(value) <= _NOTE


def _text(schema: Mapping[str, Any]) -> str:
    text = schema.get("description")
    return text[:4_000].strip() if isinstance(text, str) else ""


def _default(schema: Mapping[str, Any]) -> tuple[Any, ...]:
    """The default in a tuple, if it can be told in little room."""
    if "default" not in schema or schema["default"] is None:
        return ()
    text = brief(schema["default"], 1_000)
    try:
        return (strict_json(text),)
    except (ValueError, RecursionError):
        return ()


def _outline(schema: Mapping[str, Any], note: str) -> Node:
    """The types of a schema that is looked into no further."""
    names, guessed = _types(schema)
    notes = (note,) if note else ()
    if names is None:
        return Node(None, _text(schema), notes)
    if schema.get("nullable") is True and "null" not in names:
        names.append("null")
    return Node(tuple(Form(name) for name in names), _text(schema), notes, guessed)
