"""A server that asks a person in mid-call gets the policy's answer, and one that asks for more gets a clean no."""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from centuria.settings import ToolServer
from centuria.toolhost.elicitation import answer
from tests.toolhost.kit import HERE, host_of

NOSY = HERE / "servers" / "nosy.py"


@pytest.mark.parametrize("era", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize(
    ("policy", "preset"),
    [("decline", {"action": "decline"}), ("defaults", {"action": "accept", "content": {"size": 3}})],
)
async def test_what_a_server_asks_in_mid_call_is_answered_by_its_policy(
    era: str, policy: Literal["decline", "defaults"], preset: dict[str, Any]
) -> None:
    server = ToolServer("nosy", "nosy", command=sys.executable, args=(str(NOSY), era), elicit=policy)
    async with host_of(server) as host:
        assert host.servers()[0].detail["protocol"] == era
        assert json.loads((await host.call("nosy__preset", {}, timeout=10)).text) == preset
        assert json.loads((await host.call("nosy__needs_a_name", {}, timeout=10)).text) == {"action": "decline"}
        for tool in ("needs_a_model", "needs_folders"):
            assert "not supported" in (await host.call(f"nosy__{tool}", {}, timeout=10)).text
        assert host.servers()[0].detail["opened"] == 1


def form(schema: dict[str, Any]) -> types.ElicitRequestFormParams:
    return types.ElicitRequestFormParams(message="?", requested_schema=schema)


def test_a_url_is_never_opened() -> None:
    asked = types.ElicitRequestURLParams(message="?", url="https://evil.example", elicitation_id="1")
    assert answer(asked, "defaults").action == answer(asked, "decline").action == "decline"


@pytest.mark.parametrize("schema", [{}, {"properties": 1}, {"properties": {}, "required": "all"}])
def test_a_form_that_is_none_is_declined(schema: dict[str, Any]) -> None:
    assert answer(form({"type": "object", **schema}), "defaults").action == "decline"


values = st.one_of(
    st.booleans().map(lambda v: ({"type": "boolean"}, v)),
    st.integers(-9, 9).map(lambda v: ({"type": "integer"}, v)),
    st.text(max_size=3).map(lambda v: ({"type": "string"}, v)),
    st.lists(st.sampled_from("ab"), max_size=2).map(lambda v: ({"type": "array", "items": {"type": "string"}}, v)),
)


@given(st.dictionaries(st.text(max_size=3), st.tuples(values, st.booleans(), st.booleans()), max_size=5))
def test_what_is_accepted_is_what_the_form_allows(fields: dict[str, Any]) -> None:
    properties, required = {}, []
    for name, ((shape, value), has_default, needed) in fields.items():
        properties[name] = shape | ({"default": value} if has_default else {})
        required += [name] if needed else []
    schema = {"type": "object", "properties": properties, "required": required}
    result = answer(form(schema), "defaults")
    missing = [name for name in required if "default" not in properties[name]]
    assert result.action == ("decline" if missing else "accept")
    if result.action == "accept":
        Draft202012Validator(schema).validate(result.content)
        assert result.content == {name: shape["default"] for name, shape in properties.items() if "default" in shape}
    assert answer(form(schema), "decline").action == "decline"
