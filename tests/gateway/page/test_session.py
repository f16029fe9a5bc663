"""Signing in: what the cookie is, what it stands for, and what it cannot do alone."""

from __future__ import annotations

import pytest

from centuria.gateway.keys import KNOWN_FOR
from centuria.gateway.problems import StoreUnavailable
from tests.gateway.page.asking import ADMIN_TOKEN, ALICE, ALICE_TOKEN, HOST, Gateway


async def test_signing_in_gives_a_cookie_that_scripts_cannot_read_and_never_the_key() -> None:
    gateway = await Gateway().begin()
    answer = await gateway.ask("POST", "/session", {"key": ALICE_TOKEN})
    assert answer.status == 200
    name, _, rest = answer.headers["set-cookie"].partition("=")
    value, _, attributes = rest.partition("; ")
    assert name == "centuria_session"
    assert len(value) >= 40
    assert set(attributes.split("; ")) == {"Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Strict"}
    assert answer.json["key"] == {
        "id": ALICE.id,
        "name": "alice",
        "admin": False,
        "models": ["kimi-k2.5"],
        "tools": None,
    }
    assert answer.json["csrf_token"] not in value
    assert ALICE_TOKEN.encode() not in answer.body + repr(answer.headers).encode()
    assert answer.headers["cache-control"] == "no-store"
    kept = repr(vars(gateway.page.sessions))
    assert ALICE_TOKEN not in kept
    assert value not in kept


@pytest.mark.parametrize("key", ["ck-" + "z" * 40, "x"])
async def test_a_key_that_nobody_has_gives_401_and_no_cookie(key: str) -> None:
    gateway = await Gateway().begin()
    answer = await gateway.ask("POST", "/session", {"key": key})
    assert (answer.status, "set-cookie" in answer.headers) == (401, False)
    assert len(gateway.page.sessions) == 0


async def test_thirty_wrong_keys_in_a_minute_close_the_sign_in_for_their_address_alone() -> None:
    gateway = await Gateway().begin()
    for number in range(30):
        assert (await gateway.ask("POST", "/session", {"key": f"ck-wrong-{number}"})).status == 401
    gateway.now += 20
    for key in ("ck-wrong", ALICE_TOKEN):
        answer = await gateway.ask("POST", "/session", {"key": key})
        assert (answer.status, answer.headers["retry-after"]) == (429, "40")
        assert b"Wait 40 seconds" in answer.body
    assert (await gateway.ask("POST", "/session", {"key": ALICE_TOKEN}, client="192.0.2.1")).status == 200
    gateway.now += 40
    assert (await gateway.ask("POST", "/session", {"key": ALICE_TOKEN})).status == 200


async def test_right_keys_and_a_store_that_fails_are_no_guesses() -> None:
    gateway = await Gateway().begin()
    gateway.store.fault = StoreUnavailable("The disk is full.")
    for _ in range(31):
        assert (await gateway.ask("POST", "/session", {"key": ALICE_TOKEN})).status == 503
    gateway.store.fault = None
    for _ in range(31):
        await gateway.sign_in()


@pytest.mark.parametrize(
    "body", [{}, {"key": ""}, {"key": 5}, {"key": "two words"}, {"key": "k" * 600}, [], None, {"key": "é"}]
)
async def test_what_can_be_no_key_is_refused_and_the_field_named(body: object) -> None:
    gateway = await Gateway().begin()
    answer = await gateway.ask("POST", "/session", b"null" if body is None else body, content_type="application/json")
    assert (answer.status, answer.json["error"]["param"]) == (400, "key")


async def test_a_form_of_another_page_cannot_sign_anybody_in() -> None:
    gateway = await Gateway().begin()
    body = b'{"key": "' + ALICE_TOKEN.encode() + b'"}'
    assert (await gateway.ask("POST", "/session", body, content_type="text/plain")).status == 400
    foreign = await gateway.ask("POST", "/session", {"key": ALICE_TOKEN}, origin="https://elsewhere.example")
    assert foreign.status == 403
    assert len(gateway.page.sessions) == 0


async def test_the_cookie_stands_for_the_key_wherever_something_is_only_read() -> None:
    gateway = await Gateway().begin()
    cookie, csrf = await gateway.sign_in()
    told = (await gateway.ask("GET", "/session", cookie=f"other=1; {cookie}")).json
    assert (told["signed_in"], told["open"], told["key"]["name"], told["csrf_token"]) == (True, False, "alice", csrf)
    assert (await gateway.ask("GET", "/v1/usage", cookie=cookie)).status == 200
    assert (await gateway.ask("GET", "/v1/keys", cookie=cookie)).status == 403


async def test_what_changes_something_needs_the_token_of_the_very_session() -> None:
    gateway = await Gateway().begin()
    cookie, csrf = await gateway.sign_in()
    _, other = await gateway.sign_in()
    for headers in ({}, {"x_csrf_token": ""}, {"x_csrf_token": other}, {"x_csrf_token": csrf[:-1]}):
        answer = await gateway.ask("POST", "/v1/change", {}, cookie=cookie, **headers)
        assert (answer.status, answer.json["error"]["type"]) == (403, "permission_denied_error")
    assert gateway.changed == []
    assert (await gateway.ask("POST", "/v1/change", {}, cookie=cookie, x_csrf_token=csrf)).status == 200
    assert gateway.changed == [ALICE.id]


async def test_the_right_token_does_not_help_a_page_of_another_origin() -> None:
    gateway = await Gateway().begin()
    cookie, csrf = await gateway.sign_in()
    answer = await gateway.ask(
        "POST", "/v1/change", {}, cookie=cookie, x_csrf_token=csrf, origin="http://127.0.0.1:9999"
    )
    assert answer.status == 403
    assert gateway.changed == []


async def test_a_key_that_the_request_shows_itself_counts_and_not_its_cookie() -> None:
    gateway = await Gateway().begin()
    cookie, _ = await gateway.sign_in(ADMIN_TOKEN)
    answer = await gateway.ask("POST", "/v1/change", {}, cookie=cookie, authorization=f"Bearer {ALICE_TOKEN}")
    assert answer.status == 200
    assert gateway.changed == [ALICE.id]
    wrong = await gateway.ask("GET", "/v1/usage", cookie=cookie, x_api_key="ck-nobody")
    assert wrong.status == 401


async def test_a_revoked_key_ends_its_sessions_as_soon_as_it_is_looked_up_again() -> None:
    gateway = await Gateway().begin()
    cookie, csrf = await gateway.sign_in()
    await gateway.store.revoke_key(ALICE.id, gateway.now)
    gateway.now += KNOWN_FOR
    assert (await gateway.ask("GET", "/v1/usage", cookie=cookie)).status == 401
    assert len(gateway.page.sessions) == 0
    assert (await gateway.ask("POST", "/v1/change", {}, cookie=cookie, x_csrf_token=csrf)).status == 401
    assert gateway.changed == []


async def test_a_session_is_over_after_twelve_hours() -> None:
    gateway = await Gateway().begin()
    cookie, _ = await gateway.sign_in()
    gateway.now += 12 * 3600 - 1
    assert (await gateway.ask("GET", "/session", cookie=cookie)).json["signed_in"]
    gateway.now += 1
    assert (await gateway.ask("GET", "/session", cookie=cookie)).json == {"signed_in": False, "open": False}
    assert (await gateway.ask("GET", "/v1/usage", cookie=cookie)).status == 401


async def test_signing_out_needs_the_token_ends_the_session_and_takes_the_cookie_back() -> None:
    gateway = await Gateway().begin()
    cookie, csrf = await gateway.sign_in()
    assert (await gateway.ask("DELETE", "/session", cookie=cookie)).status == 403
    assert (await gateway.ask("GET", "/v1/usage", cookie=cookie)).status == 200
    answer = await gateway.ask("DELETE", "/session", cookie=cookie, x_csrf_token=csrf)
    assert answer.status == 204
    assert "content-length" not in answer.headers
    assert answer.headers["set-cookie"].startswith("centuria_session=; Path=/; Max-Age=0")
    assert (await gateway.ask("GET", "/v1/usage", cookie=cookie)).status == 401
    assert (await gateway.ask("DELETE", "/session", cookie=cookie)).status == 204


async def test_signing_in_anew_ends_the_session_before() -> None:
    gateway = await Gateway().begin()
    cookie, _ = await gateway.sign_in()
    after, _ = await gateway.sign_in(ADMIN_TOKEN, cookie=cookie)
    assert (await gateway.ask("GET", "/v1/usage", cookie=cookie)).status == 401
    assert (await gateway.ask("GET", "/session", cookie=after)).json["key"]["admin"]


@pytest.mark.parametrize("how", [{"scheme": "https"}, {"origin": f"https://{HOST}"}])
async def test_over_https_the_cookie_is_for_https_alone_and_known_by_that_name_only(how: dict[str, str]) -> None:
    gateway = await Gateway().begin()
    answer = await gateway.ask("POST", "/session", {"key": ALICE_TOKEN}, **how)
    assert answer.headers["set-cookie"].startswith("__Host-centuria_session=")
    assert "; Secure" in answer.headers["set-cookie"]
    assert "Domain" not in answer.headers["set-cookie"]
    assert (await gateway.ask("GET", "/v1/usage", cookie=answer.cookie)).status == 200
    renamed = answer.cookie.removeprefix("__Host-")
    assert (await gateway.ask("GET", "/v1/usage", cookie=renamed)).status == 401


async def test_an_open_gateway_asks_nobody_to_sign_in() -> None:
    gateway = await Gateway(keys=False).begin()
    told = (await gateway.ask("GET", "/session")).json
    assert (told["signed_in"], told["open"], told["key"]["admin"]) == (True, True, True)
    assert "csrf_token" not in told
    assert (await gateway.ask("POST", "/v1/change", {}, origin=f"http://{HOST}")).status == 200
    assert (await gateway.ask("POST", "/v1/change", {}, origin="http://evil.example")).status == 403


async def test_who_is_not_signed_in_is_told_so_without_an_error() -> None:
    gateway = await Gateway().begin()
    for headers in ({}, {"cookie": "centuria_session=guess"}, {"cookie": "centuria_session="}, {"cookie": ";;=;"}):
        answer = await gateway.ask("GET", "/session", **headers)
        assert (answer.status, answer.json) == (200, {"signed_in": False, "open": False})
