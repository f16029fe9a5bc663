"""From the normal form to a schema that one provider takes. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from centuria.core.schemas.dialects import Dialect
from centuria.core.schemas.forms import Form, Node
from centuria.core.schemas.reading import brief, kind_of
from centuria.messages import safe_text

_LARGEST = 2**53 - 1
_PAIRS = (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems"))
_SCALARS = frozenset({"string", "integer", "number", "boolean"})


@dataclass(slots=True)
class Writer:
    """Writes for one dialect. Descriptions have at most `text` characters, the values of an `enum` `choices`.

    `properties` counts those written.
    """

    dialect: Dialect
    text: int
    choices: int
    properties: int = 0

    def top(self, form: Form) -> dict[str, Any]:
        """A function's parameters: an object, its properties always there."""
        out = self._form(form)
        out.setdefault("properties", {})
        return out

    def node(self, node: Node) -> dict[str, Any]:
        notes = list(node.notes)
        if node.forms is None:
            return self._told(self._anything(), node.text, [*notes, *self._default(node, None)])
        forms = list(node.forms)
        nullable = self.dialect.nullable and any(form.type == "null" for form in forms)
        if nullable:
            forms = [form for form in forms if form.type != "null"] or [Form("string", notes=("always null",))]
        if len(forms) == 1:
            form = forms[0]
            out = self._form(replace(form, text=node.text or form.text, notes=(*form.notes, *notes)), node)
        else:
            out = self._union([self._form(form) for form in forms], node, notes)
        if nullable:
            (out["anyOf"][0] if "anyOf" in out else out)["nullable"] = True
        return out

    def _union(self, branches: list[dict[str, Any]], node: Node, notes: list[str]) -> dict[str, Any]:
        notes += self._default(node, None)
        if self.dialect.bare_union:
            first = branches[0]
            branches[0] = self._told(first, self._about(node.text, notes), [first.get("description", "")])
            return {"anyOf": branches}
        default = {"default": node.default[0]} if node.default and self.dialect.defaults == "all" else {}
        return self._told({"anyOf": branches, **default}, node.text, notes)

    def _form(self, form: Form, node: Node | None = None) -> dict[str, Any]:
        out: dict[str, Any] = {"type": form.type}
        notes = list(form.notes)
        for word, value in form.words.items():
            kept = self._enum(form.type, value) if word == "enum" else self._word(word, form.type, value)
            if kept is None:
                notes.append(f"one of: {brief(value)}" if word == "enum" else f"{word}: {brief(value)}")
            else:
                out[word] = kept
        for low, high in _PAIRS:
            if low in out and high in out and out[low] > out[high]:
                notes.append(f"{low}: {out.pop(low)}")
        if form.type == "object":
            notes += self._members(out, form)
        elif form.type == "array":
            self._items(out, form.items)
        if node is not None and node.default:
            if self._fits_default(node, form.type):
                out["default"] = node.default[0]
            else:
                notes += self._default(node, form.type)
        return self._told(out, form.text, notes)

    # -- objects and arrays ------------------------------------------------------------------------------------------

    def _members(self, out: dict[str, Any], form: Form) -> list[str]:
        """Write what an object holds; returns what cannot be written."""
        notes: list[str] = []
        written: dict[str, Any] = {}
        for name, part in form.properties.items():
            schema = self.node(part)
            if self._may_be_named(name):
                written[name] = schema
            else:
                must = "must be given" if name in form.required else "may be given"
                notes.append(f"{brief(name)} {must} too: {brief(schema)}")
        self.properties += len(written)
        if written:
            out["properties"] = written
        required = [name for name in form.required if name in written]
        if required:
            out["required"] = required
        whole = len(written) == len(form.properties)
        if isinstance(form.extra, Node):
            extra = self.node(form.extra)
            if self.dialect.extras and whole:
                out["additionalProperties"] = extra or True
            else:
                notes.append(f"any other property: {brief(extra)}")
        elif form.extra is False and self.dialect.extras and whole:
            out["additionalProperties"] = False
        return notes

    def _may_be_named(self, name: str) -> bool:
        rules = self.dialect
        if name in rules.reserved or safe_text(name) != name:
            return False
        return not rules.names or re.fullmatch(rules.names, name, re.ASCII) is not None

    def _items(self, out: dict[str, Any], items: Node | None) -> None:
        if items is not None and items.forms is not None:
            out["items"] = self.node(items)
            return
        types = self.dialect.open_items
        if items is not None or types is not None:
            out["items"] = self._any_of(types or ())
        if items is not None:
            out["items"] = self._told(out["items"], items.text, list(items.notes))

    def _anything(self) -> dict[str, Any]:
        return self._any_of(self.dialect.anything)

    def _any_of(self, types: Sequence[str]) -> dict[str, Any]:
        branches: list[dict[str, Any]] = []
        for name in types:
            if name == "null" and self.dialect.nullable:
                branches[0]["nullable"] = True
                continue
            branch: dict[str, Any] = {"type": name}
            if name == "array":
                self._items(branch, None)
            branches.append(branch)
        return {"anyOf": branches} if branches else {}

    # -- plain keywords ----------------------------------------------------------------------------------------------

    def _word(self, word: str, name: str, value: Any) -> Any:
        """The keyword's value as it may be written; None: it may not."""
        if word not in self.dialect.words or (self.dialect.plain_numbers and not _plain(value)):
            return None
        if name == "integer" and word in ("minimum", "maximum") and isinstance(value, float):
            return math.ceil(value) if word == "minimum" else math.floor(value)
        return value

    def _enum(self, name: str, values: Sequence[Any]) -> list[Any] | None:
        rules = self.dialect
        size = sum(len(value) if isinstance(value, str) else len(repr(value)) for value in values)
        fits = len(values) <= rules.enum_values and (len(values) <= rules.enum_free or size <= rules.enum_chars)
        if name not in rules.enums or not fits or size > self.choices:
            return None
        if (rules.plain_numbers and not all(map(_plain, values))) or ("" in values and not rules.empty_choice):
            return None
        if any(isinstance(value, str) and safe_text(value) != value for value in values):
            return None
        return [int(value) for value in values] if name == "integer" else list(values)

    def _fits_default(self, node: Node, name: str) -> bool:
        if self.dialect.defaults == "all":
            return True
        kind = kind_of(node.default[0])
        alike = kind == name or (kind == "integer" and name == "number")
        plain = not self.dialect.plain_numbers or _plain(node.default[0])
        return self.dialect.defaults == "scalar" and name in _SCALARS and alike and plain

    def _default(self, node: Node, name: str | None) -> list[str]:
        """The note on a default that cannot be written."""
        if not node.default or (name is None and self.dialect.defaults == "all"):
            return []
        return [f"default: {brief(node.default[0])}"]

    # -- descriptions ------------------------------------------------------------------------------------------------

    def _told(self, out: dict[str, Any], text: str, notes: Sequence[str]) -> dict[str, Any]:
        about = self._about(text, notes)
        if not about:
            return out
        if "anyOf" in out and self.dialect.bare_union:
            first = out["anyOf"][0]
            merged = {**first, "description": self._about(about, [first.get("description", "")])}
            return {**out, "anyOf": [merged, *out["anyOf"][1:]]}
        return {**out, "description": about}

    def _about(self, text: str, notes: Sequence[str]) -> str:
        """A description, and in brackets what the schema cannot say."""
        told = "; ".join(dict.fromkeys(note for note in notes if note))
        about = f"{shortened(text, self.text)} [{told}]".strip() if told else text
        return safe_text(shortened(about, self.text))


def shortened(text: str, limit: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= limit else text[: max(0, limit - 4)].rstrip() + " ..." if limit > 8 else ""


def weight(schema: Mapping[str, Any]) -> int:
    """The bytes of a schema as JSON without spaces, by the way of writing that takes most."""
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    escaped = sum(text.count(char) for char in "<>&") * 5  # \u003c: Go's encoding/json
    return len(text.encode("utf-8", "surrogatepass")) + escaped


def _plain(value: Any) -> bool:
    """Whether a number is written without an exponent and in the range that every program reads alike."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    if isinstance(value, int) or value.is_integer():
        return abs(value) <= _LARGEST
    return "e" not in repr(value)
