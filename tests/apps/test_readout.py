"""Readouts: attributes and distill, their losses, algebra and commands."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import linearizer as lz
from linearizer import data, load
from linearizer.apps.attributes import model as attributes
from linearizer.apps.attributes.evaluate import accuracies
from linearizer.apps.base import Run
from linearizer.apps.distill import model as distill
from linearizer.apps.readout import use
from linearizer.apps.readout.model import Readout, ReadoutConfig
from linearizer.apps.registry import find_app
from linearizer.metrics.regression import fit_ridge
from linearizer.nets import EigenImages, Layers, Norm, ResNet, batch_statistics, describe_layers
from linearizer.runs.algebra import certify_run, write_spectrum
from linearizer.runs.evaluate import evaluate_run
from linearizer.runs.execute import execute
from linearizer.runs.plan import make_plan, plan_of
from linearizer.runs.store import load_data, open_run
from linearizer.runs.store import test_points as points_of
from linearizer.training.draws import Draw

KINDS = {
    "mlp": {"g": "mlp", "blocks": 2, "hidden": 16},
    "glow": {"g": "glow", "blocks": 1, "hidden": 8},
    "encoder": {"g": "encoder", "hidden": 8, "decoder_hidden": 4},
    "encoder, extra": {"g": "encoder", "hidden": 8, "decoder_hidden": 4, "extra": 5},
    "encoder, scales alone": {"g": "encoder", "hidden": 8, "extra": 3, "output_blocks": 0},
}


def shaken(model):
    with torch.no_grad():
        for p in model.parameters():
            p += 0.05 * torch.randn_like(p)
    return model


def digits(n=60):
    return data.load("digits").train.batch(torch.arange(n))


def classes(name):
    model = attributes.Attributes(attributes.Config(**KINDS[name]))
    x, y = digits()
    model.initialize(data.Batch(x.to(model.read.weight), y))
    return shaken(model)


class Faces:
    """Random small images with three attributes that can be seen in them."""

    names = ("bright", "left", "other")
    shape = (1, 16, 16)

    def __init__(self, n=80, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.rand(n, 3, generator=generator) > 0.5
        x = 0.1 * torch.rand(n, 1, 16, 16, generator=generator)
        x[self.labels[:, 0]] += 0.4
        x[self.labels[:, 1], :, 4:12, 2:7] += 0.4
        self.x = x

    def __len__(self):
        return len(self.x)

    def batch(self, index):
        like = torch.get_default_dtype()
        return data.Batch(self.x[index].to(like), self.labels[index].to(like))


def faces(n=80):
    return data.Data("faces", Faces(n, 0), Faces(n, 1), Faces(n, 2), ())


def trained(steps=80, **changes):
    """A small model of attributes, trained for real."""
    source = faces(200)
    config = attributes.Config(
        **{**attributes.facts(source), "hidden": 8, "decoder_hidden": 4, "extra": 4,
           "output_blocks": 0, "score": 1.0, "g": "encoder", **changes}
    )  # fmt: skip
    torch.manual_seed(0)
    model = attributes.Attributes(config)
    model.initialize(source.train.batch(torch.arange(200)))
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(steps):
        optimizer.zero_grad()
        index = torch.randint(200, (32,), generator=torch.Generator().manual_seed(step))
        sum(attributes.loss(model, source.train.batch(index), Draw(step)).values()).backward()
        optimizer.step()
    attributes.finish(model, source)
    return model.eval(), source


@pytest.mark.parametrize("name", KINDS)
def test_every_law_holds(name):
    model = classes(name)
    x = digits(8).x.to(model.read.weight)
    assert model().certify(x).passed
    assert torch.allclose(model.read.outputs_of(x), model()(x))


@pytest.mark.parametrize("name", KINDS)
def test_settling_leaves_the_map_as_it_was(name):
    model, source = classes(name), data.load("digits")
    x = digits().x.to(model.read.weight)
    before = model()(x)
    attributes.finish(model, source)
    assert torch.allclose(model()(x), before)
    assert torch.allclose(model.read.outputs_of(x), before)
    attributes.finish(model, source)  # again, as when a shipped model is rounded
    assert torch.allclose(model()(x), before)
    if model.read.encodes:
        batches = model.read.read_batches(source.train, 1200)
        z = torch.cat([model().source.coordinates(b) for b in batches])
        u = z[:, : model.read.width]
        assert torch.allclose(u.mean(0), torch.zeros(()), atol=1e-8)
        assert torch.allclose(u.mT.cov(correction=0), torch.eye(u.shape[1]), atol=1e-6)
        assert torch.allclose(model()(model().source.zero()), model().target.zero(), atol=1e-8)


def test_outputs_that_depend_on_each_other_are_settled_well_conditioned():
    model, source = classes("encoder"), data.load("digits")
    with torch.no_grad():
        model.read.weight[1] = model.read.weight[0] * (1 + 1e-9)
    x = digits().x.to(model.read.weight)
    before = model()(x)
    attributes.finish(model, source)
    S = torch.linalg.svdvals(model.read.weight)
    assert S[-1] / S[0] > 2.9e-3
    assert 0 < (model()(x) - before).abs().max() < 3e-2 * before.std()
    f = model()
    assert torch.allclose(f(f.pinv()(f(x))), f(x))


def test_settled_scores_of_classes_are_their_means():
    model, source = classes("encoder"), data.load("digits")
    attributes.finish(model, source)
    x, y = source.train.batch(torch.arange(len(source.train)))
    scores = model()(x.to(model.read.weight))
    assert torch.allclose(model.typical[3], scores[y == 3].mean(0))
    assert torch.equal(model.typical_scores(torch.tensor([3, 3]))[1], model.typical[3])


def test_the_loss_by_hand_is_that_of_the_map():
    model = classes("encoder, extra")
    x = digits(12).x.to(model.read.weight)
    with torch.no_grad():  # as in training, where the extra coordinates have no part in the outputs
        model.read.weight[:, 10:] = 0.0
    y, terms = model.read.terms(x, Draw(0))
    assert torch.allclose(y, model()(x))
    # Every fourth sample is decoded: with all of them the term is ‖w‖² of the map.
    config = model.config.model_copy(update={"decode_every": 1})
    model.read.config = config
    _, terms = model.read.terms(x, Draw(0))
    w = model().source.coordinates(x)[:, model.read.width :]
    assert torch.allclose(terms["decoded"], config.decode * w.square().mean(0).sum() / 64)


def test_two_processes_decode_the_samples_that_one_would():
    model = classes("encoder, extra")
    x = digits(16).x.to(model.read.weight)
    model.read.config = model.config.model_copy(update={"agree": 0.3})
    whole = model.read.terms(x, Draw(5))[1]
    halves = [model.read.terms(x[:8], Draw(5))[1], model.read.terms(x[8:], Draw(5, start=8))[1]]
    for key, value in whole.items():
        assert torch.allclose(value, (halves[0][key] + halves[1][key]) / 2), key


def test_only_the_outputs_teach_the_first_network():
    model = classes("encoder, extra")
    x = digits(12).x.to(model.read.weight)
    _, terms = model.read.terms(x, Draw(0))
    sum(terms.values()).backward()
    first = model.read._layers()[1].conditioner.net.nets[0]
    decoder = model.read._layers()[2].conditioner.net
    assert all(p.grad is None for p in first.parameters())
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in decoder.parameters())


def test_eigenimages_are_the_best_linear_code():
    x = torch.rand(60, 3, 8, 1) @ torch.rand(60, 3, 1, 8) + 0.01 * torch.randn(60, 3, 8, 8)
    x = x - x.mean(0)
    net = EigenImages((3, 8, 8), 5)
    net.initialize(x)
    u = net(x)
    assert torch.allclose(u.square().mean(0), torch.ones(5))
    U, S, Vh = torch.linalg.svd(x.flatten(1), full_matrices=False)
    best = (U[:, :5] * S[:5]) @ Vh[:5]
    assert torch.allclose(net.draw(u).flatten(1), best)
    large = EigenImages((1, 48, 64), 4)
    large.initialize(torch.randn(20, 1, 48, 64))
    assert large.draw(large(torch.randn(2, 1, 48, 64))).shape == (2, 1, 48, 64)
    with pytest.raises(ValueError, match="more than 5 images"):
        EigenImages((1, 8, 8), 5).initialize(torch.randn(5, 1, 8, 8))


def test_the_second_stage_trains_the_decoder_alone(tmp_path):
    torch.set_default_dtype(torch.float32)
    flags = {"model": {"g": "encoder", "hidden": 8, "decoder_hidden": 4, "extra": 6, "decode": 0.0},
             "training": {"steps": 3, "tensorboard": False, "validate_every": 0}}  # fmt: skip
    for refine, name in ((0, "without"), (30, "with")):
        chosen = {**flags, "model": {**flags["model"], "refine": refine}}
        execute(make_plan("attributes", flags=chosen), tmp_path / name, progress=False)
    without, refined = load(tmp_path / "without"), load(tmp_path / "with")
    x = digits(40).x
    assert torch.allclose(without()(x), refined()(x), atol=1e-4)
    missed = [m.read.decoder_terms(x)["decoded"] for m in (without, refined)]
    assert missed[1] < missed[0]


def test_attributes_are_learned_and_their_least_norm_images_have_them():
    model, source = trained()
    x, y = source.test.batch(torch.arange(200))
    right = ((model()(x) > 0) == (y > 0.5)).double().mean(0)
    assert right[0] > 0.95 and right[1] > 0.9 and right[2] < 0.75  # the third cannot be seen
    f = model()
    middle = f(f.source.zero())
    wishes = ("bright", "-bright")
    bright, dark = (f.pinv()(use.hold_others(model, wish, middle)) for wish in wishes)
    assert bright.mean() > dark.mean() + 0.1
    y = use.hold_others(model, "bright, -left, other=1.5", middle)
    assert torch.allclose(f(f.pinv()(y)), y)
    h, wanted = use.aim_at(model, "bright, other=1.5")
    assert h.operator.shape == (2, 256) and wanted[0, 1] == 1.5
    assert torch.allclose(h(x), f(x)[:, [0, 2]])
    # Of all points with these scores f† takes the shortest, so that asking less is shorter.
    held = use.hold_others(model, "bright, other=1.5", middle)
    free, all_of_them = h.pinv()(wanted), f.pinv()(held)
    assert torch.allclose(h(free), wanted)
    assert f.source.norm(free) < f.source.norm(all_of_them)
    assert y[0, 2] == 1.5 and y[0, 0] == model.typical[1, 0] and y[0, 1] == model.typical[0, 1]


def test_erasure_takes_linear_probes_to_chance_and_is_idempotent():
    model, source = trained()
    f = model()
    gaps = use.class_gap(f, use.label_batches(model, source.train), [0])
    P = use.eraser(f, gaps)
    x, y = source.train.batch(torch.arange(200))
    once = P(x)
    assert torch.allclose(P(once), once)
    z = f.source.coordinates(once)
    has = y[:, 0] > 0.5
    assert torch.allclose(z[has].mean(0), z[~has].mean(0), atol=1e-10)
    before, after = (
        fit_ridge(f.source.coordinates(a), 2 * y - 1, [1e-3])[0](f.source.coordinates(a))
        for a in (x, once)
    )
    assert ((before[:, 0] > 0) == has).double().mean() > 0.95
    assert after[:, 0].std() < 1e-6  # a constant: nothing is left to tell it by
    assert ((after[:, 1] > 0) == (y[:, 1] > 0.5)).double().mean() > 0.9


def test_labels_are_found_by_name_or_refused():
    images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    model = SimpleNamespace(
        output_names=("a", "b", "c"), output_kind="classes", read=torch.nn.Linear(1, 1)
    )
    part = data.Images(images, torch.tensor([0, 1, 1, 0]), ("c", "a"))
    ((_, marks),) = use.label_batches(model, part)
    assert marks.argmax(1).tolist() == [2, 0, 0, 2] and marks.shape == (4, 3)
    for other in (data.Images(images), data.Images(images, torch.zeros(4).long(), ("d",))):
        with pytest.raises(ValueError, match="labels: expected those of a, b, c, as in training"):
            list(use.label_batches(model, other))


def test_gaps_that_depend_on_each_other_are_erased_once():
    model, _ = trained(2)
    f = model()
    gap = torch.randn(1, f.source.dim)
    P = use.eraser(f, torch.cat([gap, gap, 2 * gap])).operator
    assert torch.allclose(P.dense(), use.eraser(f, gap).operator.dense(), atol=1e-8)
    halves = use.eraser(f, gap, cut=3).operator
    assert halves.dense().trace().round() == f.source.dim - 2
    for part in (slice(None, 3), slice(3, None)):  # each part of the gap is gone
        d = torch.zeros_like(gap)
        d[:, part] = gap[:, part]
        assert torch.allclose(halves(d), torch.zeros_like(d), atol=1e-12)


@pytest.mark.parametrize("shape", [(30, 6), (6, 30)])
def test_probes_solve_the_ridge_problem(shape):
    Z, y = torch.randn(*shape), torch.randn(shape[0], 2)
    found = fit_ridge(Z, y, [0.1, 0.3])[1](Z)
    C, level = Z - Z.mean(0), y - y.mean(0)
    w = torch.linalg.solve(C.mT @ C + shape[0] * 0.3 * torch.eye(shape[1]), C.mT @ level)
    assert torch.allclose(found, C @ w + y.mean(0))


def test_accuracies_of_attributes_and_classes():
    scores = torch.tensor([[1.0, -1.0], [1.0, -1.0], [-1.0, -1.0], [1.0, 1.0]])
    y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    found = accuracies(scores, y, "attributes")
    assert found == {"accuracy": pytest.approx(7 / 8), "balanced": pytest.approx((0.75 + 1) / 2)}
    found = accuracies(torch.eye(3)[[0, 1, 1, 2]], torch.eye(3)[[0, 1, 2, 2]], "classes")
    assert found == {"accuracy": 0.75, "balanced": pytest.approx((1 + 1 + 0.5) / 3)}


def test_augmentation_is_bounded_and_the_same_for_the_same_draw():
    x = torch.rand(6, 3, 16, 16)
    config = attributes.Config(flip=True, move=0.1, light=0.2)
    one, two = (attributes.augment(x, config, Draw(3)) for _ in range(2))
    assert torch.equal(one, two) and not torch.allclose(one, x)
    assert torch.equal(attributes.augment(x, attributes.Config(), Draw(3)), x)
    flipped = attributes.augment(x, attributes.Config(flip=True), Draw(3))
    same = [bool(torch.equal(a, b)) for a, b in zip(flipped, x, strict=True)]
    mirrored = [bool(torch.equal(a, b.flip(2))) for a, b in zip(flipped, x, strict=True)]
    assert all(a != b for a, b in zip(same, mirrored, strict=True)) and any(mirrored)


def test_networks_of_images():
    net = ResNet((3, 20, 17), 5, hidden=8)
    shaken(net)
    x = torch.rand(2, 3, 20, 17)
    assert net(x).shape == (2, 5) and torch.allclose(net(x)[:1], net(x[:1]))
    net.mirror = True
    assert torch.allclose(net(x), net(x.flip(3))) and not torch.allclose(net(x)[0], net(x)[1])
    with batch_statistics(net):  # half of the work while it learns
        assert not torch.allclose(net(x), net(x.flip(3)))
    with pytest.raises(ValueError, match="16×16 or more"):
        ResNet((3, 12, 16), 5)


def test_norms_are_fixed_but_for_a_loss_that_looks_through_the_batch():
    net = ResNet((3, 16, 16), 5, hidden=8)
    shaken(net)
    x = 3 * torch.rand(8, 3, 16, 16) - 1
    before = net.train()(x)
    assert torch.equal(net.eval()(x), before) and torch.allclose(net(x[:2]), before[:2])
    with batch_statistics(net):
        seen = net(x)
        assert not torch.allclose(net(x[:2]), seen[:2])  # the batch counts
    after = net(x)
    assert not torch.allclose(after, before)  # stored statistics have moved towards the batch's
    norm, y = Norm(3), torch.randn(500, 3, 4, 4) * 5 + 2
    with batch_statistics(norm):
        seen = [norm(y) for _ in range(200)][-1]
    assert torch.allclose(norm(y), seen, atol=1e-2)  # the stored ones are the batch's in the end
    with pytest.raises(RuntimeError), batch_statistics(net):
        raise RuntimeError
    assert torch.equal(net(x), net(x)) and not any(
        m.follows for m in net.modules() if isinstance(m, Norm)
    )


def test_a_settled_readout_is_one_function_of_the_image():
    config = attributes.Config(
        shape=(3, 16, 16), g="encoder", net="residual", hidden=8, extra=4, output_blocks=0
    )
    model = attributes.Attributes(config)
    shaken(model)
    x = torch.rand(64, 3, 16, 16)
    model.read.initialize(x, torch.randn(64, 10))
    norm = next(m for m in model.modules() if isinstance(m, Norm))
    model.read.terms(x, Draw(0))
    moved = norm.mean.clone()
    assert not torch.equal(moved, torch.zeros_like(moved))  # the first stage follows its batches
    list(model.read.source.g)[3].g.initialize(torch.randn(64, model.read.width))
    y, _ = model.read.terms(x, Draw(0))
    assert torch.equal(norm.mean, moved) and torch.allclose(y, model.read.outputs_of(x))


# -- distill -----------------------------------------------------------------------------------


def test_a_network_of_vectors_is_distilled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)
    try:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        x = torch.randn(2000, 6)
        source = tmp_path / "x.npy"
        np.save(source, x.numpy())
        (tmp_path / "mine.py").write_text(
            "import torch\nfrom torch import nn\n"
            "def build():\n    torch.manual_seed(0)\n"
            "    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))\n"
        )
        plan = make_plan("distill", flags={
            "data": {"name": str(source), "teacher": "mine.py:build"},
            "model": {"blocks": 3, "hidden": 32, "likelihood": 0.01},
            "training": {"steps": 400, "batch": 128, "rate": 3e-3, "tensorboard": False},
        })  # fmt: skip
        result = execute(plan, tmp_path / "run", progress=False)
    finally:
        torch.set_default_dtype(torch.float64)
    assert result.metrics["R2"] > 0.9
    model = load(tmp_path / "run")
    f = model()
    y = net(x[:5]).detach()
    assert f.source.shape == (6,) and f.target.shape == (3,)
    back = f.back_project(x[:5], y)
    assert torch.allclose(f(back), y, atol=1e-3)
    assert f.double().certify(x[:8].double()).passed


def test_distill_takes_a_module_and_a_tensor(tmp_path):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Dropout(0.5), nn.Linear(12, 2)).float()
    x = torch.randn(800, 5).float()
    settings = {"model": {"blocks": 2, "hidden": 32, "likelihood": 0.01},
                "training": {"steps": 300, "rate": 5e-3, "tensorboard": False},
                "progress": False}  # fmt: skip
    model = lz.distill(net, x, tmp_path / "run", **settings)
    assert net.training
    y = net.eval()(x).detach()
    assert bool((model()(x) - y).square().mean() < 0.1 * y.var())
    again = lz.distill(net, x, tmp_path / "run", **settings)  # it is done: nothing is trained
    assert torch.equal(again()(x), model()(x))
    other = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Dropout(0.5), nn.Linear(12, 2)).float()
    for network, samples in ((other, x), (net, x + 1)):
        with pytest.raises(ValueError, match="cannot resume, since data"):
            lz.distill(network, samples, tmp_path / "run", **settings)
    with pytest.raises(ValueError, match="its data were given in Python"):
        points_of(open_run(tmp_path / "run"), 8)
    said = []
    assert certify_run(tmp_path / "run", 8, "float64", None, say=said.append).passed
    assert "since the data are not here" in said[0]
    with pytest.raises(ValueError, match="10 or more, got a tensor of shape"):
        lz.distill(net, x[:4])
    with pytest.raises(TypeError, match="got ndarray"):
        lz.distill(net, x.numpy())
    with pytest.raises(TypeError, match="Wrap a function in a module"):
        lz.distill(lambda x: x, x)
    with pytest.raises(ValueError, match="size is for images"):
        lz.distill(net, x, size=3)


def small_network():
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.SiLU(), nn.AvgPool2d(2), nn.Dropout(0.3),
        nn.Sequential(nn.Flatten(), nn.Linear(6 * 64, 12), nn.LeakyReLU(0.2), nn.Linear(12, 3)),
        nn.Sigmoid(),
    ).float()  # fmt: skip


def test_a_chain_of_layers_is_built_anew():
    net = small_network().double().eval()
    layers = describe_layers(net)
    kinds = "Conv2d SiLU AvgPool2d Flatten Linear LeakyReLU Linear Sigmoid"
    assert [one["kind"] for one in layers] == kinds.split()
    x = torch.rand(4, 1, 16, 16)
    anew = Layers(json.loads(json.dumps(layers)), (1, 16, 16), 3).take(net)
    assert torch.allclose(anew(x), net(x))
    mean = torch.rand(256)
    anew.initialize(mean, lambda y: y @ torch.tensor([[1.0, 2, 0], [0, 1, 0], [3, 0, 1]]) - 5)
    y = net(x)
    wanted = torch.stack([y[:, 0] + 3 * y[:, 2], 2 * y[:, 0] + y[:, 1], y[:, 2]], 1) - 5
    assert torch.allclose(anew(x - mean.reshape(1, 16, 16)), wanted)
    for other in (nn.Linear(3, 2), nn.Sequential(nn.BatchNorm1d(3)), Residual(nn.Tanh()),
                  nn.Sequential(Residual(nn.Tanh()))):  # fmt: skip
        assert describe_layers(other) == ()


class Residual(nn.Sequential):
    def forward(self, x):
        return x + 3 * super().forward(x)


@pytest.mark.parametrize("layer", [
    nn.MaxPool2d(2, stride=4, dilation=3), nn.MaxPool2d(5, ceil_mode=True),
    nn.AvgPool2d(4, padding=2, count_include_pad=False), nn.AvgPool2d(4, divisor_override=1),
    nn.Softplus(beta=20), nn.ELU(0.3), nn.GELU("tanh"), nn.LeakyReLU(0.5), nn.Flatten(2),
    nn.Conv2d(1, 2, 3, padding="same", padding_mode="circular", bias=False),
    nn.Conv2d(np.int64(1), 4, (3, 5), stride=2, dilation=2),
], ids=str)  # fmt: skip
def test_a_layer_is_built_anew_with_all_its_settings(layer):
    x = torch.randn(3, 1, 16, 16)
    chain = nn.Sequential(layer).double()
    outputs = chain(x).flatten(1).shape[1]
    layers = json.loads(json.dumps(describe_layers(chain)))
    assert torch.allclose(Layers(layers, (1, 16, 16), outputs).take(chain)(x), chain(x).flatten(1))


@pytest.mark.parametrize("wrong", [
    [], [{"kind": "Module"}], [{"kind": "ReLU", "inplace": True}], [{}], [{"kind": "Linear"}],
    [{"kind": "Conv2d", "in_channels": "x", "out_channels": 2, "kernel_size": 3}],
    [{"kind": "AvgPool2d", "kernel_size": None}], [{"kind": "GELU", "approximate": "x"}],
    [{"kind": "Flatten"}, {"kind": "Linear", "in_features": 10**11, "out_features": 2}],
    [{"kind": "Flatten"}, {"kind": "Linear", "in_features": 256, "out_features": 3}],
], ids=str)  # fmt: skip
def test_layers_of_a_stranger_are_checked(wrong):
    with pytest.raises(ValueError, match="Layers: expected"):
        Layers(wrong, (1, 16, 16), 2)


def test_a_network_with_the_same_layers_starts_as_it(tmp_path):
    net = small_network()
    x = torch.rand(300, 1, 16, 16, generator=torch.Generator().manual_seed(3)).float()
    x = nn.functional.avg_pool2d(x, 5, stride=1, padding=2)
    settings = {"model": {"decoder_hidden": 4, "refine": 5},
                "training": {"steps": 20, "tensorboard": False}, "progress": False}  # fmt: skip
    model = lz.distill(net, x, tmp_path / "run", same=True, **settings)
    y = net.eval()(x).detach()
    r2 = 1 - (model()(x) - y).square().mean(0) / y.var(0)
    assert bool((r2 > 0.995).all()), r2
    again = load(tmp_path / "run")  # rebuilt from words and numbers
    assert torch.equal(again()(x), model()(x))
    assert model().double().certify(x[:6].double()).passed


def bordered(n=300):
    x = torch.rand(n, 1, 14, 14, generator=torch.Generator().manual_seed(3)).float()
    return nn.functional.pad(x, (1, 1, 1, 1), value=0.5)


FEW = {"model": {"decoder_hidden": 4, "refine": 5}, "progress": False,
       "training": {"steps": 20, "tensorboard": False}}  # fmt: skip


def test_a_network_of_images_with_a_border_is_a_linearizer_exactly(tmp_path):
    net, x = small_network().eval(), bordered()
    model = lz.distill(net, x, tmp_path / "run", same=True, **FEW)
    y = net(x).detach()
    near = 2e-5 * float(y.std())
    assert torch.allclose(model.read.outputs_of(x), y, atol=near)
    again = load(tmp_path / "run").double()  # which pixels is kept with the weights
    assert torch.allclose(again()(x.double()).float(), y, atol=near)
    assert again().certify(x[:6].double()).passed
    back = again().pinv()(y.double())
    assert torch.allclose(again()(back), y.double())


@pytest.mark.parametrize("last", ["narrow", "sum", "large"])
def test_outputs_that_depend_on_each_other_are_a_linearizer_too(last):
    net, x = small_network().eval(), bordered()
    m = net(x).shape[1]
    with torch.no_grad():
        turn = nn.Linear(m, m).float()
        if last == "sum":  # always 1
            turn.weight -= turn.weight.mean(0)
            turn.bias += (1 - turn.bias.sum()) / m
        elif last == "large":  # with few digits left
            turn.weight.copy_(torch.eye(m))
            turn.bias.fill_(300 * float(net(x).std()))
    more = [nn.Linear(m, 1), nn.Linear(1, m)] if last == "narrow" else [turn]
    net = nn.Sequential(*net, *more).float()
    y = net(x).detach()
    f = lz.distill(net, x, same=True, **FEW)()
    gap = (f(x) - y).abs().amax(0)
    assert bool((gap < 1e-4 * y.std(0) + 3e-6 * y.abs().amax(0)).all())


def test_pixels_that_change_in_few_images_are_seen():
    net, x = small_network().eval(), bordered(3000)
    x[-4:, :, 0] += 0.3  # all of the border, but in different images
    x[-3, :, -1] += 0.2
    x[-2, :, :, 0] += 0.2
    x[-1, :, :, -1] += 0.2
    for seed in range(2):
        few = {**FEW, "training": {**FEW["training"], "seed": seed}}
        model = lz.distill(net, x, same=True, **few)
        assert not model.read._layers()[0].taken


def test_a_run_of_the_same_layers_resumes(tmp_path):
    run = tmp_path / "run"
    np.save(tmp_path / "x.npy", bordered().numpy())
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "net = nn.Sequential(nn.Conv2d(1, 2, (3, 5)), nn.Flatten(), nn.Linear(2 * 14 * 12, 2))\n"
    )
    flags = {"data": {"name": str(tmp_path / "x.npy"), "teacher": f"{tmp_path}/mine.py:net"},
             "model": FEW["model"], "training": FEW["training"]}  # fmt: skip
    torch.set_default_dtype(torch.float32)
    plan = make_plan("distill", preset="same", flags=flags)
    execute(plan, run, progress=False)
    config = json.loads((run / "config.json").read_text())
    assert config["model"]["layers"][0]["kernel_size"] == [3, 5]
    del config["model"]["mirror"]  # as if that setting were newer than the run
    (run / "config.json").write_text(json.dumps(config))
    result = execute(plan_of(run, {"steps": 30}), run, progress=False, resume=True)
    torch.set_default_dtype(torch.float64)
    assert result.step == 30


def test_a_network_of_other_layers_cannot_be_the_same(tmp_path):
    class Odd(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :3]

    few = {"training": {"steps": 1}, "progress": False}
    x = torch.rand(50, 1, 20, 20).float()
    with pytest.raises(ValueError, match="net = same needs a network whose layers are known"):
        lz.distill(Odd(), x, same=True, **few)
    net = nn.Sequential(nn.Linear(4, 2)).float()
    with pytest.raises(ValueError, match="same layers are for images .* Leave out --same"):
        lz.distill(net, x.flatten(1)[:, :4], same=True, **few)
    hooked = nn.Sequential(nn.Flatten(), nn.Linear(400, 3)).float()
    hooked[1].register_forward_hook(lambda module, inputs, output: output * 2)
    with pytest.raises(ValueError, match="do not give what the network gives"):
        lz.distill(hooked, x, same=True, **few)
    assert distill.Config(layers=[{"kind": "ReLU"}]).layers == ()  # of no use to net = auto
    plain = nn.Sequential(nn.Flatten(), nn.Linear(400, 3)).float()
    with pytest.raises(ValueError, match="layers is .*ReLU.* in the settings, but given has"):
        lz.distill(plain, x, same=True, model={"layers": [{"kind": "ReLU"}]}, **few)


def test_outputs_and_features_of_unequal_size_are_learned():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2)).float()

    class Scaled(nn.Module):
        def forward(self, x):
            return net(x / x.new_tensor([1e3, 1.0, 1.0, 1e-3])) * x.new_tensor([1e4, 1e-4])

    x = (torch.randn(1500, 4) * torch.tensor([1e3, 1.0, 1.0, 1e-3])).float()
    model = lz.distill(Scaled(), x, progress=False, model={"blocks": 2, "hidden": 32,
                       "likelihood": 0.01}, training={"steps": 300, "rate": 5e-3})  # fmt: skip
    y = Scaled()(x).detach()
    assert bool((1 - (model()(x) - y).square().mean(0) / y.var(0) > 0.9).all())


def test_a_strangers_run_starts_no_code(tmp_path):
    torch.manual_seed(0)
    np.save(tmp_path / "x.npy", torch.randn(200, 4).float().numpy())
    (tmp_path / "mine.py").write_text(
        "import pathlib, torch\npathlib.Path(__file__).with_name('ran').touch()\n"
        "net = torch.nn.Linear(4, 2)\n"
    )
    flags = {"data": {"name": str(tmp_path / "x.npy"), "teacher": f"{tmp_path}/mine.py:net"},
             "model": {"blocks": 1, "hidden": 8},
             "training": {"steps": 2, "tensorboard": False}}  # fmt: skip
    torch.set_default_dtype(torch.float32)
    execute(make_plan("distill", flags=flags), tmp_path / "run", progress=False)
    torch.set_default_dtype(torch.float64)
    (tmp_path / "ran").unlink()
    assert certify_run(tmp_path / "run", 8, "float64", None).points == 8
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ValueError, match="does not start code"):
        load_data(open_run(tmp_path / "run"))
    with pytest.raises(ValueError, match="does not start code"):  # other data are no leave for it
        evaluate_run(tmp_path / "run", tmp_path / "out", data={"name": str(tmp_path / "x.npy")})
    assert not (tmp_path / "ran").exists()
    teacher = {"teacher": f"{tmp_path}/mine.py:net"}  # named again, it is the user's own
    result = evaluate_run(tmp_path / "run", tmp_path / "out", data=teacher)
    assert len(result["linearizer"]["r2_of_each"]) == 2 and (tmp_path / "ran").exists()
    assert result["linear_regression"]["r2"] > 0.999 > result["linearizer"]["r2"]


def test_teachers_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    (tmp_path / "net.onnx").touch()
    (tmp_path / "vae").mkdir()
    for given, kept in (("mine.py:net", tmp_path / "mine.py:net"), ("vae", "vae"),
                        ("net.onnx#y", tmp_path / "net.onnx#y"),
                        ("os.path:join", "os.path:join")):  # fmt: skip
        plan = make_plan("distill", flags={"data": {"teacher": given}})
        assert plan.data.teacher == str(kept)


def test_a_settled_model_trains_on_as_the_same_map():
    model = classes("encoder, extra")
    x = digits(12).x.to(model.read.weight)
    attributes.finish(model, data.load("digits"))
    assert torch.allclose(model.read.terms(x, Draw(0))[0], model()(x))


def test_what_cannot_be_settled_is_refused_before_training():
    model = attributes.Attributes(attributes.Config(g="encoder", extra=50))
    small = data.Data("x", Faces(60), Faces(60), Faces(60), ())
    with pytest.raises(ValueError, match=r"more images than .* \(60\), got 60"):
        attributes.start(model, small)
    with pytest.raises(ValueError, match=r"than an image has numbers \(64\), got 70"):
        attributes.Attributes(attributes.Config(g="encoder", extra=60))
    with pytest.raises(ValueError, match="two numbers or more"):
        Readout(ReadoutConfig(shape=(1,)), 3)


def test_low_precision_trains(tmp_path):
    for name in ("mlp", "encoder, extra"):
        model = attributes.Attributes(attributes.Config(**KINDS[name])).float()
        x, y = digits(32)
        model.initialize(data.Batch(x, y))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            terms = attributes.loss(model, data.Batch(x, y), Draw(0))
        sum(terms.values()).backward()
        assert all(bool(t.isfinite()) for t in terms.values())


def test_models_stored_in_half_precision_are_exact(tmp_path):
    model = classes("encoder, extra").float()
    attributes.finish(model, data.load("digits"))
    lz.save(model.half(), tmp_path)
    f = lz.load(tmp_path)()
    x = digits(8).x
    assert float((f.source.points(f.source.coordinates(x)) - x).detach().abs().max()) < 1e-4


def test_outputs_that_never_change_are_refused():
    class Source:
        shape, outputs = (4,), 2

        def __len__(self):
            return 20

        def batch(self, index):
            return data.Batch(torch.randn(len(index), 4), torch.tensor([[1.0, 2.0]]).repeat(
                len(index), 1))  # fmt: skip

    model = distill.Student(distill.Config(shape=(4,), outputs=2))
    with pytest.raises(ValueError, match="output 0, 1 of 2 .* is the same for all data"):
        distill.start(model, data.Data("x", Source(), Source(), Source(), ()))


def test_vectors_take_no_image_stack():
    for g in ("encoder", "glow"):
        with pytest.raises(ValueError, match="expected images"):
            Readout(ReadoutConfig(shape=(7,), g=g), 3)


# -- uses --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of attributes on digits by a small encoder."""
    folder = tmp_path_factory.mktemp("run") / "digits"
    before = torch.get_default_dtype()  # of the session, whatever the first test has
    torch.set_default_dtype(torch.float32)
    try:
        plan = make_plan("attributes", flags={
            "model": {"g": "encoder", "hidden": 8, "decoder_hidden": 8, "extra": 6, "score": 1.0},
            "training": {"steps": 250, "batch": 128, "rate": 5e-3, "tensorboard": False,
                         "validate_every": 250},
        })  # fmt: skip
        execute(plan, folder, progress=False)
    finally:
        torch.set_default_dtype(before)
    return folder


@pytest.fixture
def picture(tmp_path):
    from PIL import Image

    x = (255 * data.load("digits").test.batch(torch.tensor([0])).x[0, 0]).byte()
    path = tmp_path / "digit.png"
    Image.fromarray(x.numpy()).save(path)
    return path


def test_the_uses_of_a_classifier(run, picture, tmp_path):
    label = int(data.load("digits").test.batch(torch.tensor([0])).y)
    found = use.read(run, [picture])["images"][0]
    assert found["holds"] == [str(label)] and found["probability"] > 0.5
    wish = str((label + 1) % 10)
    out = tmp_path / "out.png"
    assert use.imagine(run, [wish], out)["score_error"] < 1e-2
    done = use.edit(run, [picture], [wish, f"{wish}=2"], out=out)
    assert done["score_error"] < 1e-2 and done["largest_change_of_another_score"] < 1e-2
    done = use.vary(run, [picture], 3, 0.8, 0, out)
    assert done["largest_change_of_a_score"] < 1e-2 < 0.05 < done["pixel_change"]
    assert done["dimension_of_null_space"] == 64 - 10
    done = use.erase(run, [wish, str(label)], [picture], out)
    assert done["idempotency_error"] < 1e-4 and out.exists()


def test_results_of_a_shipped_model_go_where_the_user_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = write_spectrum("mnist-attributes", 2)
    assert len(found["strongest_outputs"]) == 2
    assert {p.name for p in (tmp_path / "mnist-attributes-spectrum").iterdir()} == {
        "spectrum.png", "input-singular-vectors.png", "spectrum.json"}  # fmt: skip


def test_a_table_of_a_classifier(run, tmp_path):
    result = evaluate_run(run, tmp_path)
    assert result["linearizer"]["accuracy"] > 0.85 > result["majority"]["accuracy"]
    assert result["linearizer"]["accuracy"] > 0.8 < result["linear_on_pixels"]["accuracy"] < 1
    for row in result["erasure"]["of_each"].values():
        before, after = row["probe_roc_auc"]
        assert before > 0.9 and after < 0.65  # a probe of a part of the erased images, on others
        assert row["gap_of_means_left"] < 1e-5
        before, after = row["fresh_probe_roc_auc"]
        assert before > 0.9 and after < before - 0.15
    assert result["null_space"]["largest_change_float64"] < 1e-9
    saved = json.loads((tmp_path / "attributes.json").read_text())
    assert saved["linearizer"] == result["linearizer"]
    assert [(tmp_path / name).exists() for name in ("erased.png", "edits.png")] == [True, False]


@torch.no_grad()
def test_a_table_of_attributes(tmp_path):
    with torch.enable_grad():
        model, source = trained()
    app = find_app("attributes")
    result = app.evaluate(Run(tmp_path, {}, app, model), source, tmp_path, 100, lambda text: None)
    assert result["images"] == 100 and set(result["accuracy_of_each"]) == set(Faces.names)
    assert result["linearizer"]["accuracy"] > result["majority"]["accuracy"] + 0.1
    assert result["edits"]["bright"]["hold"]["score_error"] < 1e-6
    assert result["null_space"]["largest_change_float64"] < 1e-9
    assert all(path.exists() for path in result["pictures"]) and len(result["pictures"]) == 2


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("11", "no output '11'. Did you mean 1"),
        ("-3", "an image has one class"),
        ("3, 4", "an image has one class, so '4' beside 3"),
        ("3=many", "expected 3=NUMBER"),
        ("3=inf", "expected 3=NUMBER"),
    ],
)
def test_wishes_that_cannot_be_met(run, wish, words):
    with pytest.raises(ValueError, match=words):
        use.imagine(run, [wish])


def test_outputs_that_g_mixes_are_not_left_free(run, picture):
    with pytest.raises(ValueError, match="g_y mixes the outputs"):
        use.edit(run, [picture], ["3=2"], hold=False)
    with pytest.raises(ValueError, match="expected names"):
        use.edit(run, [picture], [" , "])


def test_uses_refuse_what_they_cannot_take(run, picture):
    with pytest.raises(ValueError, match="expected a run of attributes or distill"):
        use.read("mnist-flow", [picture])
    with pytest.raises(ValueError, match="no output 'smile'"):
        use.erase(run, ["smile"], [picture])
    with pytest.raises(ValueError, match="from 0 to 1 .* got 2"):
        use.vary(run, [picture], amount=2)
    with pytest.raises(ValueError, match="finite strength"):
        use.edit(run, [picture], ["3"], strength=float("inf"))
    with pytest.raises(ValueError, match="too large"):
        use.edit(run, [picture], ["3"], strength=1e38)
    with pytest.raises(ValueError, match="expected image files, got none"):
        use.read(run, [])
