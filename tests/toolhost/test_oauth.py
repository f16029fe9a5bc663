"""Logins: asked for once, kept where only their owner reads them, renewed once for everybody, and never shown."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
import threading
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from centuria.errors import ConfigurationError, ToolUnavailable
from centuria.messages import ToolEnd
from centuria.settings import Authorization, Secret, ToolServer
from centuria.testing.oauth import FakeOAuth
from centuria.toolhost.flows import OAuthFlowError, check_url
from centuria.toolhost.loopback import Loopback
from centuria.toolhost.oauth import MAX_CONSENTS, ServerAuth, authorized
from centuria.toolhost.tokens import Grant, TokenStore, store_of
from tests.toolhost.kit import host_of
from tests.toolhost.oauth_kit import browse, call, hosting, log_in, nobody, server_of, until, visit

PING = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


async def test_a_login_is_made_once_and_serves_the_runs_after_it(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        assert await log_in(server_of(oauth), tmp_path / "tokens") == ""
        for _ in range(2):
            async with hosting(server_of(oauth), tmp_path / "tokens") as host:
                assert await call(host, text="hi") == "hi"
                assert host.servers()[0].detail["login"] == "logged in"
        assert oauth.events["authorize"] == oauth.events["token authorization_code"] == 1
        (asked,) = oauth.asked
        assert asked["code_challenge_method"] == "S256" and asked["resource"] == oauth.url
        assert urlsplit(asked["redirect_uri"]).hostname == "127.0.0.1"


async def test_a_code_is_worth_nothing_without_its_verifier(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        await log_in(server_of(oauth), tmp_path)
        stolen = visit_and_keep_code(oauth)
        form = {"grant_type": "authorization_code", "client_id": "client-0", "code": stolen, "code_verifier": "x" * 43}
        async with httpx2.AsyncClient() as client:
            assert (await client.post(f"{oauth.issuer}/token", data=form)).status_code == 400


def visit_and_keep_code(oauth: FakeOAuth) -> str:
    reply = oauth._authorize(dict(oauth.asked[0]))
    return parse_qs(urlsplit(reply.headers["Location"]).query)["code"][0]


async def test_the_store_is_for_its_owner_alone_and_written_in_one_step(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        folder = tmp_path / "tokens"
        await log_in(server_of(oauth), folder)
        (file,) = folder.glob("*.json")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert file.name.startswith("127.0.0.1-")
        assert {path.suffix for path in folder.iterdir()} <= {".json", ".lock"}
        assert TokenStore(folder).remove(server_of(oauth)) and not TokenStore(folder).remove(server_of(oauth))


async def test_no_token_is_in_any_log_error_or_file_but_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    async with FakeOAuth() as oauth:
        folder = tmp_path / "tokens"
        said.append(await log_in(server_of(oauth), folder))
        async with hosting(server_of(oauth), folder) as host:
            said.append(await call(host))
            oauth.end_access()
            said.append(await call(host))
            oauth.revoke()
            said.append(await call(host))
            said += [repr(host.servers()), repr(TokenStore(folder).read(server_of(oauth)))]
        secrets = oauth.secrets | {query["state"] for query in oauth.asked}
        assert len(secrets) > 4
    text = "\n".join([caplog.text, *said])
    assert not [secret for secret in secrets if secret in text]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != folder]


async def test_an_answer_that_is_no_token_is_not_quoted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    class Odd(FakeOAuth):
        def _grant(self, family, *, refresh=True):  # type: ignore[no-untyped-def]
            reply = super()._grant(family, refresh=refresh)
            reply.body["token_type"] = ["Bearer"]
            return reply

    async with Odd() as oauth:
        reason = await log_in(server_of(oauth), tmp_path)
        assert "is no token" in reason
        assert not [secret for secret in oauth.secrets if secret in reason + caplog.text]


async def test_a_registration_that_is_none_is_not_quoted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with FakeOAuth() as oauth:
        oauth.registered = {"client_id": {}, "client_secret": ["hush-7319"]}
        reason = await log_in(server_of(oauth), tmp_path)
        assert "not valid" in reason and not oauth.asked
        assert "hush-7319" not in reason + caplog.text


# -- what must not get through ---------------------------------------------------------------------------------------


async def test_an_answer_with_another_state_is_not_taken_and_the_login_goes_on(tmp_path: Path) -> None:
    statuses: list[int] = []

    def person(url: str) -> None:
        back = parse_qs(urlsplit(url).query)["redirect_uri"][0]

        def go() -> None:
            statuses.extend(visit(f"{back}?code=stolen&state={state}") for state in ("", "x", "x" * 43))
            statuses.append(visit(f"{back.replace('/callback', '/other')}?code=stolen"))
            statuses.append(visit(url))

        threading.Thread(target=go, daemon=True).start()

    async with FakeOAuth() as oauth:
        assert await log_in(server_of(oauth), tmp_path, person) == ""
        assert statuses == [404, 404, 404, 404, 200]
        assert "stolen" not in {form.get("code") for form in oauth.granted}


@pytest.mark.parametrize(
    ("metadata", "iss"), [({"issuer": "https://evil.example"}, None), ({}, "https://evil.example"), ({}, "/")]
)
async def test_another_issuer_gets_no_code(tmp_path: Path, metadata: dict[str, str], iss: str | None) -> None:
    async with FakeOAuth() as oauth:
        oauth.metadata, oauth.iss = metadata, iss if iss != "/" else f"{oauth.issuer}/"
        reason = await log_in(server_of(oauth), tmp_path)
        assert "mismatch" in reason
        assert not oauth.granted and TokenStore(tmp_path).read(server_of(oauth)) is None


async def test_a_token_for_another_resource_is_not_asked_for(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        oauth.resource = {"resource": "https://bank.example/mcp"}
        assert "does not match" in await log_in(server_of(oauth), tmp_path)
        assert not oauth.asked


async def test_a_named_issuer_is_the_only_one_that_is_asked(tmp_path: Path) -> None:
    async with FakeOAuth(clients={"me": ""}) as oauth:
        auth = Authorization(client_id="me", issuer="https://login.example")
        assert "https://login.example" in await log_in(server_of(oauth, auth=auth), tmp_path)
        assert not oauth.asked and not oauth.events["register"]


@pytest.mark.parametrize("client", ["registered", "set"])
async def test_what_one_authorization_server_gave_is_shown_to_no_other(tmp_path: Path, client: str) -> None:
    async with FakeOAuth(clients={"me": ""}) as oauth, FakeOAuth(clients={"me": ""}) as other:
        server = server_of(oauth, auth=Authorization(client_id="me") if client == "set" else None)
        assert await log_in(server, tmp_path) == ""
        async with hosting(server, tmp_path) as host:
            oauth.end_access()
            oauth.resource = {"authorization_servers": [other.issuer]}
            assert "centuria login web" in await call(host)
        assert set(other.events) == {"metadata"} and not oauth.events["token refresh_token"]


async def test_without_pkce_nobody_logs_in(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        oauth.metadata = {"code_challenge_methods_supported": ["plain"]}
        assert "PKCE" in await log_in(server_of(oauth), tmp_path)
        assert not oauth.asked


async def test_a_login_does_not_go_by_plain_http_but_on_this_machine(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        oauth.resource = {"authorization_servers": ["http://192.0.2.1"]}
        assert "not https" in await log_in(server_of(oauth), tmp_path)
    here, there = "http://127.0.0.1:1/mcp", "https://mcp.example/mcp"
    for url in ("https://a.example/token", "http://127.0.0.1:2/token", "http://localhost/token", "http://[::1]/token"):
        check_url(url, here)
    for url, server in (
        ("http://a.example/t", here),
        ("http://127.0.0.1/t", there),
        ("http://127.0.0.1.a.example/t", here),
        ("file:///etc/passwd", here),
        ("javascript:alert(1)", here),
    ):
        with pytest.raises(OAuthFlowError):
            check_url(url, server)


async def test_a_person_who_says_no_and_one_who_says_nothing(tmp_path: Path) -> None:
    def refuses(url: str) -> None:
        query = parse_qs(urlsplit(url).query)
        browse(f"{query['redirect_uri'][0]}?error=access_denied&state={query['state'][0]}")

    async with FakeOAuth() as oauth:
        assert "access_denied" in await log_in(server_of(oauth), tmp_path, refuses)
        assert "took too long" in await log_in(server_of(oauth), tmp_path, nobody, seconds=0.05)
        assert not oauth.granted and not list(tmp_path.iterdir())


async def test_a_token_goes_to_its_own_server_alone(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth, asyncio.TaskGroup() as group:
        await log_in(server_of(oauth), tmp_path)
        auth = ServerAuth(server_of(oauth), group=group, store=TokenStore(tmp_path))
        flow = auth.async_auth_flow(httpx2.Request("POST", "https://elsewhere.example/mcp"))
        assert "authorization" not in (await anext(flow)).headers
        await flow.aclose()


def test_who_carries_a_header_or_a_password_of_its_own_gets_no_token() -> None:
    assert authorized(ToolServer("a", "a", url="https://a.example/mcp", headers={"X-Other": "1"}))
    assert not authorized(ToolServer("a", "a", url="https://a.example/mcp", headers={"AUTHORIZATION": "Bearer x"}))
    assert not authorized(ToolServer("a", "a", url="https://me:pw@a.example/mcp"))
    assert not authorized(ToolServer("a", "a", command="server"))


# -- one renewal for everybody ---------------------------------------------------------------------------------------


async def test_a_hundred_callers_renew_once(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        await log_in(server_of(oauth), tmp_path)
        async with hosting(server_of(oauth, limit=100), tmp_path) as host:
            oauth.end_access()
            texts = await asyncio.gather(*(call(host, text=str(n)) for n in range(100)))
            assert texts == [str(n) for n in range(100)]
        assert oauth.events["token refresh_token"] == 1 and oauth.events["authorize"] == 1


async def test_a_token_that_is_about_to_end_is_renewed_before_it_is_sent(tmp_path: Path) -> None:
    now = [1_000.0]
    async with FakeOAuth(life=3600) as oauth, asyncio.TaskGroup() as group:
        await log_in(server_of(oauth), tmp_path)
        auth = ServerAuth(server_of(oauth), group=group, store=TokenStore(tmp_path), clock=lambda: now[0])
        kept = TokenStore(tmp_path).read(server_of(oauth))
        assert kept is not None and kept.expires is not None
        async with httpx2.AsyncClient(auth=auth) as client:
            for now[0], renewals in ((kept.expires - 31, 0), (kept.expires - 29, 1), (kept.expires - 29, 1)):
                answers = await asyncio.gather(*(client.post(oauth.url, json=PING) for _ in range(20)))
                assert {answer.status_code for answer in answers} == {200}
                assert oauth.events["token refresh_token"] == renewals
            # The renewed one is kept with its own end.
            renewed = TokenStore(tmp_path).read(server_of(oauth))
            assert renewed is not None and renewed.expires == now[0] + 3600


async def test_two_processes_renew_a_rotating_token_once(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        await log_in(server_of(oauth), tmp_path)
        async with hosting(server_of(oauth), tmp_path) as one, hosting(server_of(oauth), tmp_path) as other:
            for _ in range(3):
                oauth.end_access()
                assert await asyncio.gather(*(call(host, text="hi") for host in (one, other) * 5)) == ["hi"] * 10
        assert oauth.events["token refresh_token"] == 3  # one that was used again would have ended the grant


async def test_a_refresh_token_that_is_not_rotated_serves_again(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        oauth.rotate = False
        await log_in(server_of(oauth), tmp_path)
        for _ in range(2):
            async with hosting(server_of(oauth), tmp_path) as host:
                oauth.end_access()
                assert await call(host, text="hi") == "hi"
        assert oauth.events["token refresh_token"] == 2 and oauth.events["authorize"] == 1


async def test_a_caller_that_gives_up_does_not_take_the_new_token_along(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth, asyncio.TaskGroup() as group:
        await log_in(server_of(oauth), tmp_path)
        before = TokenStore(tmp_path).read(server_of(oauth))
        auth = ServerAuth(server_of(oauth), group=group, store=TokenStore(tmp_path))
        async with httpx2.AsyncClient(auth=auth) as client:
            oauth.end_access()
            oauth.gate.clear()
            giving_up = asyncio.create_task(client.post(oauth.url, json=PING))
            await until(lambda: oauth.events["token refresh_token"] == 1)
            giving_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await giving_up
            oauth.gate.set()
            assert (await client.post(oauth.url, json=PING)).status_code == 200
        kept = TokenStore(tmp_path).read(server_of(oauth))
        assert oauth.events["token refresh_token"] == 1
        assert kept is not None and before is not None and kept.access != before.access


async def test_a_grant_that_ended_and_was_revoked_is_tried_once(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth, asyncio.TaskGroup() as group:
        await log_in(server_of(oauth), tmp_path)
        oauth.revoke()
        auth = ServerAuth(server_of(oauth), group=group, store=TokenStore(tmp_path), clock=lambda: 1e12)
        async with httpx2.AsyncClient(auth=auth) as client:
            answers = await asyncio.gather(*(client.post(oauth.url, json=PING) for _ in range(20)))
            answers.append(await client.post(oauth.url, json=PING))
        assert {answer.status_code for answer in answers} == {401}
        assert oauth.events["token refresh_token"] == 1 and auth.needs_login


async def test_a_grant_that_was_revoked_needs_a_login_and_is_not_tried_again(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        await log_in(server_of(oauth), tmp_path)
        async with hosting(server_of(oauth), tmp_path) as host:
            oauth.revoke()
            result = await host.call("web__echo", {}, timeout=20)
            assert result.end is ToolEnd.UNAVAILABLE and "centuria login web" in result.text
            await until(lambda: host.servers()[0].reason == "It needs a login. Run: centuria login web")
            assert not host.servers()[0].up
            assert oauth.events["token refresh_token"] == 1
            # Somebody logs in elsewhere: the run goes on by itself.
            assert await log_in(server_of(oauth), tmp_path) == ""
            await until(lambda: host.servers()[0].up)
            assert await call(host, text="hi") == "hi"
        kept = TokenStore(tmp_path).read(server_of(oauth))
        assert kept is not None and kept.access


async def test_an_authorization_server_that_is_ill_costs_no_login(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        await log_in(server_of(oauth), tmp_path)
        async with hosting(server_of(oauth), tmp_path) as host:
            oauth.end_access()
            oauth.refuse = 503
            with pytest.raises(ToolUnavailable, match="temporarily_unavailable"):
                await call(host)
            oauth.refuse = None
            await until(lambda: host.servers()[0].up)
            assert await call(host, text="hi") == "hi"
        assert oauth.events["authorize"] == 1


async def test_a_server_that_takes_no_token_is_not_asked_for_ever(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth, asyncio.TaskGroup() as group:
        await log_in(server_of(oauth), tmp_path)
        oauth.deaf = True
        auth = ServerAuth(server_of(oauth), group=group, store=TokenStore(tmp_path))
        async with httpx2.AsyncClient(auth=auth) as client:
            for _ in range(5):
                assert (await client.post(oauth.url, json=PING)).status_code == 401
        assert oauth.events["token refresh_token"] == 1 and oauth.events["metadata"] == 2
        async with Loopback(browse, seconds=20) as person:
            auth = ServerAuth(server_of(oauth), group=group, store=TokenStore(tmp_path), consent=person)
            async with httpx2.AsyncClient(auth=auth) as client:
                for _ in range(5):
                    assert (await client.post(oauth.url, json=PING)).status_code == 401
        assert oauth.events["authorize"] == 1 + MAX_CONSENTS
        assert "not content" in auth.trouble


# -- more rights, other clients --------------------------------------------------------------------------------------


async def test_more_rights_are_asked_for_with_those_that_were_there(tmp_path: Path) -> None:
    auth = Authorization(scopes=("read",))
    async with (
        FakeOAuth() as oauth,
        Loopback(browse, seconds=20) as person,
        hosting(server_of(oauth, auth=auth), tmp_path, person) as host,
    ):
        assert await call(host, "write") == "write"
        assert [set(query["scope"].split()) for query in oauth.asked] == [{"read"}, {"read", "write"}]


async def test_a_run_that_has_too_few_rights_is_told_how_to_get_them(tmp_path: Path) -> None:
    auth = Authorization(scopes=("read",))
    async with FakeOAuth() as oauth:
        await log_in(server_of(oauth, auth=auth), tmp_path)
        async with hosting(server_of(oauth, auth=auth), tmp_path) as host:
            result = await host.call("web__write", {}, timeout=20)
            assert result.end is ToolEnd.UNAVAILABLE and "--scopes 'read write'" in result.text
            assert await call(host, text="still there") == "still there"
        assert oauth.events["authorize"] == 1 and not oauth.events["call write"]


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_client_credentials_need_no_person_and_no_file(tmp_path: Path, method: str) -> None:
    async with FakeOAuth(clients={"robot": "s:e%c ret"}) as oauth:
        auth = Authorization(
            grant="client_credentials",
            client_id="robot",
            client_secret=Secret("s:e%c ret"),
            method=method,  # type: ignore[arg-type]
            issuer=oauth.issuer,
            scopes=("read",),
        )
        async with hosting(server_of(oauth, auth=auth, limit=50), tmp_path / "tokens") as host:
            assert await asyncio.gather(*(call(host, text="hi") for _ in range(50))) == ["hi"] * 50
            oauth.end_access()
            assert await asyncio.gather(*(call(host, text="hi") for _ in range(50))) == ["hi"] * 50
        assert oauth.events["token client_credentials"] == 2
        assert {form["method"] for form in oauth.granted} == {method}
        assert {form["scope"] for form in oauth.granted} == {"read"}
        assert not (tmp_path / "tokens").exists()


async def test_a_wrong_client_secret_is_said_and_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with FakeOAuth(clients={"robot": "right"}) as oauth:
        auth = Authorization(
            grant="client_credentials", client_id="robot", client_secret=Secret("wrong-7319"), issuer=oauth.issuer
        )
        async with hosting(server_of(oauth, auth=auth), tmp_path) as host:
            (state,) = host.servers()
            assert "invalid_client" in state.reason
        assert "wrong-7319" not in repr(state) + caplog.text + repr(auth)


async def test_a_secret_goes_to_no_other_issuer(tmp_path: Path) -> None:
    async with FakeOAuth(clients={"robot": "right"}) as oauth:
        auth = Authorization(
            grant="client_credentials",
            client_id="robot",
            client_secret=Secret("right"),
            issuer="https://login.example",
        )
        async with hosting(server_of(oauth, auth=auth), tmp_path) as host:
            assert "https://login.example" in host.servers()[0].reason
        assert not oauth.events["token client_credentials"]


# -- a run without a login -------------------------------------------------------------------------------------------


async def test_a_server_that_needs_a_login_is_named_with_the_remedy(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        async with hosting(server_of(oauth), tmp_path / "tokens") as host:
            (state,) = host.servers()
            assert not state.up and state.reason == "It needs a login. Run: centuria login web"
            assert state.detail["login"] == "not logged in"
        with pytest.raises(ConfigurationError, match="centuria login web"):
            async with hosting(server_of(oauth, required=True), tmp_path / "tokens"):
                pass
        assert set(oauth.events) == {"mcp"} and not (tmp_path / "tokens").exists()


async def test_a_store_that_is_damaged_or_closed_counts_as_no_login(tmp_path: Path) -> None:
    async with FakeOAuth() as oauth:
        await log_in(server_of(oauth), tmp_path)
        (file,) = tmp_path.glob("*.json")
        whole = json.loads(file.read_text())
        for text in ("", "[]", "{", json.dumps({**whole, "token": 1}), json.dumps({**whole, "server": "other"})):
            file.write_text(text)
            assert TokenStore(tmp_path).read(server_of(oauth)) is None
        file.unlink()
        file.mkdir()
        async with host_of() as _, hosting(server_of(oauth), tmp_path) as host:
            assert not host.servers()[0].up
        with pytest.raises(ConfigurationError):
            TokenStore(tmp_path).read(server_of(oauth))


async def test_a_lock_that_a_process_holds_is_waited_for(tmp_path: Path) -> None:
    server = ToolServer("web", "web", url="https://a.example/mcp")
    store, order = TokenStore(tmp_path), []

    async def hold(name: str) -> None:
        async with store.locked(server):
            order.append(name)
            await asyncio.sleep(0)
            order.append(name)

    await asyncio.gather(*(hold(name) for name in "abc"))
    assert order[0::2] == order[1::2] and sorted(order[0::2]) == ["a", "b", "c"]


def test_where_the_store_is() -> None:
    assert store_of({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}).folder == Path("/x/centuria/tokens")
    assert store_of({"XDG_CONFIG_HOME": "relative", "HOME": "/h"}).folder == Path("/h/.config/centuria/tokens")
    assert store_of({"HOME": "/h"}).folder == Path("/h/.config/centuria/tokens")


def test_a_grant_survives_the_store_and_its_link_is_not_followed(tmp_path: Path) -> None:
    server = ToolServer("web", "web", url="https://A.example/mcp/")
    store, grant = TokenStore(tmp_path), Grant({"client_id": "x"}, None, None, {"access_token": "t"}, 12.5)
    store.write(server, grant)
    assert store.read(ToolServer("other", "other", url="https://a.example/mcp")) == grant
    assert store.read(ToolServer("web", "web", url="https://a.example/mcp2")) is None
    (file,) = tmp_path.glob("*.json")
    other = tmp_path / "other"
    other.write_text("mine")
    file.unlink()
    os.symlink(other, file)
    store.write(server, grant)
    assert other.read_text() == "mine" and not file.is_symlink()
