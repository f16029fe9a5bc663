"""The head of an answer goes with its body."""

from __future__ import annotations

import asyncio

from centuria.gateway.corked import CorkedTransport


class Wire(asyncio.Transport):
    """Remembers what was sent, piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


async def test_a_head_and_the_body_behind_it_are_one_piece() -> None:
    wire = Wire()
    corked = CorkedTransport(wire, asyncio.get_running_loop())
    corked.write(HEAD)
    corked.write(b"body")
    corked.write(b"more")
    await asyncio.sleep(0)
    assert wire.sent == [HEAD + b"body", b"more"]


async def test_a_head_alone_goes_at_the_next_turn_of_the_loop() -> None:
    wire = Wire()
    corked = CorkedTransport(wire, asyncio.get_running_loop())
    corked.write(HEAD)
    assert wire.sent == []
    await asyncio.sleep(0)
    assert wire.sent == [HEAD]
    corked.write(b"body")
    assert wire.sent == [HEAD, b"body"]


async def test_what_is_held_is_sent_before_the_end_and_two_heads_keep_their_order() -> None:
    wire = Wire()
    corked = CorkedTransport(wire, asyncio.get_running_loop())
    corked.write(HEAD)
    corked.write(HEAD)
    corked.write(HEAD)
    corked.close()
    assert b"".join(wire.sent) == 3 * HEAD
    assert corked.is_closing()
