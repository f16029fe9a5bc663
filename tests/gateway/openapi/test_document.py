"""The document names what the router has, and the gateway answers a fuzzer that nobody here wrote as it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from jsonschema import Draft202012Validator

from centuria import __version__
from centuria.gateway.openapi import document
from centuria.gateway.service import Gateway
from centuria.gateway.settings import Caps, GatewaySettings
from centuria.gateway.swarms import request
from centuria.gateway.tools import manifest
from centuria.settings import ToolServer
from centuria.testing.upstream import FakeUpstream, Text
from tests.gateway.programs import run
from tests.gateway.served import deployment, serving
from tests.servers.installed import CLIENTS, require

HERE = Path(__file__).parent
GATEWAY = Path(manifest.__file__).parents[1]


def settings_in(folder: Path, base_url: str = "http://127.0.0.1:9/v1", *servers: ToolServer) -> GatewaySettings:
    settings = GatewaySettings(
        {"kimi-k2.5": (deployment(base_url),)},
        store=str(folder / "gateway.db"),
        servers=servers,
        bare_names=True,
        caps=Caps(queue=5.0, request=20.0),
    )
    return replace(settings, swarms=replace(settings.swarms, folder=folder / "runs"))


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


async def test_the_document_names_every_route_with_its_method_and_who_may_use_it(tmp_path: Path) -> None:
    async with Gateway(settings_in(tmp_path)) as gateway:
        # The page's own scripts and styles are its parts, and no interface.
        routes = [route for route in gateway.router.routes if not route.pattern.startswith("/assets/")]
    there = {(route.method, route.pattern): route.access == "public" for route in routes}
    told = {(method, path): operation.get("security") == [] for method, path, operation in operations()}
    assert told == there


def test_every_operation_has_a_name_of_its_own_words_and_answers() -> None:
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(ids)) == len(ids)
    tags = {tag["name"] for tag in document()["tags"]}
    for _, path, operation in operations():
        assert operation["summary"], path
        assert set(operation["tags"]) <= tags
        assert any(status.startswith("2") for status in operation["responses"])


def test_every_reference_leads_somewhere_and_every_part_of_a_path_is_described() -> None:
    whole = document()
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(whole)):
        found: Any = whole
        for part in reference.split("/"):
            found = found[part]
    for _, path, operation in operations():
        parts = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
        assert parts == set(re.findall(r"{(\w+)}", path)), path


def test_every_example_fits_its_schema_and_every_schema_is_one() -> None:
    whole = document()
    for schema in whole["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    number = 0
    for _, path, operation in operations():
        for one in operation.get("parameters", ()):
            Draft202012Validator(one["schema"]).validate(one.get("example", 0))
        media = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        schema = {**media.get("schema", {}), "components": whole["components"]}
        for example in media.get("examples", {}).values():
            problems = [error.message for error in Draft202012Validator(schema).iter_errors(example["value"])]
            assert not problems, path
            number += 1
    assert number >= 9


def test_what_the_gateway_reads_of_bodies_and_queries_is_what_the_document_has() -> None:
    schemas = document()["components"]["schemas"]
    assert set(schemas["SwarmRequest"]["properties"]) == set(request._FIELDS)
    assert set(schemas["SwarmTask"]["properties"]) == set(request._TASK)
    assert set(schemas["ToolEntry"]["properties"]) == manifest._FIELDS
    assert set(schemas["RemoteServer"]["properties"]) == manifest._REMOTE
    told = {
        one["name"]
        for _, _, operation in operations()
        for one in operation.get("parameters", ())
        if one["in"] == "query"
    }
    sources = "".join(file.read_text(encoding="utf-8") for file in GATEWAY.rglob("*.py"))
    read = set(re.findall(r'query(?:\.get\(|, )"(\w+)"', sources))
    assert read == told


async def test_the_document_is_served_to_everyone_with_the_packages_version(tmp_path: Path) -> None:
    async with serving(settings_in(tmp_path)) as served, aiohttp.ClientSession() as session:
        await served.token("someone")
        async with session.get(f"{served.url}/openapi.json") as reply:
            told = await reply.json()
    assert reply.status == 200
    assert told == document()
    assert told["info"]["version"] == __version__


@pytest.mark.timeout(300)
async def test_a_fuzzer_finds_no_answer_that_the_document_does_not_have(tmp_path: Path) -> None:
    require("clients")
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "solar.md").write_text("# Solar panels\nThe market of solar panels grows.")
    servers = (
        ToolServer("web", "web", builtin="web_search", options={"folder": str(pages)}),
        ToolServer("files", "files", builtin="file_read", options={"roots": [str(pages)]}),
    )
    async with (
        FakeUpstream(lambda body: Text("Hello.")) as upstream,
        serving(settings_in(tmp_path, upstream.base_url, *servers)) as served,
    ):
        key = await served.token("fuzzer", admin=True, budget=10**13)
        argv = [CLIENTS / "bin" / "st", "--config-file", HERE / "schemathesis.toml", "run"]
        argv += [f"{served.url}/openapi.json", "--no-color", "--header", f"Authorization: Bearer {key}"]
        env = {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE)}
        code, out, said = await run(argv, env, cwd=tmp_path, within=280)
        asked = {(hit.method, hit.status) for hit in served.hits}
        number = len(served.hits)
    assert code == 0, out[-12_000:] + said[-2_000:]
    # It did look: some hundred requests, good ones and bad ones, and through to the model.
    assert number > 500
    assert {("POST", 200), ("POST", 400), ("GET", 404), ("POST", 201), ("POST", 202), ("DELETE", 204)} <= asked
    assert len(upstream.requests) > 20
