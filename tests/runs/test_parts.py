"""What is made of known parts comes back to the bit, and strangers' files are safe to open."""

import copy
import functools
import json
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import linearizer as lz
from catalogue import BIJECTIONS, OPERATORS, shaken
from linearizer import Linearizer, Space
from linearizer.bijections import (
    AdditiveCoupling,
    Bijection,
    Chain,
    Flatten,
    from_zuko,
    glow,
    mlp,
    resize,
)
from linearizer.families import (
    GaussianVelocity,
    Leading,
    Periodic,
    Preconditioned,
    Prediction,
    StyleKernel,
    TimeLowRank,
    _Rates,
)
from linearizer.nets import MLP, Layers, describe_layers
from linearizer.operators import Dense, Diagonal, Identity, LowRank, MatrixFree, Operator
from linearizer.runs import parts
from linearizer.runs.export import export, frozen
from linearizer.runs.export import register as register_export
from linearizer.training.checkpoint import read_tensors, write_tensors, write_weights

DTYPES = [torch.float32, torch.float64]


def euclidean(A):
    return Linearizer(Space(Flatten((A.shape[1],))), A, Space(Flatten((A.shape[0],))))


def again(module, folder):
    """The module from its file, and the same in all that can be told."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if default == torch.float64 else torch.float64)
    random = torch.get_rng_state()
    loaded = lz.load(lz.save(module, folder))
    assert torch.equal(torch.get_rng_state(), random)
    torch.set_default_dtype(default)
    assert str(loaded) == str(module) and not loaded.training
    ours, theirs = (
        {**dict(m.named_parameters()), **dict(m.named_buffers())} for m in (module, loaded)
    )
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]) and tensor.dtype == theirs[name].dtype, name
        if isinstance(tensor, nn.Parameter):
            assert tensor.requires_grad == theirs[name].requires_grad, name
    assert list(module.state_dict()) == list(loaded.state_dict())
    for one, two in zip(module.modules(), loaded.modules(), strict=True):
        assert type(one) is type(two)
    return loaded


# -- everything comes back -----------------------------------------------------------------


def test_functions_are_not_saved(tmp_path):
    with pytest.raises(ValueError, match="MatrixFree.*forward_rows of class"):
        lz.save(euclidean(MatrixFree(torch.neg, torch.neg, (2, 2))), tmp_path / "free")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "matrix free, wide"])
def test_every_operator_comes_back(name, dtype, tmp_path):
    torch.set_default_dtype(dtype)
    A = OPERATORS[name]()
    B = again(A, tmp_path)
    z = torch.randn(A.batch or 4, A.shape[1])
    assert torch.equal(B(z), A(z)) and B(z).dtype == dtype and B.shape == A.shape
    for turn in (lambda A: A.T, lambda A: A.pinv(), lambda A: A.T @ A):
        C = turn(A)
        z = torch.randn(C.batch or 4, C.shape[1])
        assert torch.equal(again(C, tmp_path)(z), C(z))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BIJECTIONS)
def test_every_bijection_comes_back(name, dtype, tmp_path):
    torch.set_default_dtype(dtype)
    X = Space(shaken(BIJECTIONS[name]()))
    f = Linearizer(X, Diagonal(nn.Parameter(torch.rand(X.dim) + 0.5)), X)
    next(iter(X.parameters()), torch.zeros(())).requires_grad_(False)
    h = again(f, tmp_path)
    x = torch.randn(3, *X.shape)
    assert torch.equal(h(x), f(x)) and h(x).dtype == dtype
    assert h.source is h.target
    assert torch.equal(h.source.g.with_log_det(x)[1], X.g.with_log_det(x)[1])


FAMILIES = {
    "TimeLowRank": lambda: TimeLowRank(5, rank=2, hidden=8),
    "Leading": lambda: Leading(TimeLowRank(3, rank=2, hidden=8), 5),
    "Periodic": lambda: Periodic(
        nn.Parameter(torch.randn(2, 3, 4)), nn.Parameter(torch.randn(4, 2, 3, 2))
    ),
    "Prediction": lambda: Prediction(TimeLowRank(5, rank=2, hidden=8)),
    "Preconditioned": lambda: Preconditioned(TimeLowRank(5, rank=2, hidden=8), torch.rand(5) + 0.1),
    "GaussianVelocity": lambda: GaussianVelocity.from_coordinates(torch.randn(40, 6), rank=3),
    "_Rates": lambda: _Rates(torch.rand(3)),
    "StyleKernel": lambda: StyleKernel(3, (2, 5, 4), kernel=2),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_comes_back(name, tmp_path):
    family = FAMILIES[name]()
    A, B = family(0.5), again(family, tmp_path)(0.5)
    z = torch.randn(2, A.shape[1])
    assert torch.equal(A(z), B(z))


def test_every_class_of_the_library_is_known_and_tried():
    built = [make() for make in (*OPERATORS.values(), *BIJECTIONS.values(), *FAMILIES.values())]
    built.append(euclidean(Identity(2)))
    found = {type(m) for root in built for m in root.modules()}
    # Peers' modules are not ours to describe; chains of layers are tested below.
    rest = {name for name, cls in parts._library().items() if cls not in found}
    assert rest == {"Layers", "ZukoBijection", "FreiaBijection", "NormflowsBijection",
                    "NflowsBijection"}  # fmt: skip


LAYERS = {
    nn.Linear: lambda: nn.Linear(3, 4, bias=False),
    nn.Conv1d: lambda: nn.Conv1d(2, 4, 3, padding="same", padding_mode="circular"),
    nn.Conv2d: lambda: nn.Conv2d(2, 4, (3, 2), stride=2, padding=1, groups=2),
    nn.Conv3d: lambda: nn.Conv3d(2, 4, 2, dilation=2),
    nn.ConvTranspose1d: lambda: nn.ConvTranspose1d(2, 4, 3, stride=2, output_padding=1),
    nn.ConvTranspose2d: lambda: nn.ConvTranspose2d(2, 4, 3, bias=False),
    nn.ConvTranspose3d: lambda: nn.ConvTranspose3d(2, 4, 2),
    nn.GroupNorm: lambda: nn.GroupNorm(2, 4, eps=1e-3),
    nn.LayerNorm: lambda: nn.LayerNorm((4, 5), bias=False),
    nn.AvgPool2d: lambda: nn.AvgPool2d(2, ceil_mode=True),
    nn.MaxPool2d: lambda: nn.MaxPool2d((2, 3), padding=1),
    nn.AdaptiveAvgPool2d: lambda: nn.AdaptiveAvgPool2d((2, None)),
    nn.Upsample: lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
    nn.PixelShuffle: lambda: nn.PixelShuffle(2),
    nn.PixelUnshuffle: lambda: nn.PixelUnshuffle(2),
    nn.Flatten: lambda: nn.Flatten(2),
    nn.Unflatten: lambda: nn.Unflatten(1, (2, 2)),
    nn.LeakyReLU: lambda: nn.LeakyReLU(0.3),
    nn.ELU: lambda: nn.ELU(0.5),
    nn.CELU: lambda: nn.CELU(0.5),
    nn.Softplus: lambda: nn.Softplus(2, 10),
    nn.Hardtanh: lambda: nn.Hardtanh(-2, 3),
    nn.GELU: lambda: nn.GELU("tanh"),
    nn.PReLU: lambda: nn.PReLU(3, init=0.1),
}


@pytest.mark.parametrize("kind", parts._LAYERS, ids=lambda kind: kind.__name__)
def test_every_layer_of_torch_comes_back(kind, tmp_path):
    layer = LAYERS.get(kind, kind)()
    loaded = again(layer, tmp_path)
    plain = {k: v for k, v in vars(layer).items() if not k.startswith("_")}
    assert plain == {**{k: v for k, v in vars(loaded).items() if not k.startswith("_")},
                     "training": True}  # fmt: skip


def test_containers_and_chains_of_layers_come_back(tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh())
    kept = nn.ModuleDict(
        {"a": nn.ModuleList([net, net[1]]), "b": Layers(describe_layers(net), (1, 2, 2), 3)}
    )
    loaded = again(kept, tmp_path)
    x = torch.randn(5, 1, 2, 2)
    assert torch.equal(loaded["a"][0](x), net(x)) and loaded["a"][0][1] is loaded["a"][1]
    assert torch.equal(loaded["b"](x), kept["b"](x))


def test_a_fresh_process_opens_it(tmp_path):
    X = Space(shaken(glow((1, 4, 4), blocks=1, hidden=4)).float())
    f = Linearizer(X, LowRank(torch.randn(16, 2), torch.randn(16, 2)).float(), X)
    x = torch.randn(3, 1, 4, 4).float()
    lz.save(f, tmp_path / "f")
    write_tensors(tmp_path / "xy.safetensors", {"x": x, "y": f(x)}, {})
    code = (
        "import sys, torch, linearizer as lz\n"
        "from linearizer.training.checkpoint import read_tensors\n"
        "from pathlib import Path\n"
        "f = lz.load(sys.argv[1]); t, _ = read_tensors(Path(sys.argv[2]))\n"
        "print(torch.equal(f(t['x']), t['y']), f.source is f.target, type(f.operator).__name__)"
    )
    arguments = [sys.executable, "-c", code, tmp_path / "f", tmp_path / "xy.safetensors"]
    out = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["True", "True", "LowRank"]


def test_a_shipped_model_gives_maps_to_save(tmp_path):
    torch.set_default_dtype(torch.float32)
    for name in ("mnist-projector", "mnist-attributes"):  # with networks of an app; channels last
        f = lz.load(name)()
        x = torch.rand(2, *f.source.shape)
        assert torch.equal(again(f, tmp_path)(x), f(x))


# -- what is shared stays shared -----------------------------------------------------------


def test_one_bijection_of_two_spaces_stays_one(tmp_path):
    g, weight = shaken(mlp(4, blocks=1, hidden=8)), nn.Parameter(torch.randn(4, 4))
    f = Linearizer(Space(g), Dense(weight), Space(g))
    h = again(f, tmp_path)
    assert h.source is not h.target and h.source.g is h.target.g
    both = again(nn.ModuleList([Dense(weight), Dense(weight)]), tmp_path)
    assert both[0] is not both[1] and both[0].matrix is both[1].matrix
    assert isinstance(both[0].matrix, nn.Parameter)


def test_resized_layers_come_back_with_the_same_weights(tmp_path):
    g = shaken(glow((1, 4, 4), blocks=2, hidden=4))
    f = Linearizer(
        Space(g), LowRank(torch.randn(24, 3), torch.randn(16, 3)), Space(resize(g, (1, 4, 6)))
    )
    h = again(f, tmp_path)
    x = torch.randn(3, 1, 4, 4)
    assert torch.equal(h(x), f(x)) and h.target.shape == (1, 4, 6)
    shared = set(h.source.parameters()) & set(h.target.parameters())
    assert shared == set(h.source.parameters())
    h = h.float()  # which gives each module new buffers: not even so the two part
    layers = zip(h.source.g.modules(), h.target.g.modules(), strict=True)
    norms = [(one, two) for one, two in layers if isinstance(one, lz.bijections.ActNorm)]
    assert norms and all(one.initialized is two.initialized for one, two in norms)
    alone = resize(g, (1, 6, 4))
    x = torch.randn(2, 1, 6, 4)
    assert torch.equal(again(alone, tmp_path)(x), alone(x))


def test_weights_fill_a_module_like_it(tmp_path):
    def build():
        return Linearizer(
            Space(BIJECTIONS["level and waves"]()), Identity(12), Space(Flatten((12,)))
        )

    f = build()
    lz.save(f, tmp_path)  # with tensors that no state_dict has
    x = torch.randn(2, 6, 2)
    assert torch.equal(lz.load(tmp_path, into=build())(x), f(x))


def test_results_of_a_computation_are_saved_as_numbers(tmp_path):
    X = Space(shaken(mlp(3, blocks=1, hidden=8)))
    f = Linearizer(X, Dense(nn.Parameter(torch.randn(3, 3))), X)
    h = (f @ f).pinv()
    x = torch.randn(2, 3)
    loaded = again(h, tmp_path)
    assert h.operator.matrix.requires_grad and not loaded.operator.matrix.requires_grad
    assert torch.equal(loaded(x), h(x))


# -- classes of one's own ------------------------------------------------------------------


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(parts, "_registered", {})


class Reverse(Operator):
    """z in the other order, times a number that is learned."""

    def __init__(self, n, factor):
        super().__init__()
        self.n, self.factor = n, nn.Parameter(torch.as_tensor(factor))

    @property
    def shape(self):
        return self.n, self.n

    @property
    def T(self):
        return self

    @functools.cached_property
    def note(self):
        return object()  # is found anew, so it need not be saved

    def forward(self, z):
        return self.factor * z.flip(-1)


class Flip(nn.Module):
    def forward(self, z):
        return z.flip(-1)


def test_an_operator_of_ones_own_is_saved_and_exported(own, tmp_path):
    parts.register(Reverse)
    register_export(Reverse)(lambda A: nn.Sequential(Flip(), nn.Hardtanh(-99, 99)))
    f = euclidean(Reverse(3, 1.0))
    assert f.operator.note
    x = torch.randn(2, 3)
    assert torch.equal(again(f, tmp_path / "f")(x), f(x))
    assert isinstance(frozen(f).core[0], Flip)
    result = export(f, tmp_path / "f.pt2", "torch-export", x)
    assert result.max_error == 0

    class More(Reverse):
        """Has the export of its base."""

    assert isinstance(frozen(euclidean(More(3, 1.0))).core[0], Flip)


def test_a_file_with_a_class_that_is_not_registered_names_it(own, tmp_path):
    message = r"save: operator \(Reverse of \S*test_parts\) is no known part. Register its class, "
    with pytest.raises(ValueError, match=message + r"linearizer.parts.register\(Reverse\)"):
        lz.save(euclidean(Reverse(3, 2.0)), tmp_path / "f")
    assert not list(tmp_path.iterdir())
    parts.register(Reverse)
    lz.save(euclidean(Reverse(3, 2.0)), tmp_path / "f")
    parts._registered.clear()
    with pytest.raises(ValueError, match=r"config.json: part \d is 'Reverse' of \S*test_parts, "
                       r"which is not known here.*linearizer.parts.register"):  # fmt: skip
        lz.load(tmp_path / "f")


def test_names_are_given_once(own):
    assert parts.register(Reverse) is Reverse and parts.register(Reverse) is Reverse

    def define():
        class Dense(Operator):
            shape = (1, 1)
            T = property(lambda self: self)

            def forward(self, z):
                return z

        return Dense

    first, second = define(), define()
    with pytest.raises(ValueError, match=r"'Dense' belongs to another.*register\(Dense, name=…\)"):
        parts.register(first)
    parts.register(first, name="MyDense")
    parts.register(second, name="MyDense")  # a cell of a notebook, run again
    assert parts.known()["MyDense"] is second
    for cls in (Dense, nn.Linear):
        with pytest.raises(ValueError, match="is known already"):
            parts.register(cls)
    for wrong in (Operator, int, Dense(torch.eye(2))):
        with pytest.raises(TypeError, match="expected a class of modules"):
            parts.register(wrong)


# -- what is refused -----------------------------------------------------------------------


class Stores(Bijection):
    def __init__(self, value):
        super().__init__((2,))
        self.value = value

    def forward(self, x):
        return x

    def inverse(self, z):
        return z


def looped():
    inner = nn.Sequential(nn.Linear(2, 2))
    inner.append(nn.ModuleList([inner]))
    return inner


def patched():
    layer = nn.Linear(2, 2)
    layer.forward = torch.sin
    return layer


def hooked():
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda *_: None)
    return layer


REFUSED = {
    "unknown": (
        lambda: nn.Sequential(nn.Bilinear(2, 2, 2)),
        r"0 \(Bilinear of torch.nn.*\) is no known part. "
        r"Register its class, linearizer.parts.register\(Bilinear\), or keep the weights alone",
    ),
    "function": (
        lambda: Stores(torch.sin),
        "has value of class builtin.* Keep numbers and text",
    ),
    "tensor": (lambda: Stores(torch.ones(2)), r"has value of class Tensor \(torch\)"),
    "modules in a list": (
        lambda: Stores([nn.Linear(2, 2)]),
        "has value of class Linear .*nn.ModuleList",
    ),
    "without end": (lambda: Stores(functools.reduce(lambda v, _: [v], range(50), 1)), "too deep"),
    "hooks": (hooked, r"the module \(Linear of torch.nn.*\) has hooks.* Remove them"),
    "forward": (patched, "has hooks or a forward of its own"),
    "parametrized": (lambda: parametrizations.weight_norm(nn.Linear(2, 2)), "is parametrized"),
    "loop": (looped, "holds itself"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_file_can_hold_is_one_sentence(name, own, tmp_path):
    parts.register(Stores)
    make, message = REFUSED[name]
    module = make()
    with pytest.raises(ValueError, match=rf"^save: .*{message}") as error:
        lz.save(module, tmp_path / "run")
    assert "\n" not in str(error.value) and "weights_only=True" in str(error.value)
    assert not list(tmp_path.iterdir())
    if name != "loop":
        lz.save(module, tmp_path / "run", weights_only=True)
        with pytest.raises(ValueError, match=r"saved without its parts.*load\(run, into=model\)"):
            lz.load(tmp_path / "run")
        lz.load(tmp_path / "run", into=copy.deepcopy(module))


def test_every_plain_value_comes_back(own, tmp_path):
    parts.register(Stores)
    value = [None, True, 3, -0.5, "é", (1, [2, ()]), {"a": {1: (2,)}}, float("inf"), torch.float16]
    assert again(Stores(value), tmp_path).value == value
    nan = again(Stores(float("nan")), tmp_path).value
    assert nan != nan


def test_a_peer_is_named(tmp_path):
    g = from_zuko(torch.distributions.AffineTransform(1.0, 2.0), (3,))
    with pytest.raises(ValueError, match=r"g \(ZukoBijection of .*\) has peer of class AffineTra"):
        lz.save(Space(g), tmp_path)
    flows = pytest.importorskip("zuko").flows
    g = from_zuko(flows.RealNVP(4, transforms=1, hidden_features=[8]), (4,))
    with pytest.raises(ValueError, match=r"save: g\.peer\S* \(\w+ of zuko\.\S+\) is no known part"):
        lz.save(Space(g), tmp_path)


# -- strangers' files ----------------------------------------------------------------------


def forge(folder, change):
    """Change the description of a saved map, and sign it as if it had been written so."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    changed = change(config["parts"])
    config["parts"] = config["parts"] if changed is None else changed
    path.write_text(json.dumps(config))
    tensors, _ = read_tensors(folder / "weights.safetensors")
    write_weights(folder, tensors, config)


def stranger(folder):
    g = Chain(AdditiveCoupling((4,), MLP(2, 2, 8)), lz.bijections.ActNorm((4,)))
    return lz.save(Linearizer(Space(g), Dense(torch.randn(3, 4)), Space(Flatten((3,)))), folder)


def find(entries, name):
    return next(entry for entry in entries if entry["part"] == name)


def set_in(name, *keys_and_value):
    *keys, last, value = keys_and_value

    def change(entries):
        functools.reduce(dict.__getitem__, keys, find(entries, name))[last] = value

    return change


HUGE = 10**14
FORGED = {
    "another class": (set_in("MLP", "part", "MPL"), "is 'MPL', which is not known here"),
    "a function": (set_in("MLP", "part", "os.system"), "is 'os.system', which is not known here"),
    "a module": (set_in("MLP", "part", "antigravity.fly"), "not known here"),
    "with a home": (set_in("MLP", "of", "antigravity"), None),
    "a class of pickle": (set_in("MLP", "part", "torch.load"), "not known here"),
    "no name": (set_in("MLP", "part", ["MLP"]), "not known here"),
    "an abstract class": (set_in("MLP", "part", "Bijection"), "not known here"),
    "no list": (lambda e: {}, "expected parts as a list"),
    "an empty list": (lambda e: [], "expected a list of parts"),
    "no tables": (lambda e: [3], "part 0: expected a table"),
    "values as a list": (set_in("MLP", "values", []), "expected values as a table"),
    "wrong sizes": (
        set_in("nn.Linear", "values", "out_features", 9),
        r"weight of shape \(9, 2\), got \(8, 2\)",
    ),
    "huge sizes": (set_in("nn.Linear", "values", "in_features", HUGE), "expected weight of shape"),
    "impossible sizes": (set_in("nn.Linear", "values", "in_features", HUGE**9), "torch refuses"),
    "sizes as text": (set_in("nn.Linear", "values", "in_features", "many"), "torch refuses"),
    "other arguments": (set_in("nn.Linear", "values", {"device": "cuda"}), "expected the values"),
    "a huge space": (
        set_in(
            "Flatten",
            "values",
            {"shape": {"tuple": [HUGE]}, "out_shape": {"tuple": [HUGE]}, "dim": HUGE},
        ),
        "needs? .*100000000000000",
    ),
    "a shape that does not hold": (set_in("ActNorm", "values", "dim", 5), "expected a shape of 5"),
    "a shape of text": (set_in("ActNorm", "values", "shape", "abcd"), "expected a shape"),
    "a shape that does not fit": (
        set_in(
            "ActNorm",
            "values",
            {"shape": {"tuple": [2, 2]}, "out_shape": {"tuple": [2, 2]}, "dim": 4},
        ),
        "Chain: layer 0",
    ),
    "values that do not fit": (
        set_in("AdditiveCoupling", "values", "cut", 3),
        "do not fit together",
    ),
    "a value that is missing": (
        set_in(
            "AdditiveCoupling",
            "values",
            {"shape": {"tuple": [4]}, "out_shape": {"tuple": [4]}, "dim": 4},
        ),
        "do not fit together: .*cut",
    ),
    "a method": (set_in("MLP", "values", "forward", 3), "it has no value 'forward'"),
    "a property": (set_in("Dense", "values", {"shape": 3}), "it has no value 'shape'"),
    "of torch": (set_in("MLP", "values", "_forward_hooks", 3), "it has no value '_forward_hooks'"),
    "a class as value": (
        set_in("MLP", "values", "bound", {"part": "os.system"}),
        "expected a plain value",
    ),
    "a dtype that is none": (
        set_in("MLP", "values", "bound", {"dtype": "load"}),
        "expected a plain value",
    ),
    "lists as names": (
        set_in("MLP", "values", "bound", {"dict": [[[1], 2]]}),
        "expected a plain value",
    ),
    "nested values": (
        set_in("MLP", "values", "bound", functools.reduce(lambda v, _: [v], range(99), 1)),
        "nested too deep",
    ),
    "a part that comes later": (
        set_in("MLP", "parts", "layers", 99),
        "number of a part before it, got 99",
    ),
    "a part by name": (set_in("MLP", "parts", "layers", "MLP"), "number of a part before it"),
    "part minus one": (set_in("MLP", "parts", "layers", -1), "number of a part before it"),
    "itself": (set_in("Linearizer", "parts", "source", 15), "number of a part before it"),
    "an operator as Space": (
        set_in("Linearizer", "parts", "source", 0),
        "expected source as Space",
    ),
    "no operator": (
        set_in("Linearizer", "parts", "operator", None),
        "expected operator as Operator",
    ),
    "a twin of another kind": (set_in("ActNorm", "twin", 0), "twin of the same kind"),
    "another tensor": (set_in("Dense", "buffers", "matrix", "tensor", "x"), "have no tensor 'x'"),
    "no tensor": (set_in("Dense", "buffers", {}), "is not whole"),
    "a flag to learn": (
        set_in("ActNorm", "parameters", {"mean": {"tensor": "source.g.layers.1.initialized"}}),
        "expected a floating",
    ),
    "a number as tensor": (set_in("Dense", "buffers", "matrix", 3), "expected facts of a tensor"),
    "huge strides": (set_in("Dense", "buffers", "matrix", "strides", [HUGE, 1]), "without gaps"),
    "strides of one place": (
        set_in("Dense", "buffers", "matrix", "strides", [1, 1]),
        "without gaps",
    ),
    "strides of zero": (
        set_in("Dense", "buffers", "matrix", "strides", [4, 0]),
        "expected strides",
    ),
    "a dotted name": (set_in("MLP", "parts", {"a.b": 0}), "expected a name"),
    "tensors left": (lambda e: e[:3], "which no part names"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_description_is_one_sentence(name, tmp_path):
    run = stranger(tmp_path / "run")
    change, message = FORGED[name]
    forge(run, change)
    before = set(sys.modules)
    if message is None:
        lz.load(run)
    else:
        with pytest.raises(ValueError, match=rf"config\.json: .*{message}") as error:
            lz.load(run)
        assert "\n" not in str(error.value) and len(str(error.value)) < 600
    assert not {m for m in set(sys.modules) - before if not m.startswith("torch")}


def test_a_changed_description_is_found(tmp_path):
    run = stranger(tmp_path / "run")
    path = run / "config.json"
    text = path.read_text()
    for change in (
        text.replace('"bound": null', '"bound": 3.0'),
        text.replace('"tried"', '"tired"'),
    ):
        assert change != text
        path.write_text(change)
        with pytest.raises(ValueError, match="do not belong together"):
            lz.load(run)
    path.write_text(text.replace('"in_features": 2', '"in_features": ' + "9" * 5000))
    with pytest.raises(ValueError, match=r"config\.json: expected JSON, but"):
        lz.load(run)
    path.write_text(text.replace('"bound": null', '"bound": ' + "[" * 100_000))
    with pytest.raises(ValueError, match=r"config\.json: expected JSON, but"):
        lz.load(run)


def test_a_description_is_a_line_for_each_part(tmp_path):
    run = stranger(tmp_path / "run")
    text = (run / "config.json").read_text()
    entries = json.loads(text)["parts"]
    assert all(json.dumps(entry) in text.splitlines()[6 + i] for i, entry in enumerate(entries))
    assert entries[-1]["part"] == "Linearizer" and entries[-1]["tried"]
