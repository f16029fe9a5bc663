"""A gateway with swarms alone as a process: `python -m tests.gateway.swarms.serving FOLDER UPSTREAM`.

It writes its address on standard output once it listens. Its store is a file of the folder, whole or as it was before.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from centuria.gateway.app import App
from centuria.gateway.ports import Document
from centuria.gateway.swarms.service import SwarmService
from centuria.gateway.web import Router
from centuria.model.http import HttpTransport
from centuria.testing.funnel import TransportFunnel
from tests.gateway.swarms.kit import ADMIN, ALICE, BOB, KIMI, Ring, Shelf, settings


class FileShelf(Shelf):
    """A shelf that outlives its process."""

    def __init__(self, path: Path) -> None:
        super().__init__(ALICE, BOB, ADMIN)
        self._path = path
        if path.exists():
            self.documents = pickle.loads(path.read_bytes())

    def _save(self) -> None:
        part = self._path.with_suffix(".part")
        part.write_bytes(pickle.dumps(self.documents))
        part.replace(self._path)

    async def insert(self, kind: str, owner: str, document: Document) -> bool:
        done = await super().insert(kind, owner, document)
        self._save()
        return done

    async def put(self, kind: str, owner: str, document: Document) -> None:
        await super().put(kind, owner, document)
        self._save()

    async def delete(self, kind: str, owner: str, id: str) -> bool:
        done = await super().delete(kind, owner, id)
        self._save()
        return done


class Server(uvicorn.Server):
    """Stops at SIGTERM as told here, and does not raise it again: its end is an end in order."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(folder: Path, upstream: str) -> None:
    shelf = FileShelf(folder / "shelf.pickle")
    transport = HttpTransport()
    funnel = TransportFunnel(transport, price=KIMI, url=f"{upstream}/chat/completions")
    known = settings(folder)
    store: Any = shelf
    async with SwarmService(known, store, funnel.ask) as service:
        app: Any = App(known, Router(service.routes()), Ring(shelf))
        config = uvicorn.Config(app, lifespan="off", log_level="warning", timeout_graceful_shutdown=10)
        server = Server(config)

        def stop() -> None:
            service.stop()  # its streams end first, so that nothing waits for them
            server.should_exit = True

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        listening = socket.create_server(("127.0.0.1", 0))
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        await server.serve(sockets=[listening])
    await transport.aclose()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
