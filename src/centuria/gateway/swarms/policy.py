"""What a key's swarm may have: which model and tools, how much money, which limits; and the run of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from centuria.config import ModelChoice
from centuria.core.rates import RateLimits
from centuria.folder import RunFolder
from centuria.gateway.ports import Key, Store
from centuria.gateway.problems import bad_request, model_not_found, not_found, out_of_budget, unpriced
from centuria.gateway.settings import GatewaySettings
from centuria.gateway.swarms.records import SwarmRecord
from centuria.gateway.swarms.request import USUAL_BUDGET, SwarmRequest, job_of
from centuria.launch import Launch, Resume
from centuria.messages import Pico
from centuria.ports import ToolHost
from centuria.settings import Endpoint, Job

#: Seconds by which a run waits longer than the funnel, so that it is the funnel that gives up, and knows why.
_LONGER = 5.0
#: Where a run would go if it went anywhere: every request of it is taken by the funnel.
_NOWHERE = "http://gateway.invalid/v1"


class Tools(Protocol):
    """`tools.service.ToolService`, as far as swarms need it."""

    def host_for(self, key: Key, names: Sequence[str] | None = None, *, run: str = "") -> ToolHost:
        """These tools. Raises `Problem` (400) for a name that leads to none that the key may use."""
        ...


class SwarmPolicy:
    """`tools` None: there are none."""

    def __init__(self, settings: GatewaySettings, store: Store, tools: Tools | None) -> None:
        self._settings = settings
        self._store = store
        self._tools = tools

    def model(self, key: Key, name: str | None) -> str:
        """The model that was asked for, or the first that there is. Raises `Problem` (404)."""
        allowed = key.visible(self._settings.models)
        if name is None and allowed:
            return next(iter(allowed))
        if name is None:
            raise not_found("This key may use no model.", code="model_not_found", param="model")
        if name not in allowed:
            raise model_not_found(name, allowed)
        return name

    def host(self, key: Key, names: Sequence[str], run: str) -> ToolHost | None:
        """The tools of a swarm; None: it has none. Raises `Problem` (400)."""
        if not names:
            return None
        if self._tools is None:
            raise bad_request("This gateway has no tools.", param="mcp_tools")
        return self._tools.host_for(key, names, run=run)

    async def budget(self, key: Key, model: str, asked: Pico | None) -> Pico | None:
        """The swarm's own cap: what was asked for, within what the gateway allows and the key has left.

        None: no cap, which only a model without a price has. Raises `Problem`, `StoreUnavailable`.
        """
        caps = [cap for cap in (asked, self._settings.swarms.budget) if cap is not None]
        if any(deployment.price is None for deployment in self._settings.models[model]):
            if caps or key.budget is not None:
                raise unpriced(model)
            return None
        if key.budget is not None:
            balances = {known.id: balance for known, balance in await self._store.keys()}
            balance = balances.get(key.id)
            left = key.budget - (balance.spent + balance.held if balance is not None else 0)
            if left <= 0:
                raise out_of_budget("This key's budget is spent.")
            caps.append(left)
        return min([USUAL_BUDGET, *caps] if asked is None else caps)

    def job(self, record: SwarmRecord, request: SwarmRequest) -> Job:
        """What is to be done; for a thread, as large ones take their time. Raises `Problem` (400)."""
        own, longest = self._settings.timeouts, self._settings.caps.request + _LONGER
        timeouts = replace(own, first_token=longest, total=longest, silence=own.silence + _LONGER)
        return job_of(request, self._settings.swarms, budget=record.budget, timeouts=timeouts)

    def launch(self, record: SwarmRecord, job: Job, folder: RunFolder, *, resume: bool) -> Launch:
        """The run of a swarm, or what is left of it. It costs what the dearest place costs that may serve it.

        Raises `Problem` where its model is there no more.
        """
        deployments = self._settings.models[self.model(record.key, record.model)]
        own = deployments[0].endpoint
        endpoint = Endpoint(
            provider=own.provider,
            base_url=_NOWHERE,
            model=record.model,
            context=min(each.endpoint.context for each in deployments),
            thinks=any(each.endpoint.thinks for each in deployments),
            dialect=own.dialect,
        )
        prices = [each.price for each in deployments if each.price is not None]
        unpriced = len(prices) < len(deployments)
        return Launch(
            run=record.id,
            folder=folder,
            job=job,
            endpoint=endpoint,
            price=None if unpriced else max(prices, key=lambda price: (price.output, price.input)),
            rehearse=record.rehearsal,
            choice=ModelChoice(name=record.model),
            resume=Resume(only=frozenset()) if resume else None,
            account=RateLimits(),
        )
