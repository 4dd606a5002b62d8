"""Exported files give what f gives, for any batch, and failures leave nothing behind."""

import copy
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from catalogue import BIJECTIONS, OPERATORS, shaken
from laws import close
from linearizer import Linearizer, Space, bijections
from linearizer.apps.flow.model import Flow
from linearizer.bijections import (
    AdditiveCoupling,
    AffineCoupling,
    Bijection,
    Flatten,
    glow,
    mlp,
    revnet,
    subspace,
)
from linearizer.families import GaussianVelocity
from linearizer.nets import MLP, ResidualConv, UNet
from linearizer.operators import (
    Convolution,
    Dense,
    Diagonal,
    Identity,
    MixingConvolution,
    Operator,
    Projector,
    ScaledIdentityPlusLowRank,
)
from linearizer.runs.export import FORMATS, Exported, export, frozen, register

export_module = sys.modules["linearizer.runs.export"]


def bent(g, data):
    """Initialised from data and moved, so that nothing is the identity."""
    g.float().initialize(data)
    with torch.no_grad():
        for p in g.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return g


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float32)


def euclidean(A):
    return Linearizer(Space(Flatten((A.shape[1],))), A, Space(Flatten((A.shape[0],))))


def vectors():
    def net(inputs, outputs):
        return MLP(inputs, outputs, 16, depth=1)

    X = Space(bent(mlp(5, blocks=1, conditioner=net), 2 * randn(64, 5) + 1))
    Y = Space(bent(mlp(3, blocks=1, conditioner=net, save_memory=True), randn(64, 3)))
    return Linearizer(X, Dense(nn.Parameter(randn(3, 5))), Y), randn(4, 5)


def grey():
    g = glow((1, 16, 16), blocks=1, conditioner=lambda i, o: ResidualConv(i, o, 4, blocks=0))
    X = Space(bent(g, 2 * torch.rand(16, 1, 16, 16).float()))
    A = ScaledIdentityPlusLowRank(0.8, randn(256, 4) / 16, randn(256, 4) / 16).float()
    return Linearizer(X, A, X), torch.rand(3, 1, 16, 16).float()


def colour():
    g = glow((3, 8, 8), blocks=1, conditioner=lambda i, o: UNet(i, o, 4))
    X = Space(bent(g, 2 * torch.rand(16, 3, 8, 8).float()))
    kernel = 0.1 * randn(3, 3, 3)
    kernel[:, 1, 1] += 1.0
    return Linearizer(X, Convolution(kernel, (3, 8, 8)), X), torch.rand(3, 3, 8, 8).float()


def fourier():
    return euclidean(Convolution(randn(2, 9, 10), (2, 9, 10))), randn(3, 180)


def mixing():
    kernel = 0.1 * randn(3, 3, 3, 4)
    kernel[..., 1, 1] += torch.eye(3).float()
    return euclidean(MixingConvolution(kernel, (3, 9, 10))), randn(3, 270)


def projector():
    X = Space(bent(revnet((1, 16, 16), blocks=1), torch.rand(16, 1, 16, 16).float()))
    return Linearizer(X, Projector(nn.Parameter(randn(256))), X), torch.rand(3, 1, 16, 16).float()


def flow():
    g = subspace((1, 16, 16), 6, 4, "conv", blocks=1, flow_hidden=16)
    X = Space(bent(g, torch.rand(32, 1, 16, 16).float()))
    noise = Space(Flatten((1, 16, 16)))
    model = Flow(noise, GaussianVelocity(torch.eye(256, 6).float(), torch.ones(6).float()), X)
    return model.collapse("rk4", 10), randn(3, 1, 16, 16)


def turned(pair, turn):
    """Another map made of f, and points for it."""
    f, x = pair
    return turn(f), f(x).detach()


MAPS = {
    "mlp, dense": vectors,
    "mlp, dense, pseudo-inverse": lambda: turned(vectors(), lambda f: f.pinv()),
    "mlp, dense, transpose": lambda: turned(vectors(), lambda f: f.T),
    "glow, scaled identity plus low rank": grey,
    "glow, inverse": lambda: turned(grey(), lambda f: f.inverse()),
    "glow, pseudo-inverse": lambda: turned(grey(), lambda f: f.pinv()),
    "revnet, projector": projector,
    "glow, convolution": colour,
    "convolution in Fourier space": fourier,
    "mixing convolution": mixing,
    "mixing convolution, pseudo-inverse": lambda: turned(mixing(), lambda f: f.pinv()),
    "collapsed flow": flow,
}
# Seconds each: both formats share the trace, so not every map goes through both.
CASES = [(name, "onnx") for name in MAPS if name != "glow, pseudo-inverse"] + [
    (name, "torch-export")
    for name in (
        "mlp, dense",
        "glow, pseudo-inverse",
        "convolution in Fourier space",
        "mixing convolution, pseudo-inverse",
    )
]


@pytest.mark.parametrize(("name", "format"), CASES)
def test_the_file_equals_f(name, format, tmp_path):
    f, x = MAPS[name]()
    assert not torch.allclose(frozen(f)(x).flatten(1)[:, :3], x.flatten(1)[:, :3], atol=1e-2)
    result = export(f, tmp_path / "made" / "map.bin", format, x)
    assert isinstance(result, Exported) and result.format == format
    assert result.max_error <= 1e-4
    assert result.input_shape == f.source.shape and result.output_shape == f.target.shape
    assert result.dtype == torch.float32
    assert result.path == tmp_path / "made" / "map.bin"
    assert result.bytes == result.path.stat().st_size
    assert list(result.path.parent.iterdir()) == [result.path]
    assert b"test_export" not in result.path.read_bytes()  # no names of folders and sources
    more = torch.cat([x, x + 0.01, x])
    torch.testing.assert_close(load(result)(more), f(more).detach(), atol=1e-4, rtol=1e-4)


def load(result):
    if result.format == "torch-export":
        return torch.export.load(result.path.rename(result.path.with_suffix(".pt2"))).module()
    import onnxruntime

    session = onnxruntime.InferenceSession(str(result.path))
    return lambda x: torch.from_numpy(session.run(["y"], {"x": x.numpy()})[0])


def test_the_onnx_file_names_itself(tmp_path):
    import onnx

    f = euclidean(Dense(randn(3, 5)))
    model = onnx.load(export(f, tmp_path / "f.onnx", "onnx", randn(1, 5)).path)
    onnx.checker.check_model(model)
    assert model.producer_name == "linearizer"
    notes = {p.key: p.value for p in model.metadata_props}
    assert notes["source_shape"] == "[5]" and notes["target_shape"] == "[3]"
    assert notes["producer"] == "linearizer" and notes["operator"] == "Dense"
    (x,), (y,) = model.graph.input, model.graph.output
    assert (x.name, y.name) == ("x", "y")
    for value, size in ((x, 5), (y, 3)):
        batch, width = value.type.tensor_type.shape.dim
        assert batch.dim_param == "batch" and width.dim_value == size


# -- frozen ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BIJECTIONS)
def test_every_bijection_freezes(name):
    X = Space(shaken(BIJECTIONS[name]()))
    f = Linearizer(X, Diagonal(torch.rand(X.dim) + 0.5), X)
    x = torch.randn(3, *X.shape)
    plain = frozen(f)
    close(plain(x), f(x), 1e-7)
    assert not any(p.requires_grad for p in plain.parameters())
    assert not any(isinstance(m, Linearizer | Space) for m in plain.modules())


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_freezes(name):
    A = OPERATORS[name]()
    if A.batch is not None:
        with pytest.raises(ValueError, match="expected one A for all samples"):
            frozen(euclidean(A))
        return
    x, y = torch.randn(4, A.shape[1]), torch.randn(4, A.shape[0])
    for B, z in ((A, x), (A.T, y), (A.pinv(), y), (A.T @ A + Identity(len(x[0])), x)):
        close(frozen(euclidean(B))(z), B(z), 1e-9)


def test_large_circular_kernels_go_through_fourier_space():
    for image in ((2, 9, 10), (1, 10, 9)):
        mixing = MixingConvolution(torch.randn(3, *image), image)
        for A in (Convolution(torch.randn(image), image), mixing):
            z = torch.randn(3, A.shape[1])
            assert type(frozen(euclidean(A)).core).__name__ == "_Fourier"
            close(frozen(euclidean(A))(z), A(z), 1e-9)


def test_an_operator_of_ones_own_freezes():
    class Reverse(Operator):
        def __init__(self):
            super().__init__()
            self.register_buffer("order", torch.tensor([2.0, 1.0, 0.0]))

        shape = (3, 3)
        T = property(lambda self: self)

        def forward(self, z):
            return z.flip(-1)

    z = torch.randn(2, 3)
    close(frozen(euclidean(Reverse()))(z), z.flip(-1))


class Doubled(Bijection):
    def forward(self, x):
        return x + x

    def inverse(self, z):
        return z / 2


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


def test_a_bijection_of_ones_own_takes_the_module_that_it_names():
    X = Space(bijections.Chain(Doubled((3,)), bijections.OnPart(Doubled((2,)), 3)))
    f = Linearizer(X, Diagonal(torch.rand(3)), X)
    x = torch.randn(2, 3)
    assert not any(isinstance(m, Times) for m in frozen(f).modules())  # its own code is traced
    register(Doubled)(lambda g, inverse: Times(0.5 if inverse else 2.0))
    assert [m.factor for m in frozen(f).modules() if isinstance(m, Times)] == [2.0, 2.0, 0.5, 0.5]
    close(frozen(f)(x), f(x))

    class Named(Doubled):
        """Inherits it."""

    assert isinstance(frozen(euclidean(Identity(3))).core, nn.Identity)
    Y = Space(Named((3,)))
    assert isinstance(frozen(Linearizer(Y, Identity(3), Y)).source, Times)
    for wrong in (nn.Linear, Doubled((3,)), "Doubled"):
        with pytest.raises(TypeError, match="expected a class of operators or bijections, got"):
            register(wrong)


def test_f_stays_as_it_is(tmp_path):
    net = MLP(2, 4, 8)
    parametrizations.weight_norm(net.layers[0])
    parametrizations.orthogonal(net.layers[2])
    g = shaken(AffineCoupling((4,), net)).float()
    X = Space(g)
    f = Linearizer(X, Dense(nn.Parameter(randn(4, 4))), X)
    f(randn(3, 4)).sum().backward()
    f.train()
    before = copy.deepcopy(f.state_dict())
    grads = {name: p.grad.clone() for name, p in f.named_parameters()}
    x = randn(3, 4)
    y = f(x)
    for map in (f, f.pinv(), f @ f):  # cores that are results of a computation
        export(map, tmp_path / "f.pt2", "torch-export", x)
    assert torch.equal(f(x), y) and f(x).requires_grad
    assert all(m.training for m in f.modules())
    assert all(torch.equal(v, before[k]) for k, v in f.state_dict().items())
    assert all(p.requires_grad for p in f.parameters())
    assert all(torch.equal(p.grad, grads[name]) for name, p in f.named_parameters())


# -- other dtypes and peers --------------------------------------------------------------------


def test_float64_stays_where_onnxruntime_can(tmp_path):
    g = shaken(AffineCoupling((4,), MLP(2, 4, 8)))
    f = Linearizer(Space(g), Dense(torch.randn(3, 4)), Space(Flatten((3,))))
    result = export(f, tmp_path / "f.onnx", "onnx", torch.randn(3, 4), tolerance=1e-12)
    assert result.dtype == torch.float64
    y = load(result)(torch.ones(2, 4))
    assert y.dtype == torch.float64


def test_float64_becomes_float32_where_it_cannot(tmp_path):
    g = shaken(AdditiveCoupling((2, 4, 4), nn.Conv2d(1, 1, 3, padding=1)))
    X = Space(g)
    f, x = Linearizer(X, Identity(32) * 0.5, X), torch.randn(3, 2, 4, 4)
    result = export(f, tmp_path / "f.onnx", "onnx", x)
    assert result.dtype == torch.float32 and 1e-12 < result.max_error <= 1e-4
    kept = export(f, tmp_path / "f.pt2", "torch-export", x, tolerance=1e-12)
    assert kept.dtype == torch.float64


def test_a_peer_exports(tmp_path):
    flows = pytest.importorskip("zuko").flows
    g = bijections.from_zuko(flows.RealNVP(4, transforms=1, hidden_features=[8]).float(), (4,))
    X = Space(shaken(g))
    f = Linearizer(X, Identity(4, dtype=torch.float32) * 0.5, X)
    assert export(f, tmp_path / "f.onnx", "onnx", randn(3, 4)).max_error <= 1e-4


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated:UserWarning")
def test_a_peer_that_does_not_convert_is_named(tmp_path):
    transforms = pytest.importorskip("nflows.transforms")
    X = Space(bijections.from_nflows(transforms.LULinear(3).float(), (3,)))
    f = Linearizer(X, Identity(3, dtype=torch.float32), X)
    with pytest.raises(ValueError, match="LULinear of nflows does not convert to ONNX") as error:
        export(f, tmp_path / "f.onnx", "onnx", randn(3, 3))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


# -- errors ------------------------------------------------------------------------------------


class OneBatch(Bijection):
    """Asks for the length of the batch."""

    def forward(self, x):
        return x * 2 if len(x) else x

    def inverse(self, z):
        return z.reshape(len(z), *self.shape) / 2


class Branching(Bijection):
    """Looks at the numbers."""

    def forward(self, x):
        return x if float(x.sum()) > 0 else 1.0 * x

    def inverse(self, z):
        return z


def test_a_bijection_that_asks_for_the_length_exports(tmp_path):
    X = Space(OneBatch((3,)))
    f = Linearizer(X, Dense(randn(3, 3)), X)
    assert export(f, tmp_path / "f.pt2", "torch-export", randn(2, 3)).max_error <= 1e-6


def test_a_bijection_that_looks_at_numbers_is_named(tmp_path, capfd):
    X = Space(Branching((3,)))
    f = Linearizer(X, Dense(randn(3, 3)), X)
    with pytest.raises(ValueError, match="Branching cannot be traced") as error:
        export(f, tmp_path / "f.pt2", "torch-export", randn(2, 3))
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("format", FORMATS)
def test_a_missed_tolerance_leaves_nothing(format, tmp_path):
    f = Linearizer(
        Space(bijections.InvertibleLinear((4,)).float()),
        Dense(randn(4, 4)),
        Space(bijections.InvertibleLinear((4,)).float()),
    )
    with pytest.raises(ValueError, match="within 1e-30, but it differs by"):
        export(f, tmp_path / "f", format, randn(9, 4), tolerance=1e-30)
    assert not list(tmp_path.iterdir())


def test_nan_does_not_pass_and_an_older_file_stays(tmp_path):
    path = tmp_path / "f.pt2"
    path.write_text("old")
    with pytest.raises(ValueError, match="differs by nan"):
        export(euclidean(Dense(randn(2, 2))), path, "torch-export", randn(2, 2) / 0 * 0)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_file_that_fails_on_another_batch_is_refused(tmp_path, monkeypatch):
    def write(f, module, x, path):
        def run(x):
            raise RuntimeError("only 2\nrows")

        return run, x.dtype

    monkeypatch.setattr(export_module, "_write_torch", write)
    with pytest.raises(ValueError, match=r"does not run on a batch of 2 \(only 2\)"):
        export(euclidean(Dense(randn(2, 2))), tmp_path / "f", "torch-export", randn(2, 2))


def test_bad_requests(tmp_path):
    f, x, path = euclidean(Dense(randn(3, 2))), randn(4, 2), tmp_path / "f"
    with pytest.raises(ValueError, match="onnx, torch-export, got 'onx'. Did you mean 'onnx'?"):
        export(f, path, "onx", x)
    with pytest.raises(ValueError, match="onnx, torch-export, got 'zip'.$"):
        export(f, path, "zip", x)
    with pytest.raises(ValueError, match="a folder"):
        export(f, tmp_path, "onnx", x)
    with pytest.raises(ValueError, match="tolerance > 0, got 0"):
        export(f, path, "onnx", x, tolerance=0)
    with pytest.raises(ValueError, match="expected example of shape"):
        export(f, path, "onnx", x[:, :1])
    with pytest.raises(ValueError, match="at least one example"):
        export(f, path, "onnx", x[:0])
    with pytest.raises(ValueError, match="expected torch.float32"):
        export(f, path, "torch-export", x.double())
    with pytest.raises(TypeError, match="expected a Linearizer, got Dense"):
        export(f.operator, path, "onnx", x)
    with pytest.raises(ValueError, match="holds 4, one for each"):
        export(euclidean(Dense(randn(4, 3, 2))), path, "onnx", x)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf'{package}, .*pip install "linearizer\[export\]"'):
        export(euclidean(Dense(randn(2, 2))), tmp_path / "f.onnx", "onnx", randn(1, 2))


def test_what_onnx_cannot_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(export_module, "_ONNX_BYTES", 8)
    with pytest.raises(ValueError, match="under 2 GB of weights"):
        export(euclidean(Dense(randn(2, 2))), tmp_path / "f.onnx", "onnx", randn(1, 2))


def test_what_onnxruntime_does_not_run_is_refused(tmp_path, monkeypatch):
    def session(path):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(export_module, "_session", session)
    with pytest.raises(ValueError, match=r"onnxruntime does not run the map \(no kernel\)"):
        export(euclidean(Dense(randn(2, 2))), tmp_path / "f.onnx", "onnx", randn(1, 2))
    assert not list(tmp_path.iterdir())
