"""docs/gateway.md: its examples are files, and run; its tables name what there is."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from centuria.gateway.reading import read_gateway
from centuria.gateway.server import listen
from centuria.gateway.service import Gateway
from centuria.gateway.settings import Caps, GatewaySettings
from centuria.gateway.shape import CapsShape, DeploymentShape, GatewayFileShape, GatewayShape, SwarmsShape
from centuria.settings import ToolServer
from centuria.testing.upstream import FakeUpstream, Text
from tests.gateway.programs import run
from tests.gateway.served import deployment, serving
from tests.servers.installed import CLIENTS_PYTHON, require

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "gateway"
DOC = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The example in a folder of its own, beside what it reads."""
    for name in ("docs", "examples/market-reports", "examples/gateway"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path / "examples" / "gateway"


@pytest.mark.parametrize(("lang", "name"), [("sh", "first_minute.sh"), ("python", "chat.py"), ("toml", "gateway.toml")])
def test_what_the_page_shows_is_the_file(lang: str, name: str) -> None:
    assert [text for kind, text in BLOCKS if kind == lang] == [(EXAMPLE / name).read_text(encoding="utf-8")]


def test_the_example_is_read_with_its_models_tools_and_caps() -> None:
    settings = read_gateway(EXAMPLE / "gateway.toml", {}, rehearse=True)
    assert [len(places) for places in settings.models.values()] == [2, 1]
    assert all(each.price is not None for places in settings.models.values() for each in places)
    assert [server.builtin for server in settings.servers] == ["web_search", "code_exec", "file_read"]
    assert settings.caps.queue == 60


@pytest.mark.timeout(120)
async def test_the_first_minute_ends_with_an_answer_and_what_it_cost(place: Path) -> None:
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    listener.close()
    command = place / "centuria"
    command.write_text(f"#!{sys.executable}\nimport sys\nfrom centuria.cli import main\nsys.exit(main())\n")
    command.chmod(0o755)
    env = {"CENTURIA": str(command), "FLAGS": f"--rehearse --port {port}", "PORT": str(port)}
    code, out, said = await run(["sh", place / "first_minute.sh"], env, cwd=place)
    assert code == 0, said
    assert '"choices"' in out
    assert re.search(r"^me +kimi-k2\.5 ", out, re.MULTILINE), out
    assert "ck-" not in out + said


@pytest.mark.timeout(120)
async def test_the_python_example_runs_with_openais_package(place: Path) -> None:
    require("clients")
    asked = []

    def answer(body: dict[str, object]) -> Text:
        asked.append(body)
        return Text("Because of the air.")

    async with FakeUpstream(answer) as upstream:
        read = read_gateway(place / "gateway.toml", {}, rehearse=True)
        models = {name: (deployment(upstream, name=f"fake/{name}"),) for name in read.models}
        async with serving(replace(read, models=models)) as served:
            env = {"GATEWAY": served.url, "KEY": await served.token("me", budget=10**13)}
            code, out, said = await run([CLIENTS_PYTHON, place / "chat.py"], env, cwd=place)
    assert code == 0, said
    assert out.count("Because of the air.") == 3
    assert {tool["function"]["name"] for tool in asked[-1]["tools"]} == {"web_search", "file_read"}


@pytest.mark.parametrize("shape", [GatewayShape, DeploymentShape, CapsShape, SwarmsShape, GatewayFileShape])
def test_every_field_of_the_file_is_on_the_page(shape: type) -> None:
    for name in shape.model_fields:
        assert re.search(rf"`(\[+)?{name}\b", DOC), f"{shape.__name__}.{name}"


def test_the_defaults_on_the_page_are_those_that_hold() -> None:
    caps = Caps()
    for text in (
        f"{caps.header // 1024} KiB, {caps.body // 2**20} MiB",
        f"| {caps.stall:g}, {caps.send:g}, {caps.read:g} |",
        f"| {caps.waiting:,}, {caps.waiting_all:,} |",
        *(f"| {value:g} |" for value in (caps.request, caps.queue, caps.attempts, caps.grace)),
        f"| {caps.connections:,} |",
    ):
        assert text in DOC, text
    limits = GatewaySettings({}).swarms
    assert f"at once for one key ({limits.running}), `agents` ({limits.agents}) and `tasks` ({limits.tasks:,})" in DOC


async def test_every_code_of_the_table_is_one_that_the_gateway_says() -> None:
    sources = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src/centuria/gateway").rglob("*.py"))
    table = DOC.partition("| status |")[2].partition("\n\n")[0]
    codes = [code for row in table.splitlines()[2:] for code in re.findall(r"`([a-z_]+)`", row.split("|")[2])]
    assert len(codes) > 15
    for code in codes:
        assert f'"{code}"' in sources, code


async def test_the_metrics_on_the_page_are_there(tmp_path: Path) -> None:
    files = ToolServer("files", "files", builtin="file_read", options={"roots": [str(tmp_path)]}, required=True)
    settings = GatewaySettings({}, store=str(tmp_path / "gateway.db"), servers=(files,))
    async with Gateway(replace(settings, swarms=replace(settings.swarms, folder=tmp_path / "runs"))) as gateway:
        text = gateway.metrics()
    for name in re.findall(r"`(centuria_\w+)`", DOC):
        assert f"# TYPE {name} " in text, name


def test_the_entry_for_mcp_hosts_is_json() -> None:
    [entry] = [json.loads(text) for kind, text in BLOCKS if kind == "json"]
    assert entry["mcpServers"]["centuria"]["url"].endswith("/mcp")
