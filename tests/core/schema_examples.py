"""Strategies for schemas as anybody may write them, and for values that fit them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "c", "required", "a b"])
SCALARS: st.SearchStrategy[Any] = st.sampled_from([None, True, False, 0, 1, 2, 2.5, -1e-9, 2**60, "", "x", "yy", "1"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)


def schemas() -> st.SearchStrategy[Any]:
    """Schemas of every kind of keyword; those of one type only beside that type."""
    numbers = {word: st.sampled_from([0, 1, 2.5, 1e-9]) for word in ("minimum", "maximum", "exclusiveMinimum")}
    counts = [("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties")]
    length, items, names = ({low: st.integers(0, 2), high: st.integers(0, 3)} for low, high in counts)
    leaves = st.one_of(
        st.booleans(),
        st.just({}),
        st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=4)}),
        st.fixed_dictionaries({"const": VALUES}),
        st.fixed_dictionaries(
            {"type": st.lists(st.sampled_from(["string", "null", "integer", "object"]), min_size=1, unique=True)},
            optional={"nullable": st.just(True), "enum": st.lists(SCALARS, min_size=1)},
        ),
        st.fixed_dictionaries(
            {"type": st.just("string")}, optional={**length, "pattern": st.just("x"), "default": SCALARS}
        ),
        st.fixed_dictionaries({"type": st.sampled_from(["number", "integer"])}, optional=numbers),
        st.sampled_from([{"$ref": "#"}, {"$ref": "#/$defs/D"}, {"$ref": "#/$defs/D", "description": "d"}]),
    )

    def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        some = st.lists(inner, min_size=1, max_size=3)
        shape = {
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=2),
        }
        rows = {"items": inner, "prefixItems": some, "uniqueItems": st.booleans()}
        mixed = {"anyOf": some, "oneOf": some, "allOf": some, "not": inner, "if": inner, "then": inner}
        return st.one_of(
            st.fixed_dictionaries({"type": st.just("object")}, optional={**shape, **names, **mixed}),
            st.fixed_dictionaries({"type": st.just("array")}, optional={**rows, **items, **mixed}),
            st.fixed_dictionaries({}, optional=mixed),
        )

    return st.recursive(leaves, grown, max_leaves=8)


@st.composite
def tools(draw: st.DrawFn) -> dict[str, Any]:
    shape = {"properties": st.dictionaries(NAMES, schemas(), max_size=4), "additionalProperties": schemas()}
    some = st.lists(schemas(), min_size=1, max_size=3)
    optional = {**shape, "required": st.lists(NAMES, max_size=2), "anyOf": some, "allOf": some}
    tool: dict[str, Any] = draw(st.fixed_dictionaries({"type": st.just("object")}, optional=optional))
    return {**tool, "$defs": {"D": draw(schemas())}}


@st.composite
def made_to_fit(draw: st.DrawFn, depth: int = 3) -> tuple[Any, Any]:  # noqa: C901 - one case for each kind
    """A schema and a value that was made for it: one that it most likely takes."""
    kinds = ["scalar", "const", "typed"] + ["object", "pattern", "array", "union", "all", "nullable", "open"] * (
        depth > 0
    )
    inner = made_to_fit(depth - 1)
    match draw(st.sampled_from(kinds)):
        case "const":
            value = draw(VALUES)
            return {draw(st.sampled_from(["const", "default"])): value}, value
        case "typed":
            value = draw(SCALARS)
            names = ["null"] if value is None else ["boolean"] if isinstance(value, bool) else []
            names = names or (["string"] if isinstance(value, str) else ["number"])
            return {"type": [*draw(st.sampled_from([[], ["object"], ["array"]])), *names]}, value
        case "object":
            parts = draw(st.dictionaries(NAMES, inner, max_size=3))
            more_schema, more = draw(inner)
            schema = {"type": "object", "properties": {name: part for name, (part, _) in parts.items()}}
            schema |= draw(
                st.sampled_from([{}, {"additionalProperties": more_schema}, {"additionalProperties": False}])
            )
            value = {name: made for name, (_, made) in parts.items()}
            if schema.get("additionalProperties", True) is not False:
                value["z"] = more
            return schema | {"required": draw(st.lists(st.sampled_from(sorted(value) or ["z"]), unique=True))}, value
        case "pattern":
            part, made = draw(inner)
            closed = draw(st.sampled_from([{}, {"additionalProperties": False}]))
            more = draw(st.sampled_from([{}, {"b": {}}]))
            return {"type": "object", "patternProperties": {"^a": part, **more}, **closed}, {"a": made, "ab": made}
        case "array":
            made = draw(st.lists(inner, min_size=1, max_size=3))
            values = [value for _, value in made]
            if draw(st.booleans()):
                return {"type": "array", "prefixItems": [part for part, _ in made], "items": False}, values
            return {"type": "array", "items": {"anyOf": [part for part, _ in made]}}, values
        case "union":
            made = draw(st.lists(inner, min_size=1, max_size=3))
            parts = [part for part, _ in made] + draw(st.lists(schemas(), max_size=1))
            return {draw(st.sampled_from(["anyOf", "oneOf"])): parts}, made[0][1]
        case "all":
            (one, value), other = draw(inner), draw(schemas())
            return {
                "allOf": [one, {"anyOf": [other, {}]}],
                **draw(st.sampled_from([{}, {"anyOf": [{}, False]}])),
            }, value
        case "nullable":
            part, _ = draw(inner)
            return {"anyOf": [part, {"type": "null"}]}, None
        case "open":
            return draw(st.sampled_from([True, {}, {"description": "Anything."}])), draw(VALUES)
    value = draw(SCALARS)
    return {"enum": [value, *draw(st.lists(SCALARS, max_size=2))]}, value
