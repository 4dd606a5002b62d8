"""What ships with the package loads, is exact, and is as good as we say."""

import pytest
import torch

import linearizer as lz
from linearizer import data
from linearizer.metrics.images import digit_classifier, psnr, roc_auc
from linearizer.runs.store import SHIPPED

FLOWS = ["mnist-flow", "mnist-matching", "celeba-flow"]
CLASSIFIERS = ["mnist-attributes", "celeba-attributes"]


@pytest.fixture(autouse=True)
def single_precision():
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        yield


def test_the_models_are_there_and_small():
    known = {*FLOWS, "mnist-projector", "styles", "pendulum", "duffing", *CLASSIFIERS}
    assert known <= set(lz.models())
    for name in lz.models():
        assert sum(p.stat().st_size for p in (SHIPPED / name).iterdir()) < 7 * 2**20


@pytest.mark.parametrize("name", FLOWS)
def test_g_comes_back_from_noise_and_from_normal_coordinates(name):
    model = lz.load(name)
    X = model.target
    noise, z = model.noise(50, 1), model.noise(50, 2).flatten(1)
    assert float((X.points(X.coordinates(noise)) - noise).abs().max()) < 2e-4
    assert float((X.coordinates(X.points(z)) - z).abs().max()) < 2e-4


@pytest.mark.parametrize("name", FLOWS)
def test_one_step_is_many_and_f_encodes_what_it_makes(name):
    model = lz.load(name)
    noise = model.noise(4, 3)
    f = model.collapse("rk4", 20)
    assert f.rank() == model.config.rank + model.config.detail
    x = f(noise)
    assert float((x - model.integrate(noise, "rk4", 20)).square().mean()) < 1e-8
    assert float((f(f.pinv()(x)) - x).abs().max()) < 1e-3
    assert 0.05 < float(x.clamp(0, 1).std()) < 0.5  # pictures, not noise or nothing


def test_flow_matching_has_one_space_and_a_learned_core():
    model = lz.load("mnist-matching")
    assert model.source is model.target and sum(p.numel() for p in model.family.parameters()) > 1000
    assert not torch.equal(model.family(0.2).dense(), model.family(0.8).dense())


@pytest.mark.parametrize("name", ["mnist-flow", "mnist-matching"])
def test_samples_of_the_digits_are_digits_of_every_class(name):
    x = lz.load(name).collapse("rk4", 100)(lz.load(name).noise(300, 0))
    confident, label = digit_classifier()(x.clamp(0, 1)).softmax(1).max(1)
    assert float((confident > 0.5).float().mean()) > 0.8
    assert len(label.unique()) == 10


def test_held_out_digits_are_reconstructed_above_the_paper(data_root):
    f = lz.load("mnist-flow")()
    x = data.load("mnist", data_root, size=32).test.batch(torch.arange(300)).x
    assert float(psnr(f(f.pinv()(x)).clamp(0, 1), x).mean()) > 31.6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_projector_is_idempotent_whatever_it_is_given(dtype):
    model = lz.load("mnist-projector").to(dtype)
    torch.manual_seed(0)
    noise = torch.randn(40, 1, 32, 32, dtype=dtype)
    blank = torch.zeros_like(noise[:2])
    x = torch.cat([0.1 * noise, noise, 10 * noise, noise.clamp(0, 1), blank, blank + 1])
    for rank in (None, 8, 64):
        f = model(rank)
        once = f(x)
        assert float((f(once) - once).abs().max()) < (1e-4 if dtype == torch.float32 else 1e-10)


def test_projected_noise_is_digits_of_every_class():
    model = lz.load("mnist-projector")
    torch.manual_seed(0)
    noise = torch.randn(300, 1, 32, 32) * torch.logspace(-0.3, 1, 300)[:, None, None, None]
    confident, label = digit_classifier()(model()(noise).clamp(0, 1)).softmax(1).max(1)
    assert float((confident > 0.5).float().mean()) > 0.8
    assert len(label.unique()) == 10


def test_the_projector_keeps_digits_and_scores_what_is_none(data_root):
    model = lz.load("mnist-projector")
    x = data.load("mnist", data_root, size=32).test.batch(torch.arange(300)).x
    assert float(psnr(model()(x).clamp(0, 1), x).mean()) > 25
    order = torch.rand(300, 1024).argsort(1)
    shuffled = x.flatten(1).gather(1, order).reshape_as(x)
    assert roc_auc(model.score(shuffled), model.score(x)) > 0.95


def test_styles_blend_and_are_undone():
    from linearizer.apps.style.use import example_photo

    model = lz.load("styles")
    assert set(model.config.names) == {"candy", "mosaic", "rain_princess", "udnie"}
    x = example_photo()[0][None, :, 100:228, 200:328].float() / 255
    back = model.render(x, model.plain).clamp(0, 1)
    assert float(psnr(back, x)) > 17  # the operator "photo" leaves it
    for name in model.config.names:
        kernel = model.kernel(name)
        assert model.condition(kernel) < 1e4
        y = model.render(x, kernel)
        assert float(psnr(model.render(y, kernel, undo=True, rtol=1e-6).clamp(0, 1), x)) > 30
        assert float((y.clamp(0, 1) - x).abs().mean()) > 0.05  # and a style changes it


def test_styles_come_near_their_networks_on_held_out_photos(data_root):
    from linearizer.data.teachers import load_style
    from linearizer.metrics.perceptual import load_lpips

    judge = load_lpips("alex", data_root / "lpips")
    model, photos = lz.load("styles"), data.load("bsds500", data_root).test
    for name in model.config.names:
        net = load_style(data_root / "style_models" / f"{name}.pth")
        x = photos.photo(3)[None]
        wanted = net(x)
        ours = judge(model.render(x, model.kernel(name)).clamp(0, 1), wanted)
        assert float(ours) < 0.75 * float(judge(x, wanted))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_can_be_asked(name):
    from linearizer.apps.readout.use import aim_at, vary_points

    model = lz.load(name)
    f = model()
    X = f.source
    x = X.points(torch.randn(4, X.dim) * (torch.arange(X.dim) < model.read.width))
    assert float((X.points(X.coordinates(x)) - x).abs().max()) < 1e-3
    assert float((f(f.pinv()(f(x))) - f(x)).abs().max()) < 1e-2
    other = vary_points(f, x, torch.randn(4, model.read.width), 0.7)
    assert float((f(other) - f(x)).abs().max()) < 1e-2 < float((other - x).abs().mean())
    for wish in model.config.names[:5]:
        h, y = aim_at(model, wish)
        made = h.back_project(x, y.expand(4, -1))
        assert float((h(made) - y).abs().max()) < 1e-2
    assert float(X.zero().clamp(0, 1).sub(X.zero()).abs().mean()) < 0.02  # an image: the mean one


def test_classifiers_classify_held_out_images(data_root):
    for name, size, least in (("mnist-attributes", 32, 0.985), ("celeba-attributes", 64, 0.875)):
        model = lz.load(name)
        x, y = data.load(name.split("-")[0], data_root, size).test.batch(torch.arange(500))
        scores = model.read.outputs_of(x)
        found = scores.argmax(1) == y if y.ndim == 1 else (scores > 0) == (y > 0.5)
        assert float(found.double().mean()) > least


@pytest.mark.parametrize(("name", "most"), [("pendulum", 0.02), ("duffing", 0.4)])
def test_dynamics_tell_the_far_future(name, most):
    """Ten times as far as they were trained, from starts that they have not seen."""
    from linearizer.data.trajectories import DynamicsSettings, simulate_for

    model = lz.load(name)
    settings = DynamicsSettings(name=name, even=True)
    rows = round(model.config.horizon / float(simulate_for(settings, trajectories=2).dt))
    moves = simulate_for(settings, trajectories=32, seed=424_242, steps=10 * rows)
    told = model.simulate(moves.x[:, 0].float(), moves.t[0])
    error = ((told.double() - moves.x) / model.scale).square().mean().sqrt()
    assert float(error) < most
    x = model.pad(moves.x[:, 0].float())
    assert float((model(-3.0)(model(3.0)(x)) - x).abs().max()) < 1e-3
    assert max(mode.rate for mode in model.spectrum()) <= 0


def test_the_pendulum_has_its_frequency_and_decay():
    """Those of small swings: θ'' = −sin θ − 0.1 θ'."""
    (mode,) = lz.load("pendulum").spectrum()
    assert abs(mode.rate + 0.05) < 0.003
    assert abs(mode.frequency - (1 - 0.05**2) ** 0.5 / (2 * torch.pi)) < 0.002


@pytest.mark.parametrize("name", ["mnist-matching", "mnist-projector"])
def test_what_needs_no_data_is_measured_without_it(name, tmp_path, monkeypatch):
    from linearizer.apps.flow import evaluate as evaluation
    from linearizer.runs.evaluate import evaluate_run

    monkeypatch.setenv("LINEARIZER_DATA", str(tmp_path / "none"))
    monkeypatch.setattr(evaluation, "measure_times", lambda *_: {})  # they take a minute
    said = []
    found = evaluate_run(name, tmp_path / "out", n=2, say=said.append)
    assert "what needs no data is measured" in said[0] and found["data"]["test_samples"] == 0
    if name == "mnist-projector":
        assert max(found["idempotency_float64"].values()) < 1e-9
    else:
        assert found["one_against_many"]["100 through data"]["mse_float64"] < 1e-20
    with pytest.raises(FileNotFoundError, match="expected train-images"):
        evaluate_run(name, tmp_path / "out", n=2, data={"name": "mnist", "size": 32})


def test_a_flow_is_certified_on_its_own_noise(tmp_path, monkeypatch):
    from linearizer.runs.algebra import certify_run, draw_points
    from linearizer.runs.store import open_run

    monkeypatch.setenv("LINEARIZER_DATA", str(tmp_path / "none"))
    run = open_run("mnist-matching")
    f = run.model()
    assert torch.equal(draw_points(f, 3, 5, run), run.model.noise(3, 5))
    with torch.enable_grad():
        assert certify_run("mnist-matching", 2, "float64", None).passed
