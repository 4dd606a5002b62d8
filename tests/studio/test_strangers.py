"""Applications that are not of this package, in the studio."""

import textwrap
from importlib.metadata import EntryPoint

import pytest
import torch
from fastapi.testclient import TestClient

from linearizer.apps import registry
from linearizer.runs.execute import execute
from linearizer.runs.plan import make_plan
from linearizer.studio.pages import list_rooms
from linearizer.studio.server import create_app

HERE = "http://127.0.0.1:8765"
CODE = """
import torch
import linearizer as lz
from linearizer.apps.base import App
from linearizer.apps.images import image_shape
from linearizer.bijections import Chain, Flatten, mlp
from linearizer.data.catalogue import IMAGES
from linearizer.training.settings import Settings


class Config(Settings):
    shape: tuple[int, int, int] = (1, 8, 8)


class Mirror(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.space = lz.Space(Chain(Flatten(config.shape), mlp(64, 2, 16)))
        self.weight = torch.nn.Parameter(torch.eye(64))

    def forward(self):
        return lz.Linearizer(self.space, lz.operators.Dense(self.weight), self.space)


def errors(model, batch, draw):
    return {"error": (model()(batch.x) - batch.x.flip(-1)).square().mean((1, 2, 3))}


APP = App(
    name="mirror", summary="an image to its mirror image <b>", Config=Config, build=Mirror,
    loss=lambda *given: {"error": errors(*given)["error"].mean()}, measure=errors, metric="error",
    maximize=False, linearizer=Mirror.forward, kind=IMAGES, data="digits", facts=image_shape,
    decided=("shape",),
)
"""


@pytest.fixture(autouse=True)
def single_precision(monkeypatch):
    """No application stays known after a test, and models are in float32."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def mirror(tmp_path):
    file = tmp_path / "mirror.py"
    file.write_text(CODE)
    return registry.load_app(f"{file}:APP")


def get(client, path, **params):
    answer = client.get(f"/api/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_strangers_application_is_trained_and_has_a_page(mirror, tmp_path):
    training = {"steps": 3, "batch": 16, "validate_every": 0, "tensorboard": False}
    plan = make_plan("mirror", flags={"training": training})
    execute(plan, tmp_path / "runs" / "mine", progress=False)
    with TestClient(create_app(tmp_path / "runs"), base_url=HERE) as client:
        page = client.get("/").text
        assert 'id="tab-mirror"' in page and '<section role="tabpanel" id="mirror"' in page
        assert "its mirror image &lt;b&gt;" in page and '"tabs": ["mirror"]' in page
        assert '"script": "./general.js"' in page
        row = get(client, "models")["models"][-1]
        assert (row["id"], row["app"], row["problem"]) == ("runs/mine", "mirror", "")
        facts = get(client, "model", model="runs/mine")
        assert facts["dim"] == 64 and facts["config"] == {"shape": [1, 8, 8]}

        asked = {"model": "runs/mine", "seed": 3}
        applied = get(client, "apply", **asked)
        assert applied == get(client, "apply", **asked)
        assert applied != get(client, "apply", model="runs/mine", seed=4)
        assert all(url.startswith("data:image/png") for url in applied["pictures"].values())
        assert len(applied["values"]["x"]) == 64 and applied["again"] < 1e-2
        spectrum = get(client, "spectrum", model="runs/mine", k=3)
        assert len(spectrum["singular_values"]) == 64 and len(spectrum["vectors"]) == 3
        assert spectrum["vectors"][0]["source"] and spectrum["vectors"][0]["target"]
        laws = get(client, "certify", model="runs/mine", n=4)
        assert laws["passed"] and laws["worst"] < 1e-6


def test_a_run_of_an_unknown_application_is_told_so(mirror, tmp_path):
    execute(
        make_plan("mirror", flags={"training": {"steps": 1, "batch": 4, "tensorboard": False}}),
        tmp_path / "runs" / "mine",
        progress=False,
    )
    del registry._registered["mirror"]
    with TestClient(create_app(tmp_path / "runs"), base_url=HERE) as client:
        row = get(client, "models")["models"][-1]
        assert "'mirror' is not known here; serve it with --app" in row["problem"]
        assert 'id="tab-mirror"' not in client.get("/").text
        answer = client.get("/api/model", params={"model": "runs/mine"})
        assert answer.status_code == 422 and "'mirror' is not known" in answer.json()["error"]


def install(monkeypatch, *names):
    """Entry points of these names, whose modules are not there."""
    found = {name: EntryPoint(name, f"no_such_module_{name}:APP", registry.GROUP) for name in names}
    monkeypatch.setattr(registry, "_installed", lambda: found)


def test_an_installed_application_that_cannot_be_imported_has_no_tab(tmp_path, monkeypatch, caplog):
    before = [tab.id for room in list_rooms() for tab in room.page.tabs]
    install(monkeypatch, "broken")
    with TestClient(create_app(tmp_path / "runs"), base_url=HERE) as client:
        assert "broken" not in client.get("/").text
        assert get(client, "health")["status"] == "ok"
    assert "no tab for the application broken: No module named 'no_such" in caplog.text
    assert [tab.id for room in list_rooms() for tab in room.page.tabs] == before


@pytest.mark.parametrize("name", ["algebra", "generate", "theme", "stylize", "main"])
def test_a_name_that_the_page_has_already_is_no_tab(mirror, name, caplog):
    from dataclasses import replace

    before = len(list_rooms())
    registry.register(replace(mirror, name=name))
    assert len(list_rooms()) == before and f"no tab for the application {name}" in caplog.text


def test_a_page_of_its_own_is_served_from_its_folder(mirror, tmp_path, caplog):
    from dataclasses import replace

    from linearizer.apps.page import Asked, Given, Name, Page, Request, Tab

    class Ask(Asked):
        model: Name

    class Say(Given):
        word: str

    own = Page(
        (Tab("mirrors", "Mirrors", "x<sub>−</sub>"),),
        tmp_path / "room",
        (Request("mirrors", "A word", Ask, Say, lambda desk, a: {"word": a.model}),),
    )
    registry.register(replace(mirror, page=own))
    assert all(room.page is not own for room in list_rooms())  # it has no files yet
    assert "page.html" in caplog.text
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "page.html").write_text('<section id="mirrors"></section>')
    code = textwrap.dedent("""\
        import { $ } from "../../kit.js";
        export const mirrors = () => ({ open() {}, settings: () => ({}) });
    """)
    (tmp_path / "room" / "page.js").write_text(code)
    (tmp_path / "room" / "secret.py").write_text("")
    with TestClient(create_app(tmp_path / "runs"), base_url=HERE) as client:
        assert '<section id="mirrors">' in client.get("/").text
        script = client.get("/static/apps/mirrors/page.js")
        assert script.text == code and script.headers["content-type"].startswith("text/javascript")
        assert script.headers["cache-control"] == "no-cache"
        again = {"if-none-match": script.headers["etag"]}
        assert client.get("/static/apps/mirrors/page.js", headers=again).status_code == 304
        assert client.get("/static/apps/mirrors/secret.py").status_code == 404
        answer = client.post("/api/mirrors", json={"model": "pendulum"})
        assert answer.json() == {"word": "pendulum"}
        large = client.post("/api/mirrors", content=b" " * 70_000)
        assert large.status_code == 413
