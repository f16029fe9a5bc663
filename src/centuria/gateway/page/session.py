"""Signing in to the page: the key is sent once, and from then on a cookie that scripts cannot read stands for it.

A cookie is sent by the browser whoever made the request, so what changes something must also show a token that only the
page itself can have read.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from centuria.gateway.keyjson import key_fields
from centuria.gateway.keys import LOCAL, digest_of
from centuria.gateway.page.guesses import Guesses, place_of
from centuria.gateway.ports import Key
from centuria.gateway.problems import Problem, bad_request, forbidden, rate_limited, unauthenticated
from centuria.gateway.web import Reply, Request, Ring, Route

COOKIE = "centuria_session"
#: Over HTTPS. Browsers accept this prefix only with Secure, Path=/ and no Domain: no neighbour can set it.
SECURE_COOKIE = f"__Host-{COOKIE}"
CSRF = "x-csrf-token"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_MOST_LETTERS = 512


class Keys(Ring, Protocol):
    """`keys.KeyRing`, as far as sessions need it."""

    async def of_digest(self, digest: bytes) -> Key | None: ...


@dataclass(frozen=True, slots=True)
class Session:
    """One browser that signed in. `digest` is all that is kept of the token; `ends` is on the sessions' clock.

    `secure`: it began over HTTPS, and is known by the cookie of that alone.
    """

    digest: bytes
    key: str
    csrf: str
    ends: float
    secure: bool = False


class Sessions:
    """Who is signed in, in memory: a restart signs everybody out.

    `clock` gives seconds. A session lasts `lasts` of them; there are `most` in all and `most_of_one` of one key, whose
    oldest makes room: no key can sign another one out before all the room is used.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        lasts: float = 12 * 3600.0,
        most: int = 1_000,
        most_of_one: int = 20,
        dice: Callable[[], str] = lambda: secrets.token_urlsafe(32),
    ) -> None:
        self.lasts = lasts
        self._clock = clock
        self._most = most
        self._most_of_one = most_of_one
        self._dice = dice
        #: By the SHA-256 of the cookie: what is looked up is never what was sent. The oldest first.
        self._sessions: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, digest: bytes, key: Key, *, secure: bool = False) -> tuple[str, Session]:
        """A new session of this key: the value of its cookie, and what it stands for."""
        now = self._clock()
        self._forget(now)
        own = [digest for digest, session in self._sessions.items() if session.key == key.id]
        if len(own) >= self._most_of_one:
            del self._sessions[own[0]]
        elif len(self._sessions) >= self._most:
            del self._sessions[next(iter(self._sessions))]
        id, session = self._dice(), Session(digest, key.id, self._dice(), now + self.lasts, secure)
        self._sessions[_digest(id)] = session
        return id, session

    def find(self, id: str) -> Session | None:
        session = self._sessions.get(_digest(id))
        if session is None or session.ends > self._clock():
            return session
        self.end(id)
        return None

    def end(self, id: str) -> None:
        self._sessions.pop(_digest(id), None)

    def _forget(self, now: float) -> None:
        """They all last equally long, so the oldest end first."""
        while self._sessions and next(iter(self._sessions.values())).ends <= now:
            del self._sessions[next(iter(self._sessions))]


class CookieRing:
    """Implements `web.Ring`: a key that the request itself shows, else the one that its cookie stands for.

    The key is looked up anew for each request, so a revoked one is refused, and its session ended.
    """

    def __init__(self, keys: Keys, sessions: Sessions) -> None:
        self._keys = keys
        self._sessions = sessions

    def identify(self, request: Request) -> Awaitable[Key]:
        """Raises `Problem`: 401, or 403 where a cookie comes without its token."""
        id, session = self.session_of(request)
        return self._keys.identify(request) if session is None else self._of_session(request, id, session)

    async def _of_session(self, request: Request, id: str, session: Session) -> Key:
        if request.method not in _SAFE:
            check_csrf(request, session)
        key = await self._keys.of_digest(session.digest)
        if key is None:
            self._sessions.end(id)
            raise unauthenticated()
        return key

    def session_of(self, request: Request) -> tuple[str, Session | None]:
        """The cookie of a request and its session; none where it shows a key of its own."""
        if "authorization" in request.headers or "x-api-key" in request.headers:
            return "", None
        for secure in (True, False):
            id = _cookie_of(request, secure)
            session = self._sessions.find(id) if id else None
            if session is not None and session.secure == secure:
                return id, session
        return "", None


class SignIn:
    """The routes of signing in and out. `clock` gives seconds."""

    def __init__(self, keys: Keys, sessions: Sessions, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._guesses = Guesses()
        self._keys = keys
        self._ring = CookieRing(keys, sessions)
        self._sessions = sessions

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/session", self.show, "public"),
            Route("POST", "/session", self.sign_in, "public"),
            Route("DELETE", "/session", self.sign_out, "public"),
        ]

    async def show(self, request: Request) -> Reply:
        """Who is signed in, if anybody: no error where nobody is, for every page asks this first."""
        _, session = self._ring.session_of(request)
        try:
            key = await self._ring.identify(request)
        except Problem as problem:
            if problem.status != 401:
                raise
            return Reply.of({"signed_in": False, "open": False})
        told: dict[str, Any] = {"signed_in": True, "open": key.id == LOCAL.id, "key": key_fields(key)}
        return Reply.of(told if session is None else told | {"csrf_token": session.csrf})

    async def sign_in(self, request: Request) -> Reply:
        """`{"key": ...}`: 200 with the cookie. Raises `Problem`: 400, 401 for a key that is not known, or 429 where too
        many of those came from one address."""
        # A form of another site cannot send this type without asking first.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise bad_request("The body must be JSON.", remedy="Send `content-type: application/json`.")
        digest = digest_of(_token(request.json()))
        key = await self._guessed(place_of(request.client), digest)
        if key is None:
            raise unauthenticated()
        before, _ = self._ring.session_of(request)
        self._sessions.end(before)
        # Behind a proxy that ends TLS only the browser knows that it came by HTTPS; App has checked whose origin it is.
        secure = request.secure or request.headers.get("origin", "").startswith("https://")
        id, session = self._sessions.begin(digest, key, secure=secure)
        told = {"signed_in": True, "open": False, "key": key_fields(key), "csrf_token": session.csrf}
        return Reply.of(told, headers={"set-cookie": _cookie(id, round(self._sessions.lasts), secure=secure)})

    async def _guessed(self, place: str, digest: bytes) -> Key | None:
        """The key, if there is one: none is looked for where too many were wrong. Raises `Problem` (429)."""
        wait = self._guesses.begin(place, self._clock())
        if wait > 0:
            remedy = f"Wait {math.ceil(wait)} seconds, and enter a key that `centuria keys add` made."
            raise rate_limited("Too many wrong keys came from this address.", wait, remedy=remedy)
        wrong = False
        try:
            key = await self._keys.of_digest(digest)
            wrong = key is None
        finally:
            if not wrong:
                self._guesses.take_back(place)
        return key

    async def sign_out(self, request: Request) -> Reply:
        """Raises `Problem` (403) where the token is missing. Who is not signed in, is signed out."""
        id, session = self._ring.session_of(request)
        if session is None:
            return Reply(b"", 204)
        check_csrf(request, session)
        self._sessions.end(id)
        return Reply(b"", 204, {"set-cookie": _cookie("", 0, secure=session.secure)})


def check_csrf(request: Request, session: Session) -> None:
    """Raises `Problem` (403)."""
    if not hmac.compare_digest(request.headers.get(CSRF, "").encode(), session.csrf.encode()):
        raise forbidden(
            "This was not asked for by the page itself.", remedy=f"Send the `csrf_token` of GET /session as `{CSRF}`."
        )


def _cookie_of(request: Request, secure: bool) -> str:
    """The value of the cookie by this name; "" where there is none."""
    name = SECURE_COOKIE if secure else COOKIE
    # Several Cookie headers came as one, joined by commas.
    for pair in request.headers.get("cookie", "").replace(",", ";").split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name and len(value) <= _MOST_LETTERS:
            return value
    return ""


def _cookie(value: str, seconds: int, *, secure: bool) -> str:
    name = SECURE_COOKIE if secure else COOKIE
    return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"


def _token(body: Any) -> str:
    token = body.get("key") if isinstance(body, dict) else None
    token = token.strip() if isinstance(token, str) else ""
    if not token:
        raise bad_request("The key is missing.", param="key", remedy="Enter a key that `centuria keys add` made.")
    if len(token) > _MOST_LETTERS or not token.isascii() or not token.isprintable() or " " in token:
        raise bad_request("This is no key.", param="key", remedy="Enter a key that `centuria keys add` made.")
    return token


def _digest(id: str) -> bytes:
    return hashlib.sha256(id.encode()).digest()
