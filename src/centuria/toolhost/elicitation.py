"""What a server hears that asks a person for something in mid-call: nobody is there, so a policy answers.

The same answers serve both eras: a request over the wire (2025-11-25) and an input-required result (2026-07-28).
Requests for a model's answer (sampling) and for folders (roots) are refused by the SDK, as neither is advertised.
"""

from __future__ import annotations

from typing import Any, Literal

import mcp_types as types
from mcp.client.context import ClientRequestContext
from mcp.client.session import ElicitationFnT

Policy = Literal["decline", "defaults"]


def answer(asked: types.ElicitRequestParams, policy: Policy) -> types.ElicitResult:
    """No; or, under `defaults`, the form's own defaults where all that it requires has one. A URL is never opened."""
    if policy == "defaults" and isinstance(asked, types.ElicitRequestFormParams):
        content = _defaults(asked.requested_schema)
        if content is not None:
            return types.ElicitResult(action="accept", content=content)
    return types.ElicitResult(action="decline")


def _defaults(schema: dict[str, Any]) -> dict[str, Any] | None:
    properties, required = schema.get("properties"), schema.get("required") or []
    if not isinstance(properties, dict) or not isinstance(required, list):
        return None
    found = {
        name: shape["default"]
        for name, shape in properties.items()
        if isinstance(shape, dict) and _sendable(shape.get("default"))
    }
    return found if all(isinstance(name, str) and name in found for name in required) else None


def _sendable(value: Any) -> bool:
    """Whether the protocol lets an answer hold it: a text, a number, a yes or no, or texts."""
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return isinstance(value, str | int | float)


def elicitation(policy: Policy) -> ElicitationFnT:
    """The policy as the callback that the SDK calls."""

    async def respond(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        del context
        return answer(params, policy)

    return respond
