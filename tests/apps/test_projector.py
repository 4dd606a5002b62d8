"""Projectors: f(f(x)) = f(x) for any x, ranks, their lattice, gaps, losses, and their uses."""

import json

import pytest
import torch

from linearizer import data
from linearizer.apps.projector import model as projector
from linearizer.apps.projector import use as projecting
from linearizer.apps.projector.app import APP
from linearizer.metrics.images import psnr, roc_auc
from linearizer.runs import store
from linearizer.runs.evaluate import evaluate_run
from linearizer.runs.execute import execute
from linearizer.runs.plan import make_plan
from linearizer.training.draws import Draw

SHAPE = (1, 8, 8)
SMALL = {"hidden": 8, "blocks": 2, "flow_hidden": 16}
MODELS = {
    "paper": {"g": "revnet", "blocks": 2},
    "warm": {"g": "revnet", "blocks": 2, "warm": True, "freeze": 0.7, "mean": False},
    "best": {"rank": 6, "refine": 10, **SMALL},
    "best, detail": {"rank": 6, "detail": 5, **SMALL},
    "best, convolutions": {"rank": 6, "nets": "conv", **SMALL},
}


def source():
    return data.load("digits")


def batch(n=64):
    x, y = source().train.batch(torch.arange(n))
    return data.Batch(x.to(torch.get_default_dtype()), y)


def made(name):
    """A model with weights that are nowhere zero and a Λ of both kinds, as after training."""
    model = projector.Projection(projector.Config(shape=SHAPE, **MODELS[name]))
    model.initialize(batch(300))
    with torch.no_grad():
        for p in model.target.parameters():
            p += 0.05 * torch.randn_like(p)
        if model.config.g == "revnet":
            model.logits.copy_(torch.randn_like(model.logits))
        projector.finish(model, source())
    return model


def far():
    """Inputs of every kind and size."""
    x, draw = batch(8).x, Draw(3)
    near = [x, 1 - x, draw.normal(x), torch.zeros_like(x[:1]), projector.draw_strokes(x, draw, 3)]
    others = [projector.draw_strangers(x, draw), projector.draw_noise(x, draw)]
    return torch.cat([*near, *others, 10 * draw.normal(x), 1e3 * x])


@pytest.mark.parametrize("name", MODELS)
def test_it_is_idempotent_on_any_input(name):
    model = made(name)
    with torch.no_grad():
        for rank in (None, 0, 3, 7, model.largest):
            if rank is not None and rank > model.largest:
                continue
            f = model(rank)
            once = f(far())
            assert float((f(once) - once).abs().max()) < 1e-10 * max(1, float(once.abs().max()))
            assert float(once.abs().max()) < 1e4 or rank == 64
            assert (f(far()) - far()).abs().max() > 0.1 or rank == 64


@pytest.mark.parametrize("name", MODELS)
def test_ranks_are_nested_and_the_trained_one_is_among_them(name):
    model = made(name)
    trained = int((model.logits > 0).sum())
    assert model().rank() == trained
    assert torch.equal(model(trained).operator.mask, model().operator.mask)
    before = torch.zeros(64, dtype=torch.bool)
    for rank in range(model.largest + 1):
        mask = model(rank).operator.mask
        assert int(mask.sum()) == rank and bool((mask | ~before).all())
        before = mask
    for rank in (-1, model.largest + 1):
        with pytest.raises(ValueError, match=rf"0 ≤ rank ≤ {model.largest}"):
            model(rank)


@pytest.mark.parametrize("name", MODELS)
def test_directions_come_by_falling_strength(name):
    model = made(name)
    strength = model.strength[model.order()]
    trained = int((model.logits > 0).sum())
    assert bool((strength[:trained].diff() <= 0).all())
    assert bool((strength[trained:].diff() <= 0).all())
    assert bool((model.strength >= 0).all()) and float(model.strength.max()) > 0


def test_turning_u_keeps_the_map():
    config = projector.Config(shape=SHAPE, **MODELS["best"])
    model = projector.Projection(config)
    model.initialize(batch(300))
    with torch.no_grad():
        for p in model.target.parameters():
            p += 0.1 * torch.randn_like(p)
        x = batch().x  # how far others go is set there as well
        before = model()(x)
        projector.finish(model, source())
        assert torch.allclose(model()(x), before, atol=1e-7 * float(before.abs().max()))


def test_a_smaller_rank_explains_less_of_a_linear_map():
    """With g linear the ordering is that of principal components, whose error is known."""
    model = projector.Projection(projector.Config(shape=SHAPE, rank=12, **SMALL))
    x = batch(1000).x
    # E and D start at zero: what is left is the principal axes.
    list(model.target.g)[1].conditioner.reach = 1e12
    model.initialize(data.Batch(x, None))
    with torch.no_grad():
        projector.finish(model, source())
        errors = [float((model(k)(x) - x).square().mean()) for k in (0, 4, 8, 12)]
        assert errors == sorted(errors, reverse=True)
        flat = x.flatten(1) - x.flatten(1).mean(0)
        values = torch.linalg.eigvalsh(flat.mT @ flat).flip(0)
        assert errors[1] == pytest.approx(float(values[4:].sum() / x.numel()), rel=0.1)


def test_complement_meet_and_join():
    model = made("best")
    X = model.target
    with torch.no_grad():
        x, y = batch().x, batch().y
        f, h = model.onto(x[y == 3], 3), model.onto(x[y == 8], 3)
        assert f.rank() == h.rank() == 3
        both, either = projector.meet(f, h), projector.join(f, h)
        assert both.rank() + either.rank() == 6
        assert torch.allclose((f @ h)(x), both(x), atol=1e-9)
        assert torch.allclose((f + h - f @ h)(x), either(x), atol=1e-9)
        rest = projector.complement(f)
        assert torch.allclose(X.add(f(x), rest(x)), x, atol=1e-8)
        assert torch.allclose(X.inner(f(x), rest(x)), torch.zeros(len(x)), atol=1e-8)
        other = made("best")
        with pytest.raises(ValueError, match="one Space"):
            projector.meet(f, other())
        with pytest.raises(ValueError, match="zeros and ones"):
            projector.join(f, 2 * h)
        with pytest.raises(ValueError, match="0 ≤ rank ≤ 6"):
            model.onto(x, 7)


def test_the_score_is_the_norm_of_what_is_left_over():
    model = made("best")
    with torch.no_grad():
        x = far()
        rest = projector.complement(model())
        assert torch.allclose(model.score(x), model.target.norm(rest(x)), rtol=1e-6, atol=1e-7)
        assert torch.allclose(model.score(model()(x)), torch.zeros(len(x)), atol=1e-7)
        usual = model.score(source().val.batch(torch.arange(300)).x.double())
        assert torch.allclose(model.usual[50], usual.median(), rtol=0.02)
        assert bool((model.usual.diff() >= 0).all())


@pytest.mark.parametrize("mask", ["half", "channel", "each"])
def test_known_pixels_stay_and_the_others_are_projected(mask):
    model = made("best")
    x = batch(5).x
    known = torch.ones(1, 8, 8, dtype=torch.bool)
    known[:, 4:] = False
    known = {"half": known, "channel": known[0], "each": known.expand(5, 1, 8, 8)}[mask]
    y = model.inpaint(x, known, steps=3)
    assert torch.equal(y[..., :4, :], x[..., :4, :])
    assert not torch.allclose(y[..., 4:, :], x[..., 4:, :], atol=1e-3)
    spoilt = torch.where(known, x, float("nan"))
    assert torch.equal(model.inpaint(spoilt, known, steps=3), y)  # unknown pixels do not matter


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_has_gradients_for_all_that_is_trained(name):
    model = made(name)
    terms = projector.loss(model, batch(16), Draw(0))
    sum(terms.values()).backward()
    bare = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not bare
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_the_papers_terms_are_the_printed_ones():
    model = made("paper").requires_grad_(False)
    x, g = batch(16).x, model.target.g
    terms = projector.loss(model, batch(16), Draw(0))
    back = model()(x)
    assert float(terms["reconstruction"]) == pytest.approx(float((back - x).square().mean()))
    assert float(terms["sparsity"]) == pytest.approx(0.75 * model().rank() / 64)
    lengths = (g(x) - g(torch.zeros_like(x))).square().sum(1) - x.flatten(1).square().sum(1)
    assert float(terms["isometry"]) == pytest.approx(0.001 * float(lengths.abs().mean()))


def test_the_loss_does_not_depend_on_how_a_batch_is_cut():
    model = made("best")
    whole = projector.loss(model, batch(64), Draw(0))
    x, y = batch(64)
    halves = [projector.loss(model, data.Batch(x[i : i + 32], y), Draw(0, i)) for i in (0, 32)]
    for name, value in whole.items():
        parts = [float(half[name].detach()) for half in halves]
        assert sum(parts) / 2 == pytest.approx(float(value.detach())), name


def test_a_frozen_mask_takes_no_gradient():
    model = made("warm")
    for done, moves in ((0.0, True), (0.8, False)):
        model.zero_grad()
        sum(projector.loss(model, batch(8), Draw(0, done=done)).values()).backward()
        assert bool(model.logits.grad.abs().max() > 0) is moves
    before, after = (
        projector.loss(model, batch(8), Draw(0, done=done))["sparsity"].detach()
        for done in (0.25, 0.5)
    )
    assert float(after) == pytest.approx(2 * float(before))  # it grows to its weight


def test_a_warm_start_is_the_principal_axes():
    model = projector.Projection(projector.Config(shape=SHAPE, **MODELS["warm"]))
    x = batch(500).x
    model.initialize(data.Batch(x, None))
    z = model.target.coordinates(x).detach()
    variance = z.var(0)
    assert bool((variance.diff() <= 1e-9).all())
    assert torch.allclose(z.mT.cov(), torch.diag(variance), atol=1e-8)


def test_noise_of_any_size_has_normal_coordinates():
    model = made("best")
    x = torch.zeros(1000, *SHAPE)
    with torch.no_grad():
        for size in (10.0, 1000.0):
            z = model.target.coordinates(size * Draw(1).normal(x))[:, :6]
            assert float((z.mT.cov() - torch.eye(6)).abs().max()) < 0.25
            assert float(z.mean(0).abs().max()) < 0.2


def test_images_that_are_not_data_depend_on_place_alone():
    x = batch(80).x
    for make in (projector.spoil, projector.draw_strangers, projector.draw_noise):
        whole, part = make(x, Draw(7)), make(x[40:], Draw(7, start=40))
        assert torch.allclose(whole[40:], part)
        assert whole.shape == x.shape and not torch.allclose(whole, x)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("projector") / "run"
    flags = {
        "model": {
            "hidden": 64,
            "flow_hidden": 32,
            "rank": 12,
            "blocks": 2,
            "detail": 8,
            "refine": 100,
        },
        "training": {"steps": 250, "rate": 3e-3, "validate_every": 250, "tensorboard": False},
    }
    execute(make_plan("projector", flags=flags), folder, progress=False)
    return folder


def test_training_makes_a_projector_that_beats_principal_components(run):
    torch.set_default_dtype(torch.float32)
    opened = projecting.open_projector(run)
    model, x = opened.model, store.test_points(opened, 297)
    with torch.no_grad():
        back = model()(x).clamp(0, 1)
        train = source().train.batch(torch.arange(1200)).x.flatten(1)
        Q = torch.pca_lowrank(train, 12, niter=10)[2]
        pca = ((x.flatten(1) - train.mean(0)) @ Q @ Q.mT + train.mean(0)).reshape_as(x)
        assert float(psnr(back, x).mean()) > float(psnr(pca.clamp(0, 1), x).mean())
        scores = [model.score(these) for these in (torch.rand(200, 1, 8, 8), x)]
        assert roc_auc(*scores) > 0.9


def test_projecting_files(run, tmp_path):
    from PIL import Image

    torch.set_default_dtype(torch.float32)
    Image.new("RGB", (30, 20), (200, 90, 10)).save(tmp_path / "photo.png")
    mask = Image.new("L", (8, 8), 255)
    mask.paste(0, (0, 4, 8, 8))
    mask.save(tmp_path / "mask.png")
    photo = tmp_path / "photo.png"
    done = projecting.project(run, [photo], out=tmp_path / "one.png")
    assert done["idempotency_error"] < 1e-4 and done["rank"] == 12
    assert done["notes"][0].endswith("to grey and its centre square from 20 to 8 pixels a side")
    (row,) = done["scores"]
    assert row["score"] > 0 and 0 <= row["share_of_data_above"] <= 1
    done = projecting.project(run, [photo], 5, tmp_path / "mask.png", tmp_path / "two.png")
    assert done["rank"] == 5 and "share_of_data_above" not in done["scores"][0]
    for name in ("one", "two"):
        assert (tmp_path / f"{name}.png").stat().st_size > 1000


def test_evaluation_writes_a_table_and_pictures(run, tmp_path):
    torch.set_default_dtype(torch.float32)
    result = evaluate_run(run, tmp_path)
    written = json.loads((tmp_path / "projector.json").read_text())
    assert written["idempotency_float32"] == result["idempotency_float32"]
    assert max(result["idempotency_float32"].values()) < 1e-4
    assert max(result["idempotency_float64"].values()) < 1e-10
    assert {"data", "noise 10", "zero", "scribbles"} <= set(result["idempotency_float32"])
    assert set(result["reconstruction_by_rank"]) == {"2", "4", "8", "12", "16", "20"}
    row = result["reconstruction_by_rank"]["12"]
    assert row["psnr"] == result["reconstruction"]["psnr_mean_over_images"] > row["pca_psnr"] > 10
    for row in result["idempotency_at_other_ranks"].values():
        assert row["float32"] < 1e-4 and row["float64"] < 1e-10
    lattice = result["meet_and_join"]
    assert lattice["meet"]["rank"] + lattice["join"]["rank"] == 12
    assert result["gaps"]["lower half"]["back-projection"] > 0
    for path in result["files"]:
        assert (tmp_path / path.rsplit("/", 1)[-1]).exists()


def test_the_rank_is_chosen_where_none_is_asked_for():
    model = APP.make(projector.Config(shape=SHAPE, **SMALL))
    model.initialize(batch(300))
    assert model().rank() == model.largest == 32
    terms = projector.loss(model, batch(16), Draw(0))
    assert all(bool(t.isfinite()) for t in terms.values())
    assert projector.train_density(model, source()).source.parts[0].shape == (1200, 32)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 64}, r"rank \+ detail < 64"),
        ({"rank": 1}, "2 ≤ rank"),
        ({"g": "revnet", "detail": 3}, "need g"),
        ({"g": "revnet", "rank": 3}, "revnet learns its rank"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        projector.Projection(projector.Config(shape=SHAPE, **settings))
