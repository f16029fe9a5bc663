"""The page as a room of the gateway: its files, signing in, and what keys used."""

from __future__ import annotations

import time
from collections.abc import Callable

from centuria.gateway.page import files
from centuria.gateway.page.session import CookieRing, Keys, Sessions, SignIn
from centuria.gateway.page.usage import Usage
from centuria.gateway.ports import Store
from centuria.gateway.web import Route


class Page:
    """`keys` knows them by what requests show. Give `Page.ring` to the app in its place: it knows cookies too."""

    def __init__(self, keys: Keys, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.sessions = Sessions(clock=clock)
        self.ring = CookieRing(keys, self.sessions)
        self._sign_in = SignIn(keys, self.sessions, clock=clock)
        self._usage = Usage(store)

    def routes(self) -> list[Route]:
        return [*files.routes(), *self._sign_in.routes(), *self._usage.routes()]
