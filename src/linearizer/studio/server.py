r"""The studio's server: a page, and the REST API behind it."""

from __future__ import annotations

import html
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from .. import __version__
from . import schemas as ask
from .answers import Answers
from .catalogue import Catalogue, number, shortened, without_paths
from .guards import Guard, refused
from .limits import Gate, Limits, Refusal
from .listening import is_loopback

__all__ = ["create_app", "serve"]

STATIC = Path(__file__).parent / "static"
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
        413: "too large",
        422: "a field is wrong",
        429: "too many requests of this client at a time",
        503: "too many requests wait",
        504: "the answer takes too long",
    }.items()
}


class Json(JSONResponse):
    """JSON with plain ASCII, whatever strings a client has sent, and null for NaN and ∞."""

    def render(self, content: Any) -> bytes:
        try:
            text = json.dumps(content, allow_nan=False, separators=(",", ":"))
        except ValueError:  # files of a run may hold any number
            text = json.dumps(_finite(content), allow_nan=False, separators=(",", ":"))
        return text.encode("ascii")


def _finite(content: Any) -> Any:
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
    """The studio as an ASGI app.

    Arguments:
        runs: Folder of the user's runs; nothing else is read but the shipped models.
        local: Whether it is bound to loopback, where Host must name this machine.
        names: Hosts to answer to beside it, as `host_name` writes them.
        warm: Open the models of the first tab in the background.
    """
    limits = limits or Limits()
    gate = Gate(limits)
    answers = Answers(Catalogue(runs), limits)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        stopped = threading.Event()
        warming = threading.Thread(target=_warm, args=(answers, stopped))
        if warm:
            warming.start()
        yield
        stopped.set()
        gate.close()
        if warm:  # torch takes it ill if Python ends around it
            warming.join()

    app = FastAPI(
        title="Linearizer studio", version=__version__, docs_url=None, redoc_url=None,
        lifespan=life, responses=_REFUSALS, default_response_class=Json,
    )  # fmt: skip
    app.add_middleware(Guard, gate=gate, local=local, names=names, token=token)
    app.state.gate, app.state.answers = gate, answers
    _errors(app, runs)

    async def do(request: Request, model: str, work: Callable[[], dict[str, Any]]) -> Response:
        answers.catalogue.find(model)  # a wrong name does not queue
        # JSON is written in the thread as well, so that the event loop stays free.
        return await gate.run(model, lambda: Json(work()), request.is_disconnected)

    @app.get("/", response_class=HTMLResponse, responses={}, include_in_schema=False)
    def page(request: Request) -> Response:
        index = STATIC / "index.html"
        if not index.is_file():
            return HTMLResponse("<!doctype html><title>Linearizer</title><a href=/api>API</a>")
        return Files(directory=STATIC).file_response(index, index.stat(), request.scope)

    app.mount("/static", Files(directory=STATIC, check_dir=False))

    @app.get("/api", response_class=HTMLResponse, include_in_schema=False)
    def endpoints() -> Response:
        return HTMLResponse(_listing(app))

    @app.get("/api/health", response_model=ask.Health, summary="Whether it is up")
    async def health() -> Response:
        return Json({"status": "ok", "version": __version__, "waiting": gate.waiting})

    @app.get("/api/models", response_model=ask.Listed, summary="Shipped models and your runs")
    def models() -> Response:
        return Json(answers.models())

    @app.get("/api/model", response_model=ask.Facts, summary="What one model is")
    async def model(request: Request, model: ask.Name) -> Response:
        return await do(request, model, lambda: answers.model(model))

    @app.post("/api/generate", response_model=ask.Generated, summary="Samples in one step")
    async def generate(request: Request, a: ask.Generate) -> Response:
        return await do(request, a.model, lambda: answers.generate(a))

    @app.post(
        "/api/generate/check",
        response_model=ask.Compared,
        summary="One step against the loop that it equals",
    )
    async def check(request: Request, a: ask.Check) -> Response:
        return await do(request, a.model, lambda: answers.check(a))

    @app.post("/api/encode", response_model=ask.Encoded, summary="An image to noise and back")
    async def encode(request: Request, a: ask.Encode) -> Response:
        return await do(request, a.model, lambda: answers.encode(a))

    @app.post(
        "/api/interpolate",
        response_model=ask.Interpolated,
        summary="From one image to another, through the noise and by pixels",
    )
    async def interpolate(request: Request, a: ask.Interpolate) -> Response:
        return await do(request, a.model, lambda: answers.interpolate(a))

    @app.post("/api/project", response_model=ask.Projected, summary="Project once and twice")
    async def project(request: Request, a: ask.Project) -> Response:
        return await do(request, a.model, lambda: answers.project(a))

    @app.get("/api/photo", response_model=ask.Photo, summary="A photo to try styles on")
    def photo() -> Response:
        return Json(answers.photo())

    @app.post("/api/stylize", response_model=ask.Stylized, summary="A photo in a blend of styles")
    async def stylize(request: Request, a: ask.Stylize) -> Response:
        return await do(request, a.model, lambda: answers.stylize(a))

    @app.post("/api/dynamics", response_model=ask.Motion, summary="States at any times")
    async def dynamics(request: Request, a: ask.Dynamics) -> Response:
        return await do(request, a.model, lambda: answers.dynamics(a))

    @app.post(
        "/api/edit", response_model=ask.Edited, summary="The nearest image with wanted scores"
    )
    async def edit(request: Request, a: ask.Edit) -> Response:
        return await do(request, a.model, lambda: answers.edit(a))

    @app.get("/api/spectrum", response_model=ask.Spectrum, summary="Singular values and vectors")
    async def spectrum(
        request: Request, model: ask.Name, k: Annotated[int, Query(ge=1, le=32)] = 12
    ) -> Response:
        return await do(request, model, lambda: answers.spectrum(model, k))

    @app.get("/api/certify", response_model=ask.Certify, summary="The error of every law")
    async def certify(
        request: Request, model: ask.Name, n: Annotated[int, Query(ge=3, le=64)] = 8
    ) -> Response:
        return await do(request, model, lambda: answers.certify(model, n))

    return app


def _warm(answers: Answers, stopped: threading.Event) -> None:
    for name in FIRST:
        try:
            if not stopped.is_set():
                answers.model(name)
        except Exception as problem:
            log.warning("could not open %s: %s", name, problem)


# -- errors --------------------------------------------------------------------------------


def _errors(app: FastAPI, runs: Path) -> None:
    def answer(status: int, sentence: str, retry: int | None = None) -> Response:
        status, headers, body = refused(Refusal(status, sentence, retry))
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
            sentence = f"there is nothing at {shortened(request.url.path)}. See /api."
        elif why.status_code == 405:
            sentence = f"{request.method} does not go with {shortened(request.url.path)}. See /api."
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
        return answer(status, without_paths(str(why), runs))

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
    """The first thing that is wrong, in words."""
    first = why.errors()[0]
    place = [str(part) for part in first["loc"] if part not in ("body", "query")]
    name = ".".join(place) or "the request's body"
    if first["type"] == "json_invalid":
        return "the request's body cannot be read as JSON."
    if first["type"] == "extra_forbidden":
        return f"there is no field {shortened(name)}."
    if first["type"] == "missing":
        return f"{name} is missing."
    if first["type"] == "string_pattern_mismatch":
        return f"{name}: expected a data URL of a PNG, JPEG or WebP, data:image/png;base64,…"
    message = str(first["msg"]).removeprefix("Input ")
    if first["type"] == "value_error":
        return f"{shortened(name)[1:-1]}: {message.removeprefix('Value error, ')}."
    given = first["input"]
    if isinstance(given, dict | list):  # written out it may be long
        return f"{shortened(name)[1:-1]} {message}, got {len(given):,} entries."
    return f"{shortened(name)[1:-1]} {message}, got {shortened(str(given), 40)}."


def _listing(app: FastAPI) -> str:
    """The endpoints as a page without scripts: FastAPI's own would load some from elsewhere."""
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
    import uvicorn

    from .connections import Prompt

    torch.set_num_threads(threads)
    app = create_app(runs, token=token, local=is_loopback(host), names=names, warm=True)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_keep_alive=20,
        limit_concurrency=200, timeout_graceful_shutdown=3, proxy_headers=False, http=Prompt,
    )  # fmt: skip
    server = uvicorn.Server(config)
    threading.Thread(target=_when_up, args=(server, ready), daemon=True).start()
    server.run(sockets=[at])


def _when_up(server: Any, ready: Callable[[], None]) -> None:
    import time

    while not server.started and not server.should_exit:
        time.sleep(0.02)
    if server.started:
        ready()
