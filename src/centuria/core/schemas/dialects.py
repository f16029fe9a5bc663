"""What each provider takes as the schema of a function's parameters. Data only; sources beside each.

All of them: an object at the top, without `anyOf` and its kin there; one bad schema is a 400 for the whole request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

#: Every keyword that constrains a value of one type and holds no schema.
WORDS: Mapping[str, tuple[str, ...]] = {
    "string": ("enum", "minLength", "maxLength", "pattern", "format"),
    "integer": ("enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "number": ("enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "boolean": ("enum",),
    "array": ("minItems", "maxItems", "uniqueItems"),
    "object": ("minProperties", "maxProperties"),
    "null": (),
}
_PLAIN_WORDS = frozenset(word for words in WORDS.values() for word in words)
#: A schema of anything but an array, for where a provider wants one and none is known.
_ANY_BUT_ARRAYS = ("string", "number", "boolean", "object")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The rules of one provider. What it does not take is told in the description instead.

    `words`: keywords kept. `enums`: types that may have `enum`, of at most `enum_values` values; beyond `enum_free`
    of them, their text may have `enum_chars` characters, and with `empty_choice` one of them may be "". `defaults`:
    whether `default` is kept. `anything`: types that spell out a schema of anything (empty: `{}`). `open_items`: the
    types of an array's items where nothing is said of them (None: `items` is left out). `reserved`: names that no
    property may have; `names`: all that one may consist of ("" = any). `extras`: `additionalProperties` is known.
    `nullable`: null is a flag, no type. `bare_union`: nothing may stand beside `anyOf`. `plain_numbers`: no exponents,
    integers up to 2^53. `size` is in bytes of JSON without spaces, `depth` of objects in objects, `description` in
    characters of the function's.
    """

    name: str
    words: frozenset[str] = _PLAIN_WORDS
    enums: frozenset[str] = frozenset({"string", "integer", "number", "boolean"})
    enum_values: int = 1_000
    enum_free: int = 1_000
    enum_chars: int = 50_000
    empty_choice: bool = True
    defaults: Literal["all", "scalar", "none"] = "all"
    anything: tuple[str, ...] = ()
    open_items: tuple[str, ...] | None = ()
    reserved: frozenset[str] = frozenset()
    names: str = ""
    extras: bool = True
    nullable: bool = False
    bare_union: bool = False
    plain_numbers: bool = False
    depth: int = 20
    properties: int = 2_000
    size: int = 100_000
    description: int = 4_000


#: What all take, for those of which nothing is known: a gateway, a server of one's own. llama.cpp refuses a request
#: for a `pattern` that its grammar cannot hold.
PLAIN = Dialect("plain", words=_PLAIN_WORDS - {"pattern"}, description=1_024)

#: platform.openai.com/docs/guides/function-calling, without `strict`. "schema must have type 'object' and not have
#: 'oneOf'/'anyOf'/...", "array schema missing items", "string too long. Expected a string with maximum length 1024".
OPENAI = Dialect("openai", description=1_024)

#: MoonshotAI/walle: docs/mfjs-spec.md, docs/walle.md, model.go, conf.go (the strictest level, as of its caps too).
KIMI = Dialect(
    "kimi",
    words=frozenset({"enum", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"}),
    enums=frozenset({"string", "integer", "number"}),
    enum_values=500,
    enum_free=250,
    enum_chars=7_500,
    defaults="scalar",
    anything=("string", "number", "boolean", "object", "array", "null"),
    open_items=None,
    reserved=frozenset({"", "$defs", "$ref", "anyOf", "required", "additionalProperties"}),
    plain_numbers=True,
    depth=10,
    properties=1_000,
    size=15_000,
)

#: platform.claude.com/docs: "input_schema does not support oneOf, allOf, or anyOf at the top level", "property keys
#: should match pattern '^[a-zA-Z0-9_.-]{1,64}$'", no `$ref`.
ANTHROPIC = Dialect("anthropic", names=r"[A-Za-z0-9_.-]{1,64}")

#: ai.google.dev/api/caching#Schema; "Unknown name \"additionalProperties\"", "enum only allowed for STRING type",
#: "enum[0]: cannot be empty", "items: missing field", "any_of ... must be the only field set".
GEMINI = Dialect(
    "gemini",
    words=frozenset({"enum", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems"}),
    enums=frozenset({"string"}),
    empty_choice=False,
    defaults="none",
    anything=(*_ANY_BUT_ARRAYS, "array", "null"),
    open_items=_ANY_BUT_ARRAYS,
    extras=False,
    nullable=True,
    bare_union=True,
    size=30_000,
)

#: api-docs.deepseek.com/guides/function_calling, without `strict`: refused as OpenAI refuses.
DEEPSEEK = Dialect("deepseek")

DIALECTS: Mapping[str, Dialect] = {d.name: d for d in (PLAIN, OPENAI, KIMI, ANTHROPIC, GEMINI, DEEPSEEK)}
