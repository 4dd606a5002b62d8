r"""The studio's server: a page, and the REST API behind it."""

from __future__ import annotations

import hashlib
import html
import json
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch

try:
    import uvicorn
    from fastapi import FastAPI, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import HTMLResponse, JSONResponse
    from fastapi.staticfiles import StaticFiles
    from starlette.exceptions import HTTPException
except ImportError:
    raise ValueError(
        'the studio needs fastapi and uvicorn: pip install "linearizer[studio]"'
    ) from None

from .. import __version__
from ..apps.page import Limits, Name, Refusal, number
from ..apps.page import Request as PageRequest
from . import general
from . import schemas as ask
from .connections import Prompt
from .desk import Catalogue, Desk, hide_paths, shorten
from .guards import Guard, write_refusal
from .limits import Gate
from .listening import is_loopback
from .pages import STATIC, Room, list_rooms, write_index

__all__ = ["create_app", "serve"]

#: What the first tab of the page shows, opened before anyone asks.
FIRST = ("mnist-flow", "mnist-projector")
log = logging.getLogger("linearizer.studio")

_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ask.Failure, "description": why}
    for status, why in {
        400: "not JSON",
        401: "a token is needed",
        403: "another site, or another name of this machine",
        404: "no such model",
        408: "the request did not arrive in time",
        409: "the files of the model changed meanwhile",
        413: "too large",
        422: "a field is wrong",
        429: "too many requests of this client at a time",
        503: "too many requests wait",
        504: "the answer takes too long",
    }.items()
}


class Json(JSONResponse):
    """JSON with plain ASCII, whatever strings a client has sent, and null for NaN and ∞."""

    def render(self, content: object) -> bytes:
        try:
            text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        except ValueError:  # files of a run may hold any number
            text = json.dumps(_finite(content), allow_nan=False, separators=(",", ":"))
        return text.encode("ascii")


def _finite(content: object) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return number(content) if isinstance(content, float) else content


class Files(StaticFiles):
    """The page's files: kept by browsers, but asked for anew each time (304 if unchanged)."""

    def file_response(self, *given: Any, **more: Any) -> Response:
        response = super().file_response(*given, **more)
        response.headers["cache-control"] = "no-cache"
        return response


def create_app(
    runs: Path = Path("runs"),
    limits: Limits | None = None,
    token: str | None = None,
    local: bool = True,
    names: Sequence[str] = (),
    warm: bool = False,
) -> FastAPI:
    """Return the studio as an ASGI app.

    Arguments:
        runs: Folder of the user's runs; nothing else is read but the shipped models.
        local: Whether it is bound to loopback, where Host must name this machine.
        names: Hosts to answer to beside it, as `host_name` writes them.
        warm: Open the models of the first tab in the background.
    """
    limits = limits or Limits()
    gate, desk, rooms = Gate(limits), Desk(Catalogue(runs), limits), list_rooms()
    app = FastAPI(
        title="Linearizer studio",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=partial(_life, desk, gate, warm),
        responses=_REFUSALS,
        default_response_class=Json,
    )
    requests = [request for room in rooms for request in room.page.requests]
    large = {f"/api/{request.path}": request.holds for request in requests}
    app.add_middleware(Guard, gate=gate, local=local, names=names, token=token, large=large)
    app.state.gate, app.state.desk = gate, desk
    _add_errors(app, runs)
    _add_files(app, rooms)
    _add_general(app, desk, gate)
    for request in requests:
        app.add_api_route(
            f"/api/{request.path}",
            _endpoint(request, desk, gate),
            methods=["POST"],
            response_model=request.Given,
            summary=request.summary,
        )
    return app


@asynccontextmanager
async def _life(desk: Desk, gate: Gate, warm: bool, app: FastAPI) -> AsyncIterator[None]:
    stopped = threading.Event()
    warming = threading.Thread(target=_warm, args=(desk, stopped))
    if warm:
        warming.start()
    yield
    stopped.set()
    gate.close()
    if warm:  # torch can crash if the interpreter exits while this thread runs
        warming.join()


async def _do(
    desk: Desk,
    gate: Gate,
    request: Request,
    model: str,
    work: Callable[[], dict[str, Any]],
    lane: str = "",
) -> Response:
    """Answer in a thread, one at a time for a model, without gradients."""
    if model:
        desk.catalogue.find(model)  # a wrong name does not queue

    def answer() -> Response:
        stamp = desk.catalogue.stamp(model) if model else None
        try:
            with torch.inference_mode():
                found = work()
        except Exception as problem:
            if model and not isinstance(problem, Refusal) and desk.catalogue.stamp(model) != stamp:
                raise Refusal(409, f"{model}: its files changed meanwhile. Ask again.") from None
            raise
        return Json(found)  # written in the thread as well, so that the event loop stays free

    return await gate.run(model, answer, request.is_disconnected, lane)


def _endpoint(spec: PageRequest, desk: Desk, gate: Gate) -> Callable[..., Any]:
    async def endpoint(request: Request, a: Any) -> Response:
        return await _do(desk, gate, request, getattr(a, "model", ""), lambda: spec.answer(desk, a))

    endpoint.__annotations__ = {"request": Request, "a": spec.Asked, "return": Response}
    endpoint.__name__ = spec.path.replace("/", "_")
    return endpoint


def _add_files(app: FastAPI, rooms: Sequence[Room]) -> None:
    """Add the page, put together of the applications' parts, and the files that it loads."""
    files = {"/": (write_index(rooms).encode("utf-8"), "text/html; charset=utf-8")}
    for room in rooms:
        if room.code is not None:
            files["/static" + room.script.removeprefix(".")] = room.code, "text/javascript"
    for place, (content, kind) in files.items():
        app.add_api_route(place, _file(content, kind), include_in_schema=False)
    app.mount("/static", Files(directory=STATIC, check_dir=False))

    @app.get("/api", response_class=HTMLResponse, include_in_schema=False)
    def endpoints() -> Response:
        return HTMLResponse(_write_listing(app))


def _file(content: bytes, kind: str) -> Callable[[Request], Response]:
    """Hand out a file as :class:`Files` does: asked for anew each time, 304 if unchanged."""
    tag = f'"{hashlib.sha256(content).hexdigest()}"'
    headers = {"cache-control": "no-cache", "etag": tag, "content-type": kind}

    def file(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers)

    return file


def _add_general(app: FastAPI, desk: Desk, gate: Gate) -> None:
    """Add what can be asked of any model."""
    models = general.Models(desk)

    @app.get("/api/health", response_model=ask.Health, summary="Whether it is up")
    async def health() -> Response:
        return Json({"status": "ok", "version": __version__, "waiting": gate.waiting})

    @app.get("/api/models", response_model=ask.Listed, summary="Shipped models and your runs")
    def list_models() -> Response:
        return Json(models.list())

    async def once(request: Request, id: str, what: str, make: Callable[[], Any]) -> Response:
        return await _do(desk, gate, request, id, lambda: desk.keep(id, what, make))

    @app.get("/api/model", response_model=ask.Facts, summary="What one model is")
    async def model(request: Request, model: Name) -> Response:
        return await once(request, model, "facts", lambda: general.facts(desk, model))

    @app.get("/api/apply", response_model=ask.Applied, summary="f of a point, and back")
    async def apply(
        request: Request, model: Name, seed: Annotated[int, Query(ge=0, lt=2**63)] = 0
    ) -> Response:
        return await _do(desk, gate, request, model, lambda: general.apply(desk, model, seed))

    @app.get("/api/spectrum", response_model=ask.Spectrum, summary="Singular values and vectors")
    async def spectrum(
        request: Request, model: Name, k: Annotated[int, Query(ge=1, le=32)] = 12
    ) -> Response:
        return await once(request, model, f"spectrum {k}", lambda: general.spectrum(desk, model, k))

    @app.get("/api/certify", response_model=ask.Certify, summary="The error of every law")
    async def certify(
        request: Request, model: Name, n: Annotated[int, Query(ge=3, le=64)] = 8
    ) -> Response:
        work = partial(general.certify, desk, model, n)
        return await _do(desk, gate, request, model, work, lane="/certify")  # no model's name


def _warm(desk: Desk, stopped: threading.Event) -> None:
    for name in FIRST:
        try:
            if not stopped.is_set():
                with torch.inference_mode():
                    desk.keep(name, "facts", partial(general.facts, desk, name))
        except Exception as problem:
            log.warning("could not open %s: %s", name, problem)


# -- errors --------------------------------------------------------------------------------


def _add_errors(app: FastAPI, runs: Path) -> None:
    def answer(status: int, sentence: str, retry: int | None = None) -> Response:
        status, headers, body = write_refusal(Refusal(status, sentence, retry))
        return Response(body, status, {k.decode(): v.decode() for k, v in headers})

    @app.exception_handler(Refusal)
    async def refusal(request: Request, why: Refusal) -> Response:
        return answer(why.status, why.sentence, why.retry)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, why: RequestValidationError) -> Response:
        malformed = any(e["type"] == "json_invalid" for e in why.errors())
        return answer(400 if malformed else 422, _sentence(why))

    @app.exception_handler(HTTPException)
    async def plain(request: Request, why: HTTPException) -> Response:
        sentence = str(why.detail)
        if why.status_code == 404:
            sentence = f"there is nothing at {shorten(request.url.path)}. See /api."
        elif why.status_code == 405:
            sentence = f"{request.method} does not go with {shorten(request.url.path)}. See /api."
        elif why.status_code == 400:
            sentence = "the request's body cannot be read as JSON."
        response = answer(why.status_code, sentence)
        if why.headers:
            response.headers.update(why.headers)
        return response

    @app.exception_handler(ValueError)
    @app.exception_handler(OSError)
    async def wrong(request: Request, why: Exception) -> Response:
        status = 404 if isinstance(why, FileNotFoundError) else 422
        sentence = str(why)
        if isinstance(why, OSError) and why.filename is not None:
            sentence = f"{why.filename}: {why.strerror}."
        return answer(status, hide_paths(sentence, runs))

    @app.exception_handler(MemoryError)
    @app.exception_handler(RuntimeError)
    async def failed(request: Request, why: Exception) -> Response:
        words = str(why).lower()
        if isinstance(why, MemoryError) or "alloc" in words or "memory" in words:
            return answer(503, "there is not enough memory for that. Ask for less.", 10)
        if isinstance(why, torch.linalg.LinAlgError):
            return answer(422, "the operator of this model has no such decomposition.")
        raise why


def _sentence(why: RequestValidationError) -> str:
    """Say the first thing that is wrong."""
    first = why.errors()[0]
    place = [str(part) for part in first["loc"] if part not in ("body", "query")]
    name = ".".join(place) or "the request's body"
    if first["type"] == "json_invalid":
        return "the request's body cannot be read as JSON."
    if first["type"] == "extra_forbidden":
        return f"there is no field {shorten(name)}."
    if first["type"] == "missing":
        return f"{name} is missing."
    if first["type"] == "string_pattern_mismatch":
        return f"{name}: expected a data URL of a PNG, JPEG or WebP, data:image/png;base64,…"
    message = str(first["msg"]).removeprefix("Input ")
    if first["type"] == "value_error":
        return f"{shorten(name)[1:-1]}: {message.removeprefix('Value error, ')}."
    given = first["input"]
    if isinstance(given, dict | list):  # written out it may be long
        return f"{shorten(name)[1:-1]} {message}, got {len(given):,} entries."
    return f"{shorten(name)[1:-1]} {message}, got {shorten(str(given), 40)}."


def _write_listing(app: FastAPI) -> str:
    """List the endpoints on a page without scripts: FastAPI's own loads some from elsewhere."""
    rows = []
    for path, methods in app.openapi()["paths"].items():
        for method, what in methods.items():
            asked = [p["name"] for p in what.get("parameters", [])]
            if "requestBody" in what:
                schema = what["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                name = schema.rsplit("/", 1)[-1]
                asked = list(app.openapi()["components"]["schemas"][name]["properties"])
            cells = [method.upper(), path, what["summary"], ", ".join(asked)]
            rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in cells))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Linearizer studio: API</title>'
        '<meta name="viewport" content="width=device-width">'
        '<link rel="stylesheet" href="/static/studio.css"><main class="api"><h1>The API</h1>'
        "<p>Bodies and answers are JSON; images are data URLs. All fields, with bounds and "
        'defaults, are in <a href="/openapi.json">openapi.json</a>. '
        '<a href="/">Back to the studio</a>'
        f"<table><tr><th><th>path<th>what<th>fields{''.join(rows)}</table></main>"
    )


# -- listening -----------------------------------------------------------------------------


def serve(
    at: socket.socket,
    host: str,
    runs: Path,
    token: str | None,
    names: Sequence[str],
    threads: int,
    ready: Callable[[], None],
) -> None:
    """Serve until stopped."""
    torch.set_num_threads(threads)
    app = create_app(runs, token=token, local=is_loopback(host), names=names, warm=True)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=3,
        proxy_headers=False,
        http=Prompt,
    )
    server = uvicorn.Server(config)
    threading.Thread(target=_when_up, args=(server, ready), daemon=True).start()
    server.run(sockets=[at])


def _when_up(server: uvicorn.Server, ready: Callable[[], None]) -> None:
    while not server.started and not server.should_exit:
        time.sleep(0.02)
    if server.started:
        ready()
