"""A PostgreSQL server of the tests' own: a new cluster in a folder, reached by a socket in it, never run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path


class PostgresServer:
    """`start` and `stop` as often as you like; `close` removes it all."""

    def __init__(self) -> None:
        self._user = pwd.getpwnam("nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name)
        # A path of a socket is at most 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        self._data = self._folder / "data"
        self._run("initdb", "--auth=trust", "--no-sync", "--username=centuria", "--encoding=UTF8", "--locale=C.UTF-8")
        self.url = f"postgresql://centuria@/postgres?host={self._folder}"

    def start(self) -> None:
        options = f"-k {self._folder} -c listen_addresses= -c fsync=off -c max_connections=60"
        self._run(
            "pg_ctl", "start", "--wait", "--timeout=30", "--silent", f"--log={self._folder / 'log'}", f"-o {options}"
        )

    def stop(self, mode: str = "immediate") -> None:
        """`immediate` is a crash."""
        self._run("pg_ctl", "stop", "--wait", "--timeout=30", "--silent", f"--mode={mode}")

    def close(self) -> None:
        if (self._data / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self._folder)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [_program(program), "--pgdata", str(self._data), *arguments],
            user=self._user.pw_uid if os.getuid() == 0 else None,
            group=self._user.pw_gid if os.getuid() == 0 else None,
            extra_groups=[] if os.getuid() == 0 else None,
            cwd=self._folder,
            # Not a pipe: the server would keep it open.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=60,
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
        )
        assert done.returncode == 0, f"{program} {arguments}: see {self._folder}"


def _program(name: str) -> str:
    """Debian keeps them out of the PATH, by version."""
    there = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    found = str(there[-1]) if there else shutil.which(name)
    assert found, f"{name} is not installed: run tests/system/install.sh"
    return found
