"""Who asks: tokens, of which only the SHA-256 is ever kept or looked up, and the key behind a request's headers."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import string
from collections import OrderedDict
from collections.abc import Callable, Mapping

from centuria.gateway.ports import Key, Store
from centuria.gateway.problems import unauthenticated
from centuria.gateway.web import Request

#: Who asks where no key was ever made, and nobody but this machine can ask.
LOCAL = Key(id="local", name="local", admin=True)
PREFIX = "ck-"
#: Seconds that a key is known without asking the store again; so long may a revoked one still work.
KNOWN_FOR = 30.0

_ALPHABET = string.digits + string.ascii_letters
_LENGTH = 40  # 238 bits
_LONGEST = 512
#: Keys, and digests that are nobody's, that are remembered. Apart, so that guesses push no key out.
_REMEMBERED = 1024
_STRIPES = 64


def new_token() -> str:
    """A token for a new key: to be shown once, and kept nowhere."""
    return PREFIX + "".join([secrets.choice(_ALPHABET) for _ in range(_LENGTH)])


def digest_of(token: str) -> bytes:
    """What is kept of a token. It is random throughout, so no slow or salted hash is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def new_key_id() -> str:
    return f"key-{secrets.token_hex(8)}"


def token_of(headers: Mapping[str, str]) -> str:
    """The token that these headers carry. "": none, or one that can be no token.

    `Authorization: Bearer TOKEN`, the scheme in any case; without that header, `x-api-key: TOKEN`.
    """
    authorization = headers.get("authorization")
    if authorization is None:
        token = headers.get("x-api-key", "")
    else:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return ""
    token = token.strip(" \t")
    if len(token) > _LONGEST or "\r" in token or "\n" in token or "\0" in token:
        return ""
    return token


class KeyRing:
    """`wall` is seconds since 1970. `open_on_loopback`: whoever asks is `LOCAL`, as long as the store has no key at
    all; the caller sees to it that only this machine can ask then.

    The work is the same for a key that is known, unknown or missing: one hash, one look-up by it.
    """

    def __init__(self, store: Store, *, wall: Callable[[], float], open_on_loopback: bool) -> None:
        self._store = store
        self._wall = wall
        self._open = open_on_loopback
        self._opened_at: float | None = None
        self._known = _Memory(_REMEMBERED)
        self._strangers = _Memory(_REMEMBERED)
        self._asking = [asyncio.Lock() for _ in range(_STRIPES)]

    async def identify(self, request: Request) -> Key:
        """Raises `Problem` (401), the same for every reason, and `StoreUnavailable`."""
        if self._open and await self._is_open():
            return LOCAL
        token = token_of(request.headers)
        digest = digest_of(token)
        found, key = self._remembered(digest)
        if not found:
            key = await self.of_digest(digest)
        if key is None or not token:
            raise unauthenticated()
        return key

    async def of_digest(self, digest: bytes) -> Key | None:
        """The key of a token with this SHA-256. None: there is none, or it was revoked."""
        found, key = self._remembered(digest)
        if not found:
            # Many requests with one new token: the store is asked once.
            async with self._asking[digest[0] % _STRIPES]:
                found, key = self._remembered(digest)
                if not found:
                    key = await self._look_up(digest)
        return key

    def forget(self) -> None:
        """Ask the store again for every key: one was made or revoked here."""
        self._known.clear()
        self._strangers.clear()
        self._opened_at = None

    async def _look_up(self, digest: bytes) -> Key | None:
        key = await self._store.find_key(digest)
        if key is not None and key.revoked is not None:
            key = None
        (self._strangers if key is None else self._known).put(digest, key, self._wall())
        return key

    def _remembered(self, digest: bytes) -> tuple[bool, Key | None]:
        now = self._wall()
        found, key = self._known.get(digest, now)
        return (found, key) if found else self._strangers.get(digest, now)

    async def _is_open(self) -> bool:
        """The first key that is made closes the gateway, and it stays closed when that is revoked."""
        now = self._wall()
        if self._opened_at is None or not 0 <= now - self._opened_at < KNOWN_FOR:
            if await self._store.keys():
                self._open = False
                return False
            self._opened_at = now
        return True


class _Memory:
    """What the store said of the digests that were used last, each for `KNOWN_FOR` seconds."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[bytes, tuple[float, Key | None]] = OrderedDict()

    def get(self, digest: bytes, now: float) -> tuple[bool, Key | None]:
        entry = self._entries.get(digest)
        if entry is None:
            return False, None
        at, key = entry
        if not 0 <= now - at < KNOWN_FOR:  # below 0: the clock was set back
            del self._entries[digest]
            return False, None
        self._entries.move_to_end(digest)
        return True, key

    def put(self, digest: bytes, key: Key | None, now: float) -> None:
        self._entries[digest] = (now, key)
        self._entries.move_to_end(digest)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def clear(self) -> None:
        self._entries.clear()
