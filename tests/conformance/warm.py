"""One process that has imported everything and forks for each scenario: `python -m tests.conformance.warm SOCKET`.

It says `ready` when it takes scenarios, and ends when its input closes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import traceback
from importlib import import_module

_LARGEST = 1 << 20


def serve(path: str) -> None:
    for module in ("http", "machine", "oauth", "session"):  # which a host imports when it opens a server
        import_module(f"centuria.toolhost.{module}")
    from tests.conformance.scenario import play

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks: their sockets tell their end
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(128)
        print("ready", flush=True)
        while select.select([listener, sys.stdin], [], [])[0] == [listener]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                os._exit(_play_one(connection, play))
            connection.close()


def _play_one(connection: socket.socket, play: object) -> int:
    """A fork's whole life: what it says goes to its client, the exit code last."""
    code = 1
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection.makefile("rb") as lines:
        asked = json.loads(lines.readline(_LARGEST))
    os.environ.clear()
    os.environ.update(asked["environ"])
    for number in (1, 2):
        os.dup2(connection.fileno(), number)
    try:
        assert callable(play)
        play(asked["url"])
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(b"\nexit %d\n" % code)
    return code


def ask(path: str, url: str) -> int:
    """Have one scenario played; its output is ours, and so is its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(json.dumps({"url": url, "environ": dict(os.environ)}).encode() + b"\n")
        with connection.makefile("r") as lines:
            *said, last = lines.readlines() or ["exit 1"]
    print("".join(said), end="")
    return int(last.removeprefix("exit "))


if __name__ == "__main__":
    serve(sys.argv[1])
