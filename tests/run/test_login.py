"""`centuria login`, and runs whose tool servers want one: said before money is spent, never kept where a run is."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from centuria.cli import main
from centuria.testing.oauth import FakeOAuth
from centuria.testing.upstream import Calls, FakeUpstream, Text
from tests.promises.kit import Ended, centuria, the_run, tool_texts, turn, write_job
from tests.toolhost.oauth_kit import visit


def mcp_json(folder: Path, oauth: FakeOAuth) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"web": {"url": oauth.url}}}))
    return path


def home(folder: Path) -> Mapping[str, str]:
    return {"XDG_CONFIG_HOME": str(folder / "config"), "HOME": str(folder)}


async def log_in(folder: Path, *arguments: str, person: bool = True) -> Ended:
    """The command, and a person who reads what it says and opens the URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "import sys; from centuria.cli import main; sys.exit(main())"),
        *("login", *arguments, "--no-browser"),
        cwd=folder,
        env={**home(folder), "PATH": ""},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None and process.stdout is not None
    said = ""
    async with asyncio.timeout(60):
        while line := (await process.stderr.readline()).decode():
            said += line
            found = re.match(r"  (http\S+)$", line)
            if found and person:
                assert await asyncio.to_thread(visit, found[1]) == 200
        out = (await process.stdout.read()).decode()
        return Ended(await process.wait(), out, said)


def secrets_below(folder: Path, oauth: FakeOAuth) -> list[str]:
    """The files that hold anything that was granted."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and any(secret.encode() in path.read_bytes() for secret in oauth.secrets):
            found.append(path.relative_to(folder).parts[0])
    return found


async def test_a_login_is_kept_for_the_runs_to_come_and_nowhere_else(tmp_path: Path) -> None:
    def script(body: dict[str, object]) -> Calls | Text:
        return Text(tool_texts(body)[-1]) if turn(body) else Calls((("web__echo", '{"text": "let in"}'),))

    async with FakeOAuth() as oauth, FakeUpstream(script) as upstream:
        mcp_json(tmp_path, oauth)
        said = await log_in(tmp_path, "web", "--tools", "mcp.json", "--json")
        assert said.code == 0, said
        assert json.loads(said.out)["logged_in"] is True and json.loads(said.out)["tools"] == 2
        server = {"url": oauth.url, "required": True}
        job = write_job(tmp_path, upstream, rows=3, tools={"web": server})
        ran = await centuria(tmp_path, "run", job, env=home(tmp_path))
        assert ran.code == 0, ran
        assert oauth.events["call echo"] == 3 and oauth.events["authorize"] == 1
        doctor = await centuria(tmp_path, "doctor", job, "--offline", env=home(tmp_path))
        assert "up as 'web': 2 tools, limit 10, logged in" in doctor.out
        assert secrets_below(tmp_path, oauth) == ["config"]
        assert not [secret for secret in oauth.secrets if secret in str((said, ran, doctor))]
        out = await centuria(tmp_path, "logout", "web", "--tools", "mcp.json", env=home(tmp_path))
        assert (out.code, out.out) == (0, "The login to web is forgotten.\n")
        assert secrets_below(tmp_path, oauth) == []


async def test_a_run_without_a_login_that_it_requires_ends_before_it_begins(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth, FakeUpstream() as upstream:
        job = write_job(tmp_path, upstream, rows=2, tools={"web": {"url": oauth.url, "required": True}})
        said = await centuria(tmp_path, "run", job, env=home(tmp_path))
        assert said.code == 2 and "Run: centuria login web" in said.err and "Log in, or" in said.err, said
        assert upstream.requests == [] and not oauth.events["register"] and not oauth.events["authorize"]
        doctor = await centuria(tmp_path, "doctor", job, "--offline", env=home(tmp_path))
        assert doctor.code == 2 and "not logged in" in doctor.out and "centuria login web" in doctor.out


async def test_a_run_without_a_login_that_it_could_use_says_so_and_goes_on(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth, FakeUpstream(lambda body: Text("Without.")) as upstream:
        job = write_job(tmp_path, upstream, rows=1, tools={"web": {"url": oauth.url}})
        said = await centuria(tmp_path, "run", job, env=home(tmp_path))
        assert said.code == 0 and "server web is down" in said.err and "centuria login web" in said.err


async def test_a_client_secret_is_in_no_file_of_a_run_and_a_resume_reads_it_again(tmp_path: Path) -> None:
    async with (
        FakeOAuth(clients={"robot": "hush-7319-hush"}) as oauth,
        FakeUpstream(lambda body: Text("Done.")) as upstream,
    ):
        auth = {"grant": "client_credentials", "client_id": "robot", "client_secret": "${S}", "issuer": oauth.issuer}
        job = write_job(tmp_path, upstream, rows=1, tools={"web": {"url": oauth.url, "auth": auth, "required": True}})
        env = {**home(tmp_path), "S": "hush-7319-hush"}
        for command in (("run", job), ("resume", "last")):
            said = await centuria(tmp_path, *command, env=env)
            assert said.code == 0 and "hush" not in said.err + said.out, said
        assert oauth.events["token client_credentials"] >= 1
        oauth.secrets.add("hush-7319-hush")
        assert secrets_below(tmp_path, oauth) == []
        assert '"robot"' in (the_run(tmp_path) / "job.json").read_text()


async def test_a_login_that_nobody_makes_ends(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        said = await log_in(tmp_path, "--url", oauth.url, "--timeout", "0.2", person=False)
        assert said.code == 1 and "took too long" in said.err and "Traceback" not in said.err


async def test_a_server_that_lets_everybody_in_keeps_nothing(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        oauth.open = True
        said = await log_in(tmp_path, "--url", oauth.url)
        assert said.code == 0 and "lets everybody in: 2 tools" in said.out, said
        assert not (tmp_path / "config").exists()


# -- refused before anything is opened -------------------------------------------------------------------------------

SERVERS = {
    "proc": {"command": "server"},
    "keyed": {"url": "https://a.example/mcp", "headers": {"Authorization": "Bearer x"}},
    "robot": {
        "url": "https://b.example/mcp",
        "auth": {"grant": "client_credentials", "client_id": "r", "private_key": "k.pem"},
    },
    "web": {"url": "https://c.example/mcp"},
}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["proc"], "is a process of this machine"),
        (["keyed"], "has an Authorization header"),
        (["robot"], "nobody has to log in"),
        (["wbe"], "Did you mean `web`?"),
        ([], "Name one: keyed, robot, web"),
        (["web", "--timeout", "0"], "--timeout"),
        (["--url", "c.example/mcp"], "not an http(s) URL"),
        (["web", "--tools", "nowhere.json"], "does not exist"),
    ],
)
def test_a_login_that_makes_no_sense_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": SERVERS}))
    assert main(["login", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_without_a_file_it_is_asked_which_server_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["logout", "web"]) == 2
    assert "--tools mcp.json" in capsys.readouterr().err
