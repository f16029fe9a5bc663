"""What the gateway's own files are kept from: no folder that a built-in tool shows to every key may hold them."""

from __future__ import annotations

from pathlib import Path

from centuria.core.quoting import quoted
from centuria.errors import ConfigurationError
from centuria.gateway.settings import GatewaySettings


def check_exposure(settings: GatewaySettings, config: Path | None = None) -> None:
    """Raises `ConfigurationError` for a tool whose folder holds, or lies in, what is the gateway's own: the file
    `config`, the store and the folder of the swarms. Links are followed."""
    own = {"the folder of all keys' swarms": settings.swarms.folder.resolve()}
    if "://" not in settings.store:
        own["the store"] = Path(settings.store).resolve()
    if config is not None:
        own["the gateway file"] = config.resolve()
    for server in settings.servers:
        if server.builtin is None:
            continue
        shown = [
            *server.options.get("roots", ()),
            *[server.options[key] for key in ("folder",) if key in server.options],
        ]
        for folder in [Path(each).resolve() for each in shown]:
            for what, path in own.items():
                if path.is_relative_to(folder) or folder.is_relative_to(path):
                    raise ConfigurationError(
                        f"[tools.{server.name}] would show every key {what} ({path}): it serves {quoted(str(folder))}.",
                        remedy="Give it a folder of its own, beside the gateway's files.",
                    )
