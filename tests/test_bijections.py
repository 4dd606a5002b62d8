import copy
import math

import pytest
import torch
from torch import nn

from catalogue import BIJECTIONS, shaken
from laws import close
from linearizer.bijections import (
    ActNorm,
    AdditiveCoupling,
    AffineCoupling,
    Chain,
    FinestWaves,
    Flatten,
    InvertibleLinear,
    PixelShuffle,
    PrincipalAxes,
    SpatialSplit2x2,
    Squeeze,
    autoencoder,
    from_zuko,
    glow,
    mlp,
    resize,
    revnet,
    subspace,
)
from linearizer.nets import MLP, Bottleneck, ResidualConv, UNet

STACKS = {
    "glow": lambda **k: glow((1, 8, 8), blocks=3, **k),
    "revnet": lambda **k: revnet((1, 8, 8), blocks=3, **k),
    "mlp": lambda **k: mlp(7, blocks=3, hidden=32, **k),
}


def gradients(g, run):
    g.zero_grad()
    run(g).backward()
    return [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in g.parameters()]


@pytest.mark.parametrize("direction", ["forward", "inverse", "with_log_det"])
@pytest.mark.parametrize("name", STACKS)
def test_saving_memory_gives_the_same_values_and_gradients(name, direction):
    plain, saving = STACKS[name](), STACKS[name](save_memory=True)
    saving.load_state_dict(shaken(plain).state_dict())
    shape = plain.out_shape if direction == "inverse" else plain.shape
    data, target = torch.randn(5, *shape), torch.randn(5, plain.dim)
    inputs = []

    def loss(g):
        x = data.clone().requires_grad_()
        inputs.append(x)
        if direction == "with_log_det":
            z, log_det = g.with_log_det(x)
            return (z - target).square().sum() - log_det.square().sum()
        return (getattr(g, direction)(x).flatten(1) - target).square().sum()

    close(loss(saving), loss(plain))
    for a, b in zip(gradients(saving, loss), gradients(plain, loss), strict=True):
        close(a, b, 1e-9, floor=1e-9)
    close(inputs[-2].grad, inputs[-1].grad)


def test_saving_memory_keeps_one_activation_for_any_depth():
    """What autograd holds for the backward pass, in bytes, does not grow with depth."""

    def held(blocks, save_memory):
        g = glow((1, 8, 8), blocks=blocks, save_memory=save_memory)
        own = {p.data_ptr() for p in g.parameters()}
        total = 0

        def pack(t):
            nonlocal total
            total += t.numel() * t.element_size() if t.data_ptr() not in own else 0
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            g(torch.randn(4, 1, 8, 8))
        return total

    assert held(2, True) == held(8, True)
    assert held(8, False) > 3 * held(2, False) > 3 * held(2, True)


def test_saving_memory_works_with_frozen_parts_and_without_gradients():
    g = shaken(glow((1, 8, 8), blocks=2, save_memory=True))
    x = torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        assert not g(x).requires_grad
    for p in g.parameters():
        p.requires_grad_(False)
    assert not g(x).requires_grad
    next(g.parameters()).requires_grad_()
    g(x).sum().backward()
    assert next(g.parameters()).grad is not None


@pytest.mark.parametrize("name", STACKS)
def test_round_trip_survives_training(name):
    """float64 to 1e-8 and float32 to 1e-4, on data and on noise, after likelihood training."""
    torch.manual_seed(0)
    g = STACKS[name]().float()
    data = torch.rand(256, *g.shape, dtype=torch.float32) * torch.linspace(
        0.1, 2, g.dim, dtype=torch.float32
    ).reshape(g.shape)
    g.initialize(data)
    optimizer = torch.optim.Adam(g.parameters(), 1e-3)
    first = last = None
    for _ in range(60):
        z, log_det = g.with_log_det(data)
        loss = (0.5 * z.square().sum(1) - log_det).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first, last = first or loss.item(), loss.item()
    assert last < first
    z = torch.randn(64, g.dim, dtype=torch.float32)
    with torch.no_grad():
        close(g.inverse(g(data)), data, 1e-4)
        close(g(g.inverse(z)), z, 1e-4)
        g, data, z = g.double(), data.double(), z.double()
        close(g.inverse(g(data)), data, 1e-8)
        close(g(g.inverse(z)), z, 1e-8)


def test_training_and_evaluation_are_one_function():
    g = shaken(glow((1, 8, 8), blocks=2))
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(g.train()(x), g.eval()(x))


def test_autocast_reaches_conditioners_only():
    g = shaken(glow((1, 8, 8), blocks=2)).float()
    x = torch.randn(3, 1, 8, 8, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = g(x)
        assert z.dtype == torch.float32
        close(g.inverse(z), x, 1e-4)
    assert (z - g(x)).abs().max() > 1e-5, "the conditioners did not run in bfloat16"


@pytest.mark.parametrize("direction", ["forward", "inverse"])
def test_saving_memory_recomputes_under_the_same_autocast(direction):
    plain, saving = STACKS["glow"]().float(), STACKS["glow"](save_memory=True).float()
    saving.load_state_dict(shaken(plain).state_dict())
    shape = plain.out_shape if direction == "inverse" else plain.shape
    x = torch.randn(4, *shape, dtype=torch.float32)

    def loss(g):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = getattr(g, direction)(x)
        return out.square().sum()

    for a, b in zip(gradients(saving, loss), gradients(plain, loss), strict=True):
        close(a, b, 2e-2, floor=1e-1)


# -- ActNorm -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (3, 4, 4)])
def test_actnorm_standardises_what_it_was_given(shape):
    x = torch.randn(200, *shape) * 7 + 3
    z = ActNorm(shape).initialize(x)(x).transpose(0, 1).flatten(1)
    close(z.mean(1), torch.zeros(shape[0]), floor=1.0)
    close(z.std(1, correction=0), torch.ones(shape[0]))


def test_actnorm_is_initialised_explicitly_and_once():
    g = ActNorm((3,))
    x = torch.randn(50, 3) + 5
    g(x), g.inverse(x)
    assert not g.initialized and g.mean.abs().max() == 0
    g.initialize(x)
    before = g.mean.clone()
    g.initialize(x + 1)
    assert torch.equal(g.mean, before)
    twin = ActNorm((3,))
    twin.load_state_dict(g.state_dict())
    twin.initialize(x + 1)
    assert torch.equal(twin.mean, before)


def test_a_chain_initialises_each_layer_on_the_output_of_the_one_before():
    g = glow((1, 8, 8), blocks=3)
    x = torch.rand(100, 1, 8, 8) * 4
    g.initialize(x)
    for block in list(g)[1:4]:
        assert block.layers[0].initialized
    loader = [(x[:30], None), (x[30:60], None), (x[60:], None)]
    again = glow((1, 8, 8), blocks=3).initialize(loader)
    assert again.layers[1].layers[0].initialized


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.cat([torch.randn(9, 2), torch.ones(9, 1)], 1), "channel 2 of 3 has zero variance"),
        (torch.randn(0, 3), "an empty batch"),
        (torch.full((4, 3), math.nan), "NaN"),
        ([], "empty loader"),
        (torch.randn(1, 3), "channel 0, 1, 2 of 3 has zero variance"),
    ],
)
def test_actnorm_refuses_data_it_cannot_scale(data, message):
    g = ActNorm((3,)).float()
    with pytest.raises(ValueError, match=message):
        g.initialize(data)
    assert not g.initialized and g.mean.abs().max() == 0


# -- parts ---------------------------------------------------------------------------------


def test_invertible_linear_starts_as_a_rotation_and_cannot_become_singular():
    g = InvertibleLinear((6,))
    W = g.weight()
    close(W @ W.mT, torch.eye(6))
    with torch.no_grad():
        g.raw.fill_(-1e9)
    assert torch.linalg.matrix_rank(g.weight(), rtol=0.0, atol=0.0) == 6
    assert g.with_log_det(torch.randn(2, 6))[1].isfinite().all()


def test_affine_scales_are_bounded():
    net = nn.Linear(1, 2)
    g = AffineCoupling((2,), net, max_log_scale=1.5)
    with torch.no_grad():
        net.weight.fill_(1e6)
    x = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    _, log_det = g.with_log_det(x)
    close(log_det, torch.tensor([1.5, -1.5]))


def test_glow_coordinates_keep_the_order_of_pixels():
    g = glow((1, 4, 4), blocks=1)
    with torch.no_grad():
        layer = g.layers[1].layers[3]
        layer.lower.zero_(), layer.upper.zero_(), layer.raw.zero_()
        layer.sign.fill_(1), layer.permutation.copy_(torch.arange(4))
    x = torch.randn(2, 1, 4, 4)
    close(g(x), x.flatten(1))


def test_the_spatial_split_puts_two_pixels_of_each_patch_into_each_stream():
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    z = SpatialSplit2x2((1, 4, 4), (0, 3, 1, 2))(x)
    assert z[0, :, 0, 0].tolist() == [0.0, 5.0, 1.0, 4.0]


def test_pixel_moves_agree_with_torch():
    x = torch.randn(3, 2, 4, 6)
    assert torch.equal(Squeeze((2, 4, 6))(x), nn.functional.pixel_unshuffle(x, 2))
    y = torch.randn(3, 8, 2, 3)
    assert torch.equal(PixelShuffle((8, 2, 3))(y), nn.functional.pixel_shuffle(y, 2))


def test_the_paper_s_stacks_have_the_paper_s_sizes():
    g = glow((1, 32, 32))
    assert len(g) == 1 + 6 + 2  # squeeze, six blocks, unsqueeze, flatten
    conditioner = g.layers[1].layers[1].conditioner
    assert isinstance(conditioner, ResidualConv) and len(conditioner.blocks) == 2
    assert conditioner.last.in_channels == 16
    F = revnet((1, 32, 32)).layers[0].layers[1].conditioner
    widths = [
        m.out_channels if hasattr(m, "out_channels") else m.out_features
        for m in F.modules()
        if isinstance(m, nn.Conv2d | nn.ConvTranspose2d | nn.Linear)
    ]
    assert widths == [8, 32, 128, 512, 4 * 128, 32, 8, 2]


def test_bottleneck_linear_is_the_convolution_it_replaces():
    net = Bottleneck(2, (2, 2))
    down, up = net.layers[0][1], net.layers[2][1]
    conv = nn.Conv2d(2, 8, 4, stride=2, padding=1)
    back = nn.ConvTranspose2d(8, 2, 4, stride=2, padding=1)
    with torch.no_grad():
        down.weight.copy_(conv.weight[:, :, 1:3, 1:3].flatten(1))
        down.bias.copy_(conv.bias)
        up.weight.copy_(back.weight[:, :, 1:3, 1:3].flatten(1).mT)
        up.bias.copy_(back.bias.repeat_interleave(4))
    x = torch.randn(5, 2, 2, 2)
    silu = nn.functional.silu
    close(net(x), torch.tanh(back(silu(conv(x)))))


# -- other sizes ---------------------------------------------------------------------------

RESIZABLE = [
    "flatten",
    "actnorm, images",
    "invertible 1×1",
    "invertible on sequences",
    "squeeze",
    "pixel shuffle",
    "spatial split",
    "affine coupling, images",
    "affine coupling, u-net",
    "affine coupling, deep u-net",
    "additive coupling, no parameters",
    "chain",
    "patches",
    "glow, grey",
    "glow, colour",
    "glow, even channels",
    "glow, saving memory",
    "glow, u-net",
]


@pytest.mark.parametrize("name", RESIZABLE)
def test_a_bijection_serves_other_sizes_with_its_own_weights(name):
    g = shaken(BIJECTIONS[name]())
    x = torch.randn(3, *g.shape)
    before = g(x)
    assert resize(g, g.shape) is g
    for size in ((4, 4), (12, 8), (2, 10)):  # smaller, larger, oblong
        shape = (g.shape[0], *size[: len(g.shape) - 1])
        h = resize(g, shape)
        assert (type(h), h.shape, h.dim) == (type(g), shape, math.prod(shape))
        mine, its = (dict([*m.named_parameters(), *m.named_buffers()]) for m in (g, h))
        assert mine.keys() == its.keys() and all(mine[n] is its[n] for n in mine)
        y, z = torch.randn(3, *shape), torch.randn(3, *h.out_shape)
        assert h(y).shape == (3, *h.out_shape)
        close(h.inverse(h(y)), y, 1e-8)
        close(h(h.inverse(z)), z, 1e-8)
        assert torch.equal(resize(h, g.shape)(x), before)
    close(h.with_log_det(y[:1])[1], log_det(h, y[:1]), 1e-8, floor=1.0)
    assert torch.equal(g(x), before)


@pytest.mark.parametrize("name", [n for n in BIJECTIONS if n not in RESIZABLE])
def test_a_bijection_whose_weights_belong_to_a_size_refuses_another(name):
    g = BIJECTIONS[name]()
    *rest, last = g.shape
    with pytest.raises(ValueError, match="^resize: "):
        resize(g, (*rest, last + 4))


def log_det(g, x):
    J = torch.autograd.functional.jacobian(lambda v: g(v).flatten(), x).reshape(g.dim, g.dim)
    return torch.linalg.slogdet(J).logabsdet[None]


def test_sizes_of_one_bijection_stay_one_when_moved_initialised_trained_and_copied():
    g = glow((1, 8, 8), blocks=2)
    both = nn.ModuleList([g, resize(g, (1, 12, 4))]).float().double()
    g, h = both
    h.initialize(torch.randn(50, 1, 12, 4) * 3)
    assert g.layers[1].layers[0].initialized
    g(torch.randn(2, 1, 8, 8)).square().sum().backward()
    assert all(p.grad is not None for p in h.parameters())
    assert len(list(both.parameters())) == len(list(g.parameters()))
    torch.optim.SGD(g.parameters(), 0.01).step()
    for one, two in (both, copy.deepcopy(both), both.half().double()):
        x = torch.randn(2, 1, 8, 8)
        assert torch.equal(resize(two, one.shape)(x), one(x))
        for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
            assert a.data_ptr() == b.data_ptr()


@pytest.mark.parametrize(
    ("g", "shape", "message"),
    [
        (lambda: glow((1, 8, 8), blocks=1), (1, 7, 8), r"even H and W, got \(1, 7, 8\)"),
        (lambda: glow((1, 8, 8), blocks=1), (2, 8, 8), r"as many channels, got \(2, 8, 8\)"),
        (lambda: glow((1, 8, 8), blocks=1), (1, 8), r"got \(1, 8\)"),
        (lambda: glow((2, 8, 8), blocks=1), (2, 8, 0), r"got \(2, 8, 0\)"),
        (lambda: revnet((1, 8, 8), blocks=1), (1, 16, 16), "AdditiveCoupling .*but it fails: mat1"),
        (lambda: revnet((1, 12, 12), blocks=1), (1, 14, 12), r"gives \(2, 6, 6\)\. Use one that"),
        (
            lambda: Chain(Flatten((1, 2, 4)), ActNorm((8,))),
            (1, 4, 2),
            r"ActNorm .*one size, \(8,\)",
        ),
        (lambda: subspace((1, 4, 4), 3, 8), (1, 6, 6), "PrincipalAxes belong to one size"),
        (lambda: mlp(4, blocks=1), (6,), "as many channels"),
        (
            lambda: from_zuko(torch.distributions.AffineTransform(1.0, 2.0), (1, 4, 4)),
            (1, 6, 6),
            "ZukoBijection belong to one size",
        ),
    ],
)
def test_sizes_that_do_not_go_are_told(g, shape, message):
    with pytest.raises(ValueError, match=message):
        resize(g(), shape)


# -- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AffineCoupling((3, 4, 4), ResidualConv(1, 4)), "even number of channels.*got 3"),
        (lambda: AdditiveCoupling((1,), MLP(1, 1)), "got 1"),
        (lambda: AffineCoupling((4,), MLP(2, 3)), r"here \(2, 4\), but it gives \(2, 3\)"),
        (lambda: AffineCoupling((4,), MLP(2, 4), "third"), "'third'"),
        (lambda: AffineCoupling((4,), MLP(2, 4), max_log_scale=0.0), "max_log_scale > 0"),
        (lambda: AffineCoupling((4,), nn.Sequential(MLP(2, 4), nn.Dropout())), "Dropout at '1'"),
        (lambda: AffineCoupling((4,), nn.Sequential(nn.BatchNorm1d(2), MLP(2, 4))), "BatchNorm1d"),
        (
            lambda: AffineCoupling(
                (4, 4, 4), nn.Sequential(nn.InstanceNorm2d(2, track_running_stats=True), UNet(2, 4))
            ),
            "InstanceNorm2d",
        ),
        (lambda: Squeeze((1, 3, 4)), r"even H and W, got \(1, 3, 4\)"),
        (lambda: glow((1, 7, 8)), "even H and W"),
        (lambda: glow((8, 8)), r"\(C, H, W\), got \(8, 8\)"),
        (lambda: glow((1, 8, 8), blocks=0), "blocks to be a whole number ≥ 1, got 0"),
        (lambda: revnet((1, 6, 6)), "divide by 4"),
        (lambda: mlp(1), "dim ≥ 2, got 1"),
        (lambda: mlp(4, hidden=2.5), "got 2.5"),
        (lambda: PixelShuffle((3, 2, 2)), "divide by 4"),
        (lambda: SpatialSplit2x2((1, 4, 4), (0, 1, 2, 2)), "permutation"),
        (lambda: Chain(), "at least one"),
        (lambda: Chain(Flatten((2, 2)), ActNorm((3,))), r"gives \(4,\), but layer 1.*takes \(3,\)"),
        (lambda: ActNorm(()), "positive sizes"),
        (lambda: ActNorm((0, 3)), "positive sizes"),
    ],
)
def test_construction_says_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_dropout_that_drops_nothing_is_welcome():
    AffineCoupling((4,), nn.Sequential(MLP(2, 4), nn.Dropout(p=0.0)))


def test_wrong_shapes_say_what_was_expected():
    g = mlp(4, blocks=1)
    with pytest.raises(ValueError, match=r"x of shape \(batch, 4\), got \(3, 5\)"):
        g(torch.randn(3, 5))
    with pytest.raises(ValueError, match=r"z of shape \(batch, 4\), got \(4,\)"):
        g.inverse(torch.randn(4))
    with pytest.raises(ValueError, match="got"):
        g.with_log_det(torch.randn(2, 5))


def test_every_layer_checks_what_it_inverts():
    for g, z in (
        (InvertibleLinear((3,)), torch.randn(2, 4)),
        (ActNorm((3,)), torch.randn(2, 1)),
        (Squeeze((1, 4, 4)), torch.randn(2, 8, 2, 2)),
    ):
        with pytest.raises(ValueError, match="expected z of shape"):
            g.inverse(z)
    with pytest.raises(ValueError, match="expected data of shape"):
        ActNorm((3,)).initialize(torch.randn(10, 1))
    with pytest.raises(ValueError, match="got torch.int64"):
        glow((1, 8, 8), blocks=1)(torch.ones(2, 1, 8, 8, dtype=torch.int64))
    with pytest.raises(TypeError, match="as_tensor"):
        mlp(3, blocks=1)([[1.0, 2.0, 3.0]])
    with pytest.raises(TypeError, match="as_tensor"):
        mlp(3, blocks=1).initialize([1.0, 2.0])
    with pytest.raises(TypeError, match=r"shape of vectors is \(3,\)"):
        ActNorm(3)
    with pytest.raises(NotImplementedError, match="Define with_log_det"):

        class Twice(Flatten.__base__):
            def forward(self, x):
                return 2 * x

            def inverse(self, z):
                return z / 2

        Twice((3,)).with_log_det(torch.randn(2, 3))


def test_a_failed_initialisation_leaves_nothing_half_done():
    g = Chain(ActNorm((2,)), AdditiveCoupling((2,), MLP(1, 1)), ActNorm((2,)))
    with torch.no_grad():
        g.layers[0].log_scale.fill_(0.0)
    bad = Chain(ActNorm((2, 2)), Flatten((2, 2)), ActNorm((4,)))
    x = torch.randn(50, 2, 2)
    x[:, 0, 0] = 1.0  # varies within its channel, but is one flat coordinate
    with pytest.raises(ValueError, match="channel 0 of 4"):
        bad.initialize(x)
    assert not bad.layers[0].initialized and bad.layers[0].mean.abs().max() == 0
    bad.initialize(torch.randn(50, 2, 2))
    assert bad.layers[2].initialized and not g.layers[0].initialized


def test_actnorm_judges_each_channel_by_itself():
    x = torch.randn(100, 2) * torch.tensor([1e4, 1e-3])
    z = ActNorm((2,)).initialize(x)(x)
    close(z.std(0, correction=0), torch.ones(2))


def test_actnorm_keeps_digits_under_a_large_mean():
    x = (torch.randn(100, 3) + 1e4).float()
    g = ActNorm((3,)).float().initialize(x)
    close(g(x).double(), (x.double() - g.mean.double()) * g.log_scale.double().exp(), 1e-6)


@pytest.mark.parametrize("kind", ["function", "attribute"])
def test_hidden_dropout_is_found(kind):
    class Hidden(MLP):
        def forward(self, x):
            return nn.functional.dropout(super().forward(x), 0.5, self.training)

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.LSTM(2, 4, num_layers=2, dropout=0.5)

        def forward(self, x):
            return self.net(x)[0]

    net = Hidden(2, 4) if kind == "function" else Recurrent()
    with pytest.raises(ValueError, match="disagree"):
        AffineCoupling((4,), net)


def test_saving_memory_notices_parameters_changed_before_backward():
    g = shaken(glow((1, 8, 8), blocks=2, save_memory=True))
    loss = g(torch.randn(2, 1, 8, 8)).square().sum()
    shaken(g)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_principal_axes_turn_exactly_in_whatever_precision_they_are_used():
    x = torch.randn(60, 10, dtype=torch.float32) * torch.linspace(3, 0.1, 10, dtype=torch.float32)
    g = PrincipalAxes((10,), 4).float().initialize(x)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        g.to(dtype)
        y = x.to(dtype)
        assert float((g.inverse(g(y)) - y).abs().max()) < tolerance
        H = g.turn(torch.eye(10, dtype=dtype))
        assert torch.allclose(H @ H.mT, torch.eye(10, dtype=dtype), atol=tolerance)
    # Rounded weights are still a rotation.
    g.half().float()
    H = g.turn(torch.eye(10, dtype=torch.float32))
    assert torch.allclose(H @ H.mT, torch.eye(10, dtype=torch.float32), atol=1e-5)


def test_principal_axes_come_first_and_have_unit_variance():
    x = torch.randn(400, 2, 3, 3) * torch.linspace(4, 0.2, 18).reshape(2, 3, 3) + 2.0
    z = PrincipalAxes((2, 3, 3), 5).initialize(x)(x)
    C = torch.cov(z.mT, correction=0)
    assert torch.allclose(C[:5, :5], torch.eye(5), atol=1e-8)
    assert float(C[:5, 5:].abs().max()) < 1e-8  # nothing is left in common
    values = torch.linalg.eigvalsh(torch.cov(x.flatten(1).mT, correction=0)).flip(0)
    assert C.trace() - 5 == pytest.approx(float(values[5:].sum()))


def test_pixels_that_never_change_are_set_apart():
    x = torch.nn.functional.pad(torch.randn(30, 1, 4, 4), (1, 1, 1, 1), value=1000.3)
    g = FinestWaves((1, 6, 6), 5, pixels=True).initialize(x)
    assert bool((g(x)[:, :5] == 0).all())
    assert set(g.order[:4].tolist()) == {0, 5, 30, 35}  # corners first
    narrow = {k: v.float() if v.is_floating_point() else v for k, v in g.state_dict().items()}
    again = FinestWaves((1, 6, 6), 5, pixels=True)
    again.load_state_dict(narrow)
    assert torch.allclose(again(x)[:, 5:], g(x)[:, 5:], atol=1e-4)
    assert torch.allclose(again.inverse(again(x)), x, rtol=1e-14)
    x[0, 0, :, 0] += 1  # too few of them left
    x[1, 0, :, 5] += 1
    x[2, 0, 0] += 1
    x[3, 0, 5, :2] += 1
    few = FinestWaves((1, 6, 6), 5, pixels=True).initialize(x)
    plain = FinestWaves((1, 6, 6), 5).initialize(x)
    assert torch.equal(few(x), plain(x))
    told = FinestWaves((1, 6, 6), 5, pixels=True)  # by all of the data
    told.take_pixels(torch.zeros(1, 6, 6, dtype=torch.bool))
    told.initialize(g.inverse(g(torch.ones_like(x))))
    assert not told.taken


def test_axes_that_hardly_vary_are_not_blown_up():
    x = torch.randn(200, 3) * torch.tensor([2.0, 1e-5, 0.0])
    z = PrincipalAxes((3,), 3, least=0.1).initialize(x)(x)
    assert torch.allclose(z[:, 0].std(), torch.tensor(1.0), atol=0.01)
    assert float(z[:, 1:].abs().max()) < 1e-3
    with pytest.raises(ValueError, match="vary in fewer than rank"):
        PrincipalAxes((3,), 3).initialize(x)
    with pytest.raises(ValueError, match="0 ≤ least ≤ 1"):
        PrincipalAxes((3,), 3, least=2.0)


# -- any encoder and decoder ---------------------------------------------------------------------


def smooth_images(n, shape=(3, 16, 16)):
    """Images that hold little in their finest waves."""
    coarse = torch.rand(n, shape[0], shape[1] // 4, shape[2] // 4)
    return nn.functional.interpolate(coarse, size=shape[1:], mode="bicubic")


@torch.no_grad()
@pytest.mark.parametrize("code", [24, (6, 4, 2), (3, 8, 8)])
def test_the_code_of_an_autoencoder_is_its_encoder_and_the_inverse_its_decoder(code):
    size = (code,) if isinstance(code, int) else code
    count = math.prod(size)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(768, count), nn.Unflatten(1, size))
    decoder = nn.Sequential(nn.Flatten(), nn.Linear(count, 768), nn.Unflatten(1, (3, 16, 16)))
    g = autoencoder(encoder, decoder, (3, 16, 16), code, spread=1e-3).initialize(smooth_images(60))
    x = smooth_images(8)
    z = g(x)
    close(g.inverse(z), x, 1e-9)
    found, said = z[:, :count], encoder(x).flatten(1)
    # The finest waves are what is added to E(x), and what E does not see.
    waves = next(iter(g))
    split, kept = waves(x), waves(x)
    kept[:, :count] = 0
    blind = encoder(waves.inverse(kept)).flatten(1)
    close(found, blind + split[:, :count], 1e-9)
    assert float((found - said).square().mean().sqrt()) < 0.1 * float(said.std())
    z[:, count:] = 0
    back = g.inverse(z)
    wanted = decoder(z[:, :count].unflatten(1, size))
    close(waves(back)[:, count:], waves(wanted)[:, count:], 1e-9)  # but for the finest waves


@torch.no_grad()
def test_unused_pixels_make_the_code_exactly_the_encoder():
    x = torch.rand(30, 1, 6, 6)
    x[:, :, 0] = 0.25
    net = nn.Sequential(nn.Flatten(), MLP(36, 4, 8))
    shaken(net)
    g = autoencoder(net, MLP(4, 36, 8), (1, 6, 6), 4, "pixels").initialize(x)
    close(g(x)[:, :4], net(x), 1e-12)


@torch.no_grad()
def test_a_reach_keeps_far_points_near():
    torch.manual_seed(0)
    pair = nn.Sequential(nn.Flatten(), MLP(36, 4, 8)), MLP(4, 36, 8)
    plain, near = (
        autoencoder(*pair, (1, 6, 6), 4, "axes", reach).initialize(torch.rand(50, 1, 6, 6))
        for reach in (None, 1.0)
    )
    far = 100 * torch.randn(9, 1, 6, 6)
    close(near.inverse(near(far)), far, 1e-9)
    assert float(near(far)[:, :4].abs().max()) < 0.02 * float(plain(far)[:, :4].abs().max())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: autoencoder(nn.Flatten(), nn.Flatten(), (1, 4, 4), 16), "1 to 15 numbers"),
        (
            lambda: autoencoder(nn.Flatten(), MLP(3, 16, 4), (1, 4, 4), 3),
            r"expected the encoder to go from \(n, 1, 4, 4\) to \(n, 3\), but it gives \(n, 16\)",
        ),
        (
            lambda: autoencoder(nn.Conv2d(1, 2, 4, 4), nn.Linear(5, 16), (1, 4, 4), (2, 1, 1)),
            "expected the decoder .* but it fails: ",
        ),
        (lambda: autoencoder(nn.Identity(), nn.Identity(), (4,), 2), "an image shape"),
        (lambda: autoencoder(nn.Flatten(), nn.Flatten(), (1, 4, 4), (1, 3, 3)), "sides divide"),
        (lambda: autoencoder(nn.Flatten(), nn.Flatten(), (1, 4, 4), 2, "axis"), 'split "waves"'),
        (lambda: autoencoder(nn.Flatten(), nn.Flatten(), (1, 4, 4), 2, reach=0), "a reach > 0"),
    ],
)
def test_a_pair_that_does_not_fit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
