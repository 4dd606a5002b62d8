"""The studio's server: every answer is the library's own, every limit holds, nothing leaks."""

import asyncio
import base64
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import torch
import uvicorn
from fastapi.testclient import TestClient
from PIL import Image

import linearizer as lz
from conftest import PATIENCE
from linearizer.apps.dynamics import use as simulating
from linearizer.apps.flow.studio import one_step
from linearizer.apps.flow.use import Steps
from linearizer.apps.page import Limits
from linearizer.apps.projector.use import usualness
from linearizer.apps.readout.use import edit_images
from linearizer.apps.registry import find_app
from linearizer.data import simulate
from linearizer.metrics.images import psnr
from linearizer.runs.algebra import draw_points
from linearizer.runs.store import SHIPPED, open_run, save
from linearizer.studio import connections, general, guards
from linearizer.studio.desk import Catalogue, Desk, Kept, hide_paths
from linearizer.studio.listening import listen
from linearizer.studio.pages import list_rooms
from linearizer.studio.server import create_app

HERE = "http://127.0.0.1:8765"


@pytest.fixture(autouse=True)
def single_precision():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        yield
    torch.set_default_dtype(before)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return create_app(tmp_path_factory.mktemp("studio") / "runs")


@pytest.fixture(scope="module")
def client(app):
    with TestClient(app, base_url=HERE) as found:
        yield found


def own(tmp_path, **settings):
    """A client of a studio of its own, with the folder of runs."""
    runs = tmp_path / "runs"
    runs.mkdir(exist_ok=True)
    limits = settings.pop("limits", None)
    app = create_app(runs, limits and Limits(**limits), **settings)
    return TestClient(app, base_url=HERE), runs


def url(pixels, kind="PNG"):
    """A data URL of bytes (H, W) or (H, W, 3)."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    raw = base64.b64encode(file.getvalue()).decode()
    return f"data:image/{kind.lower()};base64,{raw}"


def bytes_of(data_url):
    """(C, H, W) bytes of a picture in an answer."""
    head, _, raw = data_url.partition(",")
    assert head == "data:image/png;base64"
    pixels = torch.from_numpy(np.array(Image.open(io.BytesIO(base64.b64decode(raw)))))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


def shown(x):
    """What a picture of x holds."""
    return x.clamp(0, 1).mul(255).round().to(torch.uint8)


def same(data_url, x):
    """A picture is x, but for one level where two threads round differently."""
    gap = bytes_of(data_url).int() - shown(x).int()
    return gap.shape == x.shape and int(gap.abs().max()) <= 1


def digit(seed=0):
    """A digit that the shipped flow makes, (1, 32, 32), on whole grey levels; and its URL."""
    f = lz.load("mnist-flow").collapse("rk4", 100)
    pixels = shown(f(lz.load("mnist-flow").noise(1, seed))[0])
    return pixels / 255, url(pixels[0].numpy())


def photo(height=96, width=128):
    rows, columns = np.mgrid[0:height, 0:width]
    red = 255 * columns // width
    return np.stack([red, 255 * rows // height, 255 - red], 2).astype(np.uint8)


def post(client, path, **body):
    answer = client.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def error(answer, status):
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    sentence = answer.json()["error"]
    assert "Traceback" not in sentence and str(SHIPPED) not in sentence
    return sentence


# -- models ------------------------------------------------------------------------------------


def test_shipped_models_are_listed_with_the_limits(client):
    found = client.get("/api/models").json()
    assert found["version"] == lz.__version__
    assert [row["id"] for row in found["models"]] == lz.models()
    row = next(r for r in found["models"] if r["id"] == "mnist-flow")
    assert (row["app"], row["shape"], row["data"]) == ("flow", [1, 32, 32], "mnist")
    assert row["shipped"] and row["problem"] == "" and row["metric"] is None
    assert found["limits"] == {"upload_bytes": 8 << 20, "image_side": 4096, "samples": 64}


def test_a_model_is_told_by_its_own_facts(client):
    flow = client.get("/api/model", params={"model": "mnist-flow"}).json()
    f = lz.load("mnist-flow")()
    assert (flow["rank"], flow["dim"]) == (f.rank(), 1024)
    assert flow["solvers"] == list(lz.solvers.SOLVERS) and flow["directions"] == 8
    assert torch.allclose(torch.tensor(flow["singular_values"]), f.operator.svd(12).S, rtol=1e-4)
    assert flow["parameters"] == sum(p.numel() for p in lz.load("mnist-flow").parameters())
    projector = client.get("/api/model", params={"model": "mnist-projector"}).json()
    assert projector["ranks"] == [1, 2, 4, 8, 16, 32, 64, 128] and projector["rank"] == 32
    style = client.get("/api/model", params={"model": "styles"}).json()
    assert style["styles"] == ["candy", "mosaic", "rain_princess", "udnie"]
    motion = client.get("/api/model", params={"model": "pendulum"}).json()
    mode = lz.load("pendulum").spectrum()[0]
    assert motion["names"] == ["θ", "ω"] and len(motion["ranges"]) == 2
    assert motion["ranges"][0] == [-2.0, 2.0]
    assert motion["modes"][0]["rate"] == pytest.approx(mode.rate)
    assert motion["modes"][0]["eigenvalue"][1] == pytest.approx(2 * torch.pi * mode.frequency)
    readout = client.get("/api/model", params={"model": "mnist-attributes"}).json()
    assert readout["names"] == list("0123456789") and readout["kind"] == "classes"
    assert readout["generator"] == "mnist-flow"


def test_a_forecaster_of_ones_own_is_told_by_its_channels(tmp_path):
    client, runs = own(tmp_path)
    forecast = find_app("forecast")
    config = forecast.Config(columns=("rain", "wind"), look_back=8, horizon=4)
    save(forecast.make(config), runs / "weather")
    (row,) = [r for r in client.get("/api/models").json()["models"] if not r["shipped"]]
    assert row["id"] == "runs/weather" and row["app"] == "forecast" and row["shape"] == [8, 2]
    facts = client.get("/api/model", params={"model": "runs/weather"}).json()
    config = facts["config"]
    assert config["columns"] == ["rain", "wind"]
    assert (config["look_back"], config["horizon"]) == (8, 4)


# -- flows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", lz.solvers.SOLVERS)
def test_samples_are_those_of_the_library(client, solver):
    found = post(client, "generate", model="mnist-flow", seed=3, n=5, steps=7, solver=solver)
    model = lz.load("mnist-flow")
    x = model.collapse(solver, 7)(model.noise(5, 3))
    assert len(found["images"]) == 5 and found["steps"] == 7
    assert all(same(image, one) for image, one in zip(found["images"], x, strict=True))


def test_directions_move_the_noise_along_singular_vectors(client):
    asked = {"model": "mnist-flow", "seed": 1, "n": 2, "steps": 20, "temperature": 0.5}
    found = post(client, "generate", **asked, directions=[0.0, 2.0, -1.5])
    model = lz.load("mnist-flow")
    f = model.collapse("rk4", 20)
    V = f.operator.svd(8).V
    z = f.source.coordinates(0.5 * model.noise(2, 1)) + 2.0 * V[:, 1] - 1.5 * V[:, 2]
    x = f(f.source.points(z))
    assert all(same(image, one) for image, one in zip(found["images"], x, strict=True))
    still = post(client, "generate", **asked, directions=[0.0, 0.0])
    assert still["images"] == post(client, "generate", **asked)["images"] != found["images"]


def test_one_step_is_checked_against_the_loop(client):
    found = post(client, "generate/check", model="mnist-flow", seed=2, steps=9, solver="midpoint")
    model = lz.load("mnist-flow")
    noise = model.noise(1, 2)
    gap = model.collapse("midpoint", 9)(noise) - model.integrate(noise, "midpoint", 9)
    assert found["difference"] == pytest.approx(float(gap.abs().max()), abs=1e-4)
    assert found["difference"] < 1e-4 and found["mean_square"] < 1e-8
    assert found["loop_milliseconds"] > 0 and found["one_step_milliseconds"] > 0


def test_an_image_is_encoded_and_comes_back(client):
    x, image = digit(4)
    found = post(client, "encode", model="mnist-flow", image=image)
    f = lz.load("mnist-flow")()
    code = f.pinv()(x[None])
    back = f(code)
    assert same(found["input"], x) and same(found["reconstruction"], back[0])
    assert found["psnr"] == pytest.approx(float(psnr(back.clamp(0, 1), x[None])), abs=0.1)
    assert found["norm"] == pytest.approx(float(code.norm()), rel=1e-3)
    assert found["notes"] == []
    small = post(client, "encode", model="mnist-flow", image=url(np.zeros((28, 28), np.uint8)))
    assert small["notes"] == ["image: converted, a zero border to 32×32"]


def test_interpolation_is_a_geodesic_beside_the_cross_fade(client):
    (a, first), (b, second) = digit(5), digit(6)
    found = post(client, "interpolate", model="mnist-flow", a=first, b=second, frames=3)
    f = lz.load("mnist-flow")()
    codes = f.pinv()(torch.stack([a, b]))
    path = f(codes[0][None].lerp(codes[1][None], 0.5))
    assert same(found["a"], a) and same(found["b"], b)
    assert same(found["images"][1], path[0]) and same(found["crossfade"][1], (a + b) / 2)
    assert same(found["images"][0], f(codes)[0]) and same(found["crossfade"][2], b)


# -- projectors, styles, dynamics, readouts ----------------------------------------------------


def test_projections_and_scores_are_those_of_the_library(client):
    x, image = digit(7)
    model = lz.load("mnist-projector")
    for rank in (None, 8, 32):
        found = post(client, "project", model="mnist-projector", image=image, rank=rank)
        f = model(rank)
        once = f(x[None])
        score = model.score(x[None], rank)
        assert same(found["input"], x) and same(found["image"], once[0])
        assert same(found["again"], f(once)[0]) and found["difference"] < 1e-4
        assert found["score"] == pytest.approx(float(score), rel=1e-3)
        assert found["rank"] == (rank or 32)
        if rank == 8:
            assert found["usual"] is None
        else:  # 32 is the rank as it was trained
            assert found["usual"] == pytest.approx(float(usualness(model, score)), abs=0.02)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_styles_are_blended_and_undone_on_floats(client, kind):
    image = url(photo(), kind)
    mix = {"candy": 0.6, "mosaic": 0.4}
    found = post(
        client, "stylize", model="styles", image=image, mix=mix, strength=0.8, size=64,
        undo=kind == "PNG",
    )  # fmt: skip
    model = lz.load("styles")
    raw = np.array(Image.open(io.BytesIO(base64.b64decode(image.partition(",")[2]))))
    whole = torch.from_numpy(raw).permute(2, 0, 1)[None] / 255
    x = torch.nn.functional.interpolate(whole, (48, 64), mode="bilinear", antialias=True)
    kernel = model.blend(mix, 0.8)
    made = model.render(x, kernel)
    assert same(found["photo"], x[0]) and same(found["image"], made[0])
    if kind == "PNG":
        assert found["undone_psnr"] > 40
        assert same(found["undone"], model.render(made, kernel, undo=True)[0])
    else:
        assert found["undone"] is None and found["undone_psnr"] is None


def test_a_photo_is_there_to_begin_with_and_comes_back_to_rounding(client):
    found = post(client, "photo")
    assert "scikit-learn" in found["title"] and max(bytes_of(found["image"]).shape) == 640
    asked = {"image": found["image"], "mix": {"udnie": 1.0}, "size": 64, "undo": True}
    made = post(client, "stylize", model="styles", **asked)
    # 64 × 43 is cut to sides that divide: what is padded and cut off could not be undone.
    assert bytes_of(made["photo"]).shape == (3, 40, 64) and made["undone_psnr"] > 50


def test_motion_is_that_of_the_library_with_the_true_system_beside_it(client):
    found = post(client, "dynamics", model="pendulum", start=[1.0, 0.5], t0=-1, t1=3, points=41)
    model = lz.load("pendulum")
    states = model.simulate(torch.tensor([[1.0, 0.5]]), found["times"])[0]
    assert torch.allclose(torch.tensor(found["states"]), states, atol=1e-4)
    assert found["times"][0] == -1 and abs(found["times"][10]) < 1e-12
    true = torch.tensor(found["reference"], dtype=torch.float64)
    assert torch.allclose(true[10], torch.tensor([1.0, 0.5]).double())
    # ẋ by central differences is what the system says, backwards in time as well.
    rate = (true[2:] - true[:-2]) / 0.2
    speed, force = true[1:-1, 1], -true[1:-1, 0].sin() - 0.1 * true[1:-1, 1]
    assert torch.allclose(rate, torch.stack([speed, force], 1), atol=5e-3)
    off = post(client, "dynamics", model="duffing", start=[1.0, 0.5], t1=2, points=5, off=[0])
    less = lz.load("duffing").without([0]).simulate(torch.tensor([[1.0, 0.5]]), off["times"])[0]
    assert torch.allclose(torch.tensor(off["states"]), less, atol=1e-4)
    far = post(client, "dynamics", model="pendulum", start=[1.0, 0.5], t0=-1e6, t1=0, points=2)
    assert far["reference"] is None and far["states"][0] == [None, None]


def test_the_reference_is_what_the_data_were_simulated_by():
    moves = simulate("duffing", 1, steps=6, dt=0.5, seed=3)
    run = open_run("duffing")
    true = simulating.reference(run, moves.x[0, :1], moves.t[0])
    assert torch.allclose(true, moves.x[0], atol=1e-8)


def test_edits_are_those_of_the_library(client):
    x, image = digit(8)
    found = post(client, "edit", model="mnist-attributes", image=image, wish="3", strength=0.7)
    model = lz.load("mnist-attributes")
    made = edit_images(model, x[None], "3", 0.7)
    assert same(found["image"], x) and same(found["edited"], made.image[0])
    assert list(found["scores"].values()) == pytest.approx(model()(x[None])[0].tolist(), abs=1e-3)
    assert list(found["edited_scores"].values()) == pytest.approx(
        made.edited_scores[0].tolist(), abs=1e-2
    )
    assert found["score_error"] < 1e-2
    # Without an image, one that a shipped flow makes of a seed.
    drawn = post(client, "edit", model="mnist-attributes", seed=8, wish="3")
    assert same(drawn["image"], x)


# -- algebra -----------------------------------------------------------------------------------


def test_spectrum_and_vectors_as_strips(client):
    found = client.get("/api/spectrum", params={"model": "mnist-attributes", "k": 3}).json()
    f = lz.load("mnist-attributes")()
    values = f.operator.svd().S
    assert torch.allclose(torch.tensor(found["singular_values"]), values, rtol=1e-4)
    assert found["rank"] == 10 and found["eigenvalues"] is None
    assert found["condition"] == pytest.approx(float(values[0] / values[-1]), rel=1e-3)
    assert len(found["vectors"]) == 3 and found["vectors"][0]["target"] is None
    strip = bytes_of(found["vectors"][1]["source"])
    assert strip.shape == (1, 32, 32 * found["frames"])
    v = f.svd(3).V[1:2]
    assert same(found["vectors"][1]["source"][:], torch.cat(
        [f.source.scale(c, v)[0] for c in (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)], 2
    ))  # fmt: skip


def test_eigenvalues_are_those_of_the_map_whose_singular_values_stand_beside_them(client):
    motion = client.get("/api/spectrum", params={"model": "pendulum"}).json()
    model = lz.load("pendulum")
    mode, T = model.spectrum()[0], model.config.horizon
    turned = np.exp((mode.rate + 2j * np.pi * mode.frequency) * T)
    found = [complex(*pair) for pair in motion["eigenvalues"]]
    wanted = sorted([turned, turned.conjugate()], key=lambda v: v.imag)
    assert sorted(found, key=lambda v: v.imag) == pytest.approx(wanted, abs=1e-4)
    assert motion["singular_values"] == pytest.approx([abs(v) for v in found], rel=1e-4)
    assert motion["rank"] == 2 and motion["condition"] == pytest.approx(1.0, rel=1e-4)


def test_rank_and_condition_are_those_of_the_whole_operator_or_null(tmp_path, monkeypatch):
    from linearizer.operators import Diagonal, LowRank

    client, _ = own(tmp_path)

    def spectrum(core):
        one = lz.Space(lz.bijections.Flatten((core.shape[0],)))
        monkeypatch.setattr(general, "map_of", lambda *_: lz.Linearizer(one, core, one))
        client.app.state.desk._kept = Kept(0)
        answer = client.get("/api/spectrum", params={"model": "pendulum", "k": 2})
        assert answer.status_code == 200, answer.text
        return answer.json()

    cut = spectrum(Diagonal(torch.linspace(1, 2, 600)))
    assert len(cut["singular_values"]) == 512 and (cut["rank"], cut["condition"]) == (None, None)
    zeros = spectrum(Diagonal(torch.cat([torch.tensor([4.0, 2.0]), torch.zeros(598)])))
    assert (zeros["rank"], zeros["condition"]) == (2, 2.0)
    tiny = spectrum(Diagonal(torch.tensor([1.0, 0.5, 1e-9])))  # rounding, by the tolerance
    assert (tiny["rank"], tiny["condition"]) == (2, 2.0)
    none = spectrum(LowRank(torch.zeros(4, 0), torch.zeros(4, 0)))
    assert none["singular_values"] == [] and none["vectors"] == []
    assert (none["rank"], none["condition"]) == (0, None)


def test_a_mode_that_is_not_finite_is_a_sentence(tmp_path):
    client, runs = own(tmp_path)
    model = lz.load("pendulum")
    model.decay.fill_(float("nan"))
    save(model, runs / "mine")
    answer = client.get("/api/spectrum", params={"model": "runs/mine"})
    assert "NaN or infinite" in error(answer, 422)


def test_laws_are_certified_without_data(client):
    found = client.get("/api/certify", params={"model": "duffing", "n": 4}).json()
    f = lz.load("duffing").double()()
    laws = f.certify(draw_points(f, 4)).laws
    assert [law["formula"] for law in found["laws"]] == [law.formula for law in laws]
    assert found["passed"] and found["complete"] and found["measured"] == len(laws)
    assert found["worst"] < 1e-8 and found["dtype"] == "float64" and found["points"] == 4
    assert {law["verdict"] for law in found["laws"]} == {"passed"}
    assert all(law["error"] <= law["tolerance"] < 1e-8 for law in found["laws"])
    assert 1 <= found["condition"]["X"] < 1e4 and found["digits"]["X"] > 11


def test_laws_of_large_maps_are_measured_on_fewer_points(client, monkeypatch):
    monkeypatch.setattr(general, "WORK", 8)
    found = client.get("/api/certify", params={"model": "pendulum", "n": 64}).json()
    assert found["points"] == 4 and found["passed"]
    monkeypatch.setattr(general, "WORK", 5)
    answer = client.get("/api/certify", params={"model": "pendulum"})
    said = "pendulum: expected a map of at most 1 coordinates, got 2. Measure its laws with"
    assert said in error(answer, 422)


def test_the_same_request_has_the_same_answer(client):
    asked = {"model": "mnist-flow", "seed": 11, "n": 3, "steps": 5}
    first, second = (post(client, "generate", **asked)["images"] for _ in range(2))
    assert first == second
    assert post(client, "generate", **asked | {"seed": 12})["images"] != first


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"model": "mnist-flow", "n": 0}, "n should be greater than or equal to 1, got '0'"),
        ({"model": "mnist-flow", "n": 65}, "n should be less than or equal to 64"),
        ({"model": "mnist-flow", "n": 2.5}, "n should be a valid integer"),
        ({"model": "mnist-flow", "n": "4"}, "n should be a valid integer"),
        ({"model": "mnist-flow", "n": True}, "n should be a valid integer"),
        ({"model": "mnist-flow", "steps": 1001}, "steps should be less than"),
        ({"model": "mnist-flow", "solver": "heun"}, "solver should be 'euler'"),
        ({"model": "mnist-flow", "directions": [0.0] * 9}, "directions List should have at most 8"),
        ({"model": "mnist-flow", "seed": -1}, "seed should be"),
        ({"model": "mnist-flow", "seed": 2**63}, "seed should be"),
        ({"model": "mnist-flow", "more": 1}, "there is no field 'more'"),
        ({"n": 1}, "model is missing"),
        ([], "the request's body"),
        ({"model": "mnist-projector"}, "expected a model of flow, but it holds projector"),
        ({"model": "mnist-flow", "directions": [30.0]}, "directions.0 should be"),
    ],
)
def test_wrong_fields_are_one_sentence(client, body, words):
    assert words in error(client.post("/api/generate", json=body), 422)


def test_many_wrong_entries_are_one_error(client, monkeypatch):
    from fastapi.exceptions import RequestValidationError

    counts, errors = [], RequestValidationError.errors
    monkeypatch.setattr(
        RequestValidationError,
        "errors",
        lambda self: counts.append(len(errors(self))) or errors(self),
    )
    many = {str(i): 0 for i in range(3000)}
    styled = {"model": "styles", "image": url(photo())}
    moved = {"model": "pendulum", "t1": 1.0}
    for path, body, words in [
        ("generate", many, "body: expected at most 7 fields, got 3,000."),
        ("stylize", many, "body: expected at most 6 fields, got 3,000."),
        (
            "stylize",
            {**styled, "mix": dict.fromkeys(many, "x")},
            "mix: expected at most 100 styles",
        ),
        ("dynamics", {**moved, "start": ["x"] * 3000}, "start.0 should be a valid number"),
        ("dynamics", {**moved, "start": [0.0] * 2, "off": ["x"] * 900}, "off.0 should be"),
        ("generate", {"model": [0] * 3000}, "model should be a valid string, got 3,000 entries."),
    ]:
        assert words in error(client.post(f"/api/{path}", json=body), 422)
    assert counts and set(counts) == {1}


def test_only_requests_with_images_may_be_large(client):
    found = client.get("/openapi.json").json()
    schemas = found["components"]["schemas"]
    held = {}
    for path, methods in found["paths"].items():
        if "post" in methods:
            body = methods["post"]["requestBody"]["content"]["application/json"]["schema"]
            held[path] = json.dumps(schemas[body["$ref"].rsplit("/", 1)[-1]]["properties"])
    holds = {f"/api/{r.path}": r.holds for room in list_rooms() for r in room.page.requests}
    assert held.keys() == holds.keys()
    for path, fields in held.items():
        assert ("data:image" in fields) == (holds[path] == "images"), path
        most = max(map(int, re.findall(r'"max(?:Items|Length)": (\d+)', fields)), default=0)
        assert (most >= 100_000) == (holds[path] == "state"), path
    head = {"content-type": "application/json"}
    large = b" " * ((64 << 10) + 1)
    for path in held:
        answer = client.post(path, content=large, headers=head)
        small = holds[path] == "little"
        assert answer.status_code == (413 if small else 400), path
        assert not small or "65,536 bytes" in error(answer, 413)
    entries = b'{"model": [' + b"0," * 10_001 + b"0]}"
    answer = client.post("/api/encode", content=entries, headers=head)
    assert "a few fields" in error(answer, 413)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_must_be_finite(client, number):
    body = f'{{"model": "mnist-flow", "temperature": {number}}}'
    head = {"content-type": "application/json"}
    answer = client.post("/api/generate", content=body, headers=head)
    assert "temperature should be a finite number" in error(answer, 422)
    body = f'{{"model": "pendulum", "t1": 1, "start": [0, {number}]}}'
    assert "start.1" in error(client.post("/api/dynamics", content=body, headers=head), 422)


@pytest.mark.parametrize(
    "body", [b"{", b"", b"\xff\xfe{}", b"[" * 60_000, b'{"n": ' + b"9" * 10_000 + b"}"]
)
def test_what_is_not_json_is_one_sentence(client, body):
    head = {"content-type": "application/json"}
    answer = client.post("/api/generate", content=body, headers=head)
    assert answer.status_code in (400, 422)
    error(answer, answer.status_code)


def test_a_form_or_plain_text_is_not_taken_for_json(client):
    # What a page of another site can send without asking.
    body = json.dumps({"model": "mnist-flow"})
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = client.post("/api/generate", content=body, headers={"content-type": kind})
        error(answer, 422)


def test_half_a_character_comes_back_as_a_sentence(client):
    body = rb'{"model": "\ud800"}'
    head = {"content-type": "application/json"}
    error(client.post("/api/generate", content=body, headers=head), 422)


@pytest.mark.parametrize(
    "name",
    [
        "../models/mnist-flow", "runs/../../etc", "runs/..", "runs/.", "runs//mine", "/etc/passwd",
        "runs/mine/../mine", "runs\\..\\mine", "..", "", ".", "runs", "runs/", "/runs/mine",
        "runs/mine/", "runs/mine/state", "file:///etc", "runs/mine\0", "runs/" + "a" * 300, "~",
        "mnist-flow/", "./mnist-flow", "mine", "models/mnist-flow", str(SHIPPED / "mnist-flow"),
    ],
)  # fmt: skip
def test_only_names_of_the_list_are_models(tmp_path, name):
    client, runs = own(tmp_path)
    shutil.copytree(SHIPPED / "pendulum", runs / "mine")
    (runs / "mine" / "state").mkdir()
    shutil.copy(SHIPPED / "pendulum" / "config.json", runs / "mine" / "state")
    for answer in (
        client.get("/api/model", params={"model": name}),
        client.post("/api/generate", json={"model": name}),
    ):
        assert answer.status_code == (404 if name else 422), answer.text
        assert str(tmp_path) not in answer.text
    assert client.get("/api/model", params={"model": "runs/mine"}).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/server.py",
        "/../pyproject.toml", "/static//etc/passwd", "/static/..\\server.py", "/nothing",
        "/api/nothing", "/static/",
    ],
)  # fmt: skip
def test_nothing_but_the_pages_files_is_handed_out(client, path):
    error(client.get(path), 404)


@pytest.mark.parametrize("link", ["folder", "config.json", "weights.safetensors"])
def test_links_out_of_the_runs_are_not_followed(tmp_path, link):
    client, runs = own(tmp_path)
    shutil.copytree(SHIPPED / "pendulum", tmp_path / "secret")
    if link == "folder":
        (runs / "mine").symlink_to(tmp_path / "secret")
    else:
        shutil.copytree(SHIPPED / "pendulum", runs / "mine")
        (runs / "mine" / link).unlink()
        (runs / "mine" / link).symlink_to(tmp_path / "secret" / link)
    answer = client.get("/api/model", params={"model": "runs/mine"})
    assert "out of the folder of runs" in error(answer, 404)
    rows = [r for r in client.get("/api/models").json()["models"] if not r["shipped"]]
    assert all("out of the folder" in row["problem"] and row["app"] == "?" for row in rows)
    assert str(tmp_path) not in client.get("/api/models").text


def test_a_link_within_the_runs_is_followed(tmp_path):
    client, runs = own(tmp_path)
    shutil.copytree(SHIPPED / "pendulum", runs / "old")
    (runs / "new").symlink_to(runs / "old")
    assert client.get("/api/model", params={"model": "runs/new"}).status_code == 200


def test_runs_appear_and_change_while_it_runs(tmp_path):
    client, runs = own(tmp_path)
    asked = {"params": {"model": "runs/deep/mine"}}
    assert "no model 'runs/deep/mine'" in error(client.get("/api/model", **asked), 404)
    shutil.copytree(SHIPPED / "pendulum", runs / "deep" / "mine")
    names = [row["id"] for row in client.get("/api/models").json()["models"]]
    assert names == [*lz.models(), "runs/deep/mine"]
    assert client.get("/api/model", **asked).json()["names"] == ["θ", "ω"]
    for file in ("config.json", "weights.safetensors"):
        shutil.copy(SHIPPED / "duffing" / file, runs / "deep" / "mine" / file)
    assert client.get("/api/model", **asked).json()["names"] == ["x", "v"]
    shutil.rmtree(runs / "deep")
    error(client.get("/api/model", **asked), 404)


def test_a_flow_that_changes_while_it_is_opened_is_not_kept(tmp_path, monkeypatch):
    shutil.copytree(SHIPPED / "mnist-flow", tmp_path / "runs" / "mine")
    desk, steps = Desk(Catalogue(tmp_path / "runs"), Limits()), Steps("euler", 1)

    def changing(run):
        opened = open_run(run)
        os.utime(tmp_path / "runs" / "mine" / "config.json", ns=(1, 1))
        return opened

    monkeypatch.setattr("linearizer.studio.desk.open_run", changing)
    first = one_step(desk, "runs/mine", steps)
    second = one_step(desk, "runs/mine", steps)
    assert second is not first
    assert one_step(desk, "runs/mine", steps) is second


@pytest.mark.parametrize("change", ["replaced", "deleted", "without weights"])
def test_a_run_that_changes_while_it_answers_is_a_sentence(tmp_path, monkeypatch, change):
    client, runs = own(tmp_path)
    shutil.copytree(SHIPPED / "pendulum", runs / "mine")
    asked = {"params": {"model": "runs/mine"}}

    def changing(run):
        opened = open_run(run)
        if change == "replaced":
            shutil.copy(SHIPPED / "duffing" / "config.json", runs / "mine")
        elif change == "deleted":
            shutil.rmtree(runs / "mine")
        else:
            (runs / "mine" / "weights.safetensors").unlink()
        opened.model.config = None  # of another application it lacks what that one has
        return opened

    with monkeypatch.context() as patched:
        patched.setattr("linearizer.studio.desk.open_run", changing)
        sentence = error(client.get("/api/model", **asked), 404 if change == "deleted" else 409)
    expected = "there is no model" if change == "deleted" else "its files changed meanwhile"
    assert expected in sentence
    if change != "replaced":  # once it is open as well
        error(client.get("/api/model", **asked), 404)


def test_a_run_that_is_open_is_gone_once_its_weights_are(tmp_path):
    client, runs = own(tmp_path)
    shutil.copytree(SHIPPED / "pendulum", runs / "mine")
    asked = {"params": {"model": "runs/mine"}}
    assert client.get("/api/model", **asked).status_code == 200
    (runs / "mine" / "weights.safetensors").unlink()
    assert "no weights.safetensors yet" in error(client.get("/api/model", **asked), 404)
    (runs / "mine" / "weights.safetensors").symlink_to("weights.safetensors")  # to itself
    error(client.get("/api/model", **asked), 404)
    assert client.get("/api/models").json()["models"][-1]["problem"] == "no weights yet"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes have names on POSIX alone")
@pytest.mark.parametrize("name", ["config.json", "weights.safetensors"])
def test_a_pipe_in_a_run_is_not_waited_for(tmp_path, name):
    client, runs = own(tmp_path)
    shutil.copytree(SHIPPED / "pendulum", runs / "mine")
    (runs / "mine" / name).unlink()
    os.mkfifo(runs / "mine" / name)
    assert client.get("/api/models").status_code == 200
    answer = client.get("/api/model", params={"model": "runs/mine"})
    error(answer, 404 if name == "config.json" else 422)


def test_the_list_is_read_once_a_second_and_the_photo_once(tmp_path, monkeypatch):
    client, runs = own(tmp_path)
    desk, now, read = client.app.state.desk, [0.0], []
    monkeypatch.setattr("linearizer.studio.general.time.monotonic", lambda: now[0])
    rows, listed = desk.catalogue.rows, general.Models(desk)
    desk.catalogue.rows = lambda: read.append(now[0]) or rows()
    assert [row["id"] for row in listed.list()["models"]] == lz.models()
    shutil.copytree(SHIPPED / "pendulum", runs / "mine")
    now[0] = 0.9
    assert [row["id"] for row in listed.list()["models"]] == lz.models()
    now[0] = 1.0
    assert listed.list()["models"][-1]["id"] == "runs/mine" and read == [0.0, 1.0]

    drawn = []
    grey = torch.zeros(3, 8, 8, dtype=torch.uint8)
    monkeypatch.setattr(
        "linearizer.apps.style.studio.example_photo", lambda: drawn.append(1) or (grey, "grey")
    )
    assert post(client, "photo") == post(client, "photo") and drawn == [1]


def test_broken_runs_are_listed_with_their_problem(tmp_path):
    client, runs = own(tmp_path)
    for name in ("cut", "words", "foreign", "half", "mixed"):
        shutil.copytree(SHIPPED / "pendulum", runs / name)
    weights = (runs / "cut" / "weights.safetensors").read_bytes()
    (runs / "cut" / "weights.safetensors").write_bytes(weights[:1000])
    (runs / "words" / "config.json").write_text("no JSON")
    (runs / "foreign" / "config.json").write_text('{"format": 1, "app": "none", "model": {}}')
    (runs / "half" / "weights.safetensors").unlink()
    shutil.copy(SHIPPED / "duffing" / "weights.safetensors", runs / "mixed")
    rows = {r["id"]: r for r in client.get("/api/models").json()["models"] if not r["shipped"]}
    assert set(rows) == {f"runs/{n}" for n in ("cut", "words", "foreign", "half", "mixed")}
    assert "expected JSON" in rows["runs/words"]["problem"]
    assert rows["runs/half"]["problem"] == "no weights yet"
    assert "'none' is not known here" in rows["runs/foreign"]["problem"]
    for name, status in (
        ("cut", 422), ("words", 422), ("foreign", 422), ("half", 404), ("mixed", 422),
    ):  # fmt: skip
        answer = client.get("/api/model", params={"model": f"runs/{name}"})
        assert str(tmp_path) not in error(answer, status)
    assert str(tmp_path) not in client.get("/api/models").text
    assert client.get("/api/model", params={"model": "pendulum"}).status_code == 200


def test_a_metric_of_400_digits_is_left_out(tmp_path):
    client, runs = own(tmp_path)
    shutil.copytree(SHIPPED / "pendulum", runs / "mine")
    line = f'{{"step": 1, "seconds": 1.0, "validation": {{"error": 1{"0" * 400}}}}}\n'
    (runs / "mine" / "metrics.jsonl").write_text(line)
    row = client.get("/api/models").json()["models"][-1]
    assert row["metric"] is None and not row["problem"]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1e999"])
def test_a_metric_that_is_not_finite_is_null(tmp_path, value):
    client, runs = own(tmp_path)
    shutil.copytree(SHIPPED / "pendulum", runs / "mine")
    config = json.loads((runs / "mine" / "config.json").read_text())
    config["metric"] = {"name": "error", "maximize": False}
    (runs / "mine" / "config.json").write_text(json.dumps(config))
    line = f'{{"step": 1, "seconds": 1.0, "validation": {{"error": {value}}}}}\n'
    (runs / "mine" / "metrics.jsonl").write_text(line)
    answer = client.get("/api/models")
    assert answer.status_code == 200, answer.text
    assert answer.json()["models"][-1]["metric"] == {"name": "error", "value": None}


def test_answers_have_null_for_what_is_not_finite(tmp_path, monkeypatch):
    client, _ = own(tmp_path)
    found = {"id": "pendulum", "config": {"horizon": float("inf"), "range": [(1.0, float("nan"))]}}
    monkeypatch.setattr(general, "facts", lambda desk, id: found)
    answer = client.get("/api/model", params={"model": "pendulum"})
    assert answer.json() == {"id": "pendulum", "config": {"horizon": None, "range": [[1.0, None]]}}


def test_no_pickle_is_opened(tmp_path):
    client, runs = own(tmp_path)
    shutil.copytree(SHIPPED / "pendulum", runs / "mine")
    torch.save({"a": torch.zeros(1)}, runs / "mine" / "weights.safetensors")
    answer = client.get("/api/model", params={"model": "runs/mine"})
    assert "pickle" in error(answer, 422)


def test_sentences_show_no_folder_of_the_machine(tmp_path):
    runs = tmp_path / "runs"
    said = hide_paths(f"{runs}/a/config.json: expected JSON, like /etc/x/y.json.", runs)
    assert said == "runs/a/config.json: expected JSON, like y.json."
    assert hide_paths(f"{SHIPPED}/styles: no.", runs) == "styles: no."
    assert hide_paths("f(x)/2 and 3/4 of a, b/c", runs) == "f(x)/2 and 3/4 of a, b/c"


# -- images ------------------------------------------------------------------------------------


def bomb(side):
    """A PNG of a few bytes that claims to be very large."""

    def chunk(kind, body):
        check = zlib.crc32(kind + body).to_bytes(4, "big")
        return len(body).to_bytes(4, "big") + kind + body + check

    header = side.to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    raw = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))
    return "data:image/png;base64," + base64.b64encode(raw + chunk(b"IEND", b"")).decode()


def gif():
    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "GIF")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


@pytest.mark.parametrize(
    ("image", "status", "words"),
    [
        (bomb(60_000), 413, "4,096 pixels a side, but it claims more"),
        (bomb(5_000), 413, "4,096 pixels a side"),
        (bomb(3_000), 422, "readable image, but it is broken"),
        (gif(), 422, "are not one"),
        ("data:image/png;base64,AAAA", 422, "its 3 bytes are not one"),
        ("data:image/png;base64,AAA", 422, "base64 cannot be read"),
        ("data:image/png;base64,", 422, "expected a data URL"),
        ("data:image/gif;base64,AAAA", 422, "expected a data URL"),
        ("data:image/svg+xml;base64,AAAA", 422, "expected a data URL"),
        ("http://127.0.0.1/a.png", 422, "expected a data URL"),
        ("file:///etc/passwd", 422, "expected a data URL"),
        ("data:image/png;base64,AA AA", 422, "expected a data URL"),
        ("data:image/png;base64,AAAA\n", 422, "expected a data URL"),
        (7, 422, "image should be a valid string"),
        (None, 422, "image should be a valid string"),
    ],
)
def test_what_is_no_image_is_refused(client, image, status, words):
    answer = client.post("/api/project", json={"model": "mnist-projector", "image": image})
    assert words in error(answer, status)


def test_an_image_is_decoded_as_what_it_was_checked_for(client, monkeypatch):
    taken, opening = [], Image.open

    def spy(file, mode="r", formats=None):
        taken.append(formats)
        return opening(file, mode, formats)

    monkeypatch.setattr(Image, "open", spy)
    post(client, "project", model="mnist-projector", image=url(np.zeros((32, 32), np.uint8)))
    assert len(taken) > 1 and set(taken) == {("PNG", "JPEG", "WEBP")}


def test_a_cut_image_is_refused(client):
    whole = url(photo())
    raw = base64.b64decode(whole.partition(",")[2])
    cut = "data:image/png;base64," + base64.b64encode(raw[: len(raw) // 2]).decode()
    for path, model, more in (
        ("project", "mnist-projector", {}), ("stylize", "styles", {"mix": {"candy": 1.0}}),
    ):  # fmt: skip
        answer = client.post(f"/api/{path}", json={"model": model, "image": cut, **more})
        assert "broken" in error(answer, 422)


def test_images_have_a_limit_of_bytes_and_sides(tmp_path):
    client, _ = own(tmp_path, limits={"upload_bytes": 2000, "image_side": 40})
    noise = np.random.default_rng(0).integers(0, 255, (40, 40), dtype=np.uint8)
    asked = {"model": "mnist-projector", "image": url(noise)}
    assert client.post("/api/project", json=asked).status_code == 200
    wide = {**asked, "image": url(np.zeros((2, 41), np.uint8))}
    assert "40 pixels a side" in error(client.post("/api/project", json=wide), 413)
    large = {**asked, "image": url(np.stack([noise] * 3, 2))}
    assert "2,000 bytes" in error(client.post("/api/project", json=large), 413)


def test_a_body_is_measured_while_it_comes(tmp_path):
    client, _ = own(tmp_path, limits={"body_bytes": 1000})
    head = {"content-type": "application/json"}
    answer = client.post("/api/generate", content=b" " * 1001, headers=head)
    assert "at most 1,000 bytes" in error(answer, 413)
    sent = 0

    def stream():  # no length is told beforehand
        nonlocal sent
        for _ in range(100):
            sent += 100
            yield b" " * 100

    answer = client.post("/api/generate", content=stream(), headers=head)
    assert "at most 1,000 bytes" in error(answer, 413)
    for length in ("-5", "many", "9" * 30):
        answer = client.post(
            "/api/generate", content=b"", headers={"content-length": length, **head}
        )
        error(answer, 413)


def test_a_body_that_never_comes_is_not_waited_for(tmp_path):
    client, _ = own(tmp_path, limits={"body_seconds": 0.05})
    app = client.app
    sent = []

    async def receive():
        await asyncio.sleep(PATIENCE)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/api/generate", "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1), "scheme": "http", "http_version": "1.1", "raw_path": b"",
        "root_path": "", "server": ("127.0.0.1", 8765),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 408 and b"did not arrive" in sent[1]["body"]


def test_few_large_requests_are_read_at_a_time(tmp_path):
    client, _ = own(tmp_path, limits={"large": 1, "small_bytes": 100})
    gate, head = client.app.state.gate, {"content-type": "application/json"}

    def stream():  # no length is told beforehand
        yield b" " * 60
        yield b" " * 60

    with gate.body() as come:
        come(101)
        for body in (b" " * 101, stream()):
            answer = client.post("/api/encode", content=body, headers=head)
            assert "1 large requests" in error(answer, 503) and answer.headers["retry-after"] == "2"
        error(client.post("/api/encode", content=b" " * 100, headers=head), 400)
        assert gate.large == 1
    assert gate.large == 0
    for body in (b" " * 101, stream()):
        error(client.post("/api/encode", content=body, headers=head), 400)
    assert gate.large == 0


def test_sizes_that_would_take_long_are_refused(client):
    image = url(photo(8, 8))
    asked = {"model": "styles", "image": image, "mix": {"candy": 1.0}}
    assert "up to 384" in error(
        client.post("/api/stylize", json={**asked, "undo": True, "size": 385}), 422
    )
    error(client.post("/api/stylize", json={**asked, "size": 1025}), 422)
    error(client.post("/api/stylize", json={**asked, "mix": {}}), 422)
    assert "no style 'candle'" in error(
        client.post("/api/stylize", json={**asked, "mix": {"candle": 1.0}}), 422
    )


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("dynamics", {"model": "pendulum", "start": [0.0], "t1": 1}, "expected 2 numbers"),
        ("dynamics", {"model": "pendulum", "start": [0, 0], "t1": 1, "off": [9]}, "modes 0 to 0"),
        (
            "dynamics",
            {"model": "mnist-flow", "start": [0, 0], "t1": 1},
            "expected a model of dynamics",
        ),
        ("edit", {"model": "mnist-attributes", "wish": "eleven"}, "no output 'eleven'"),
        ("edit", {"model": "mnist-attributes", "wish": "3=nan"}, "expected 3=NUMBER"),
        ("edit", {"model": "pendulum", "wish": "3"}, "expected a model of attributes or distill"),
        ("project", {"model": "mnist-projector", "rank": 129}, "expected 0 ≤ rank ≤ 128"),
        ("project", {"model": "styles"}, "expected a model of projector"),
        ("encode", {"model": "styles"}, "expected a model of flow"),
        ("stylize", {"model": "pendulum", "mix": {"candy": 1}}, "expected a model of style"),
    ],
)
def test_what_a_model_cannot_do_is_one_sentence(client, path, body, words):
    if path in ("project", "encode", "stylize"):
        body = {**body, "image": digit()[1]}
    assert words in error(client.post(f"/api/{path}", json=body), 422)


def test_a_readout_of_other_images_asks_for_one(tmp_path):
    client, runs = own(tmp_path)
    shutil.copytree(SHIPPED / "mnist-attributes", runs / "mine")
    config = json.loads((runs / "mine" / "config.json").read_text())
    config["data"]["name"] = "letters"
    (runs / "mine" / "config.json").write_text(json.dumps(config))
    answer = client.post("/api/edit", json={"model": "runs/mine", "wish": "3"})
    assert "Give an image" in error(answer, 422)


# -- crowds ------------------------------------------------------------------------------------


class Slow:
    """Answers that wait until they are let go."""

    def __init__(self, monkeypatch):
        self.go, self.running, self.most, self.done = threading.Event(), 0, 0, 0
        self.lock = threading.Lock()
        monkeypatch.setattr(general, "facts", self)
        monkeypatch.setattr(Desk, "keep", lambda desk, id, what, make: make())

    def __call__(self, desk, id):
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        assert self.go.wait(PATIENCE)
        with self.lock:
            self.running -= 1
            self.done += 1
        return {"id": id}


def crowd(app, names, let_go, addresses=None):
    """All answers to requests sent together; ``let_go`` is awaited with the tasks under way."""

    async def run():
        async def one(i, name):
            at = addresses[i] if addresses else f"10.0.0.{i}"
            transport = httpx.ASGITransport(app=app, client=(at, 1))
            async with httpx.AsyncClient(
                transport=transport, base_url=HERE, timeout=PATIENCE
            ) as client:
                return await client.get("/api/model", params={"model": name})

        tasks = [asyncio.create_task(one(i, name)) for i, name in enumerate(names)]
        await let_go(tasks)
        return await asyncio.gather(*tasks)

    return asyncio.run(run())


async def until(true):
    while not true():
        await asyncio.sleep(0.01)


def test_a_full_queue_is_refused_at_once_and_nothing_is_lost(tmp_path, monkeypatch):
    client, _ = own(tmp_path, limits={"waiting": 5})
    slow = Slow(monkeypatch)

    async def let_go(tasks):
        await until(lambda: sum(t.done() for t in tasks) == 7)  # refused while the others wait
        assert slow.done == 0 and client.app.state.gate.waiting == 5
        slow.go.set()

    answers = crowd(client.app, ["pendulum"] * 12, let_go)
    codes = [a.status_code for a in answers]
    assert codes.count(200) == 5 and codes.count(503) == 7 and slow.done == 5
    busy = next(a for a in answers if a.status_code == 503)
    assert busy.headers["retry-after"] == "2" and "busy" in busy.json()["error"]
    assert slow.most == 1  # one at a time for a model
    assert client.app.state.gate.waiting == 0 and not client.app.state.gate._locks


def test_two_models_work_at_a_time(tmp_path, monkeypatch):
    client, _ = own(tmp_path, limits={"workers": 2})
    slow = Slow(monkeypatch)

    async def let_go(tasks):
        await until(lambda: slow.running == 2)
        slow.go.set()

    answers = crowd(client.app, ["pendulum", "duffing", "styles", "pendulum"], let_go)
    assert [a.status_code for a in answers] == [200] * 4 and slow.most == 2
    assert [a.json()["id"] for a in answers] == ["pendulum", "duffing", "styles", "pendulum"]


def test_one_client_cannot_take_all_places(tmp_path, monkeypatch):
    client, _ = own(tmp_path, limits={"per_client": 2})
    slow = Slow(monkeypatch)

    async def let_go(tasks):
        await until(lambda: sum(t.done() for t in tasks) == 3)
        slow.go.set()

    addresses = ["10.0.0.1"] * 5 + ["10.0.0.2"]
    answers = crowd(client.app, ["pendulum"] * 6, let_go, addresses)
    assert [a.status_code for a in answers] == [200, 200, 429, 429, 429, 200]
    assert answers[2].headers["retry-after"] == "1"
    assert "this address has 2 under way" in answers[2].json()["error"]
    assert not client.app.state.gate.clients


def test_what_takes_too_long_is_told_so_and_keeps_its_place(tmp_path, monkeypatch):
    client, _ = own(tmp_path, limits={"seconds": 0.3, "waiting": 3})
    slow = Slow(monkeypatch)

    async def let_go(tasks):
        await until(lambda: all(t.done() for t in tasks))
        # The first is still at work; those behind it were taken out of the queue.
        assert slow.running == 1 and client.app.state.gate.waiting == 1
        slow.go.set()
        await until(lambda: client.app.state.gate.waiting == 0)

    answers = crowd(client.app, ["pendulum"] * 3, let_go)
    assert [a.status_code for a in answers] == [504] * 3 and slow.done == 1
    assert "no answer within 0.3 seconds" in answers[0].json()["error"]
    assert client.get("/api/model", params={"model": "pendulum"}).status_code == 200


def test_work_waiting_for_a_thread_is_dropped_after_its_time(tmp_path, monkeypatch):
    client, _ = own(tmp_path, limits={"seconds": 0.3, "workers": 1})
    slow = Slow(monkeypatch)

    async def let_go(tasks):
        await until(lambda: all(t.done() for t in tasks))
        slow.go.set()
        await until(lambda: client.app.state.gate.waiting == 0)

    answers = crowd(client.app, ["pendulum", "duffing"], let_go)
    assert [a.status_code for a in answers] == [504, 504] and slow.done == 1


class Long:
    """Work on a model that ends by itself only after many rounds."""

    ROUNDS = 20_000

    def __init__(self, desk):
        self.desk, self.rounds = desk, 0

    def __call__(self, *_):
        f = self.desk.open("pendulum").model(1.0)
        while self.rounds < self.ROUNDS:
            self.rounds += 1
            f(torch.zeros(1, 2))
        return {}


def test_work_ends_when_its_time_is_over(tmp_path, monkeypatch):
    client, _ = own(tmp_path, limits={"seconds": 0.3})
    work = Long(client.app.state.desk)
    monkeypatch.setattr(general, "facts", work)

    async def let_go(tasks):
        await until(lambda: tasks[0].done() and client.app.state.gate.waiting == 0)

    (answer,) = crowd(client.app, ["pendulum"], let_go)
    assert "no answer within 0.3 seconds" in error(answer, 504) and work.rounds < work.ROUNDS


def test_work_ends_when_its_client_leaves(tmp_path):
    client, _ = own(tmp_path)
    gate, work = client.app.state.gate, Long(client.app.state.desk)

    async def gone():
        return work.rounds > 0

    async def run():
        with pytest.raises(Exception, match="has left"):
            await gate.run("pendulum", work, gone)
        await until(lambda: gate.waiting == 0)
        return await gate.run("pendulum", lambda: "free")

    assert asyncio.run(run()) == "free" and work.rounds < work.ROUNDS


def test_work_of_one_lane_leaves_a_thread_to_others(tmp_path, monkeypatch):
    client, _ = own(tmp_path, limits={"workers": 2})
    slow, gate = Slow(monkeypatch), client.app.state.gate

    async def run():
        names = ("a", "b", "c")
        laws = [gate.run(name, lambda: slow(None, "laws"), lane="/certify") for name in names]
        tasks = [asyncio.create_task(one) for one in laws]
        await until(lambda: slow.running == 1)
        assert await gate.run("b", lambda: "done") == "done"  # though its laws wait
        assert slow.most == 1
        slow.go.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert (slow.most, slow.done) == (1, 3) and not gate._locks


def test_pages_and_health_answer_while_models_are_busy(tmp_path, monkeypatch):
    client, _ = own(tmp_path)
    slow = Slow(monkeypatch)

    async def let_go(tasks):
        await until(lambda: slow.running == 1)
        transport = httpx.ASGITransport(app=client.app)
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as other:
            assert (await other.get("/api/health")).json()["waiting"] == 2
            assert (await other.get("/")).status_code == 200
            assert (await other.get("/api/models")).status_code == 200
        slow.go.set()

    assert [a.status_code for a in crowd(client.app, ["pendulum"] * 2, let_go)] == [200, 200]


def test_whoever_has_left_is_not_worked_for(tmp_path, monkeypatch):
    client, _ = own(tmp_path)
    slow = Slow(monkeypatch)
    gate = client.app.state.gate
    left = []

    async def gone():
        return bool(left)

    async def run():
        first = asyncio.create_task(gate.run("a", lambda: slow(None, "a")))
        second = asyncio.create_task(gate.run("a", lambda: slow(None, "a"), gone))
        await until(lambda: slow.running == 1)
        left.append(True)
        slow.go.set()
        await first
        with pytest.raises(Exception, match="has left"):
            await second

    asyncio.run(run())
    assert slow.done == 1


def test_whoever_leaves_while_waiting_gives_the_place_back(tmp_path, monkeypatch):
    client, _ = own(tmp_path, limits={"waiting": 2})
    slow = Slow(monkeypatch)
    gate = client.app.state.gate
    left = []

    async def gone():
        return bool(left)

    async def run():
        first = asyncio.create_task(gate.run("a", lambda: slow(None, "a")))
        await until(lambda: slow.running == 1)
        second = asyncio.create_task(gate.run("a", lambda: slow(None, "a"), gone))
        await until(lambda: gate.waiting == 2)
        left.append(True)
        with pytest.raises(Exception, match="has left"):
            await second
        await until(lambda: gate.waiting == 1)
        third = asyncio.create_task(gate.run("a", lambda: slow(None, "a")))  # there is room again
        await until(lambda: gate.waiting == 2)
        assert not first.done() and slow.running == 1
        slow.go.set()
        await asyncio.gather(first, third)
        assert await gate.run("a", lambda: slow(None, "a")) == {"id": "a"}  # and the model is free

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert slow.done == 3 and gate.waiting == 0 and not gate._locks


def test_many_threads_get_the_answers_that_one_gets(client):
    asked = [{"model": "mnist-flow", "seed": i % 3, "n": 1, "steps": 3} for i in range(12)]
    alone = [post(client, "generate", **body)["images"] for body in asked[:3]]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda b: post(client, "generate", **b)["images"], asked))
    assert together == [alone[i % 3] for i in range(12)]


def test_what_fails_unforeseen_is_a_sentence_and_a_line_in_the_log(tmp_path, caplog, monkeypatch):
    client, _ = own(tmp_path)

    def fail(desk, id):
        raise KeyError("/secret/path")

    monkeypatch.setattr(general, "facts", fail)
    answer = client.get("/api/model", params={"model": "pendulum"})
    assert "secret" not in error(answer, 500)
    assert "content-security-policy" in answer.headers
    assert "secret" in caplog.text

    def too_much(desk, id):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(general, "facts", too_much)
    answer = client.get("/api/model", params={"model": "pendulum"})
    assert "not enough memory" in error(answer, 503) and answer.headers["retry-after"] == "10"


def test_kept_values_go_by_bytes_and_stamps():
    kept, made = Kept(10), []

    def get(key, stamp, size):
        return kept.get(key, stamp, lambda: made.append(key) or (key, stamp), lambda _: size)

    assert get("a", 1, 6) == ("a", 1) and get("a", 1, 6) == ("a", 1) and made == ["a"]
    assert get("a", 2, 6) == ("a", 2) and len(kept) == 1
    get("b", 1, 6)
    assert len(kept) == 1 and kept.bytes == 6
    get("c", 1, 100)
    assert len(kept) == 1  # at least one, however large
    get("d", 1, 1)
    get("e", 1, 1)
    assert len(kept) == 2


# -- who may ask -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.0.0.1:80", "[::1]:8765", "LOCALHOST"]
)
def test_this_machine_is_known_by_its_names(client, host):
    assert client.get("/api/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "[::1", "10.0.0.1", "a b"]
)
def test_another_name_for_this_machine_is_refused(client, host):
    assert "Host" in error(client.get("/api/health", headers={"host": host}), 403)
    error(client.get("/", headers={"host": host}), 403)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("studio.example.org", 200),
        ("Studio.Example.org:8443", 200),
        ("localhost:8765", 200),
        ("second.example", 200),
        ("evil.studio.example.org", 403),
        ("studio.example.org.evil", 403),
        ("", 403),
    ],
)
def test_a_name_that_is_allowed_is_answered_to(tmp_path, host, status):
    client, _ = own(tmp_path, names=["studio.example.org", "second.example"])
    for path in ("/", "/api/health"):
        assert client.get(path, headers={"host": host}).status_code == status


def test_under_an_allowed_name_other_origins_may_still_not_post(tmp_path):
    client, _ = own(tmp_path, names=["studio.example.org"])

    def asked(origin):
        headers = {"host": "studio.example.org", "origin": origin}
        return client.post("/api/generate", json={"model": "nothing"}, headers=headers)

    error(asked("https://studio.example.org"), 404)  # let in, and told there is no such model
    for origin in ("https://evil.example", "https://studio.example.org:8443", HERE, "null"):
        assert "Origin" in error(asked(origin), 403)


def test_bound_elsewhere_any_name_will_do(tmp_path):
    client, _ = own(tmp_path, local=False)
    assert client.get("/api/health", headers={"host": "studio.example"}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9", "http://["]
)
def test_pages_of_other_origins_may_not_post(client, origin):
    asked = {"json": {"model": "mnist-flow", "n": 1}, "headers": {"origin": origin}}
    error(client.post("/api/generate", **asked), 403)


def test_the_own_page_may_post_and_others_may_not_even_get(client):
    asked = {"model": "mnist-flow", "n": 1, "steps": 3}
    mine = client.post("/api/generate", json=asked, headers={"origin": HERE})
    assert mine.status_code == 200 and "access-control-allow-origin" not in mine.headers
    error(client.get("/api/models", headers={"sec-fetch-site": "cross-site"}), 403)
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link


def test_a_token_opens_the_studio(tmp_path):
    client, _ = own(tmp_path, token="a-long-secret")
    for path in ("/", "/static/studio.css"):  # the page, which asks for the token
        assert client.get(path).status_code == 200
    for path in ("/api", "/api/models", "/openapi.json", "/api/health", "/nothing"):
        answer = client.get(path)
        assert "a token is needed" in error(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
    for wrong in (
        "Bearer a-long-secre",
        "Bearer",
        "Basic a-long-secret",
        "Bearer ",
        "a-long-secret",
    ):
        error(client.get("/api/models", headers={"authorization": wrong}), 401)
    right = {"authorization": "Bearer a-long-secret"}
    assert client.get("/api/models", headers=right).status_code == 200
    assert not client.cookies
    assert "set-cookie" not in client.get("/?token=wrong").headers
    error(client.get("/api/models?token=wrong"), 401)
    error(client.post("/api/generate?token=a-long-secret", json={"model": "mnist-flow"}), 401)
    first = client.get("/?token=a-long-secret")
    cookie = first.headers["set-cookie"]
    assert first.status_code == 200 and "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert "a-long-secret" not in cookie
    assert client.get("/api/models").status_code == 200  # by the cookie
    error(
        TestClient(client.app, base_url=HERE, cookies={"linearizer-studio": "0" * 64}).get("/api"),
        401,
    )


@pytest.mark.parametrize(("spoken", "secure"), [("https", True), ("http", False), (None, False)])
def test_the_cookie_of_a_page_behind_tls_is_secure(tmp_path, spoken, secure):
    client, _ = own(tmp_path, token="a-long-secret", names=["studio.example.org"])
    headers = {"host": "studio.example.org"}
    if spoken:
        headers["x-forwarded-proto"] = spoken
    cookie = client.get("/?token=a-long-secret", headers=headers).headers["set-cookie"]
    assert ("; Secure" in cookie) == secure


def test_refusals_are_one_line_for_an_address_and_a_minute(tmp_path, monkeypatch, caplog):
    tally, now = guards.Tally(), [0.0]
    monkeypatch.setattr(guards, "REFUSED", tally)
    monkeypatch.setattr(guards, "time", SimpleNamespace(monotonic=lambda: now[0]))
    client, _ = own(tmp_path, token="a-long-secret")
    for _ in range(5):
        error(client.get("/api/x%0Ay?token=wrong"), 401)
    error(client.get("/api/models", headers={"host": "evil.example"}), 403)
    error(client.get("/static/nothing"), 404)  # no more than a mistake
    assert caplog.messages == ["refused testclient: 401 at '/api/x\\ny'"]
    now[0] = 61.0
    tally.add("10.0.0.1", "429")
    tally.add("10.0.0.1", "429")
    assert caplog.messages[1:] == ["refused testclient 5 more times", "refused 10.0.0.1: 429"]
    for i in range(2000):
        tally.add(f"10.1.{i // 256}.{i % 256}", "429")
    assert len(caplog.messages) == 3 + guards.ADDRESSES and len(tally.counts) <= 51


# -- the page and its papers -------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/api", "/api/models", "/openapi.json", "/nothing"])
def test_every_answer_has_the_headers_that_protect_it(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    for part in (
        "default-src 'self'", "img-src 'self' data: blob:", "style-src 'self'", "script-src 'self'",
        "frame-ancestors 'none'",
    ):  # fmt: skip
        assert part in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_page_is_asked_for_anew_but_sent_once(client):
    first = client.get("/")
    assert first.headers["content-type"].startswith("text/html")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304 and not again.content
    style = client.get("/static/studio.css")
    assert style.status_code == 200 and style.headers["cache-control"] == "no-cache"
    again = client.get("/static/studio.css", headers={"if-none-match": style.headers["etag"]})
    assert again.status_code == 304


def test_the_api_is_described_without_other_sites(client):
    page = client.get("/api")
    schema = client.get("/openapi.json").json()
    for path, methods in schema["paths"].items():
        assert path in page.text
        for what in methods.values():
            assert {"401", "422", "429", "503", "504"} <= set(what["responses"]), path
    assert "http://" not in page.text and "https://" not in page.text
    error(client.get("/docs"), 404)
    assert "GET does not go with" in error(client.get("/api/generate"), 405)


def test_answers_are_what_the_schema_says(client):
    from linearizer.studio import schemas

    _, image = digit()
    requests = {r.path: r for room in list_rooms() for r in room.page.requests}
    bodies = {
        "generate": {"model": "mnist-flow", "n": 1},
        "generate/check": {"model": "mnist-flow", "steps": 2},
        "encode": {"model": "mnist-flow", "image": image},
        "interpolate": {"model": "mnist-flow", "a": image, "b": image, "frames": 2},
        "project": {"model": "mnist-projector", "image": image},
        "photo": {},
        "stylize": {"model": "styles", "image": image, "mix": {"photo": 1.0}, "size": 64},
        "dynamics": {"model": "pendulum", "start": [1, 0], "t1": 1, "points": 3},
        "edit": {"model": "mnist-attributes", "image": image, "wish": "1"},
    }
    for path, body in bodies.items():
        requests[path].Given.model_validate(post(client, path, **body))
    for path, kind in (
        ("models", schemas.Listed), ("model?model=styles", schemas.Facts),
        ("spectrum?model=pendulum", schemas.Spectrum), ("health", schemas.Health),
        ("certify?model=pendulum&n=3", schemas.Certify),
        ("apply?model=mnist-flow", schemas.Applied),
    ):  # fmt: skip
        kind.model_validate(client.get(f"/api/{path}").json())


# -- the command -------------------------------------------------------------------------------


def command(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "linearizer.cli", "serve", *words],
        capture_output=True, text=True, timeout=PATIENCE, **more,
    )  # fmt: skip


def test_help_is_there_without_torch():
    code = (
        "import sys; sys.argv = ['linearizer', 'serve', '--help']\n"
        "from linearizer.cli import run; run(); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "--token" in done.stdout, done.stderr


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_what_it_needs_is_one_sentence(package, tmp_path):
    code = (
        f"import sys; sys.modules['{package}'] = None\n"
        f"sys.argv = ['linearizer', 'serve', '--port', '0', '--runs', r'{tmp_path}']\n"
        "from linearizer.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    needs = 'linearizer: the studio needs fastapi and uvicorn: pip install "linearizer[studio]"\n'
    assert done.stderr == needs
    apps = f"import sys; sys.modules['{package}'] = None\nfrom linearizer.apps import registry\n"
    code = apps + "for name in registry.BUILT_IN: assert registry.find_app(name)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_accepted_is_sent_at_once():
    """asyncio turns Nagle's algorithm off for sockets that say that they are of TCP."""

    async def nodelay():
        reached = asyncio.get_running_loop().create_future()

        class Accepting(asyncio.Protocol):
            def connection_made(self, transport):
                reached.set_result(transport.get_extra_info("socket").getsockopt(
                    socket.IPPROTO_TCP, socket.TCP_NODELAY))  # fmt: skip

        with listen("127.0.0.1", 0) as at:
            server = await asyncio.get_running_loop().create_server(Accepting, sock=at)
            with socket.create_connection(at.getsockname()[:2]):
                found = await asyncio.wait_for(reached, PATIENCE)
            server.close()
        return found

    assert asyncio.run(nodelay())


def test_a_port_in_use_is_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = command("--port", port)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--token", "short"], "8 characters or more"),
        (["--token", "geheimnis-ä"], "printable ASCII without spaces"),
        (["--token", " a-long-secret"], "printable ASCII without spaces"),
        (["--token", "a-long\nsecret"], "printable ASCII without spaces"),
        (["--host", "no.such.host.invalid"], "cannot listen on"),
        (["--allow-host", ""], "a name such as studio.example.org"),
        (["--allow-host", "https://studio.example.org"], "without scheme, port, path or spaces"),
        (["--allow-host", "studio.example.org/a"], "without scheme, port, path or spaces"),
        (["--allow-host", "a b", "--allow-host", "good"], "got 'a b'"),
        (["--runs", "FILE"], "expected a folder of runs"),
    ],
)
def test_wrong_flags_are_one_sentence(tmp_path, words, sentence):
    (tmp_path / "FILE").touch()
    done = command("--port", "0", *words, cwd=tmp_path)
    assert done.returncode == 2 and sentence in done.stderr and done.stderr.count("\n") == 1


def connected(answer, talk):
    """Talk to a server whose every answer is that of an ASGI function."""

    async def run():
        config = uvicorn.Config(
            answer, http=connections.Prompt, lifespan="off", log_level="critical"
        )
        config.load()
        state = uvicorn.server.ServerState()
        made = await asyncio.get_running_loop().create_server(
            lambda: connections.Prompt(config, state, {}), "127.0.0.1", 0
        )
        async with made:
            await talk(made.sockets[0].getsockname())

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


async def slow_answer(scope, receive, send):  # longer than a head may take
    await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_a_connection_without_a_whole_head_is_closed(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)

    async def talk(name):
        for begun in (b"", b"GET / HTTP/1.1\r\nHost: a"):
            reader, writer = await asyncio.open_connection(*name)
            writer.write(begun)
            assert await reader.read() == b""
            writer.close()
        reader, writer = await asyncio.open_connection(*name)
        for _ in range(2):  # whole heads are answered, on one connection
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
        writer.write(b"GET /")  # and half of one more is not waited for
        assert await reader.read() == b""
        writer.close()

    connected(slow_answer, talk)


@pytest.mark.parametrize(
    ("limit", "status", "words"),
    [("PER_ADDRESS", 429, "this address has 2 already"), ("CONNECTIONS", 503, "2 connections")],
)
def test_connections_are_counted_before_anything_is_said(monkeypatch, limit, status, words):
    monkeypatch.setattr(connections, limit, 2)

    async def talk(name):
        open_ones = [await asyncio.open_connection(*name) for _ in range(2)]
        reader, writer = await asyncio.open_connection(*name)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} ".encode()) and b"retry-after: 1" in head
        assert words in json.loads(body)["error"]
        writer.close()
        for reader, writer in open_ones:  # those there are go on
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 204")
            writer.close()

    connected(slow_answer, talk)


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # without Host
        b"GET /" + b"a" * 100_000,
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",  # TLS
    ],
)
def test_what_is_not_http_is_one_sentence(caplog, sent):
    async def talk(name):
        reader, writer = await asyncio.open_connection(*name)
        writer.write(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ") and b"content-type: application/json" in head
        assert b"nosniff" in head and set(json.loads(body)) == {"error"}
        assert "expected an HTTP/1.1 request" in json.loads(body)["error"]
        writer.close()

    connected(slow_answer, talk)
    assert "Invalid HTTP" not in caplog.text


@pytest.mark.parametrize("token", [None, "a-long-secret"])
def test_it_serves_on_a_real_port_and_stops(tmp_path, token):
    shutil.copytree(SHIPPED / "pendulum", tmp_path / "mine" / "one")
    flags = ["--port", "0", "--runs", str(tmp_path / "mine")]
    environment = dict(os.environ)
    if token:  # bound to all addresses it warns
        flags += ["--host", "0.0.0.0"]
        environment["LINEARIZER_TOKEN"] = token
    process = subprocess.Popen(
        [sys.executable, "-m", "linearizer.cli", "serve", *flags],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        assert line.startswith("the studio is at http://"), process.stderr.read()
        base, _, query = line.split()[4].partition("?")
        assert query == (f"token={token}" if token else "")
        request = urllib.request.Request(base.replace("0.0.0.0", "127.0.0.1") + "api/models")
        if token:
            request.add_header("authorization", f"Bearer {token}")
        with urllib.request.urlopen(request) as answer:
            assert "server" not in answer.headers
            names = [row["id"] for row in json.load(answer)["models"]]
        assert names == [*lz.models(), "mine/one"]
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode in (0, 130), errors
    assert "Traceback" not in errors
    assert ("can be reached from other machines" in errors) == (token is not None)


def test_an_allowed_name_without_a_token_is_warned_of(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "linearizer.cli", "serve", "--port", "0", "--runs", str(tmp_path),
         "--allow-host", "Studio.example.org", "--allow-host", "second.example"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        assert line.startswith("the studio is at http://127.0.0.1:"), process.stderr.read()
        request = urllib.request.Request(line.split()[4] + "api/health")
        request.add_header("host", "studio.example.org")
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert "anyone who can reach studio.example.org, second.example may use the studio" in errors


def test_a_catalogue_of_a_folder_that_is_itself_a_run(tmp_path):
    shutil.copytree(SHIPPED / "pendulum", tmp_path / "mine")
    names = [row["id"] for row in Catalogue(tmp_path / "mine").rows()]
    assert names == [*lz.models(), "mine"]
    assert Catalogue(tmp_path / "mine").open("mine").app.name == "dynamics"
