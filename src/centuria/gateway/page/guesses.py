"""How many wrong keys one place may show at the page's sign-in: a count in a window, bounded in size. Pure."""

from __future__ import annotations

import ipaddress


class Guesses:
    """Counts by place, of which there are `places` at most: the one whose window began first makes room. `most` wrong
    keys in `window` seconds, from the first one on; then none is looked at until the window is over.

    A guess counts from its begin, so that many at once are no way around it, until it is known that it was right.
    Times are any clock that never goes back.
    """

    def __init__(self, *, most: int = 30, window: float = 60.0, places: int = 10_000) -> None:
        self._most = most
        self._window = window
        self._places = places
        #: When a window ends and how many were counted in it. The one that began first comes first.
        self._counted: dict[str, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._counted)

    def begin(self, place: str, now: float) -> float:
        """0: the guess is counted, and may be made. Otherwise the seconds until the next one may be."""
        self._forget(now)
        ends, number = self._counted.get(place, (now + self._window, 0))
        if number >= self._most:
            return ends - now
        if place not in self._counted and len(self._counted) >= self._places:
            del self._counted[next(iter(self._counted))]
        self._counted[place] = ends, number + 1
        return 0.0

    def take_back(self, place: str) -> None:
        """One that was begun was no wrong guess."""
        if place in self._counted:
            ends, number = self._counted[place]
            self._counted[place] = ends, max(0, number - 1)

    def _forget(self, now: float) -> None:
        """All windows are equally long, so the first ones end first."""
        while self._counted and next(iter(self._counted.values()))[0] <= now:
            del self._counted[next(iter(self._counted))]


def place_of(client: str) -> str:
    """Whose guesses are counted together: an IPv4 address, or the /64 of an IPv6 one, all of which is one client's."""
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return client
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
