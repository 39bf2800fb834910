"""The addresses of clients, spelt in one way, whoever tells them."""

from __future__ import annotations

from urllib.parse import unquote


def same_address(address: str) -> str:
    """gRPC's spelling of an address, such as ipv6:%5B::1%5D:80, as it is spelt here."""
    _, _, rest = unquote(address).partition(":")
    host, _, port = rest.rpartition(":")
    return spelt(host.strip("[]"), port)


def spelt(host: str, port: object) -> str:
    return f"{host.removeprefix('::ffff:').partition('%')[0]}:{port}"


def host_of(address: str) -> str:
    """An address without its port."""
    return address.rpartition(":")[0]
