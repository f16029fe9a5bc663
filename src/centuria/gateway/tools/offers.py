"""The gateway's tools as functions of a chat request, as the models that may answer it take them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from centuria.core.schemas import DIALECTS, PLAIN, Dialect, Unlawful, legal, shortened
from centuria.gateway.ports import Key
from centuria.gateway.problems import Problem, bad_request
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.tools.naming import is_legal
from centuria.gateway.tools.service import Chosen, ToolService

#: Functions that one request may offer, as every provider takes it.
MOST_FUNCTIONS = 128
_REMEMBERED = 2_000


@dataclass(frozen=True, slots=True)
class Offer:
    """One tool in a chat. `called` is the name by which the key calls it; `function` is what the model is shown."""

    called: str
    function: Mapping[str, Any]


class Offers:
    def __init__(self, service: ToolService, settings: GatewaySettings) -> None:
        self._service = service
        self._settings = settings
        self._schemas: OrderedDict[tuple[str, tuple[str, ...]], Mapping[str, Any]] = OrderedDict()

    async def of(
        self, key: Key, agent: str, names: Sequence[str], models: Sequence[str], beside: Sequence[Any]
    ) -> dict[str, Offer]:
        """By the function's name. `beside` are the functions that the caller brings itself.

        Raises `Problem` (400) for a name that leads to no tool of this key, or that is taken.
        """
        theirs = {name_of(function) for function in beside}
        if len(names) + len(beside) > MOST_FUNCTIONS:
            raise bad_request(f"A request has {MOST_FUNCTIONS} functions at most.", param="mcp_tools")
        dialects = self._dialects(models)
        found: dict[str, Offer] = {}
        for name in names:
            try:
                chosen = await self._service.choose(key, agent, name)
            except Problem as problem:
                if problem.status != 404:
                    raise
                raise bad_request(problem.message, param="mcp_tools", code="tool_not_found") from None
            function = name if is_legal(name) else chosen.hosted.name
            if function in found:
                continue
            if function in theirs:
                raise bad_request(f"`tools` has a function {function} already.", param="mcp_tools", code="name_taken")
            found[function] = Offer(name, self._function(function, chosen, dialects))
        return found

    def _dialects(self, models: Sequence[str]) -> tuple[Dialect, ...]:
        """Those of all that may answer, each once: a fallback must be able to read what the first one was sent."""
        deployments = [each for model in models for each in self._settings.models.get(model, ())]
        return tuple(dict.fromkeys(DIALECTS.get(each.endpoint.dialect, PLAIN) for each in deployments)) or (PLAIN,)

    def _function(self, name: str, chosen: Chosen, dialects: tuple[Dialect, ...]) -> Mapping[str, Any]:
        tool = chosen.tool
        known = (chosen.hosted.key, tuple(dialect.name for dialect in dialects))
        schema = self._schemas.get(known)
        if schema is None:
            schema = tool.schema
            try:
                for dialect in dialects:
                    schema = legal(schema, dialect)
            except Unlawful as error:
                raise bad_request(f"{name} cannot be offered to this model: {error}", param="mcp_tools") from None
            self._schemas[known] = schema
            if len(self._schemas) > _REMEMBERED:
                self._schemas.popitem(last=False)
        described = shortened(tool.description, min(dialect.description for dialect in dialects))
        return {"type": "function", "function": {"name": name, "description": described, "parameters": schema}}


def name_of(function: Any) -> str:
    """The name of a function of a chat request; "" where it has none."""
    inner = function.get("function") if isinstance(function, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else ""
