"""The warden: one small process per run that starts the tool servers and leaves none of them behind.

Run as a script (`python -I -S warden.py FD`), standard library only, in a session of its own, so that neither Ctrl-C
nor the death of the program reaches it. FD is its end of a socket pair. When the other end closes, however the
program ended, every server's process group is ended and, on Linux, every process that a server left behind: the
warden is their subreaper (prctl(2), PR_SET_CHILD_SUBREAPER), so orphans become its children.

On the wire: 4 bytes of length (big endian), then JSON. With a `start` come three descriptors (SCM_RIGHTS):
    -> {"start": id, "argv": [..], "env": {..}, "cwd": ".."}   <- {"started": id, "pid": n}
                                                               <- {"failed": id, "error": ".."}
    -> {"kill": pid, "signal": n}                              <- {"exited": pid, "code": n}   (-n: killed by signal n)
and first of all <- {"ready": true, "subreaper": bool}.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

#: Seconds that servers have to end by themselves once their input is closed, then after SIGTERM, then after SIGKILL.
GRACE, TERM_GRACE, KILL_GRACE = 0.3, 0.3, 1.0


class Warden:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.leaders: set[int] = set()
        self.prctl = _load_prctl()
        self.subreaper = self.prctl is not None and self.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0

    def watch(self) -> None:
        """Serve until the program is gone."""
        woken, waker = os.pipe()
        sources: list[int] = [self.control.fileno(), woken]
        os.set_blocking(waker, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.send({"ready": True, "subreaper": self.subreaper})
        while True:
            ready, _, _ = select.select(sources, [], [])
            if woken in ready:
                with suppress(BlockingIOError):
                    os.read(woken, 4096)
                self.reap()
            if self.control.fileno() in ready and not self.serve():
                return

    def serve(self) -> bool:
        """Take one request; False when the program is gone."""
        try:
            header, fds, _, _ = socket.recv_fds(self.control, 4, 3)
            if len(header) < 4:
                header += _receive(self.control, 4 - len(header)) if header else b""
            if not header:
                return False
            request = json.loads(_receive(self.control, int.from_bytes(header, "big")))
        except OSError:
            return False
        if "start" in request:
            try:
                self.start(request, fds)
            finally:
                for fd in fds:
                    os.close(fd)
        elif request["kill"] in self.leaders:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(request["kill"], request["signal"])
        return True

    def start(self, request: dict[str, Any], fds: list[int]) -> None:
        told, teller = os.pipe()  # closed by a successful exec, else it brings the error
        pid = os.fork()
        if pid == 0:
            try:
                os.close(told)
                self._become(request, fds)
            except FileNotFoundError:
                where = request["argv"][0] if os.access(request["cwd"], os.X_OK) else request["cwd"]
                os.write(teller, f"{where!r} was not found: it does not exist, or is not on PATH".encode()[:1000])
            except BaseException as error:
                os.write(teller, f"{type(error).__name__}: {error}".encode()[:1000])
            finally:
                os._exit(127)
        os.close(teller)
        with os.fdopen(told, "rb") as pipe:
            failure = pipe.read().decode("utf-8", "replace")
        if failure:
            os.waitpid(pid, 0)
            self.send({"failed": request["start"], "error": failure})
        else:
            self.leaders.add(pid)
            self.send({"started": request["start"], "pid": pid})

    def _become(self, request: dict[str, Any], fds: list[int]) -> None:
        """In the child: be the server. Never returns."""
        os.setsid()
        if self.prctl is not None:  # a second belt: the warden itself may be killed
            self.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        high = [_above(fd) for fd in fds]
        for target, fd in enumerate(high):
            os.dup2(fd, target, inheritable=True)
        for fd in (*fds, *high):
            if fd > 2:
                os.set_inheritable(fd, False)
        os.chdir(request["cwd"])
        os.execvpe(request["argv"][0], request["argv"], request["env"])  # noqa: S606 - argv, no shell

    def reap(self) -> None:
        """Collect the dead. What one leaves in its group goes with it, before the number can be used again."""
        while True:
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            pid = dead.si_pid
            if pid in self.leaders:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if pid in self.leaders:
                self.leaders.discard(pid)
                self.send({"exited": pid, "code": os.waitstatus_to_exitcode(status)})

    def send(self, reply: dict[str, Any]) -> None:
        data = json.dumps(reply).encode()
        with suppress(OSError):
            self.control.sendall(len(data).to_bytes(4, "big") + data)

    def clear(self) -> None:
        """End everything: servers, whose input is closed already, have a moment; then TERM, then KILL."""
        self.reap()
        if self._gone(GRACE if self.leaders else 0.0):
            return
        self._kill(signal.SIGTERM)
        if self._gone(TERM_GRACE):
            return
        deadline = time.monotonic() + KILL_GRACE
        while time.monotonic() < deadline:
            self._kill(signal.SIGKILL)
            if self._gone(0.05):
                return

    def _kill(self, number: int) -> None:
        for pid in self.leaders:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)
        for pid in descendants(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            self.reap()
            if not self.leaders and not _has_children():
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)


def descendants(root: int) -> list[int]:
    """Every process below `root`, from /proc; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - pathlib is slow to import
    except OSError:
        return []
    for name in names:
        with suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                fields = file.read().rpartition(b")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _above(fd: int) -> int:
    """The same file under a number above the standard ones, so that one dup2 cannot overwrite the next one's source."""
    spare = []
    while fd <= 2:
        spare.append(fd)
        fd = os.dup(fd)
    return fd


def _receive(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = control.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError
        data += chunk
    return data


def _load_prctl() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    with socket.socket(fileno=int(sys.argv[1])) as control:
        control.set_inheritable(False)
        warden = Warden(control)
        try:
            warden.watch()
        finally:
            warden.clear()


if __name__ == "__main__":
    main()
