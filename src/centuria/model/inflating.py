"""Bodies that were compressed on their way, unpacked as they arrive. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

#: What `Inflater` unpacks.
ENCODINGS = frozenset({"gzip", "deflate"})
#: Bytes of one unpacked piece: a small body may unpack to a thousand times its size.
PIECE = 256 * 2**10


class Inflater:
    """One body in "gzip" (of any number of members) or "deflate" (in zlib's frame, or bare as some servers send it)."""

    def __init__(self, encoding: str) -> None:
        self._gzip = encoding == "gzip"
        self._unpack = None if not self._gzip else zlib.decompressobj(wbits=31)
        self._begun = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The pieces that these bytes unpack to, each unpacked when it is asked for. Raises `zlib.error`."""
        while data:
            self._begun = True
            unpack = self._unpack
            if unpack is None:
                unpack = self._unpack = zlib.decompressobj(wbits=15 if data[0] & 0x0F == 8 else -15)
            elif unpack.eof:
                if not self._gzip or data[0] != 0x1F:  # padding after the end, and no further member
                    return
                unpack = self._unpack = zlib.decompressobj(wbits=31)
            piece = unpack.decompress(data, PIECE)
            while len(piece) == PIECE:  # there may be more of it, even where nothing is left to be read
                yield piece
                piece = unpack.decompress(unpack.unconsumed_tail, PIECE)
            if piece:
                yield piece
            data = unpack.unused_data

    def whole(self) -> bool:
        """Whether a body may end here."""
        return not self._begun or (self._unpack is not None and self._unpack.eof)
