"""What the gateway's own files are kept from: no tool server that all keys call may be pointed at them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from centuria.core.quoting import quoted
from centuria.errors import ConfigurationError
from centuria.gateway.settings import GatewaySettings
from centuria.settings import ToolServer

#: What stands between paths in one argument: `--root=DIR`, `HOST:CONTAINER`, `type=bind,src=DIR`.
_BETWEEN = re.compile("[=,:]")


def check_exposure(settings: GatewaySettings, config: Path | None = None) -> None:
    """Raises `ConfigurationError` for a tool server that is given a path which holds, or lies in, what is the
    gateway's own: the file `config`, its tools file, the store and the folder of the swarms. Links are followed.

    What a built-in tool shows is known. Of a command's arguments each path that is there may be what it shows; what it
    finds by itself nobody here can know.
    """
    own = {"the folder of all keys' swarms": settings.swarms.folder.resolve()}
    if "://" not in settings.store:
        own["the store"] = Path(settings.store).resolve()
    if config is not None:
        own["the gateway file"] = config.resolve()
    if settings.tools_file is not None:  # other servers' keys may stand in it
        own["the tools file"] = settings.tools_file.resolve()
    for server in settings.servers:
        for shown in _shown(server):
            for what, path in own.items():
                if path.is_relative_to(shown) or shown.is_relative_to(path):
                    raise ConfigurationError(
                        f"The tool server {server.name} would show every key {what} ({path}): "
                        f"it is given {quoted(str(shown))}.",
                        remedy="Give it a folder of its own, beside the gateway's files.",
                    )


def _shown(server: ToolServer) -> Iterator[Path]:
    """Paths that a server is given, as they are on the disk."""
    if server.builtin is not None:
        folder = server.options.get("folder")
        for each in (*server.options.get("roots", ()), *([] if folder is None else [folder])):
            yield Path(each).resolve()
    if server.command is not None:
        for argument in server.args:
            for piece in (argument, *_BETWEEN.split(argument)):
                path = _there(piece, server.cwd or Path.cwd())
                if path is not None:
                    yield path


def _there(text: str, folder: Path) -> Path | None:
    """The file or folder that a text names, if there is one."""
    try:
        path = (folder / Path(text).expanduser()).resolve() if text else None
        return path if path is not None and path.exists() else None
    except (OSError, RuntimeError):  # too long, a loop of links, nobody's home: no path
        return None
