"""What a JSON Schema says, in one normal form: a value has one of these forms, each of one JSON type. Pure.

`allOf`, `anyOf`, `oneOf`, `$ref` and lists of types are all gone here. Whatever is done to a node only ever widens it:
a value that the schema takes fits its node too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
#: Forms of one node; beyond that their types alone are kept.
MOST_FORMS = 64
_MOST_PAIRS = 512

_LOWER = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_UPPER = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})


@dataclass(frozen=True, slots=True)
class Node:
    """The forms that a value may have: None is anything at all, none of them nothing.

    `guessed`: no type was written; values of other types fit too. `text` describes it, `notes` are what the forms
    leave out.
    """

    forms: tuple[Form, ...] | None
    text: str = ""
    notes: tuple[str, ...] = ()
    guessed: bool = False
    default: tuple[Any, ...] = ()

    @property
    def nothing(self) -> bool:
        return self.forms == ()

    def noting(self, *notes: str) -> Node:
        return replace(self, notes=_joined(self.notes, notes))


@dataclass(frozen=True, slots=True)
class Form:
    """A value of one type. `words` are its plain keywords; `extra` is what other properties may be, `items` None:
    anything."""

    type: str
    words: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Node] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    extra: Node | bool = True
    items: Node | None = None
    text: str = ""
    notes: tuple[str, ...] = ()

    @property
    def bare(self) -> bool:
        return self == Form(self.type)


ANYTHING = Node(None)
NOTHING = Node(())


def both(one: Node, two: Node) -> Node:
    """What fits both, or what fits the first where they exclude each other or multiply too much."""
    text, notes = one.text or two.text, _joined(one.notes, two.notes)
    default = one.default or two.default
    if one.forms is None or two.forms is None:
        kept = two if one.forms is None else one
        return replace(kept, text=text, notes=notes, default=default)
    if len(one.forms) * len(two.forms) > _MOST_PAIRS:
        return replace(one, text=text, notes=notes, default=default)
    forms: list[Form] = []
    for form in one.forms:
        mates = [mate for mate in two.forms if _alike(form.type, mate.type)]
        forms += [_merged(form, mate) for mate in mates]
        if not mates and two.guessed:
            forms.append(form)
    if one.guessed:
        forms += [mate for mate in two.forms if not any(_alike(mate.type, form.type) for form in one.forms)]
    forms = _distinct(forms)
    if not forms or len(forms) > MOST_FORMS:
        forms = list(one.forms)
    return Node(tuple(forms), text, notes, one.guessed and two.guessed, default)


def either(nodes: Sequence[Node]) -> Node:
    """What fits one of them at least."""
    if any(node.forms is None for node in nodes):
        return ANYTHING
    forms = [
        replace(form, text=form.text or node.text, notes=_joined(form.notes, node.notes))
        for node in nodes
        for form in node.forms or ()
    ]
    forms = _pooled(forms)
    if len(forms) > 4 * MOST_FORMS or len(forms := _distinct(forms)) > MOST_FORMS:
        forms = [Form(name) for name in dict.fromkeys(form.type for form in forms)]
    return Node(tuple(forms), guessed=any(node.guessed for node in nodes))


def one_object(forms: Sequence[Form]) -> Form:
    """The one object that has all that these have: for where no alternatives are taken."""
    if len(forms) == 1:
        return forms[0]
    names = dict.fromkeys(name for form in forms for name in form.properties)
    properties: dict[str, Node] = {}
    for name in names:
        found = [form.properties[name] for form in forms if name in form.properties]
        same = all(node == found[0] for node in found)
        properties[name] = found[0] if same else replace(either(found), text=found[0].text, default=found[0].default)
    common = [name for name in forms[0].required if all(name in form.required for form in forms)]
    groups = [" + ".join(name for name in form.required if name not in common) for form in forms]
    notes = _joined(*(form.notes for form in forms))
    if any(groups):
        notes = _joined(notes, ("give one of these groups: " + " | ".join(group or "none" for group in groups),))
    return Form(
        "object",
        properties=properties,
        required=tuple(common),
        extra=_extra_of_any([form.extra for form in forms]),
        text=next((form.text for form in forms if form.text), ""),
        notes=notes,
    )


def _extra_of_any(extras: Sequence[Node | bool]) -> Node | bool:
    """What any of these lets other properties be. A property of one form alone is in the union's own."""
    if all(extra is False for extra in extras):
        return False
    return extras[0] if all(extra == extras[0] for extra in extras) else True


def _alike(one: str, two: str) -> bool:
    return one == two or {one, two} == {"integer", "number"}


def _merged(one: Form, two: Form) -> Form:
    """A form that what fits both has."""
    words, notes = dict(one.words), list(_joined(one.notes, two.notes))
    for word, value in two.words.items():
        if word not in words:
            words[word] = value
        elif word in _LOWER:
            words[word] = max(words[word], value)
        elif word in _UPPER:
            words[word] = min(words[word], value)
        elif word == "enum":
            words[word] = [choice for choice in words[word] if choice in value] or words[word]
        elif words[word] != value:
            notes.append(f"{word}: {value}")
    properties = dict(one.properties)
    for name, node in two.properties.items():
        properties[name] = both(properties[name], node) if name in properties else node
    return Form(
        "integer" if "integer" in (one.type, two.type) else one.type,
        words,
        properties,
        _joined(one.required, two.required),
        _extra_of_both(one.extra, two.extra),
        both(one.items, two.items) if one.items and two.items else one.items or two.items,
        one.text or two.text,
        tuple(notes),
    )


def _extra_of_both(one: Node | bool, two: Node | bool) -> Node | bool:
    if isinstance(one, Node) and isinstance(two, Node):
        return both(one, two)
    if one is False or two is False:
        return False
    return two if one is True else one


def _joined(*parts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item for part in parts for item in part))


def _pooled(forms: Sequence[Form]) -> list[Form]:
    """The forms, with those that only list values, and do not describe them, as one of each type."""
    pools: dict[str, list[Any]] = {}
    found: list[Form] = []
    for form in forms:
        if form.words.keys() != {"enum"} or form != Form(form.type, form.words):
            found.append(form)
            continue
        if form.type not in pools:
            found.append(Form(form.type, {"enum": pools.setdefault(form.type, [])}))
        pools[form.type] += form.words["enum"]
    for pool in pools.values():
        pool[:] = dict.fromkeys(pool)
    return found


def _distinct(forms: Iterable[Form]) -> list[Form]:
    """Each form once, and none beside a form of its type that takes everything."""
    found: list[Form] = []
    for form in forms:
        if form not in found:
            found.append(form)
    open_types = {form.type for form in found if form.bare}
    return [form for form in found if form.bare or form.type not in open_types or form.text]
