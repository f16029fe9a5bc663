"""What bodies take of the memory: all requests together, and one key's. Pure."""

from __future__ import annotations

from centuria.gateway.problems import overloaded
from centuria.gateway.settings import Caps

#: Of the room for all bodies, what one key's may take: a half, so that no key keeps the others out.
_SHARE = 2
#: Seconds until there may be room again.
_SOON = 2.0


class Bodies:
    """Bytes that were read of the bodies of requests that have not ended."""

    def __init__(self, caps: Caps) -> None:
        self.most = caps.bodies
        #: One body within its cap always has room where there are no others.
        self.most_each = max(caps.bodies // _SHARE, min(caps.body, caps.bodies))
        self.size = 0
        self._each: dict[str, int] = {}

    def begin(self) -> Body:
        """The body of one request, of which nothing was read."""
        return Body(self)

    def _add(self, key: str, size: int) -> None:
        mine = self._each.get(key, 0)
        if mine + size > self.most_each:
            raise overloaded(
                "The bodies of this key's requests under way take all the room that one key may have.", _SOON
            )
        if self.size + size > self.most:
            raise overloaded("The bodies of the requests under way take all the room that there is.", _SOON)
        self.size += size
        self._each[key] = mine + size

    def _give_back(self, key: str, size: int) -> None:
        self.size -= size
        left = self._each.get(key, 0) - size
        if left > 0:
            self._each[key] = left
        else:
            self._each.pop(key, None)


class Body:
    """One body: what was read of it, until `end`. `key` is whose it is, to be said before anything was read."""

    __slots__ = ("_all", "_size", "key")

    def __init__(self, all: Bodies) -> None:
        self._all = all
        self._size = 0
        self.key = ""

    def add(self, size: int) -> None:
        """So much was read. Raises `Problem` (503) where there is no room for it."""
        if size:
            self._all._add(self.key, size)
            self._size += size

    def end(self) -> None:
        """The request has ended."""
        size, self._size = self._size, 0
        if size:
            self._all._give_back(self.key, size)
