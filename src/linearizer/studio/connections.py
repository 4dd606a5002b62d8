r"""Connections: how many there are of one address and in all, and what each is told."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..apps.page import Refusal
from .guards import HEADERS, REFUSED, write_refusal

__all__ = ["CONNECTIONS", "HEAD_SECONDS", "PER_ADDRESS", "Prompt"]

#: For the head of a request to arrive, from the connection or its own first byte.
HEAD_SECONDS = 10.0
#: Connections at a time: in all, and of one address. A browser has six.
CONNECTIONS, PER_ADDRESS = 200, 50
#: Not the warnings of uvicorn, of which a client could make a line for each request.
_errors = logging.getLogger("linearizer.studio.http")
_errors.setLevel(logging.ERROR)


class Prompt(H11Protocol):
    """HTTP/1.1 that closes a connection whose request has no whole head in time.

    An address has a few connections, whoever it says it is, and what cannot be read as HTTP is told
    so as everything else is, in JSON.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.logger = _errors
        super().connection_made(transport)
        self._late = self.loop.call_later(HEAD_SECONDS, transport.close)
        same = sum(_address(one) == _address(self) for one in self.connections)
        if same > PER_ADDRESS:
            self._refuse(429, f"too many connections: this address has {PER_ADDRESS} already.")
        elif len(self.connections) > CONNECTIONS:
            self._refuse(503, f"the studio is busy: {CONNECTIONS} connections are open.")

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # it was refused
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the head is there
            self._in_time()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "expected an HTTP/1.1 request with a head of at most 16 KiB.")

    def _should_upgrade(self) -> bool:
        return False  # there are no web sockets

    def _refuse(self, status: int, sentence: str) -> None:
        """Say why, where no answer has begun, and close the connection."""
        REFUSED.add(_address(self), f"{status}, {sentence}")
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            _, headers, body = write_refusal(Refusal(status, sentence, 1 if status > 400 else None))
            headers += [(k.encode(), v.encode()) for k, v in HEADERS.items()]
            headers.append((b"connection", b"close"))
            reason = HTTPStatus(status).phrase
            start = h11.Response(status_code=status, headers=headers, reason=reason)
            events = (start, h11.Data(data=body), h11.EndOfMessage())
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def _address(connection: Any) -> str:
    return connection.client[0] if connection.client else ""
