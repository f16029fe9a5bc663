"""How a server lets us in: `auth` of a job file and of an `mcpServers` file, and what of it is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from centuria.config import load_job
from centuria.errors import JobError
from centuria.settings import Authorization, Secret, ToolServer
from tests.config.test_servers import mcp, tools

ENV = {"S": "hush-7319", "ID": "robot"}
MACHINE = 'grant = "client_credentials", client_id = "${ID}"'


def auth(folder: Path, text: str) -> Authorization:
    found = tools(folder, f'[tools.web]\nurl = "https://a.example/mcp"\nauth = {{ {text} }}\n', ENV)["web"].auth
    assert found is not None
    return found


def test_every_key_of_auth_is_read(tmp_path: Path) -> None:
    found = auth(
        tmp_path,
        f'{MACHINE}, client_secret = "${{S}}", method = "client_secret_post", issuer = "https://b.example", '
        'scopes = ["read write", "read", "admin"]',
    )
    assert found == Authorization(
        grant="client_credentials",
        client_id="robot",
        client_secret=Secret("hush-7319"),
        method="client_secret_post",
        issuer="https://b.example",
        scopes=("read", "write", "admin"),
    )
    assert auth(tmp_path, f'{MACHINE}, private_key = "k.pem", algorithm = "RS256"').private_key == tmp_path / "k.pem"
    person = auth(tmp_path, 'client_metadata_url = "https://c.example/client.json", redirect_port = 8123')
    assert (person.client_metadata_url, person.redirect_port) == ("https://c.example/client.json", 8123)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'{MACHINE}, client_secret = "hush"', "written out"),
        (f'{MACHINE}, client_secret = "${{S}} "', "written out"),
        (f'{MACHINE}, client_secret = "${{NOT_SET}}"', "NOT_SET, which is not set"),
        (MACHINE, "needs a `client_secret` or a `private_key`"),
        (f'{MACHINE}, client_secret = "${{S}}", private_key = "k.pem"', "needs a `client_secret` or a `private_key`"),
        ('grant = "client_credentials", client_secret = "${S}"', "has no `client_id`"),
        ('client_secret = "${S}"', "has no `client_id`"),
        ('private_key = "k.pem"', "has a `private_key`"),
        ('issuer = "http://b.example"', "issuer is not an https URL"),
        ('client_metadata_url = "https://c.example"', "has no path"),
        ('client_metadata_url = "http://localhost/c.json"', "has no path"),
        ('algorithm = "none"', "algorithm"),
        ('client_secert = "${S}"', "Did you mean `client_secret`"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(JobError) as caught:
        auth(tmp_path, text)
    assert words in str(caught.value) and "hush" not in str(caught.value)


def test_auth_belongs_to_a_url_without_a_header_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="belongs to a server with a `url`"):
        tools(tmp_path, '[tools.x]\ncommand = "x"\nauth = {}\n')
    with pytest.raises(JobError, match="Authorization header"):
        tools(tmp_path, '[tools.x]\nurl = "https://a.example"\nheaders = { AUTHORIZATION = "x" }\nauth = {}\n')


@pytest.mark.parametrize(
    "written",
    [
        {"auth": {"client_id": "me", "client_secret": "${S}", "scopes": ["a", "b"]}},
        {"auth": {"CLIENT_ID": "me", "CLIENT_SECRET": "${env:S}", "scopes": ["a", "b"]}},
        {"oauth": {"clientId": "me", "clientSecret": "${S}", "scopes": "a b", "enabled": True}},
    ],
)
def test_an_mcp_json_may_spell_it_as_other_hosts_do(tmp_path: Path, written: dict[str, Any]) -> None:
    entry = {"url": "https://a.example/mcp", **written}
    found = mcp(tmp_path, {"mcpServers": {"web": entry}}, ENV)["web"].auth
    assert found == Authorization(client_id="me", client_secret=Secret("hush-7319"), scopes=("a", "b"))


@pytest.mark.parametrize("written", [True, "oauth", None])
def test_ways_of_other_hosts_to_switch_it_on_change_nothing(tmp_path: Path, written: object) -> None:
    assert mcp(tmp_path, {"mcpServers": {"web": {"url": "https://a.example", "auth": written}}})["web"].auth is None


@pytest.mark.parametrize("written", [[], {"client_id": 1}, {"redirect_port": "80"}, {"client_secret": "literal-7319"}])
def test_an_auth_that_is_none_is_refused_without_its_value(tmp_path: Path, written: object) -> None:
    with pytest.raises(JobError, match="auth") as caught:
        mcp(tmp_path, {"mcpServers": {"web": {"url": "https://a.example", "auth": written}}})
    assert "7319" not in str(caught.value)


def test_elicit_is_read_from_both_kinds_of_files(tmp_path: Path) -> None:
    found = mcp(tmp_path, {"mcpServers": {"a": {"command": "a", "elicit": "defaults"}, "b": {"command": "b"}}})
    assert (found["a"].elicit, found["b"].elicit) == ("defaults", "decline")
    with pytest.raises(JobError, match="elicit"):
        mcp(tmp_path, {"mcpServers": {"a": {"command": "a", "elicit": "accept"}}})
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "a"}}}')
    tuned = tools(tmp_path, '[job]\ntools_file = "mcp.json"\n[tools.a]\nelicit = "defaults"\n')
    assert tuned["a"].elicit == "defaults"


def test_the_job_as_it_is_kept_refers_to_the_secret_and_does_not_hold_it(tmp_path: Path) -> None:
    text = f'[tools.web]\nurl = "https://a.example/mcp"\nauth = {{ {MACHINE}, client_secret = "${{S}}" }}\n'
    (tmp_path / "job.toml").write_text(text + '[[task]]\nid = "a"\nprompt = "x"\n')
    job = load_job(tmp_path / "job.toml", env=ENV).job
    assert job.source["tools"]["web"]["auth"]["client_secret"] == "${S}"
    assert "hush" not in json.dumps(job.source) + repr(job)


def test_a_server_without_auth_has_none() -> None:
    assert ToolServer("a", "a", url="https://a.example").auth is None
