r"""An address to listen on, without torch, so that a wrong one is told at once."""

from __future__ import annotations

import ipaddress
import re
import socket

__all__ = ["host_name", "is_loopback", "listen"]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def host_name(given: str) -> str:
    """Return a name as a Host header has it, in small letters."""
    if not re.fullmatch(r"[\w-]+(\.[\w-]+)*", given, re.ASCII):
        raise ValueError(
            "serve: --allow-host expects a name such as studio.example.org, without scheme, port, "
            f"path or spaces, got {given!r}."
        )
    return given.lower()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket on that address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        # With its protocol: asyncio sends at once (TCP_NODELAY) only where that says TCP, and
        # otherwise every answer waits 40 ms for the client's acknowledgement.
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
        except OSError:
            found.close()
            raise
    except OSError as problem:
        raise ValueError(
            f"serve: cannot listen on {host} port {port} ({problem.strerror or problem}). "
            "Choose another with --port, or stop what is there."
        ) from None
    return found
