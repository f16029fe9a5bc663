"""Which addresses a server may have that somebody else chose: looked at when the connection is made, whatever its name
resolved to before. Pure."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

#: Why nothing may be sent to this address; "" = it may.
Guard = Callable[[str], str]
_NAT64 = IPv6Network("64:ff9b::/96")


def public_only(address: str) -> str:
    """A guard: only what is reached over the internet, by whatever form its address is written in."""
    found = _parsed(address)
    if found is None:
        return "its address cannot be read"
    return "" if all(each.is_global and not each.is_multicast for each in _all_of(found)) else _what(found)


def any_host(address: str) -> str:
    """A guard: private networks and this machine too."""
    found = _parsed(address)
    if found is None:
        return "its address cannot be read"
    return _what(found) if any(each.is_multicast or each.is_unspecified for each in _all_of(found)) else ""


def _parsed(address: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(address.partition("%")[0])
    except ValueError:
        return None


def _all_of(address: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    """The address, or those that it stands for."""
    if isinstance(address, IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    if address.sixtofour is not None:
        return [address, address.sixtofour]
    if address.teredo is not None:
        return [address, *address.teredo]
    return [IPv4Address(int(address) & 0xFFFFFFFF)] if address in _NAT64 else [address]


def _what(address: IPv4Address | IPv6Address) -> str:
    return f"{address} is not a public address"
