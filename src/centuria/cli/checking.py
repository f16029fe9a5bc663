"""doctor, tools and schema: what is wrong before a run, said with the remedy."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import random

from centuria import pricelist
from centuria.cli.running import overrides_from
from centuria.config import (
    Finding,
    LoadedJob,
    ModelChoice,
    NoKey,
    diagnose,
    job_schema,
    load_job,
    read_mcp_json,
    resolve,
)
from centuria.core.rows import ServerRow
from centuria.core.schemas import DIALECTS, PLAIN, Unlawful, legal
from centuria.errors import CenturiaError, ConfigurationError, ProviderError
from centuria.model.http import HttpTransport
from centuria.model.probe import probe
from centuria.ports import HostedTool, ServerState
from centuria.settings import Limits, Timeouts, ToolServer
from centuria.toolhost import McpToolHost
from centuria.toolviews import left_out
from centuria.views.digest import replicas_line, server_remedy
from centuria.views.words import clean


def doctor(options: argparse.Namespace) -> int:
    """`centuria doctor`: every finding on its line, exit 2 if one must be mended."""
    try:
        loaded = load_job(Path(options.job), overrides_from(options)) if options.job else None
    except CenturiaError as error:
        return _print([Finding("job", False, error.message, error.remedy)], as_json=options.json)
    choice = loaded.model if loaded else ModelChoice(options.model, options.provider, options.base_url)
    limits = loaded.job.limits if loaded else Limits()
    findings = diagnose(choice, os.environ, limits=limits, prices=pricelist.load(loaded.prices if loaded else None))
    if loaded is not None:
        findings.insert(
            0, Finding("job", True, f"{len(loaded.job.tasks)} tasks, {len(loaded.job.servers)} tool servers.")
        )
    if not options.offline:
        findings += asyncio.run(_probe(choice))
    servers = _servers(loaded, options.tools)
    if servers:
        states, catalogue = asyncio.run(_open(servers, loaded))
        unlawful = _unlawful(catalogue, choice)
        findings += [_server_finding(state, _left_out(state, unlawful)) for state in states]
    return _print(findings, as_json=options.json)


def tools(options: argparse.Namespace) -> int:
    """`centuria tools`: each tool under the name that models see, its limit, and the servers that are not up."""
    loaded = load_job(Path(options.job)) if options.job else None
    servers = _servers(loaded, options.tools)
    if not servers:
        raise ConfigurationError("There are no tool servers.", remedy="Name a job file, or --tools mcp.json.")
    states, catalogue = asyncio.run(_open(servers, loaded))
    unlawful = _unlawful(catalogue, loaded.model if loaded else ModelChoice())
    for tool in catalogue:
        if tool.tool not in unlawful.get(tool.slug, ()):
            print(_tool_line(tool, as_json=options.json))
    for state in states:
        for name, why in _left_out(state, unlawful).items():
            if options.json:
                print(json.dumps({"server": state.server, "tool": name, "left_out": why}))
            else:
                print(clean(left_out(name, state.server, why), 500), file=sys.stderr)
    for state in states:
        if not state.up or state.mode != "shared":
            _print_state(state, as_json=options.json)
    return 0 if all(state.up for state in states) else 1


def _tool_line(tool: HostedTool, *, as_json: bool) -> str:
    if not as_json:
        return f"{tool.name:<32} limit {tool.limit:>3}  {clean(tool.description, 100)}"
    told = {"name": tool.name, "server": tool.server, "tool": tool.tool, "limit": tool.limit, "key": tool.key}
    told |= {"safe_to_run_again": tool.rerun, "description": tool.description, "schema": tool.schema}
    return json.dumps(told)


def _print_state(state: ServerState, *, as_json: bool) -> None:
    """A server that is not up, or that has replicas."""
    if as_json:
        replicas = [{"up": not reason, "reason": reason} for reason in state.replicas]
        whole = {"server": state.server, "up": state.up, "reason": state.reason, "mode": state.mode}
        print(json.dumps(whole | {"limit": state.limit, "replicas": replicas}))
    elif state.up:
        print(f"{state.server}: {_replicas(state)}", file=sys.stderr)
    else:
        told = f"{state.server}: not up: {clean(state.reason, 300)} {server_remedy(state.reason)}"
        print(told.rstrip(), file=sys.stderr)


def schema(options: argparse.Namespace) -> int:
    """`centuria schema`: the JSON schema of the job file."""
    del options
    print(json.dumps(job_schema(), indent=2))
    return 0


def _servers(loaded: LoadedJob | None, mcp_json: Path | None) -> tuple[ToolServer, ...]:
    if loaded is not None:
        return loaded.job.servers
    return read_mcp_json(mcp_json, os.environ) if mcp_json is not None else ()


async def _open(
    servers: Sequence[ToolServer], loaded: LoadedJob | None
) -> tuple[Sequence[ServerState], Sequence[HostedTool]]:
    """Start the servers as the job would, ask each what it has, and stop them. One that is not up is no error."""
    optional = [replace(server, required=False) for server in servers]
    timeouts = loaded.job.timeouts if loaded is not None else Timeouts()
    async with McpToolHost(optional, timeouts=timeouts, dice=random) as host:
        return host.servers(), host.catalogue()


async def _probe(choice: ModelChoice) -> list[Finding]:
    """Ask the provider for its models: is it reachable, is the key accepted, is the model there?"""
    try:
        resolved = resolve(choice, os.environ)
    except ProviderError:
        return []  # said already
    if isinstance(resolved, NoKey):
        return []
    transport = HttpTransport()
    try:
        found = await probe(resolved, transport)
    finally:
        await transport.aclose()
    if found.problem:
        return [Finding("provider", False, found.problem, found.remedy)]
    text = "reached; the key is accepted" + ("" if found.listed is None else "; the model is listed")
    return [Finding("provider", True, text + ".")]


def _unlawful(catalogue: Sequence[HostedTool], choice: ModelChoice) -> Mapping[str, Mapping[str, str]]:
    """By server: the tools whose schema the chosen model's provider cannot be given, and why."""
    try:
        resolved = resolve(choice, os.environ)
        dialect = DIALECTS[(resolved.endpoint if isinstance(resolved, NoKey) else resolved).dialect]
    except ProviderError:
        dialect = PLAIN
    found: dict[str, dict[str, str]] = {}
    for tool in catalogue:
        try:
            legal(tool.schema, dialect)
        except Unlawful as error:
            found.setdefault(tool.slug, {})[tool.tool] = str(error)
    return found


def _left_out(state: ServerState, unlawful: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """A server's tools that no agent can have, and why."""
    return {**state.detail.get("left_out", {}), **unlawful.get(state.slug, {})}


def _server_finding(state: ServerState, left_out: Mapping[str, str]) -> Finding:
    login = state.detail.get("login", "")
    if state.up:
        known = f", {login}" if login and login != "not logged in" else ""
        replicas = "" if state.mode == "shared" else f"; {_replicas(state)}"
        text = f"up as {state.slug!r}: {state.tools} tools, limit {state.limit}{known}{replicas}."
        whole = state.in_service == len(state.replicas)
        return Finding(
            f"server {state.server}",
            True if whole else None,
            " ".join([text, *(f"{name} is left out: {why}" for name, why in left_out.items())]),
            "" if whole else "The run goes on with those that are up. Lower `replicas`, or see why they fail.",
        )
    if state.detail.get("needs_login"):
        return Finding(f"server {state.server}", False, f"not up ({login}): {state.reason}", "Log in, then try again.")
    return Finding(
        f"server {state.server}",
        False,
        f"not up: {state.reason}",
        server_remedy(state.reason),
    )


def _replicas(state: ServerState) -> str:
    return replicas_line(ServerRow(state.slug, state.server, mode=state.mode, replicas=state.replicas))


def _print(findings: Sequence[Finding], *, as_json: bool) -> int:
    for finding in findings:
        if as_json:
            print(json.dumps(asdict(finding)))
            continue
        mark = {True: "ok  ", False: "BAD ", None: "note"}[finding.ok]
        print(f"{mark} {finding.subject}: {clean(finding.text, 400)}")
        if finding.remedy and finding.ok is not True:
            print("       " + finding.remedy.replace("\n", "\n       "))
    return 2 if any(finding.ok is False for finding in findings) else 0
