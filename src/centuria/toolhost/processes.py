"""The program's side of the warden: start a server with pipes to it, signal its group, know the moment it dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path

from centuria.errors import ToolUnavailable

#: The end of an asyncio stream's buffer; the readers of servers take chunks, never lines.
_BUFFER = 1 << 18
_SCRIPT = Path(__file__).with_name("warden.py")


class Child:
    """A server process: `stdin`, `stdout`, `stderr` are its pipes; `exited` is set once it is gone.

    `code` is its exit code, negative for a signal, None while it runs or if nobody saw it end.
    """

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    def __init__(self, warden: Warden) -> None:
        self.pid = 0
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.exited = asyncio.Event()
        self.code: int | None = None
        self._warden = warden
        self._transports: list[asyncio.BaseTransport] = []

    async def connect(self, stdin: int, stdout: int, stderr: int) -> None:
        """Take over our ends of its pipes."""
        self.stdin = await _writer(stdin, self._transports)
        self.stdout = await _reader(stdout, self._transports)
        self.stderr = await _reader(stderr, self._transports)

    def signal(self, number: int) -> None:
        """Signal the whole process group; does nothing where there is none (any more)."""
        if self.pid and not self.exited.is_set():
            self._warden._send({"kill": self.pid, "signal": int(number)})

    async def stop(self, *, graces: Sequence[float] = (0.5, 0.3, 0.3)) -> None:
        """Close its input, wait, then TERM, wait, then KILL for the whole group, wait. `graces` are the waits."""
        try:
            self.stdin.close()
            for grace, number in zip(graces, (signal.SIGTERM, signal.SIGKILL, None), strict=True):
                with suppress(TimeoutError):
                    async with asyncio.timeout(grace):
                        await self.exited.wait()
                    break
                if number is not None:
                    self.signal(number)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Kill it if it still runs and drop its pipes, now."""
        self.signal(signal.SIGKILL)
        transports, self._transports = self._transports, []
        for transport in transports:
            if isinstance(transport, asyncio.WriteTransport) and transport.get_write_buffer_size():
                transport.abort()  # nobody will read what is still to be written
            else:
                transport.close()


class Warden:
    """Starts servers through one warden process for as long as the `async with` lasts, then ends them all."""

    def __init__(self) -> None:
        self.subreaper = False
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._children: dict[int, Child] = {}
        self._starting: dict[int, Child] = {}
        self._numbers = count(1)
        self._outbox: asyncio.Queue[tuple[bytes, Sequence[int]]] = asyncio.Queue()
        self._ready = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Warden:
        self._start()
        await self._group.__aenter__()
        self._tasks = [self._group.create_task(self._read()), self._group.create_task(self._write())]
        return self

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_SCRIPT), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._control = ours

    async def __aexit__(self, *exception: object) -> None:
        assert self._control is not None
        assert self._process is not None
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)  # the end-of-file that makes it clear up and go
        try:
            # Shielded by hand: a cancelled program must still see its servers gone.
            await _finish(self._tasks[0], seconds=3)
        finally:
            for task in self._tasks:
                task.cancel()
            try:
                await self._group.__aexit__(None, None, None)
            finally:
                self._control.close()
                self._lose()
                if self._process.poll() is None:
                    with suppress(subprocess.TimeoutExpired):
                        self._process.wait(0.5)

    async def launch(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None) -> Child:
        """Start a server in a process group of its own. Raises `ToolUnavailable` where it cannot be started."""
        await self._ready.wait()
        if self._control is None or self._tasks[0].done():
            raise ToolUnavailable("The process that starts tool servers is gone.", remedy="Start the run again.")
        pipes = _pipes(3)
        number = next(self._numbers)
        child = self._starting[number] = Child(self)
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = pipes
        request = {"start": number, "argv": list(argv), "env": dict(env), "cwd": str(cwd or Path.cwd())}
        self._send(request, (theirs_in, theirs_out, theirs_err))
        try:
            await child.connect(ours_in, ours_out, ours_err)
            await child.started
        except BaseException:
            child.abandon()  # a start that is reported later finds nobody waiting, and is ended at once
            raise
        finally:
            self._starting.pop(number, None)
        return child

    def _send(self, request: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        """Queue a request; `fds` are closed once they are on their way."""
        self._outbox.put_nowait((json.dumps(request).encode(), fds))

    async def _write(self) -> None:
        assert self._control is not None
        loop = asyncio.get_running_loop()
        try:
            while True:
                data, fds = await self._outbox.get()
                try:
                    header = len(data).to_bytes(4, "big")
                    if fds:
                        await _send_fds(self._control, header, fds)
                    else:
                        await loop.sock_sendall(self._control, header)
                    await loop.sock_sendall(self._control, data)
                finally:
                    for fd in fds:
                        os.close(fd)
        except OSError:
            return
        finally:
            while not self._outbox.empty():
                for fd in self._outbox.get_nowait()[1]:
                    os.close(fd)

    async def _read(self) -> None:
        assert self._control is not None
        loop = asyncio.get_running_loop()
        buffer = bytearray()
        try:
            while chunk := await loop.sock_recv(self._control, 65536):
                buffer += chunk
                while len(buffer) >= 4 and len(buffer) >= (size := 4 + int.from_bytes(buffer[:4], "big")):
                    self._take(json.loads(bytes(buffer[4:size])))
                    del buffer[:size]
        except OSError:
            pass
        finally:
            self._lose()

    def _take(self, reply: Mapping[str, object]) -> None:
        match reply:
            case {"ready": _, "subreaper": bool(subreaper)}:
                self.subreaper = subreaper
                self._ready.set()
            case {"started": int(number), "pid": int(pid)}:
                child = self._starting.get(number)
                if child is None or child.started.done():
                    self._send({"kill": pid, "signal": int(signal.SIGKILL)})
                else:
                    child.pid = pid
                    self._children[pid] = child
                    child.started.set_result(None)
            case {"failed": int(number), "error": str(error)}:
                child = self._starting.get(number)
                if child is not None and not child.started.done():
                    child.started.set_exception(ToolUnavailable(f"It cannot be started: {error}."))
            case {"exited": int(pid), "code": int(code)}:
                if pid in self._children:
                    child = self._children.pop(pid)
                    child.code = code
                    child.exited.set()
            case _:
                pass

    def _lose(self) -> None:
        """The warden is gone, and with it, or soon, every server."""
        self._ready.set()
        for child in self._starting.values():
            if not child.started.done():
                child.started.set_exception(ToolUnavailable("The process that starts tool servers is gone."))
        for child in self._children.values():
            child.exited.set()
        self._children.clear()


async def _finish(task: asyncio.Task[None], *, seconds: float) -> None:
    """Wait for a task without cancelling it, through cancellations of our own, `seconds` at most."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    cancelled: asyncio.CancelledError | None = None
    while not task.done() and (left := deadline - loop.time()) > 0:
        try:
            await asyncio.wait([task], timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _send_fds(control: socket.socket, header: bytes, fds: Sequence[int]) -> None:
    while True:
        try:
            sent = socket.send_fds(control, [header], list(fds))
            break
        except BlockingIOError:
            await _writable(control)
    if sent < len(header):
        await asyncio.get_running_loop().sock_sendall(control, header[sent:])


async def _writable(control: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(control, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(control)


async def _reader(fd: int, transports: list[asyncio.BaseTransport]) -> asyncio.StreamReader:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_BUFFER)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(fd, "rb", 0))
    transports.append(transport)
    return reader


def _pipes(number: int) -> list[tuple[int, int]]:
    """Pipes, all or none. Raises `ToolUnavailable` where the system has no descriptors left."""
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(number):
            pipes.append(os.pipe())
    except OSError as error:
        for fd in (end for pipe in pipes for end in pipe):
            os.close(fd)
        raise ToolUnavailable(
            f"A tool server cannot be started: {error.strerror}.", remedy="Raise the limit of open files (ulimit -n)."
        ) from error
    return pipes


async def _writer(fd: int, transports: list[asyncio.BaseTransport]) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(fd, "wb", 0))
    transports.append(transport)
    return asyncio.StreamWriter(transport, protocol, reader, loop)
