"""Every route of a gateway: who may use it, and that no way leads to a model past the funnel."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from centuria.gateway.web import Route
from centuria.testing import FakeUpstream
from centuria.testing.replies import Text
from tests.gateway.served import ASKED, MODEL, Reply, Served, one, serving, usage

#: What needs no key: nothing of anybody's is there.
PUBLIC = {"/", "/docs", "/openapi.json", "/session", "/healthz", "/readyz"}
#: One body for all: each route takes what it knows of it.
BODIES: list[dict[str, Any]] = [
    ASKED,
    {**ASKED, "stream": True},
    {**ASKED, "mcp_tools": []},
    {**ASKED, "stream": True, "mcp_tools": []},
    {"goal": "Say hello.", "model": MODEL, "max_agents": 2},
    {"tasks": [{"id": "a", "prompt": "Say hello."}], "model": MODEL},
]


def path_of(route: Route) -> str:
    return re.sub(r"\{\w+\}", "x", route.pattern)


async def use(served: Served, route: Route, headers: dict[str, str], body: Any = None) -> Reply:
    url = served.url + path_of(route)
    async with served.session.request(route.method, url, headers=headers, json=body) as response:
        return Reply(response.status, response.headers, await response.read())


async def test_no_route_but_the_public_ones_says_anything_without_a_key() -> None:
    async with FakeUpstream() as upstream, serving(one(upstream)) as served:
        await served.add_key("a")
        routes = served.gateway.router.routes
        assert {"/v1/chat/completions", "/v1/models", "/metrics", "/healthz"} <= {route.pattern for route in routes}
        for route in routes:
            for headers in ({}, {"Authorization": "Bearer ck-wrong"}, {"x-api-key": ""}, {"Cookie": "session=x"}):
                got = await use(served, route, headers)
                if route.access == "public":
                    assert route.pattern in PUBLIC or route.pattern.startswith("/assets/"), route.pattern
                    assert got.status != 401
                else:
                    assert (got.status, got.code) == (401, "invalid_api_key"), route.pattern
        for mount in served.gateway.router.mounts:
            for path in (mount.path, f"{mount.path}/below"):
                assert (await served.get(path, {}, "POST")).status == 401
        assert not upstream.requests


async def test_admin_routes_are_for_admins() -> None:
    async with FakeUpstream() as upstream, serving(one(upstream)) as served:
        plain, admin = await served.add_key("a"), await served.add_key("b", admin=True)
        found = [route for route in served.gateway.router.routes if route.access == "admin"]
        assert "/metrics" in {route.pattern for route in found}
        for route in found:
            assert (await use(served, route, plain)).status == 403
            assert (await use(served, route, admin)).status != 403


async def test_whatever_reaches_an_upstream_by_any_route_is_a_row_of_the_key_that_asked() -> None:
    told: list[int] = []

    def script(body: dict[str, Any]) -> Text:
        told.append(1_000 + len(told))
        return Text("Hello.", usage=usage(told[-1], 5))

    async with FakeUpstream(script) as upstream, serving(one(upstream)) as served:
        key = await served.add_key("a", budget=10**13)
        reached: dict[str, int] = {}
        for route in served.gateway.router.routes:
            for body in BODIES if route.method == "POST" else [None]:
                before = len(upstream.requests)
                await use(served, route, key, body)
                await settled(served, key)
                if len(upstream.requests) > before:
                    reached[route.pattern] = reached.get(route.pattern, 0) + len(upstream.requests) - before
        assert reached["/v1/chat/completions"] == 4
        assert reached["/v1/agents/swarm/spawn"] >= 2
        assert sorted(row.prompt for row in served.rows) == told  # each attempt once, with its own usage
        assert {row.key for row in served.rows} == {"key-a"}
        lines = await served.store.usage()
        assert sum(line.attempts for line in lines) == len(upstream.requests) == len(told)


async def settled(served: Served, key: dict[str, str]) -> None:
    """Nothing is on its way any more, also not what goes on after its request was answered."""
    async with asyncio.timeout(20):
        while await running(served, key):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await served.until_quiet()


async def running(served: Served, key: dict[str, str]) -> bool:
    return any(
        each["status"] in ("starting", "running") for each in (await served.get("/v1/agents/swarm", key)).json["data"]
    )
