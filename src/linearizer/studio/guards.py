r"""What every request passes before it is read: who asks, from where, and how much."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..apps.page import Refusal
from .limits import Gate
from .listening import is_loopback

__all__ = ["COOKIE", "HEADERS", "REFUSED", "Guard", "Tally", "write_refusal"]

log = logging.getLogger("linearizer.studio")
COOKIE = "linearizer-studio"
#: Commas in a request with images: a few fields and no more, or JSON takes much more memory.
COMMAS = 10_000
#: Answers that are logged: whoever has them many times guesses, or asks for too much.
LOGGED = (401, 403, 408, 413, 429, 503)
#: Seconds for which refusals of an address are one line, and how many addresses have their own.
QUIET, ADDRESSES = 60.0, 50
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; "
    "script-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


def write_refusal(why: Refusal) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return the status, the headers and the body of a refusal."""
    body = json.dumps({"error": why.sentence}).encode("ascii")
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
    ]
    if why.retry is not None:
        headers.append((b"retry-after", b"%d" % why.retry))
    if why.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return why.status, headers, body


class Tally:
    """Logs that an address is refused, and a minute later how often it was since."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.since = -math.inf

    def add(self, address: str, why: str) -> None:
        if time.monotonic() - self.since >= QUIET:
            for one, count in self.counts.items():
                if count > 1:
                    log.warning("refused %s %d more times", one, count - 1)
            self.counts.clear()
            self.since = time.monotonic()
        if address not in self.counts and len(self.counts) >= ADDRESSES:
            address = "other addresses"
        self.counts[address] += 1
        if self.counts[address] == 1:
            log.warning("refused %s: %s", address, why)


#: Of requests and of connections.
REFUSED = Tally()


class Guard:
    """Checks Host, Origin, token and size, counts the requests of a client, and adds headers.

    Arguments:
        local: Whether the studio listens on loopback alone; then Host must name this machine, so
            that no other page can reach it under a name of its own.
        names: Hosts beside this machine's own, in small letters, as a proxy passes them on.
        token: What clients must know, or None.
        large: Addresses of requests that hold "images" or a "state"; all others are small.
    """

    def __init__(
        self,
        app: ASGIApp,
        gate: Gate,
        local: bool,
        names: Sequence[str],
        token: str | None,
        large: Mapping[str, str],
    ) -> None:
        self.app, self.gate, self.local, self.names = app, gate, local, names
        self.token = None if token is None else token.encode()
        self.large = large

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets
            await receive()
            await send({"type": "websocket.close", "code": 1003})
            return
        started = False
        cookie: bytes | None = None
        client = (scope.get("client") or ("",))[0]

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if message["status"] in LOGGED:
                    REFUSED.add(client, f"{message['status']} at {scope['path'][:80]!r}")
                ours = [(k.encode(), v.encode()) for k, v in HEADERS.items()]
                kept = [(b"set-cookie", cookie)] if cookie is not None else []
                message["headers"] = [*message["headers"], *ours, *kept]
            await send(message)

        try:
            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
            self._check_origin(scope, headers)
            if self._check_token(scope, headers):
                cookie = self._make_cookie(scope, headers)
            # The page's own files are many and no work.
            with (
                self.gate.client(client) if _is_api(scope) else nullcontext(),
                self.gate.body() as come,
            ):
                await self.app(scope, self._measure(scope, headers, receive, come), guarded)
        except Exception as problem:
            if started:
                raise
            why = problem if isinstance(problem, Refusal) else _log_failure(scope, problem)
            status, found, body = write_refusal(why)
            await guarded({"type": "http.response.start", "status": status, "headers": found})
            await guarded({"type": "http.response.body", "body": body})

    # -- where from ------------------------------------------------------------------------

    def _check_origin(self, scope: Scope, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        name = _name(host)
        if self.local and not is_loopback(name) and name not in self.names:
            raise Refusal(
                403,
                "Host: expected the name of this machine, localhost or 127.0.0.1, or one that "
                "--allow-host names.",
            )
        if not _is_api(scope):
            return
        if headers.get("sec-fetch-site") == "cross-site":
            raise Refusal(403, "another site may not use the studio.")
        origin = headers.get("origin")
        if scope["method"] not in ("GET", "HEAD") and origin is not None:
            try:
                same = urlsplit(origin).netloc.lower() == host.lower() != ""
            except ValueError:
                same = False
            if not same:
                raise Refusal(403, "Origin: expected the studio's own page, got another site.")

    # -- who -------------------------------------------------------------------------------

    def _check_token(self, scope: Scope, headers: dict[str, str]) -> bool:
        """Refuse who has no token; return whether it came in the address and is to be kept."""
        if self.token is None:
            return False
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and hmac.compare_digest(_bytes(given.strip()), self.token):
            return False
        try:
            held = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except Exception:  # what a client calls a cookie may be anything
            held = None
        if held is not None and hmac.compare_digest(_bytes(held.value), self._secret()):
            return False
        query = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])
        if scope["method"] in ("GET", "HEAD") and hmac.compare_digest(_bytes(query[0]), self.token):
            return True
        if not _is_api(scope):  # the page itself, which asks for the token
            return False
        raise Refusal(
            401,
            "a token is needed: open the page with ?token=…, or send Authorization: Bearer ….",
        )

    def _secret(self) -> bytes:
        assert self.token is not None
        return hmac.new(self.token, b"studio", hashlib.sha256).hexdigest().encode()

    def _make_cookie(self, scope: Scope, headers: dict[str, str]) -> bytes:
        # A proxy's word may be forged, but here it can only make the cookie stricter.
        spoken = (scope.get("scheme"), headers.get("x-forwarded-proto", "").lower())
        secure = b"; Secure" if "https" in spoken else b""
        return (
            COOKIE.encode()
            + b"="
            + self._secret()
            + b"; Path=/; HttpOnly; SameSite=Strict"
            + secure
        )

    # -- how much --------------------------------------------------------------------------

    def _measure(
        self, scope: Scope, headers: dict[str, str], receive: Receive, come: Callable[[int], None]
    ) -> Receive:
        limits = self.gate.limits
        holds = self.large.get(scope["path"], "little")
        images = holds == "images"
        own = limits.state_bytes if holds == "state" else limits.small_bytes
        most = limits.body_bytes if images else min(own, limits.body_bytes)
        large = f"expected a request of at most {most:,} bytes."
        length = headers.get("content-length", "0")
        if not length.isdigit() or len(length) > 15 or int(length) > most:
            raise Refusal(413, large)
        come(int(length))
        seen, commas, done = 0, 0, False
        end = asyncio.get_running_loop().time() + limits.body_seconds

        async def measured() -> Message:
            nonlocal seen, commas, done
            if done:
                return await receive()
            try:
                left = end - asyncio.get_running_loop().time()
                message = await asyncio.wait_for(receive(), max(left, 0))
            except asyncio.TimeoutError:
                raise HTTPException(
                    408, f"the request did not arrive within {limits.body_seconds:g} seconds."
                ) from None
            body = message.get("body", b"")
            seen, commas = seen + len(body), commas + body.count(b",")
            done = not message.get("more_body", False)
            if seen > most:
                raise HTTPException(413, large)
            try:
                come(seen)
            except Refusal as why:
                headers = {"retry-after": str(why.retry)}
                raise HTTPException(why.status, why.sentence, headers) from None
            if images and commas > COMMAS:
                raise HTTPException(413, "expected images and a few fields, got far more entries.")
            return message

        return measured


def _log_failure(scope: Scope, problem: Exception) -> Refusal:
    """Write what nobody foresaw into the log, and one sentence for the client."""
    log.error("%s %s failed", scope["method"], scope["path"], exc_info=problem)
    return Refusal(500, "the studio failed at this request; its log says why.")


def _is_api(scope: Scope) -> bool:
    """Return whether it is more than the page and its files, which hold nothing private."""
    return scope["path"] != "/" and not scope["path"].startswith("/static/")


def _name(host: str) -> str:
    """Return a Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
