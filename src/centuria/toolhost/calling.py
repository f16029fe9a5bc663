"""One call of a tool as the protocol has it: sent again where the server asks for something first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.client.context import ClientRequestContext
from mcp.client.session import ClientSession

#: Questions in a row that a tool may ask in one call.
MAX_ROUNDS = 10
#: Seconds before a tool that is not done yet is asked again; they grow to the cap.
_PAUSE, _PAUSE_CAP = 0.05, 0.25

Answer = types.CallToolResult | types.InputRequiredResult
Progress = Callable[[float, float | None, str | None], None]


async def call_tool(
    client: ClientSession,
    tool: str,
    arguments: dict[str, Any],
    list_again: Callable[[], Awaitable[None]],
    progress: Progress | None = None,
) -> Answer:
    """Call a tool, answering what it asks in mid-call; one that never stops asking has its last question returned.

    `list_again` fetches the catalogue anew; `progress` hears what the server says while it runs. Raises `MCPError`, and
    what the SDK makes of an answer that is not valid.
    """
    try:
        answer = await _send(client, tool, arguments, progress)
    except MCPError as error:
        if error.code != types.HEADER_MISMATCH:
            raise
        # Some arguments travel as headers, which ones its schema says, and that is another by now: nothing ran.
        await list_again()
        answer = await _send(client, tool, arguments, progress)
    for turn in range(MAX_ROUNDS):
        if isinstance(answer, types.CallToolResult):
            break
        if answer.input_requests:
            given = await _inputs(client, answer.input_requests)
        else:  # it is not done yet, nothing more
            await asyncio.sleep(min(_PAUSE_CAP, _PAUSE * 2**turn))
            given = None
        answer = await _send(client, tool, arguments, progress, given, answer.request_state)
    return answer


def _send(
    client: ClientSession,
    tool: str,
    arguments: dict[str, Any],
    told: Progress | None,
    given: types.InputResponses | None = None,
    state: str | None = None,
) -> Awaitable[Answer]:
    async def hear(progress: float, total: float | None, message: str | None) -> None:
        if told is not None:
            told(progress, total, message)

    return client.call_tool(
        tool,
        arguments,
        progress_callback=None if told is None else hear,
        input_responses=given,
        request_state=state,
        allow_input_required=True,
    )


async def _inputs(client: ClientSession, asked: types.InputRequests) -> types.InputResponses:
    """What the client answers to questions in mid-call. Raises `MCPError` where that is a no."""
    given: types.InputResponses = {}
    for key, request in asked.items():
        meta = request.params.meta if request.params else None
        context = ClientRequestContext(session=client, request_id=key, meta=meta)
        answer = await client.dispatch_input_request(context, request)
        if isinstance(answer, types.ErrorData):
            raise MCPError.from_error_data(answer)
        given[key] = answer
    return given
