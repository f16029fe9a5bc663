"""A program with tool servers, to be killed: `python program.py SCRIPT..`, each a shell script that is a server.

Says `ready` when all are up; ends in good order when its input closes.
"""

import asyncio
import sys

from tests.toolhost.kit import host_of, shell


async def main() -> None:
    async with host_of(*(shell(f"s{n}", script) for n, script in enumerate(sys.argv[1:]))) as host:
        print("ready", [state.reason for state in host.servers() if not state.up], flush=True)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        await reader.read()


asyncio.run(main())
