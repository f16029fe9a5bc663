"""Checks of base URLs and keys before anything is sent. No message ever holds a key, nor a part of one."""

from __future__ import annotations

import ipaddress
import re
from difflib import SequenceMatcher
from urllib.parse import urlsplit

from centuria.config.presets import KEY_OWNERS, PRESETS, Preset, by_host
from centuria.errors import ProviderError

_ROUTES = ("/chat/completions", "/completions", "/responses", "/messages", "/models", "/embeddings")
_PLACEHOLDER = re.compile(
    r"your[-_ ]|[-_ ]here\b|change[-_ ]?me|place[-_ ]?holder|replace[-_ ]?(me|this)|insert[-_ ]"
    r"|^<.*>$|^\[.*\]$|^\$?\{.*\}$"
    r"|^(sk-|sk_)?(ant-|proj-|or-)?[x.*…_•0-]+$|^(sk-)?(todo|none|null|nil|dummy|secret|example|test|empty|undefined|token"
    r"|(api)?[-_ ]?key)$|\.\.\.|…",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHORTEST = 12


def is_local(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_private(host: str) -> bool:
    """Whether a host is this machine or in a private network: by address, or by a name that no public host can have."""
    if is_local(host):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".lan", ".home.arpa"))
    return address.is_private


def host_of(url: str) -> str:
    """The host of a URL that `check_base_url` has let pass."""
    return (urlsplit(url).hostname or "").lower()


def check_base_url(url: str, source: str, *, allow_http: bool = False) -> str:
    """The base URL without a slash at its end. `source` says where it was written.

    Raises `ProviderError`: no http(s), no host, a key or a query in it, a route at its end, plain http to a
    public host, the wrong path of a known provider, a host that is nearly a known one. The URL itself is not
    repeated where it may hold a secret.
    """
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ProviderError(f"{source} holds spaces or characters that no URL has.", remedy="Copy it again.")
    try:
        parts = urlsplit(url)
        host, _port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise ProviderError(f"{source} is not a URL.", remedy="Write https://HOST/v1.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ProviderError(f"{source} must begin with https:// and name a host.", remedy="Write https://HOST/v1.")
    if parts.username is not None or parts.password is not None:
        raise ProviderError(f"{source} holds a user name or password.", remedy="Put the key into its variable.")
    if parts.query or parts.fragment or url.endswith(("?", "#")):
        raise ProviderError(f"{source} holds `?` or `#`.", remedy="Cut it there; keys belong in their variables.")
    path = parts.path.rstrip("/")
    for route in _ROUTES:
        if path.endswith(route):
            base = f"{parts.scheme}://{parts.netloc}{path.removesuffix(route)}"
            raise ProviderError(
                f"{source} ends with {route}, which is added for each request.", remedy=f"Write {base}."
            )
    if parts.scheme == "http" and not is_private(host) and not allow_http:
        raise ProviderError(
            f"{source} is plain http to the public host {host}, where anyone on the way could read the key.",
            remedy="Write https://, or set `allow_http = true` in [model] if you mean it.",
        )
    _check_known(host, path, source)
    return f"{parts.scheme}://{parts.netloc}{path}"


def _check_known(host: str, path: str, source: str) -> None:
    preset = by_host(host)
    if preset is not None:
        if path not in (preset.paths or (urlsplit(preset.base_url).path,)):
            right = urlsplit(preset.base_url)._replace(netloc=host).geturl()
            raise ProviderError(f"{source} has the wrong path for {preset.title}.", remedy=f"Write {right}.")
        return
    if is_private(host):
        return
    for known in (name for item in PRESETS for name in item.hosts):
        if SequenceMatcher(None, host, known).ratio() >= 0.9:
            raise ProviderError(
                f"{source} names the host {host}, which is nearly, but not quite, {known}.",
                remedy=f"Write {known}.",
            )


def check_variable(name: str, source: str) -> None:
    """Refuse a `key_env` that is no name of a variable: most often it is the key itself, so it is not repeated."""
    if not _VARIABLE.fullmatch(name) or owner_of(name) is not None:
        raise ProviderError(
            f"{source} must be the NAME of an environment variable, and is not one.",
            remedy="Put the key into a variable, such as MOONSHOT_API_KEY, and write that name.",
        )


def check_key(key: str, variable: str, preset: Preset, *, local: bool) -> None:
    """Refuse a key that cannot be right: empty, a placeholder, broken by copying, or another provider's.

    `local`: the server is on this machine or in a private network, where any word may be a key. Raises `ProviderError`.
    """
    advice = f"Set {variable} to a key" + (f" from {preset.get_key}." if preset.get_key else ".")
    if not key.strip():
        raise ProviderError(f"{variable} is set, but empty.", remedy=f"{advice} Unset it for a rehearsal.")
    if key.lower().startswith("bearer "):
        raise ProviderError(f"{variable} begins with the word Bearer.", remedy="Keep the key alone.")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ProviderError(
            f"{variable} holds a space, a line break or a character that no key has.",
            remedy="Copy the key again.",
        )
    if key[0] in "\"'`" or key[-1] in "\"'`":
        raise ProviderError(f"{variable} has quotes around the key.", remedy="Remove them.")
    if local:
        return
    if _PLACEHOLDER.search(key):
        raise ProviderError(f"{variable} holds a placeholder, not a key.", remedy=advice)
    owner = owner_of(key)
    if preset.name != "custom" and owner is not None and owner != preset.title:
        raise ProviderError(
            f"The key in {variable} has the shape of {owner}'s, but would be sent to {preset.title}.",
            remedy=f"{advice} Or use the provider that the key belongs to.",
        )
    if preset.shape and not key.startswith(preset.shape):
        raise ProviderError(
            f"The key in {variable} does not begin with {preset.shape}, as the keys of {preset.title} do.",
            remedy=advice,
        )
    if len(key) < _SHORTEST:
        raise ProviderError(f"{variable} holds too few characters for a key.", remedy=advice)


def owner_of(key: str) -> str | None:
    """Whose key it is by its shape."""
    fitting = [prefix for prefix in KEY_OWNERS if key.startswith(prefix)]
    return KEY_OWNERS[max(fitting, key=len)] if fitting else None
