"""Flows: collapsed = loop for every preset and solver, encoding, losses, and their uses."""

import json

import pytest
import torch
from typer.testing import CliRunner

import linearizer as lz
from linearizer import data
from linearizer.apps.flow import evaluate as evaluation
from linearizer.apps.flow import model as flow
from linearizer.apps.flow import use as sampling
from linearizer.apps.flow.app import APP
from linearizer.apps.flow.cli import commands
from linearizer.bijections import mlp
from linearizer.families import Family, GaussianVelocity, Leading, TimeLowRank
from linearizer.operators import LowRank
from linearizer.runs.evaluate import evaluate_run
from linearizer.runs.execute import execute
from linearizer.runs.plan import make_plan, plan_of
from linearizer.solvers import SOLVERS
from linearizer.training.checkpoint import read_tensors, tensors_of
from linearizer.training.draws import Draw
from linearizer.training.loop import Training, fit

SHAPE = (1, 8, 8)
no_grad = pytest.mark.usefixtures("without_gradients")


@pytest.fixture
def without_gradients():
    with torch.no_grad():
        yield


SMALL = {"hidden": 8, "blocks": 1}
MODELS = {
    "paper": {**APP.presets["paper"]["model"], **SMALL, "distance": "mse"},
    "authors": {**APP.presets["authors"]["model"], **SMALL, "distance": "mse"},
    "best": {"rank": 6, "flow_hidden": 16, **SMALL},
    "best, detail": {"rank": 6, "detail": 5, "flow_hidden": 16, **SMALL},
    "best, learned core": {"rank": 6, "flow_hidden": 16, "core": "prediction", **SMALL},
    "matching": {**APP.presets["matching"]["model"], "rank": 6, "flow_hidden": 16, **SMALL},
    "best, convolutions": {"rank": 6, "flow_hidden": 16, "nets": "conv", **SMALL},
    "closed form on glow": {"g": "glow", "rank": 6, "likelihood": 1.0, **SMALL},
    "mlp": {"g": "mlp", "core": "velocity", "rank": 6, **SMALL},
}


def images(n=64):
    return data.load("digits").train.batch(torch.arange(n)).x.to(torch.get_default_dtype())


def made(name):
    """A model with weights that are nowhere zero, as after training."""
    model = flow.build(flow.Config(shape=SHAPE, **MODELS[name]))
    model.initialize(data.Batch(images(), None))
    with torch.no_grad():
        for p in model.target.parameters():
            p += 0.05 * torch.randn_like(p)
    if isinstance(model.family, GaussianVelocity):
        flow.set_core(model, [images()])
    return model


@no_grad
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_one_step_is_the_loop(name, solver):
    model = made(name)
    noise = model.noise(5, seed=1)
    once, many = model.collapse(solver, 7)(noise), model.integrate(noise, solver, 7)
    assert once.shape == (5, *SHAPE)
    assert float((once - many).norm() / many.norm()) < 1e-10
    through = model.integrate(noise, solver, 7, through_data=True)
    assert float((through - many).norm() / many.norm()) < 1e-8


@no_grad
@pytest.mark.parametrize("name", MODELS)
def test_one_step_is_the_loop_in_single_precision(name):
    model = made(name).float()
    noise = model.noise(5, seed=1)
    assert noise.dtype == torch.float32
    once, many = model.collapse("rk4", 100)(noise), model.integrate(noise, "rk4", 100)
    assert float((once - many).square().mean()) < 1e-8


@no_grad
def test_parts_of_the_way_join_and_can_be_gone_back():
    model = made("mlp")
    noise = model.noise(3)
    middle = model.collapse("rk4", 50, 0.0, 0.5)
    rest = model.collapse("rk4", 50, 0.5, 1.0)
    whole = model.collapse("rk4", 100)(noise)
    assert torch.allclose(
        model.target.points(rest.operator(middle.operator(model.source.coordinates(noise)))), whole
    )
    back = model.collapse("rk4", 100, 1.0, 0.0)
    z = model.source.coordinates(noise)
    assert torch.allclose(back.operator(model.collapse("rk4", 100).operator(z)), z, atol=1e-6)


@no_grad
@pytest.mark.parametrize("name", ["best", "best, detail", "best, learned core", "authors"])
def test_the_pseudo_inverse_encodes_at_the_rank_of_the_core(name):
    model, x = made(name), images(8)
    f = model.collapse("rk4", 20)
    assert f.rank() == model.config.rank + model.config.detail
    codes = f.pinv()(x)
    once = f(codes)
    # f f† is a projection: what it leaves, it leaves for good.
    assert torch.allclose(f(f.pinv()(once)), once, atol=1e-6)
    assert torch.allclose(f.pinv()(once), codes, atol=1e-6)


@no_grad
def test_full_rank_reconstructs_exactly():
    model, x = made("mlp"), images(8)
    f = model.collapse("rk4", 20)
    assert torch.allclose(f(f.pinv()(x)), x, atol=1e-8)


@no_grad
def test_the_closed_form_core_carries_noise_to_the_second_moments_of_the_data():
    model = made("best")
    z = model.target.coordinates(images())[:, :6]
    B = model.collapse("exponential", 64).operator.dense()
    assert torch.allclose((B @ B.mT)[:6, :6], z.mT @ z / len(z), rtol=1e-3, atol=1e-3)
    assert float(B[6:].abs().max()) < 1e-12  # nothing outside the subspace


@no_grad
def test_the_paper_has_one_space_and_the_authors_two_that_share_weights():
    one, two, noise = made("paper"), made("authors"), made("best")
    assert one.source is one.target
    x = images(3)
    ids = [{id(p) for p in s.parameters()} for s in (two.source, two.target)]
    assert ids[0] == ids[1] and two.source is not two.target
    assert not torch.allclose(two.source.coordinates(x), two.target.coordinates(x))
    assert torch.equal(noise.source.coordinates(x), x.flatten(1))


@pytest.mark.parametrize("name", MODELS)
def test_every_term_reaches_the_weights(name):
    model = made(name)
    terms = flow.loss(model, data.Batch(images(16), None), Draw(0))
    c = model.config
    wanted = {"reconstruction"} | ({"-log p"} if c.likelihood else set())
    wanted |= {"-log p of noise"} if c.noise_likelihood else set()
    wanted |= {"reconstruction of x₀"} if c.noise_reconstruction != "none" else set()
    if c.core != "gaussian":
        wanted |= {n for n in ("induced", "image", "alignment") if getattr(c, n)}
    assert set(terms) == wanted
    sum(terms.values()).backward()
    later = set(map(id, list(model.target.g)[5].parameters())) if c.detail else set()
    lost = [
        n
        for n, p in model.named_parameters()
        if id(p) not in later and (p.grad is None or not p.grad.isfinite().all())
    ]
    assert not lost


def test_the_learned_core_of_a_subspace_leaves_g_alone():
    model = made("best, learned core")
    terms = flow.loss(model, data.Batch(images(16), None), Draw(0))
    terms["induced"].backward()
    assert all(p.grad is None or not p.grad.any() for p in model.target.parameters())
    assert all(p.grad.any() for p in model.family.parameters())


class Optimum(Family):
    """A_t that flow matching would learn at best, from second moments of both ends."""

    def __init__(self, start, end):
        super().__init__()
        self.start, self.end = start, end

    def forward(self, c):
        t, S0, S1 = torch.as_tensor(c)[..., None, None], self.start, self.end
        spread = (1 - t) ** 2 * S0 + t**2 * S1
        A = (t * S1 - (1 - t) * S0) @ torch.linalg.inv(spread)
        return LowRank(A, torch.eye(len(S0)).expand_as(A))


@no_grad
def test_a_learned_core_is_compared_with_the_best_one_that_the_moments_allow():
    digits, r = data.load("digits"), 6
    model = made("matching")
    ends = []
    for space, x in ((model.source, model.noise(10_000, 6)), (model.target, images(1200))):
        z = space.coordinates(x)[:, :r]
        ends.append(z.mT @ z / len(z))
    model.family = Leading(Optimum(*ends), 64)
    found = evaluation._compare_with_closed_form(model, model.collapse("rk4", 200), digits, None)
    assert found["relative_error"] < 1e-4
    model.family = Leading(Optimum(*(s + torch.eye(r) for s in ends)), 64)
    far = evaluation._compare_with_closed_form(model, model.collapse("rk4", 200), digits, None)
    assert far["relative_error"] > 0.01


def test_one_space_learns_where_noise_lies():
    """The likelihood of the noise reaches g, and makes its coordinates small and Gaussian."""
    torch.set_default_dtype(torch.float32)
    digits = data.load("digits")
    settings = {**MODELS["matching"], "hidden": 16, "nets": "mlp"}
    model = flow.build(flow.Config(shape=SHAPE, **settings))
    fit(model, flow.loss, digits.train, Training(steps=120, tensorboard=False), progress=False)
    assert model.source is model.target
    with torch.no_grad():
        z0 = model.source.coordinates(model.noise(1000, 3))[:, :6]
        z1 = model.target.coordinates(digits.test.batch(torch.arange(200)).x)[:, :6]
    spread = flow.preconditioned(model).log_start.exp()
    assert torch.allclose(z0.square().mean(0).sqrt(), spread, rtol=0.3)
    assert float(z0.square().mean()) < 0.5 * float(z1.square().mean())
    assert model.collapse("rk4", 50).rank() == 6  # noise outside the code dies


def test_lpips_is_a_distance_to_train_on(data_root):
    config = flow.Config(shape=SHAPE, **{**MODELS["paper"], "distance": "squeeze",
                                         "lpips": str(data_root / "lpips")})  # fmt: skip
    model = flow.build(config)
    model.initialize(data.Batch(images(16), None))
    terms = flow.loss(model, data.Batch(images(4), None), Draw(0))
    sum(terms.values()).backward()
    assert all(bool(t.isfinite()) for t in terms.values())


def test_training_lowers_the_loss():
    torch.set_default_dtype(torch.float32)
    digits = data.load("digits")
    config = flow.Config(shape=SHAPE, rank=16, hidden=64, flow_hidden=64, blocks=2)
    model = flow.build(config)
    fit(model, flow.loss, digits.train, Training(steps=150, tensorboard=False), progress=False)
    flow.finish(model, digits)
    f = model.requires_grad_(False)()
    x = digits.test.batch(torch.arange(100)).x
    back = f(f.pinv()(x))
    axes = next(iter(model.target.g))
    z = axes(x)
    flat = axes.inverse(torch.cat([z[:, :16], torch.zeros_like(z[:, 16:])], 1))
    assert float((back - x).square().mean()) < 0.95 * float((flat - x).square().mean())  # than PCA


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spaces": "two"}, "needs g"),
        ({"core": "velocity"}, "leave the noise"),
        ({"g": "glow", "spaces": "one"}, "closed form for noise"),
        ({"g": "glow", "detail": 3}, "detail needs"),
        ({"g": "glow", "nets": "mlp"}, "does not go with"),
        ({"precondition": True}, "needs core"),
        ({"noise_likelihood": 0.1}, "noise_likelihood needs"),
        ({"spaces": "one", "core": "prediction", "likelihood": 0.0}, "likelihood above 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        flow.Config(shape=SHAPE, **settings)


def test_a_rank_above_the_number_of_pixels_is_refused():
    with pytest.raises(ValueError, match="rank is 65 .with the detail., but the images have"):
        flow.build(flow.Config(shape=SHAPE, rank=65))


def test_two_spaces_still_share_all_after_a_change_of_device():
    model = made("authors")
    model._apply(lambda t: t.clone())  # what .to() does to buffers
    assert set(tensors_of(model)) == set(tensors_of(made("authors")))


def test_fewer_images_than_the_rank_leave_the_rest_alone():
    model = flow.build(flow.Config(shape=SHAPE, g="glow", rank=20, **SMALL))
    model.initialize(data.Batch(images(), None))
    with torch.no_grad():
        flow.set_core(model, [images(5)])
    assert model.family.moment.dense().isfinite().all()
    values = torch.linalg.eigvalsh(model.family.moment.dense())
    assert int((values > 1e-6 * values[-1]).sum()) == 5


def test_detail_is_what_the_subspace_leaves():
    torch.set_default_dtype(torch.float32)
    digits = data.load("digits")
    error = {}
    for detail in (0, 20):
        torch.manual_seed(0)
        config = flow.Config(shape=SHAPE, rank=8, detail=detail, hidden=32, flow_hidden=16,
                             blocks=1, refine=30)  # fmt: skip
        model = flow.build(config)
        fit(model, flow.loss, digits.train, Training(steps=30, tensorboard=False), progress=False)
        second = flow.train_density(model, digits)
        assert second.source.parts[1].shape == (1200, detail)
        if detail:
            assert torch.allclose(second.source.parts[1].std(0), torch.ones(detail), atol=0.05)
        fit(second.part, second.loss, second.source, Training(steps=30, tensorboard=False),
            progress=False)  # fmt: skip
        flow.finish(model, digits)
        f = model.requires_grad_(False)()
        assert f.rank() == 8 + detail
        x = digits.test.batch(torch.arange(100)).x
        error[detail] = float((f(f.pinv()(x)) - x).square().mean())
    assert error[20] < 0.5 * error[0]


def test_spaces_of_two_sizes_are_refused():
    with pytest.raises(ValueError, match="one dimension"):
        flow.Flow(lz.Space(mlp(4)), TimeLowRank(4, 2), lz.Space(mlp(6)))


# -- a run folder ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("flow") / "run"
    flags = {
        "model": {"rank": 12, "hidden": 32, "flow_hidden": 32, "blocks": 1, "refine": 20},
        "training": {"steps": 40, "validate_every": 40, "tensorboard": False},
    }
    execute(make_plan("flow", flags=flags), folder, progress=False)
    torch.set_default_dtype(before)
    return folder


@no_grad
def test_a_run_is_loaded_with_its_closed_form_core(run):
    torch.set_default_dtype(torch.float32)
    model = lz.load(run)
    z = torch.cat([model.target.coordinates(p) for p in images(1200).split(300)])[:, :12]
    M = model.family.moment.dense()[:12, :12]
    assert torch.allclose(M, z.mT @ z / len(z), rtol=1e-3, atol=1e-3)


def test_the_second_stage_is_resumed_and_follows_the_first(tmp_path):
    torch.set_default_dtype(torch.float32)
    model = {"rank": 6, "hidden": 8, "flow_hidden": 8, "blocks": 1, "refine": 5}
    training = {"steps": 4, "validate_every": 0, "tensorboard": False}
    plan = make_plan("flow", flags={"model": model, "training": training})
    execute(plan, tmp_path / "run", progress=False)
    once = (tmp_path / "run" / "weights.safetensors").read_bytes()
    # Cut off in the second stage, or after it, a run comes to the same end.
    for name in ("state/latest.safetensors", "weights.safetensors"):
        (tmp_path / "run" / "state" / "stage-2-after-4" / name).unlink()
    execute(plan, tmp_path / "run", resume=True, progress=False)
    assert (tmp_path / "run" / "weights.safetensors").read_bytes() == once
    execute(plan, tmp_path / "run", resume=True, progress=False)
    assert (tmp_path / "run" / "weights.safetensors").read_bytes() == once
    # More steps of the first stage begin the second one anew.
    more = plan_of(tmp_path / "run", {"steps": 8})
    execute(more, tmp_path / "run", resume=True, progress=False)
    assert (tmp_path / "run" / "state" / "stage-2-after-8" / "weights.safetensors").exists()
    assert (tmp_path / "run" / "weights.safetensors").read_bytes() != once


def test_the_second_stage_trains_the_last_stack_alone():
    torch.set_default_dtype(torch.float32)
    digits = data.load("digits")
    model = flow.build(flow.Config(shape=SHAPE, rank=6, hidden=8, flow_hidden=8, mirror=True))
    model.initialize(digits.train.batch(torch.arange(500)))
    second = flow.train_density(model, digits)
    assert len(second.source) == 2 * len(digits.train)  # mirror images as well
    assert second.part[0] is list(model.target.g)[3].g
    terms = second.loss(second.part, second.source.batch(torch.arange(32)), Draw(0))
    sum(terms.values()).backward()
    own = {id(p) for p in second.part.parameters()}
    assert all((p.grad is not None) == (id(p) in own) for p in model.parameters())


def test_the_one_step_map_is_written_and_loaded(run, tmp_path):
    torch.set_default_dtype(torch.float32)
    model, how = lz.load(run), sampling.Steps("rk4", 30)
    noise = model.noise(3, 1)
    done = sampling.collapse(run, how)
    assert done["files"] == [run / "operators" / "rk4-30"]
    assert done["rank"] == 12 and done["shape"] == [64, 64] and done["steps"] == 30
    again = sampling.collapse(run, how, tmp_path / "mine")
    with torch.no_grad():
        for (folder,) in (done["files"], again["files"]):
            f = lz.load(folder)
            assert isinstance(f, lz.Linearizer)
            assert torch.allclose(f(noise), model.collapse("rk4", 30)(noise), atol=1e-6)
    with pytest.raises(ValueError, match="holds a run"):
        sampling.collapse(run, how, run)


@no_grad
@pytest.mark.parametrize("name", MODELS)
def test_the_one_step_map_of_any_flow_can_be_saved(name, tmp_path):
    model = made(name)
    noise = model.noise(3, 1)
    f = model.collapse("rk4", 5)
    lz.save(f, tmp_path)
    assert torch.allclose(lz.load(tmp_path)(noise), f(noise))


def test_steps_have_names():
    assert str(sampling.Steps("rk4", 9)) == "rk4-9"
    assert str(sampling.Steps("euler", 9, 0.5, 1.0, 1e-3)) == "euler-9-from-0.5-to-1-rtol-0.001"


def test_samples_are_the_same_by_one_step_and_by_the_loop(run, tmp_path):
    torch.set_default_dtype(torch.float32)
    found = []
    for loop in (False, True):
        tensor = tmp_path / f"{loop}.safetensors"
        result = sampling.sample(run, 10, 3, sampling.Steps("rk4", 30), tmp_path / "a.png", tensor,
                                 loop=loop)  # fmt: skip
        assert [p.exists() for p in result["files"]] == [True, True]
        found.append(read_tensors(tensor)[0]["x"])
    assert found[0].shape == (10, *SHAPE)
    assert torch.allclose(*found, atol=1e-4)


def test_the_steps_for_an_error_reach_it(run):
    torch.set_default_dtype(torch.float32)
    for solver in ("rk4", "exponential"):
        steps = sampling.choose_number_of_steps(run, solver, 1e-6)
        model = lz.load(run).double()
        noise = model.noise(16, 1)
        with torch.no_grad():
            rough, fine = (model.collapse(solver, n).operator(noise.flatten(1))
                           for n in (steps, 2000))  # fmt: skip
        assert 1 < steps <= 64 and float((rough - fine).norm() / fine.norm()) < 5e-6


@pytest.fixture
def pictures(tmp_path):
    from PIL import Image

    x = data.load("digits").test.batch(torch.arange(2)).x
    for name, image in zip("ab", x, strict=True):
        pixels = (image[0] * 255).byte().numpy()
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    Image.new("RGB", (30, 20), "white").save(tmp_path / "photo.jpg")
    return tmp_path


def test_encode_interpolate_and_combine_write_pictures(run, pictures):
    torch.set_default_dtype(torch.float32)
    a, b, photo = (str(pictures / name) for name in ("a.png", "b.png", "photo.jpg"))
    done = sampling.encode(run, [a, photo], out=pictures / "codes.png")
    assert done["psnr"][a] > 8
    assert done["notes"] == [f"{photo}: converted, to grey and its centre square from 20 to 8 "
                             "pixels a side"]  # fmt: skip
    for words in ([str(run), a, b], [a, b, "--run", str(run)]):  # the second is how it was
        done = CliRunner().invoke(
            commands, ["interpolate", *words, "-o", str(pictures / "path.png")]
        )
        assert done.exit_code == 0, done.output
    assert "expected two images, got 1" in str(
        CliRunner().invoke(commands, ["interpolate", str(run), a]).exception
    )
    with pytest.raises(ValueError, match="finite temperature up to 1e6"):
        sampling.sample(run, 1, temperature=1e300)
    done = sampling.combine(run, f"{a} + 0.5*class:3 - class:8", out=pictures / "sum.png")
    assert done["terms"] == ["+1 a.png", "+0.5 class:3", "-1 class:8"]
    values = sampling.walk(run, 3, out=pictures / "walk.png")["singular_values"]
    assert len(values) == 3 and values == sorted(values, reverse=True)
    for name in ("codes", "path", "sum", "walk"):
        assert (pictures / f"{name}.png").stat().st_size > 2000


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("class:x", "there is no class 'x'. Known: 0, 1"),
        ("nowhere.png", "no such file"),
        ("two*a.png", "expected terms like"),
        ("", "expected terms like"),
    ],
)
def test_what_cannot_be_combined_is_said(run, expression, message):
    torch.set_default_dtype(torch.float32)
    with pytest.raises(ValueError, match=message):
        sampling.combine(run, expression)


def test_a_run_of_another_app_is_refused(tmp_path):
    torch.set_default_dtype(torch.float32)
    flags = {"model": {"blocks": 1, "hidden": 8},
             "training": {"steps": 1, "validate_every": 0, "tensorboard": False}}  # fmt: skip
    execute(make_plan("attributes", flags=flags), tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match="expected a flow, but the run holds attributes"):
        sampling.open_flow(tmp_path / "run")


def test_evaluation_writes_a_table_and_pictures(run, tmp_path):
    torch.set_default_dtype(torch.float32)
    result = evaluate_run(run, tmp_path, n=100)
    written = json.loads((tmp_path / "flow.json").read_text())
    assert written["one_against_many"] == result["one_against_many"]
    for steps in ("10", "100", "1000", "100 through data"):
        row = result["one_against_many"][steps]
        assert row["mse_float32"] < 1e-8 and row["mse_float64"] < 1e-18
    inversion = result["inversion"]
    assert inversion["rank"] == result["rank"] == 12
    assert inversion["images"] == 100 and result["data"]["test_samples"] == 297
    assert inversion["pca_of_same_rank"]["psnr_mean_over_images"] == pytest.approx(
        pca_psnr(12, 100), rel=1e-3
    )
    assert (tmp_path / "flow.png").exists() and (tmp_path / "coordinates.png").exists()
    assert max(result["round_trip"].values()) < 1e-3


def pca_psnr(rank, n):
    digits = data.load("digits")
    train = digits.train.batch(torch.arange(1200)).x.flatten(1).double()
    x = digits.test.batch(torch.arange(n)).x.flatten(1).double()
    Q = torch.linalg.svd(train - train.mean(0), full_matrices=False)[2][:rank]
    back = ((x - train.mean(0)) @ Q.mT @ Q + train.mean(0)).clamp(0, 1)
    return float((-10 * (back - x).square().mean(1).log10()).mean())


def test_a_flow_put_together_by_hand_has_no_settings_and_starts_from_data_and_noise():
    X = lz.Space(mlp(64, blocks=1))
    model = flow.Flow(X, TimeLowRank(64, 2), X)
    assert not hasattr(model, "config")
    model.initialize(data.Batch(images().flatten(1), None))
    assert torch.allclose(model()(model.noise(2)), model.integrate(model.noise(2), "rk4", 100))


@no_grad
def test_samples_get_a_share_of_the_detail_and_encoding_all_of_it():
    x = images(200)
    maps = {}
    for spread in (1.0, 0.25):
        torch.manual_seed(0)
        settings = {**MODELS["best, detail"], "detail_spread": spread}
        model = flow.build(flow.Config(shape=SHAPE, **settings))
        model.initialize(data.Batch(x, None))
        flow.set_core(model, [x])
        f = maps[spread] = model.collapse("rk4", 50)
        z = model.target.coordinates(f(model.noise(3000, 1)))
        maps[spread, "std"] = z[:, 6:11].std()
    assert float(maps[0.25, "std"] / maps[1.0, "std"]) == pytest.approx(0.25, rel=0.05)
    back, other = (f(f.pinv()(x)) for f in (maps[1.0], maps[0.25]))
    assert torch.allclose(back, other, atol=1e-8)


def test_the_detail_does_not_bend_the_stack_on_u():
    second = flow.train_density(made("best, detail"), data.load("digits"))
    terms = second.loss(second.part, second.source.batch(torch.arange(50)), Draw(0))
    own, other = second.part
    for term, part, moves in (
        ("-log p", own, True), ("-log p", other, False),
        ("-log p of the detail", own, False), ("-log p of the detail", other, True),
    ):  # fmt: skip
        grads = torch.autograd.grad(
            terms[term], list(part.parameters()), retain_graph=True, allow_unused=True
        )
        assert any(g is not None and bool(g.abs().max() > 0) for g in grads) is moves


def test_a_flow_says_in_one_sentence_what_it_is():
    said = {name: flow.describe_flow(flow.Config(shape=SHAPE, **MODELS[name])) for name in MODELS}
    assert "A_t is not learned" in said["best"] and "one for noise and data" in said["matching"]
    assert said["paper"].startswith(
        "Flow matching with a learned core: A_t is a velocity; g is a glow"
    )
    assert "with a flag" in said["authors"] and all(s.endswith(".") for s in said.values())
