"""Gradients that are recomputed, second derivatives, transforms, precisions and devices of g."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from catalogue import BIJECTIONS, shaken
from laws import close
from linearizer.bijections import (
    Bijection,
    Chain,
    OnPart,
    encoder,
    glow,
    mlp,
    patches,
    revnet,
    subspace,
)
from linearizer.nets import MLP

CALLS = ["forward", "inverse", "with_log_det"]
# torch's own forward-mode rules warn when they are built.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")


def chain(name):
    """An entry of the catalogue, the last layer of a chain that may save memory."""
    return Chain(shaken(BIJECTIONS[name]()))


def loss(g, x, call):
    if call == "with_log_det":
        z, log_det = g.with_log_det(x)
        return (z * z.detach().cos()).square().sum() - log_det.square().sum()
    out = getattr(g, call)(x)
    return (out * out.detach().cos()).square().sum()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", BIJECTIONS)
def test_every_layer_pulls_gradients_back(name, call):
    g = chain(name)
    data = torch.randn(3, *(g.out_shape if call == "inverse" else g.shape))
    found = []
    for g.save_memory in (False, True):
        x = data.clone().requires_grad_()
        inputs = [x, *g.parameters()]
        grads = torch.autograd.grad(loss(g, x, call), inputs, allow_unused=True)
        found.append([torch.zeros_like(p) if d is None else d
                      for p, d in zip(inputs, grads, strict=True)])  # fmt: skip
    scale = max(float(d.abs().max()) for d in found[0])
    for a, b in zip(*found, strict=True):
        close(a, b, 1e-9, floor=scale)


@pytest.mark.parametrize("call", CALLS)
def test_a_conditioner_runs_twice_in_a_step_that_saves_memory(call):
    class Counted(MLP):
        runs = 0

        def forward(self, x):
            Counted.runs += 1
            return super().forward(x)

    inner = mlp(4, blocks=2, conditioner=lambda i, o: Counted(i, o, 8))
    g = Chain(OnPart(inner, 6), save_memory=True)
    Counted.runs = 0
    loss(g, torch.randn(3, 6), call).backward()
    assert Counted.runs == 2 * 4


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["glow, saving memory", "mlp, odd, saving memory", "revnet"])
@pytest.mark.parametrize("kind", ["sum", "square"])
def test_second_derivatives_are_those_of_the_plain_path(name, kind, call):
    g = chain(name)
    inner = g.layers[0]
    data = torch.randn(2, *(g.out_shape if call == "inverse" else g.shape))
    found = []
    for g.save_memory in (False, True):
        inner.save_memory = g.save_memory
        x = data.clone().requires_grad_()
        out = getattr(g, call)(x)
        value = (out[0].sum() + out[1].sum()) if call == "with_log_det" else out.sum()
        if kind == "square":
            value = value.square()
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        penalty = first.square().sum()
        inputs = [x, *g.parameters()]
        grads = torch.autograd.grad(penalty, inputs, allow_unused=True)
        found.append([torch.zeros_like(p) if d is None else d
                      for p, d in zip(inputs, grads, strict=True)])  # fmt: skip
    scale = max(float(d.abs().max()) for d in found[0])
    assert scale > 0
    for a, b in zip(*found, strict=True):
        close(a, b, 1e-8, floor=scale)


def test_saving_memory_notices_parameters_exchanged_before_backward():
    g = mlp(4, blocks=1, save_memory=True)
    other = {name: p.detach().clone().requires_grad_() for name, p in g.named_parameters()}
    out = torch.func.functional_call(g, other, (torch.randn(2, 4),))
    with pytest.raises(RuntimeError, match="were exchanged.*save_memory=False"):
        out.sum().backward()


def test_saving_memory_gives_forward_mode_derivatives():
    g = shaken(mlp(5, blocks=2, save_memory=True))
    x, v = torch.randn(2, 3, 5)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, v)
        tangent = torch.autograd.forward_ad.unpack_dual(g(dual)).tangent
    close(tangent, torch.autograd.functional.jvp(g, x, v)[1])


@pytest.mark.parametrize("name", BIJECTIONS)
def test_transforms_of_torch_func(name):
    g = shaken(BIJECTIONS[name]())
    x, z = torch.randn(3, *g.shape), torch.randn(3, *g.out_shape)
    for call, value in ((g, x), (g.inverse, z)):
        close(torch.func.vmap(lambda v, call=call: call(v[None])[0])(value), call(value))
    each = torch.func.vmap(lambda v: g.with_log_det(v[None])[1][0])(x)
    close(each, g.with_log_det(x)[1], floor=1.0)
    expected = torch.autograd.functional.jacobian(lambda v: g(v[None])[0], x[0])
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        close(jacobian(lambda v: g(v[None])[0])(x[0]), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", BIJECTIONS)
def test_low_precision(name, dtype):
    """A round trip to a few digits, and a gradient; x need not have one, as in training."""
    g = shaken(BIJECTIONS[name]())
    low = copy.deepcopy(g).to(dtype)
    x = torch.randn(3, *g.shape)
    z, log_det = low.with_log_det(x.to(dtype))
    assert z.dtype == dtype and low.inverse(z).dtype == dtype
    with torch.no_grad():
        assert float((z - g(x)).abs().max()) < 0.3 * float(g(x).abs().max())
    if any(p.requires_grad for p in low.parameters()):
        (z.double().square().mean() + 1e-3 * log_det.double().mean()).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in low.parameters())


@pytest.mark.parametrize("name", BIJECTIONS)
def test_the_meta_device(name, monkeypatch):
    """Shapes without numbers, and weights that are assigned afterwards."""
    g = shaken(BIJECTIONS[name]())
    with monkeypatch.context() as patch, torch.device("meta"):
        patch.setattr(Bijection, "initialize", lambda self, data: self)
        empty = BIJECTIONS[name]()
        x = torch.empty(2, *g.shape)
        assert empty(x).shape == (2, *g.out_shape)
        assert empty.inverse(empty(x)).shape == x.shape
        assert empty.with_log_det(x)[1].shape == (2,)
    x = torch.randn(2, *g.shape)
    for twin in (empty, copy.deepcopy(g).to("meta")):
        assert repr(twin)
        twin.load_state_dict(g.state_dict(), assign=True)
        assert torch.equal(twin(x), g(x))
        assert torch.equal(twin.inverse(g(x)), g.inverse(g(x)))


def test_data_without_numbers_initialise_nothing():
    with pytest.raises(ValueError, match=r"initialize: .*meta device.*assign=True"):
        mlp(4, blocks=1).to("meta").initialize(torch.empty(9, 4, device="meta"))


@pytest.mark.parametrize(
    "make",
    [
        lambda n: glow((n(1), n(8), n(8)), blocks=n(2), hidden=n(8)),
        lambda n: patches((n(1), n(8), n(8)), n(1), n(1), n(8), n(1)),
        lambda n: revnet((n(1), n(8), n(8)), blocks=n(2)),
        lambda n: mlp(n(5), n(2), n(8)),
        lambda n: subspace((n(1), n(4), n(4)), n(3), n(8), blocks=n(1), detail=n(2)),
        lambda n: encoder((n(1), n(8), n(8)), n(3), n(2), hidden=n(4), decoder_hidden=n(4)),
        lambda n: OnPart(mlp(3, 1), n(7), n(2)),
    ],
)
def test_sizes_may_be_integers_of_numpy(make):
    torch.manual_seed(0)
    g = make(np.int64)
    torch.manual_seed(0)
    plain = make(int)
    x = torch.randn(2, *plain.shape)
    assert all(type(n) is int for n in (*g.shape, *g.out_shape, g.dim))
    assert torch.equal(g(x), plain(x)) and repr(g) == repr(plain)


def test_the_input_of_a_coupling_needs_no_gradient_in_low_precision():
    g = glow((2, 4, 4), blocks=1).layers[0].layers[1].bfloat16()
    nn.init.normal_(g.conditioner.last.weight)
    g(torch.randn(2, 2, 4, 4, dtype=torch.bfloat16)).double().sum().backward()
    assert g.conditioner.first[0].weight.grad.isfinite().all()
