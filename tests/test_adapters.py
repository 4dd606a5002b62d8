"""Peers' bijections as ours, against the real libraries."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from laws import close
from linearizer.bijections import Bijection, Chain, Flatten, InvertibleLinear
from linearizer.bijections.adapters import from_freia, from_nflows, from_normflows, from_zuko

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.lu is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.qr is deprecated:UserWarning"),
]


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.SiLU(), nn.Linear(16, outputs))


def conv(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, outputs, 3, padding=1)
    )


def zuko(name: str, shape: tuple[int, ...], **options: Any) -> Bijection:
    flows = pytest.importorskip("zuko").flows
    return from_zuko(getattr(flows, name)(int(np.prod(shape)), **options), shape)


def zuko_lazy(shape: tuple[int, ...]) -> Bijection:
    peer = pytest.importorskip("zuko")
    mixing = peer.lazy.UnconditionalTransform(
        peer.transforms.LULinearTransform, torch.eye(4) + 0.1 * torch.randn(4, 4)
    )
    coupling = peer.flows.coupling.GeneralCouplingTransform(4, hidden_features=[16])
    return from_zuko(peer.lazy.LazyComposedTransform(mixing, coupling.inv), shape)


def freia(shape: tuple[int, ...], *layers: tuple[str, dict[str, Any]]) -> Bijection:
    framework = pytest.importorskip("FrEIA.framework")
    modules = pytest.importorskip("FrEIA.modules")
    inn = framework.SequenceINN(*shape)
    for name, options in layers:
        inn.append(getattr(modules, name), **options)
    return from_freia(inn.double(), shape)


def freia_graph() -> Bijection:
    framework = pytest.importorskip("FrEIA.framework")
    modules = pytest.importorskip("FrEIA.modules")
    start = framework.InputNode(8)
    halves = framework.Node(start, modules.Split, {})
    glow = framework.Node(halves.out0, modules.GLOWCouplingBlock, {"subnet_constructor": mlp})
    whole = framework.Node([glow.out0, halves.out1], modules.Concat, {})
    last = framework.Node(whole, modules.RNVPCouplingBlock, {"subnet_constructor": mlp})
    nodes = [start, halves, glow, whole, last, framework.OutputNode(last)]
    return from_freia(framework.GraphINN(nodes).double(), (8,))


def freia_module(name: str, shape: tuple[int, ...], **options: Any) -> Bijection:
    modules = pytest.importorskip("FrEIA.modules")
    return from_freia(getattr(modules, name)([shape], **options).double(), shape)


def normflows(shape: tuple[int, ...], build: Callable[[Any], Any]) -> Bijection:
    return from_normflows(build(pytest.importorskip("normflows")).double(), shape)


def nflows(shape: tuple[int, ...], build: Callable[[Any, Any], Any]) -> Bijection:
    transforms = pytest.importorskip("nflows.transforms")
    nets = pytest.importorskip("nflows.nn.nets")
    return from_nflows(build(transforms, nets).double(), shape)


def nflows_multiscale(T: Any, nets: Any) -> Any:
    scales = T.MultiscaleCompositeTransform(2)
    first = T.CompositeTransform([T.SqueezeTransform(), T.OneByOneConvolution(4)])
    rest = scales.add_transform(first, (4, 2, 2))
    scales.add_transform(T.OneByOneConvolution(2), rest)
    return scales


BLOCK = ("AllInOneBlock", {"subnet_constructor": mlp})
GLOW = ("GLOWCouplingBlock", {"subnet_constructor": conv})
HAAR = ("HaarDownsampling", {"rebalance": 0.5})
CASES: dict[str, Callable[[], Bijection]] = {
    "zuko, NSF": lambda: zuko("NSF", (4,), transforms=2, hidden_features=[16]),
    "zuko, MAF on a matrix": lambda: zuko("MAF", (2, 2), transforms=2, hidden_features=[16]),
    "zuko, RealNVP": lambda: zuko("RealNVP", (4,), transforms=2, hidden_features=[16]),
    "zuko, lazy transforms": lambda: zuko_lazy((4,)),
    "FrEIA, AllInOneBlock": lambda: freia((4,), BLOCK, BLOCK),
    "FrEIA, GLOW image": lambda: freia((4, 4, 4), GLOW, ("ActNorm", {}), ("PermuteRandom", {})),
    "FrEIA, image to vector": lambda: freia(
        (1, 4, 4), ("HaarDownsampling", {}), GLOW, ("Flatten", {})
    ),
    "FrEIA, matrix to vector": lambda: freia((2, 2), ("Flatten", {}), BLOCK),
    "FrEIA, Haar alone": lambda: freia((1, 4, 4), ("HaarDownsampling", {"rebalance": 0.5})),
    "FrEIA, layers without jac": lambda: freia(
        (4,), ("InvAutoAct", {}), ("HouseholderPerm", {"n_reflections": 2})
    ),
    "FrEIA, graph": freia_graph,
    "FrEIA, module": lambda: freia_module("GLOWCouplingBlock", (4,), subnet_constructor=mlp),
    "FrEIA, module ActNorm": lambda: freia_module("ActNorm", (2, 3, 3)),
    "FrEIA, module upsampling": lambda: freia_module("HaarUpsampling", (4, 2, 2)),
    "FrEIA, module scaling": lambda: freia_module("LearnedElementwiseScaling", (4, 2, 2)),
    "normflows, NormalizingFlow": lambda: normflows(
        (4,),
        lambda nf: nf.NormalizingFlow(
            nf.distributions.DiagGaussian(4),
            [
                nf.flows.AffineCouplingBlock(nf.nets.MLP([2, 16, 4])),
                nf.flows.Permute(4),
                nf.flows.LULinearPermute(4),
                nf.flows.ActNorm(4),
            ],
        ),
    ),
    "normflows, LULinearPermute": lambda: normflows((4,), lambda nf: nf.flows.LULinearPermute(4)),
    "normflows, coupled spline": lambda: normflows(
        (4,), lambda nf: nf.flows.CoupledRationalQuadraticSpline(4, 1, 16)
    ),
    "normflows, autoregressive": lambda: normflows(
        (4,), lambda nf: nf.flows.Reverse(nf.flows.MaskedAffineAutoregressive(4, 16))
    ),
    "normflows, split and merge": lambda: normflows(
        (4,),
        lambda nf: nf.NormalizingFlow(
            None,
            [nf.flows.Split(), nf.flows.AffineCoupling(nf.nets.MLP([2, 16, 4])), nf.flows.Merge()],
        ),
    ),
    "normflows, Glow image": lambda: normflows(
        (1, 4, 4),
        lambda nf: nf.NormalizingFlow(None, [nf.flows.GlowBlock(4, 8), nf.flows.Squeeze()]),
    ),
    "nflows, autoregressive": lambda: nflows(
        (4,), lambda T, nets: T.MaskedAffineAutoregressiveTransform(4, 16)
    ),
    "nflows, spline coupling": lambda: nflows(
        (4,),
        lambda T, nets: T.PiecewiseRationalQuadraticCouplingTransform(
            [1, 0, 1, 0], lambda i, o: nets.ResidualNet(i, o, 16), tails="linear", tail_bound=3.0
        ),
    ),
    "nflows, LULinear": lambda: nflows((4,), lambda T, nets: T.LULinear(4)),
    "nflows, image": lambda: nflows(
        (1, 4, 4),
        lambda T, nets: T.CompositeTransform(
            [
                T.SqueezeTransform(),
                T.ActNorm(4),
                T.OneByOneConvolution(4),
                T.AffineCouplingTransform([1, 0, 1, 0], lambda i, o: nets.ConvResidualNet(i, o, 8)),
            ]
        ),
    ),
    "nflows, multi-scale": lambda: nflows((1, 4, 4), nflows_multiscale),
    "nflows, Flow": lambda: nflows(
        (4,), lambda T, nets: pytest.importorskip("nflows.flows").SimpleRealNVP(4, 16, 2, 1)
    ),
}
cases = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def numpy_seed() -> None:
    """FrEIA and nflows draw permutations and masks from numpy."""
    np.random.seed(0)


def shaken(name: str, amount: float = 0.2) -> Bijection:
    """Initialised, and away from the identity that most peers start from."""
    g = CASES[name]()
    g.initialize(torch.randn(64, *g.shape) * 2.0 + 0.5)
    with torch.no_grad():
        for p in g.parameters():
            if p.requires_grad:
                p.add_(amount * torch.randn_like(p))
    return g


@cases
def test_round_trips(name: str) -> None:
    g = shaken(name)
    x, z = torch.randn(6, *g.shape), torch.randn(6, g.dim)
    assert g.out_shape == (g.dim,) and g(x).shape == (6, g.dim)
    assert not torch.allclose(g(x), x.flatten(1))
    close(g.inverse(g(x)), x, 1e-8)
    close(g(g.inverse(z)), z, 1e-8)
    close(g(x)[1:2], g(x[1:2]))


@cases
def test_log_det_is_that_of_the_jacobian(name: str) -> None:
    g = shaken(name)
    x = torch.randn(3, *g.shape)
    z, log_det = g.with_log_det(x)
    close(z, g(x))
    jacobians = torch.stack(
        [torch.autograd.functional.jacobian(lambda v: g(v[None])[0], v) for v in x]
    )
    expected = torch.linalg.slogdet(jacobians.reshape(3, g.dim, g.dim)).logabsdet
    close(log_det, expected, 1e-8, floor=1.0)


@cases
def test_gradients_reach_every_parameter_and_the_input_both_ways(name: str) -> None:
    g = shaken(name)
    parameters = [p for p in g.parameters() if p.requires_grad]
    x, z = torch.randn(6, *g.shape), torch.randn(6, g.dim)
    x.requires_grad_()
    z.requires_grad_()
    for leaf, loss in (
        (x, lambda: sum(t.square().sum() for t in g.with_log_det(x))),
        (z, lambda: g.inverse(z).square().sum()),
    ):
        grads = torch.autograd.grad(loss(), [leaf, *parameters])
        assert all(torch.isfinite(grad).all() for grad in grads)
        assert grads[0].abs().max() > 0
        assert all(grad.abs().max() > 0 for grad in grads[1:])


@cases
def test_reloads(name: str) -> None:
    g = shaken(name)
    torch.manual_seed(1)
    np.random.seed(1)
    twin = CASES[name]()
    twin.load_state_dict(g.state_dict())
    x = torch.randn(3, *g.shape)
    close(twin(x), g(x))
    close(twin.inverse(g(x)), x, 1e-8)


@cases
def test_leaves_its_arguments_alone_and_takes_any_strides(name: str) -> None:
    g = shaken(name)
    x = torch.randn(6, *g.shape).transpose(0, -1).contiguous().transpose(0, -1)
    z = g(x).detach()
    same_x, same_z = x.clone(), z.clone()
    close(g(x.contiguous()), z)
    close(g.inverse(z.mT.contiguous().mT), x, 1e-8)
    assert torch.equal(g.inverse(z), g.inverse(z))
    assert torch.equal(x, same_x) and torch.equal(z, same_z)


@cases
def test_takes_an_empty_batch(name: str) -> None:
    g = CASES[name]()
    before = {k: v.clone() for k, v in g.state_dict().items()}
    x = torch.randn(0, *g.shape)
    z, log_det = g.with_log_det(x)
    assert z.shape == g(x).shape == (0, g.dim) and log_det.shape == (0,)
    assert g.inverse(z).shape == x.shape
    assert all(torch.equal(v, before[k]) for k, v in g.state_dict().items())


@cases
def test_refuses_another_shape(name: str) -> None:
    g = CASES[name]()
    with pytest.raises(ValueError, match="expected x of shape"):
        g(torch.randn(2, g.dim + 1))
    with pytest.raises(ValueError, match="expected z of shape"):
        g.inverse(torch.randn(2, g.dim + 1))


ACT_NORMS = ["FrEIA, GLOW image", "normflows, Glow image", "nflows, image"]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ACT_NORMS)
def test_act_norm_is_set_by_initialize_and_by_nothing_before(name: str, training: bool) -> None:
    g = CASES[name]().train(training)
    norm = next(m for m in g.modules() if type(m).__name__ == "ActNorm")
    assert all(not p.any() for p in norm.parameters()), "wrapping has initialised it"
    g.initialize(torch.randn(50, *g.shape) * 3.0 + 1.0)
    first = [p.clone() for p in norm.parameters()]
    assert all(p.any() for p in first) and g.training is training
    g.initialize(torch.randn(50, *g.shape))
    assert all(torch.equal(p, q) for p, q in zip(norm.parameters(), first, strict=True))


def test_log_det_keeps_double_precision_under_a_single_default() -> None:
    g = shaken("normflows, NormalizingFlow")
    x = torch.randn(4, 4)
    expected = g.with_log_det(x)[1]
    torch.set_default_dtype(torch.float32)
    assert g.with_log_det(x)[1].dtype == torch.float64
    close(g.with_log_det(x)[1], expected, 1e-14)


def test_normflows_goes_from_data_to_latents() -> None:
    nf = pytest.importorskip("normflows")
    flow = nf.flows.AffineConstFlow((3,))
    nn.init.constant_(flow.t, 5.0)
    g = from_normflows(nf.NormalizingFlow(nf.distributions.DiagGaussian(3), [flow]), (3,))
    x = torch.randn(2, 3)
    close(g(x), x - 5.0)
    assert {k for k, _ in g.named_parameters()} == {"peer.0.s", "peer.0.t"}


def test_torch_transforms_work_too() -> None:
    scale = torch.tensor([2.0, 3.0, 0.5, 1.0], dtype=torch.float32)
    torch.set_default_dtype(torch.float64)
    g = from_zuko(torch.distributions.AffineTransform(1.0, scale), (2, 2))
    x = torch.randn(3, 2, 2)
    z, log_det = g.with_log_det(x)
    close(z, 1.0 + scale * x.flatten(1))
    close(log_det, scale.double().log().sum().expand(3), 1e-6)
    close(g.inverse(z), x)
    assert not list(g.parameters())


def test_lazy_transforms_follow_their_parameters() -> None:
    g = CASES["zuko, NSF"]()
    x = torch.randn(3, 4)
    before = g(x)
    with torch.no_grad():
        for p in g.parameters():
            p.add_(0.3)
    assert not torch.allclose(g(x), before)
    close(g.inverse(g(x)), x, 1e-8)


def test_no_peer_is_imported() -> None:
    code = """
import sys, torch
from linearizer.bijections.adapters import from_zuko
g = from_zuko(torch.distributions.AffineTransform(1.0, 2.0), (2, 3))
assert torch.allclose(g.with_log_det(torch.zeros(4, 2, 3))[1].exp(), torch.tensor(64.0))
print({"zuko", "FrEIA", "normflows", "nflows"} & set(sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "set()", result.stderr


@pytest.mark.parametrize("adapt", [from_zuko, from_freia, from_normflows, from_nflows])
@pytest.mark.parametrize("thing", [nn.Linear(4, 4), 3, nn.Linear, lambda x: x])
def test_refuses_other_objects(adapt: Callable[..., Bijection], thing: Any) -> None:
    with pytest.raises(TypeError, match=f"{adapt.__name__}: expected"):
        adapt(thing, (4,))


def test_refuses_the_objects_of_another_peer() -> None:
    nf, T = pytest.importorskip("normflows"), pytest.importorskip("nflows.transforms")
    with pytest.raises(TypeError, match=r"of nflows, got LULinearPermute of normflows"):
        from_nflows(nf.flows.LULinearPermute(4), (4,))
    with pytest.raises(TypeError, match=r"of normflows, got LULinear of nflows"):
        from_normflows(T.LULinear(4), (4,))
    with pytest.raises(TypeError, match="from_zuko: expected a lazy transform"):
        from_zuko(T.LULinear(4), (4,))


def test_zuko_refusals() -> None:
    flows, D = pytest.importorskip("zuko").flows, torch.distributions
    with pytest.raises(ValueError, match=r"data of shape \(2, 5\) and nothing else"):
        from_zuko(flows.MAF(4), (5,))
    with pytest.raises(ValueError, match="and nothing else"):
        from_zuko(flows.MAF(4, context=3), (4,))
    with pytest.raises(TypeError, match=r"got NormalizingFlow\. Pass the flow's transform"):
        from_zuko(flows.MAF(4)(), (4,))
    with pytest.raises(ValueError, match="bijective=False"):
        from_zuko(D.SoftmaxTransform(), (4,))
    with pytest.raises(ValueError, match="event_dim=2"):
        from_zuko(D.ReshapeTransform((2, 2), (4,)), (2, 2))
    with pytest.raises(ValueError, match=r"keep the 4 numbers of \(4,\), but it gives \(5,\)"):
        from_zuko(D.StickBreakingTransform(), (4,))


def test_freia_refusals() -> None:
    framework = pytest.importorskip("FrEIA.framework")
    modules = pytest.importorskip("FrEIA.modules")
    inn = framework.SequenceINN(4)
    inn.append(modules.AllInOneBlock, subnet_constructor=mlp)
    with pytest.raises(ValueError, match=r"one tensor of shape \(6,\).*from \[\(4,\)\]"):
        from_freia(inn, (6,))
    inn.append(modules.AllInOneBlock, subnet_constructor=mlp, cond=0, cond_shape=(3,))
    with pytest.raises(ValueError, match="without conditions"):
        from_freia(inn, (4,))
    with pytest.raises(ValueError, match=r"to \[\(2,\), \(2,\)\]"):
        from_freia(modules.Split([(4,)]), (4,))
    with pytest.raises(ValueError, match="one tensor"):
        from_freia(modules.Concat([(2,), (2,)]), (4,))
    with pytest.raises(ValueError, match=r"of shape \(6,\)"):
        from_freia(modules.ActNorm([(4,)]), (6,))
    with pytest.raises(ValueError, match=r"IResNetLayer at 'its root'.*exact inverse"):
        from_freia(modules.IResNetLayer([(4,)]), (4,))


def test_normflows_refusals() -> None:
    nf = pytest.importorskip("normflows")
    normal = nf.distributions.DiagGaussian
    scales = nf.MultiscaleFlow(
        [normal((2, 2, 2)), normal((2, 2, 2))],
        [[nf.flows.GlowBlock(2, 4)], [nf.flows.GlowBlock(4, 4), nf.flows.Squeeze()]],
        [nf.flows.Merge()],
        class_cond=False,
    )
    with pytest.raises(ValueError, match="got MultiscaleFlow that leaves the data in several"):
        from_normflows(scales, (1, 4, 4))
    with pytest.raises(ValueError, match="in several"):
        from_normflows(nf.NormalizingFlow(None, [nf.flows.Merge()]), (4,))
    with pytest.raises(ValueError, match="expected a peer that gives one tensor, got a list"):
        from_normflows(nf.flows.Reverse(nf.flows.Split()), (4,))
    with pytest.raises(ValueError, match="no algebraic inverse"):
        from_normflows(nf.flows.Planar((4,)), (4,))


BAD_NETS = {
    "Dropout": lambda: nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.1)),
    "BatchNorm1d": lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)),
}


@pytest.mark.parametrize("bad", BAD_NETS)
def test_refuses_dropout_and_batch_norm_in_a_conditioner(bad: str) -> None:
    freia, nf = pytest.importorskip("FrEIA.modules"), pytest.importorskip("normflows")
    T, lazy = pytest.importorskip("nflows.transforms"), pytest.importorskip("zuko").lazy
    net = BAD_NETS[bad]()
    with pytest.raises(ValueError, match=f"from_freia.*holds {bad}"):
        from_freia(freia.AllInOneBlock([(4,)], subnet_constructor=lambda i, o: net), (4,))
    with pytest.raises(ValueError, match=f"from_normflows.*holds {bad}"):
        from_normflows(nf.flows.AffineCouplingBlock(net), (4,))
    with pytest.raises(ValueError, match=f"from_nflows.*holds {bad}"):
        from_nflows(T.AffineCouplingTransform([1, 0, 1, 0], lambda i, o: net), (4,))
    with pytest.raises(ValueError, match=f"from_zuko.*holds {bad}"):
        from_zuko(lazy.UnconditionalTransform(net), (4,))


def test_refuses_the_peers_own_batch_norm_and_sampling() -> None:
    nf, T = pytest.importorskip("normflows"), pytest.importorskip("nflows.transforms")
    with pytest.raises(ValueError, match=r"from_nflows.*holds BatchNorm at '_transforms\.1'"):
        from_nflows(T.CompositeTransform([T.LULinear(4), T.BatchNorm(4)]), (4,))
    with pytest.raises(ValueError, match=r"from_normflows.*holds BatchNorm at '0'"):
        from_normflows(nf.flows.BatchNorm(), (4,))
    sampler = nf.flows.MetropolisHastings(None, None, 1)
    with pytest.raises(ValueError, match="holds MetropolisHastings"):
        from_normflows(nf.NormalizingFlow(None, [sampler]), (4,))
    with pytest.raises(ValueError, match="holds iResBlock"):
        from_normflows(nf.flows.Residual(mlp(4, 4)), (4,))


@pytest.mark.parametrize(
    "name", ["zuko, NSF", "FrEIA, module", "normflows, coupled spline", "nflows, spline coupling"]
)
def test_stands_in_a_chain_like_any_other(name: str) -> None:
    g = Chain(Flatten((2, 2)), InvertibleLinear((4,)), shaken(name))
    x = torch.randn(3, 2, 2)
    close(g.inverse(g(x)), x, 1e-8)
    grads = []
    for g.save_memory in (False, True):
        loss = sum(t.square().sum() for t in g.with_log_det(x))
        grads.append(torch.autograd.grad(loss, list(g.parameters())))
    for plain, saved in zip(*grads, strict=True):
        close(saved, plain, 1e-8, floor=1e-3)
