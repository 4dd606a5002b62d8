"""Networks to learn from: each way to name one gives what it gives, and files run no code."""

import contextlib
import json
import os
import sys
import zipfile

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper
from torch import nn

from laws import close
from linearizer.data import Arrays, DistillPart, Images, Sprites, Windows, load_arrays
from linearizer.data.networks import Network, load_network
from linearizer.data.teachers import ENCODERS, Burgess, load_encoder
from linearizer.nets import describe_layers
from linearizer.runs.export import _quiet


def rand(*shape):
    return torch.rand(*shape, dtype=torch.float32)


def tiny():
    """Images (1, 4, 4) to five numbers; in training mode it would mix the batch."""
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(), nn.Flatten(),
        nn.Linear(12, 5),
    )  # fmt: skip
    with torch.no_grad():
        net[1].running_mean.normal_()
        net[1].running_var.uniform_(0.5, 2)
    return net


@contextlib.contextmanager
def told(*parts, kind=ValueError):
    """One line of an error that holds all the parts."""
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message, message


class Code:
    """Unpickling it makes a folder."""

    def __reduce__(self):
        return os.mkdir, ("it-ran",)


# -- the encoder -------------------------------------------------------------------------------


def saved(folder, net, specs=True, **changes):
    """What disentangling-vae writes, with some entries changed; None leaves one out."""
    folder.mkdir(exist_ok=True)
    weights = {f"encoder.{k}": v for k, v in net.state_dict().items()}
    weights = {**weights, "decoder.lin1.weight": torch.zeros(256, net.latents), **changes}
    torch.save({k: v for k, v in weights.items() if v is not None}, folder / "model.pt")
    if specs:
        text = json.dumps({"img_size": list(net.shape), "latent_dim": net.latents, "loss": "VAE"})
        (folder / "specs.json").write_text(text)
    return folder


@pytest.mark.parametrize("side, layers", [(64, 4), (32, 3)])
def test_the_encoder_is_that_of_the_paper(side, layers):
    net, x = Burgess((2, side, side), latents=3), torch.rand(5, 2, side, side)
    w = net.state_dict()
    names = ["conv1", "conv2", "conv3", "conv_64"][:layers]
    assert list(w) == [
        f"{n}.{p}" for n in [*names, "lin1", "lin2", "mu_logvar_gen"] for p in ("weight", "bias")
    ]
    h = x
    for name in names:
        assert w[f"{name}.weight"].shape[2:] == (4, 4)
        h = F.conv2d(h, w[f"{name}.weight"], w[f"{name}.bias"], 2, 1).relu()
    assert h.shape == (5, 32, 4, 4)
    for name in ("lin1", "lin2"):
        h = F.linear(h.flatten(1), w[f"{name}.weight"], w[f"{name}.bias"]).relu()
    h = F.linear(h, w["mu_logvar_gen.weight"], w["mu_logvar_gen.bias"])
    mean, _ = h.view(-1, 3, 2).unbind(-1)
    close(net(x), mean)
    close(net(x), h[:, 0::2])
    close(net.chain()(x), net(x))
    assert len(describe_layers(net.chain())) == 2 * layers + 6
    with torch.no_grad():
        net.chain()[0].weight.zero_()  # a copy
    close(net(x), h[:, 0::2])


def test_wrong_encoders_and_images_are_told():
    for shape in ((1, 28, 28), (64, 64), (1, 64, 32), (0, 64, 64)):
        with told("Burgess: expected images (C, 32, 32) or (C, 64, 64)", shape):
            Burgess(shape)
    with told("1 or more latents, got 0"):
        Burgess(latents=0)
    for x in (torch.rand(2, 3, 64, 64), torch.ones(2, 1, 64, 64).int()):
        with told("expected images (n, 1, 64, 64) as floats", x.dtype):
            Burgess()(x)


@pytest.mark.parametrize("specs", [True, False])
def test_the_encoder_comes_from_a_folder_or_a_file(tmp_path, specs):
    net = Burgess((3, 32, 32), latents=4)
    folder, x = saved(tmp_path / "vae", net, specs), torch.rand(2, 3, 32, 32)
    for path in (folder, str(folder / "model.pt")):
        found = load_encoder(path)
        assert (found.shape, found.latents, found.training) == ((3, 32, 32), 4, False)
        assert not any(p.requires_grad for p in found.parameters())
        assert found(x).dtype == torch.float32
        close(found(x).double(), net(x), 1e-5)
        network = load_network(path)
        assert (network.name, network.shape, network.outputs) == ("vae", (3, 32, 32), 4)
        assert torch.equal(network(x), found(x))


def test_wrong_weights_are_told_with_what_to_do(tmp_path):
    net, folder = Burgess((1, 32, 32), latents=3), tmp_path / "vae"
    file, instead = folder / "model.pt", "Bring the model.pt of one; export any other network"
    with told(f"{folder}: expected the weights of a Burgess VAE", "there is no such file"):
        load_encoder(folder)
    wrong = {
        "encoder.lin2.bias is absent.": {"encoder.lin2.bias": None},
        "encoder.lin3.bias is unknown (and 1 more).": {
            "encoder.lin3.bias": torch.zeros(1),
            "discriminator.lin1.bias": torch.zeros(1),
        },
        "encoder.lin1.weight of shape (256, 512)": {"encoder.lin1.weight": torch.zeros(256, 4)},
        "with 3 latents, got int": {"encoder.lin1.weight": 7},
    }
    for words, changes in wrong.items():
        saved(folder, net, **changes)
        with told(f"{file}: expected", words, instead):
            load_encoder(folder)
    for bad, words in (
        (torch.arange(256.0) / torch.arange(256.0), "NaN or infinite ones"),
        (torch.ones(256).long(), "found torch.int64"),
    ):
        saved(folder, net, **{"encoder.lin2.bias": bad})
        with told(f"{file}: expected finite floats in encoder.lin2.bias, found", words):
            load_encoder(folder)
    for content, words in (
        ({"img_size": [1, 28, 28], "latent_dim": 3}, "got [1, 28, 28] and 3"),
        ({"img_size": [1, 32, 32], "latent_dim": 0}, "got [1, 32, 32] and 0"),
        ({"img_size": [1, 32, 32]}, "KeyError: 'latent_dim'"),
        ([], "cannot be read (TypeError"),
    ):
        (folder / "specs.json").write_text(json.dumps(content))
        with told(folder / "specs.json", "expected img_size", words, "the weights tell the sizes"):
            load_encoder(folder)
    saved(folder, net)
    (folder / "specs.json").write_text('{"img_size": [1, 64, 64], "latent_dim": 3}')
    with told("for images (1, 64, 64) with 3", "encoder.conv_64.weight is absent (and 1 more)"):
        load_encoder(folder)


class Pickled(nn.Module):
    def forward(self, x):
        return x


@pytest.mark.parametrize("kind", ["object", "module", "protocol 4", "old", "torchscript"])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_files_that_may_hold_code_are_refused_and_not_run(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    file, holds = tmp_path / "net.pth", f"{os.mkdir.__module__}.mkdir"
    if kind == "module":
        torch.save(Pickled(), file)
        holds = f"{Pickled.__module__}.Pickled"
    elif kind == "torchscript":
        torch.jit.script(nn.Linear(2, 2)).save(file)
        holds = "TorchScript"
    elif kind == "protocol 4":
        torch.save({"encoder.conv1.weight": Code()}, file, pickle_protocol=4)
        holds = "something else"
    else:
        torch.save({"a": Code()}, file, _use_new_zipfile_serialization=kind == "object")
    with told(
        f"{file}: expected the weights of a Burgess VAE",
        f"it holds {holds}: such a file may hold code, which is not run.",
        "export any other network to ONNX or with torch.export (.pt2)",
        "or name its code as file.py:attribute.",
    ):
        load_network(file)
    assert not (tmp_path / "it-ran").exists()
    file.write_bytes(b"")
    with told("cannot be read (EOFError). Copy it here again"):
        load_network(file)
    torch.save(dict(nn.Linear(2, 2).state_dict()), file)
    with told("encoder.conv1.weight is absent (and 11 more)", "name its code as file.py:attribute"):
        load_network(file)


# -- the common face ---------------------------------------------------------------------------


def test_a_module_is_copied_and_fixed():
    net, x = tiny(), torch.rand(6, 1, 4, 4)
    network = load_network(net)
    assert net.training and all(p.requires_grad for p in net.parameters())
    assert (network.name, network.shape, network.outputs) == ("Sequential", None, None)
    assert network.probe(x) == network.outputs == 5
    expected = net.eval()(x)
    with torch.no_grad():
        net[5].weight.zero_()
    y = network.train()(x.clone().requires_grad_())
    assert y.dtype == torch.float32 and not y.requires_grad and not network.training
    assert not any(m.training for m in network.modules())
    close(y.double(), expected.detach(), 1e-6)
    assert load_network(network) is network
    holder = nn.Sequential(network).train().float()
    assert network.dtype == torch.float32 and torch.equal(holder(x[:2]), network(x[:2]))
    assert network(x[:0]).shape == (0, 5)
    assert "'Sequential', shape=None, outputs=5" in repr(network)


class Returns(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_outputs_of_any_axes_become_rows():
    x = rand(3, 2, 2)
    for function, rows in (
        (lambda x: x, x.flatten(1)),
        (lambda x: x.sum((1, 2)), x.sum((1, 2))[:, None]),
        (lambda x: x.half(), x.half().flatten(1).float()),
    ):
        network = load_network(Returns(function))
        assert network.probe(x) == rows.shape[1]
        close(network(x), rows, 1e-6)


@pytest.mark.parametrize(
    "function, words",
    [
        (lambda x: (x, x), "expected one tensor of outputs, got tuple. Wrap"),
        (lambda x: x.sum(), "expected float outputs (2, …) for 2 samples, got torch.float32 of"),
        (lambda x: x[:1], "of shape (1, 4)"),
        (lambda x: x[:, :0], "of shape (2, 0)"),
        (lambda x: x.argmax(1), "got torch.int64 of shape (2,)"),
        (lambda x: x.log(), "expected finite outputs, but those of sample 1 of a batch of 2"),
        (lambda x: x @ x, "it does not run on 2 samples of shape (4,) (RuntimeError: "),
        (lambda x: x + torch.randn_like(x), "depend on their own sample alone"),
        (lambda x: x - x.mean(0), "call its eval()"),
    ],
)
def test_networks_that_do_not_fit_are_told(function, words):
    x = rand(3, 4) + 1
    x[1] = -1
    with told("Returns: ", words):
        load_network(Returns(function)).probe(x)


def test_norms_over_the_batch_are_told_also_in_evaluation_mode():
    net = nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2))
    with told("Sequential: expected outputs that depend on their own sample alone"):
        load_network(net).probe(torch.rand(4, 4))
    load_network(nn.Linear(4, 2)).probe(torch.rand(1, 4))
    load_network(nn.Linear(4, 2)).probe(torch.ones(3, 4))


def test_wrong_samples_are_told():
    network = Network(nn.Linear(4, 2), "net", shape=(None, 4))
    assert network.probe(rand(2, 3, 4)) == 6
    for x in (rand(2, 3), rand(2, 3, 5), rand(2, 1, 3, 4)):
        with told("net: expected samples of shape (any, 4), got", "or another network."):
            network(x)
    for x in (rand(4), torch.ones(2, 3, 4).int(), None):
        with told("net: expected samples (n, …) of floats, got"):
            network(x)
    with told("net: expected samples to probe it with, got none"):
        network.probe(rand(0, 3, 4))
    for batch in ((0, 1), (3, 2)):
        with told(f"from 1 on, got {batch}"):
            Network(nn.Linear(1, 1), batch=batch)


class Locked(nn.Module):
    def __deepcopy__(self, memo):
        raise RuntimeError("no copies")


def test_wrong_names_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with told(
        "load_network: expected one of vae, factor, betah, betab, btcvae, a folder or .pt file of",
        "or file.py:attribute, got 'beta-h'. Did you mean 'betah'?",
    ):
        load_network("beta-h")
    with told("got 'nets.py'. Name what to take from it, as in nets.py:attribute."):
        load_network("nets.py")
    with told("Locked: expected a module that can be copied", "(RuntimeError: no copies). Give"):
        load_network(Locked())
    with told("vae: expected model.pt in", "--data-root", kind=FileNotFoundError):
        load_network("vae", tmp_path)
    saved(tmp_path / "disentangling_vae", Burgess()).rename(tmp_path / "VAE_dsprites")
    (tmp_path / "disentangling_vae").mkdir()
    (tmp_path / "VAE_dsprites").rename(tmp_path / "disentangling_vae" / "VAE_dsprites")
    network = load_network("vae", tmp_path)
    assert (network.name, network.shape, network.outputs) == ("vae", (1, 64, 64), 10)
    with pytest.raises(TypeError):
        load_network(3)


# -- ONNX --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A network in float32, and ONNX files of it for any, one and four samples."""
    torch.manual_seed(0)
    folder, net = tmp_path_factory.mktemp("onnx"), tiny().eval().float()
    for name, n, shapes in (
        ("free", 2, ({0: torch.export.Dim("batch")},)),
        ("one", 1, None),
        ("four", 4, None),
    ):
        with _quiet():
            program = torch.onnx.export(
                net, (rand(n, 1, 4, 4),), dynamo=True, dynamic_shapes=shapes, verbose=False
            )
            program.save(folder / f"{name}.onnx")
    return net, folder


@pytest.mark.parametrize("name, batch", [("free", (1, None)), ("one", (1, 1)), ("four", (4, 4))])
def test_onnx_files_run_at_any_batch(written, name, batch):
    net, folder = written
    network = load_network(folder / f"{name}.onnx")
    assert (network.name, network.shape, network.outputs) == (f"{name}.onnx", (1, 4, 4), 5)
    assert network.batch == batch and network.dtype == torch.float32
    for n in (1, 3, 4, 9):
        x = rand(n, 1, 4, 4)
        y = network(x.double())
        assert y.dtype == torch.float32
        close(y, net(x).detach(), 1e-5)
    assert network(x[:0]).shape == (0, 5)
    assert network.probe(x) == 5
    upside = x.transpose(2, 3)
    assert not upside.is_contiguous()
    close(network(upside), net(upside).detach(), 1e-5)
    with told(f"{name}.onnx: expected samples of shape (1, 4, 4), got (3, 4, 4)"):
        network(rand(2, 3, 4, 4))


def graph(path, nodes, inputs, outputs):
    """An ONNX file by hand: inputs and outputs as name → (type, shape)."""

    def values(named):
        return [helper.make_tensor_value_info(k, *v) for k, v in named.items()]

    made = helper.make_graph(nodes, "made", values(inputs), values(outputs))
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(made, opset_imports=opset, ir_version=8), path)
    return path


def test_an_output_of_onnx_can_be_named(tmp_path):
    node = helper.make_node
    path = graph(
        tmp_path / "two.onnx",
        [node("Abs", ["x"], ["size"]), node("Neg", ["x"], ["minus"]),
         node("ArgMax", ["x"], ["label"], axis=1)],
        {"x": (TensorProto.DOUBLE, ["n", "wide"])},
        {"size": (TensorProto.DOUBLE, ["n", "wide"]), "minus": (TensorProto.DOUBLE, ["n", "wide"]),
         "label": (TensorProto.INT64, ["n", 1])},
    )  # fmt: skip
    x = rand(3, 4)
    first, second = load_network(path), load_network(f"{path}#minus")
    assert (first.shape, first.outputs, first.dtype) == ((None,), None, torch.float64)
    assert torch.equal(first(x), x) and torch.equal(second(x), -x)
    assert second.name == "two.onnx#minus" and second.probe(x) == 4
    with told(f"{path}: there is no output 'none'. Name one of size, minus, label after the #."):
        load_network(f"{path}#none")
    with told("but label is tensor(int64). Take two.onnx#size or two.onnx#minus."):
        load_network(f"{path}#label")


def test_wrong_onnx_files_are_told(tmp_path, monkeypatch):
    node, path = helper.make_node, tmp_path / "net.onnx"
    with told(f"{path}: expected an ONNX network, but there is no such file. Check the path."):
        load_network(path)
    (tmp_path / "folder.onnx").mkdir()
    with told("it is a folder"):
        load_network(tmp_path / "folder.onnx")
    path.write_bytes(b"no graph")
    with told("onnxruntime does not load it (", "Export it again."):
        load_network(path)
    value = (TensorProto.FLOAT, ["n", 2])
    graph(path, [node("Add", ["x", "t"], ["y"])], {"x": value, "t": value}, {"y": value})
    with told("expected one input of floats", "found x tensor(float), t tensor(float). Export"):
        load_network(path)
    whole = (TensorProto.INT64, ["n", 2])
    graph(path, [node("Neg", ["x"], ["y"])], {"x": whole}, {"y": whole})
    with told("expected one input of floats", "found x tensor(int64)"):
        load_network(path)
    graph(path, [node("Shape", ["x"], ["y"])], {"x": value}, {"y": (TensorProto.INT64, [2])})
    with told("expected an output of floats, but y is tensor(int64). Export it with such"):
        load_network(path)
    fold = helper.make_node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=0)
    graph(path, [fold], {"x": value}, {"y": (TensorProto.FLOAT, [2])})
    with told("net.onnx: expected float outputs (3, …) for 3 samples, got"):
        load_network(path)(rand(3, 2))
    fixed = onnx.numpy_helper.from_array(np.array([2, 2]), "size")
    made = helper.make_graph(
        [node("Reshape", ["x", "size"], ["y"])], "made",
        [helper.make_tensor_value_info("x", *value)],
        [helper.make_tensor_value_info("y", *value)], [fixed],
    )  # fmt: skip
    onnx.save(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    network = load_network(path)
    assert network.probe(rand(2, 2)) == 2
    with told("net.onnx: it does not run on 3 samples of shape (2,) ("):
        network(rand(3, 2))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with told('needs the package onnxruntime, which is not there. Run pip install "linearizer['):
        load_network(path)


# -- torch.export ------------------------------------------------------------------------------


def exported(path, net, x, shapes=None):
    with _quiet():
        torch.export.save(torch.export.export(net, (x,), dynamic_shapes=shapes), path)
    return path


@pytest.mark.parametrize(
    "dim, batch",
    [
        (torch.export.Dim("batch"), (1, None)),
        (torch.export.Dim("batch", min=3, max=8), (3, 8)),
        (None, (4, 4)),
    ],
)
def test_files_of_torch_export_run_at_any_batch(tmp_path, capfd, dim, batch):
    net = tiny().eval()
    shapes = None if dim is None else ({0: dim},)
    path = exported(tmp_path / "net.pt2", net, torch.rand(4, 1, 4, 4), shapes)
    network = load_network(str(path))
    assert (network.name, network.shape, network.outputs) == ("net.pt2", (1, 4, 4), 5)
    assert network.dtype == torch.float64 and network.batch == batch
    nn.Sequential(network).train()
    for n in (1, 2, 4, 19):
        x = rand(n, 1, 4, 4)
        close(network(x), net(x.double()).detach().float(), 1e-5)
    assert network.probe(x) == 5
    assert capfd.readouterr() == ("", "")


def test_the_module_of_a_program_is_a_module_too():
    net, x = tiny().eval(), torch.rand(4, 1, 4, 4)
    with _quiet():
        network = load_network(torch.export.export(net, (x,)).module())
    close(network(x).double(), net(x).detach(), 1e-6)


def test_a_file_of_a_training_network_is_told(tmp_path):
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).train()
    path = exported(tmp_path / "net.pt2", net, torch.rand(4, 3))
    with told("net.pt2: expected outputs that depend on their own sample alone", "call its eval()"):
        load_network(path).probe(torch.rand(5, 3))


class Two(nn.Module):
    def forward(self, x, y):
        return x + y, x * y


def changed(path, member, content):
    """The archive with a member changed, or one more."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    names = [name for name in members if name.endswith(member)] or [f"net/{member}"]
    members[names[0]] = content
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def test_wrong_files_of_torch_export_are_told(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "net.pt2"
    with told(f"{path}: expected a network of torch.export, but there is no such file"):
        load_network(path)
    path.write_bytes(b"no archive")
    with told("cannot be read (BadZipFile: ", "torch.export.save of torch 2"):
        load_network(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/readme", "hello")
    with told("expected a network of torch.export, but it cannot be read (RuntimeError: "):
        load_network(path)
    with _quiet():
        torch.export.save(torch.export.export(Two(), (torch.rand(2, 3),) * 2), path)
    with told("expected one input of floats", "found x, y. Write it again"):
        load_network(path)
    exported(path, Returns(lambda x: (x + 1, x * 2)), torch.rand(2, 3))
    with told("expected one output, found add, mul. Write it again"):
        load_network(path)
    exported(path, Returns(lambda x: x + 1), torch.ones(2, 3).int())
    with told("expected one input of floats", "found x."):
        load_network(path)
    assert capfd.readouterr() == ("", "")


def test_a_file_of_torch_export_runs_no_pickle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = exported(tmp_path / "net.pt2", nn.Linear(3, 2), torch.rand(2, 3))
    torch.save(((Code(),), {}), tmp_path / "bad.pt")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    changed(path, "sample_inputs/model.pt", (tmp_path / "bad.pt").read_bytes())
    with told(f"{path}: expected a graph and tensors alone, but it holds a pickled object: such"):
        load_network(path)
    for member in ("data/constants/opaque_obj_0", "data/aotinductor/model/a.so"):
        exported(path, nn.Linear(3, 2), torch.rand(2, 3))
        changed(path, member, b"code")
        with told(f"it holds net/{member}: such a file may hold code, which is not run."):
            load_network(path)
    assert not (tmp_path / "it-ran").exists()
    assert os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1"
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


# -- code --------------------------------------------------------------------------------------

FILE = """
import sys
from torch import nn
from beside import width

net = nn.Linear(4, width).float()
number = 3
shrinks = lambda x: x

def build():
    from later import Later
    return Later()

def broken():
    raise KeyError("no such weights")

def leaves():
    sys.exit(2)

def wrong():
    return "a network"
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "my nets" / "teacher.py"
    path.parent.mkdir()
    path.write_text(FILE)
    (path.parent / "beside.py").write_text("width = 3\n")
    later = "from torch import nn\nclass Later(nn.Linear):\n    def __init__(self):\n"
    (path.parent / "later.py").write_text(f"{later}        super().__init__(4, 2)\n")
    yield path
    for name in ("beside", "later", "linearizer_code_teacher"):
        sys.modules.pop(name, None)


def test_code_of_ones_own_gives_a_network(file):
    before, x = list(sys.path), rand(5, 4)
    network = load_network(f"{file}:net")
    assert (network.name, network.probe(x)) == ("teacher.py:net", 3)
    assert network.module is not sys.modules["linearizer_code_teacher"].net
    close(network(x), sys.modules["linearizer_code_teacher"].net(x).detach(), 1e-6)
    assert load_network(f"{file}:build").probe(x) == 2
    assert load_network("torch.nn:Identity").probe(x) == 4
    assert sys.path == before


def test_wrong_code_is_told(file, tmp_path):
    before = list(sys.path)
    cases = {
        f"{file}:number": "without arguments that builds one, got int. Write such a function.",
        f"{file}:shrinks": "got one with arguments",
        f"{file}:ned": f"there is no 'ned' in {file}. Did you mean 'net'?",
        f"{file}:broken": "it fails (KeyError: 'no such weights'). Mend it.",
        f"{file}:leaves": "it fails (SystemExit: 2)",
        f"{file}:wrong": "but it gave str. Return the network.",
        f"{tmp_path}/none.py:net": "expected Python code that has a network, but there is no",
        "no.such.package:net": "(ModuleNotFoundError: No module named 'no'). Install it, or name",
        "torch.nn:Linear": "got one with arguments",
    }
    for spec, words in cases.items():
        with told(spec.rpartition(":")[0], words):
            load_network(spec)
    file.write_text("import no_such_thing")
    with told(f"{file}:net: the code does not run (ModuleNotFoundError: ", "Mend it."):
        load_network(f"{file}:net")
    assert sys.path == before


# -- samples with outputs ----------------------------------------------------------------------


def test_outputs_stand_beside_the_samples_of_any_part():
    parts = [
        Arrays(rand(20, 6)),
        Images((255 * rand(20, 1, 2, 3)).byte(), torch.arange(20)),
        Windows(rand(23, 2), 3, 1),
    ]
    for part, shape in zip(parts, [(6,), (1, 2, 3), (3, 2)], strict=True):
        net = nn.Sequential(nn.Flatten(), nn.Linear(6, 4))
        data = DistillPart(part, load_network(net))
        index = torch.tensor([3, 0, 3, 19])
        x, y = data.batch(index)
        assert (len(data), data.shape, data.outputs) == (20, shape, 4)
        assert torch.equal(x, part.batch(index).x) and y.dtype == torch.float32
        close(y.double(), net(x.double()).detach(), 1e-5)
        assert data.part is part and not y.requires_grad
        assert repr(data) == f"DistillPart({part!r}, 'Sequential' with 4 outputs)"
        with pytest.raises(ValueError, match="expected rows 0 to 19"):
            data.batch(torch.tensor([20]))


def test_a_network_that_does_not_fit_the_samples_is_told():
    network = Network(Burgess(), "vae", (1, 64, 64), 10)
    with told("vae: expected samples of shape (1, 64, 64), got (1, 8, 8). Choose data"):
        DistillPart(Images(torch.zeros(3, 1, 8, 8, dtype=torch.uint8)), network)
    with told("DistillPart: expected 1 or more samples, got none"):
        DistillPart(Arrays(rand(0, 4)), network)
    with told("depend on their own sample"):  # equal first samples do not hide it
        x = torch.cat([torch.ones(5, 2, dtype=torch.float32), rand(5, 2)])
        DistillPart(Arrays(x), load_network(Returns(lambda x: x - x.mean(0))))


def test_arrays_are_checked():
    data = Arrays(rand(4, 2, 3))
    assert (len(data), data.shape, data.names, repr(data)) == (4, (2, 3), (), "Arrays(4 of (2, 3))")
    x, y = data.batch(torch.tensor([2, 2]))
    assert y is None and torch.equal(x, data.x[[2, 2]])
    for wrong in (torch.rand(4, 2), rand(4)):
        with told("Arrays: expected float32 of shape (n, …), got", wrong.dtype):
            Arrays(wrong)
    with told("a name for each number of a vector, got 1 for samples of shape (2,)"):
        Arrays(rand(3, 2), ["a"])
    with told("row 1 holds NaN or an infinite one"):
        Arrays(torch.tensor([[1.0], [torch.inf]], dtype=torch.float32))
    with pytest.raises(TypeError, match="Arrays.batch: expected an int64 tensor"):
        data.batch([0])


@pytest.mark.parametrize("ending", ["npy", "npz", "x.npz", "csv", "csv.gz"])
def test_samples_are_read_and_split(tmp_path, ending):
    import gzip

    rows, path = np.arange(40.0).reshape(20, 2), tmp_path / f"samples.{ending}"
    text = "a,b\n" + "".join(f"{a},{b}\n" for a, b in rows)
    if ending == "npy":
        np.save(path, rows)
    elif ending == "npz":
        np.savez(path, anything=rows.astype(">i4"))
    elif ending == "x.npz":
        np.savez(path, x=rows, labels=np.zeros(3))
    else:
        path.write_bytes(gzip.compress(text.encode()) if ending == "csv.gz" else text.encode())
    (train, val, test), notes = load_arrays(path)
    assert [len(p) for p in (train, val, test)] == [16, 2, 2]
    every = torch.cat([p.x for p in (train, val, test)])
    assert every.dtype == torch.float32 and sorted(every[:, 0].tolist()) == list(range(0, 40, 2))
    assert torch.equal(every[:, 1], every[:, 0] + 1) and not every[:, 0].diff().eq(2).all()
    assert torch.equal(load_arrays(path)[0][0].x, train.x)
    name = path.name
    assert notes[0] == f"{name}: 20 samples of shape (2,), split 16/2/2 by a fixed seed"
    more = (f"{name}: the array x is taken, and not labels",) if ending == "x.npz" else ()
    assert notes[1:] == more
    assert train.names == (("a", "b") if "csv" in ending else ())


def test_samples_of_more_axes_and_other_columns(tmp_path):
    np.save(tmp_path / "a.npy", np.full((10, 1, 2, 3), 200, dtype=np.uint8))
    (train, _, _), notes = load_arrays(tmp_path / "a.npy")
    assert train.shape == (1, 2, 3) and float(train.x.max()) == 200
    assert notes[1] == "a.npy: bytes 0 to 255 are taken as they are, not scaled to [0, 1]"
    (tmp_path / "b.csv").write_text(";u;v\n0;1;2\n1;3;4\n2;5;6\n")
    (train, val, test), notes = load_arrays(tmp_path / "b.csv")
    assert train.names == ("u", "v") and (len(train), len(val), len(test)) == (1, 1, 1)
    assert "the first column has no name and counts the rows: left out" in notes[1]


def test_wrong_samples_in_files_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, again = tmp_path / "a.npy", "Write it again with numpy.save"
    with told(f"{path}: expected samples, but there is no such file", kind=FileNotFoundError):
        load_arrays(path)
    with told("expected samples in a file .npy, .npz, .csv, .csv.gz."):
        load_arrays(tmp_path / "a.txt")
    for content, words in ((b"no array", "it is no file of numpy"), (b"", "No data left in file")):
        path.write_bytes(content)
        with told(path, "expected an array of numbers, but it cannot be read (", words, again):
            load_arrays(path)
    np.save(path, np.array([Code()] * 3, dtype=object), allow_pickle=True)
    with told("it holds Python objects: such a file may hold code, which is not run. Save"):
        load_arrays(path)
    assert not (tmp_path / "it-ran").exists()
    bad = np.ones((5, 2))
    bad[3, 1] = 1e39
    cases = [
        (np.ones((5, 2), complex), "expected real numbers, found complex128"),
        (np.array([["a"]] * 3), "expected real numbers, found <U1"),
        (np.ones(5), "got shape (5,). Save single numbers as (n, 1)."),
        (np.ones((0, 2)), "shape (0, 2) is empty"),
        (np.ones((5, 0)), "shape (5, 0) is empty"),
        (np.ones((2, 2)), "expected 3 or more samples to split in three, found 2."),
        (bad, "but row 3 holds NaN, an infinite or too large one. Mend it, or leave it out."),
        (bad * np.nan, "but row 0 holds NaN"),
    ]
    for array, words in cases:
        np.save(path, array)
        with told(f"{path}: expected", words):
            load_arrays(path)
    file = tmp_path / "b.npz"
    np.savez(file, a=bad, b=bad)
    with told(f"{file}: expected one array, or one named x, found a, b. Name"):
        load_arrays(file)
    np.savez(file)
    with told("one named x, found none"):
        load_arrays(file)
    file.write_bytes(file.read_bytes()[:10])
    with told("cannot be read"):
        load_arrays(file)
    table = tmp_path / "text.csv"
    table.write_text("a,b,c\n1,x,2\n3,y,\n5,6,6\n7,z,8\n9,,1\n")
    (train, _, _), notes = load_arrays(table, "drop", "numeric")
    assert train.names == ("a", "c") and len(train) == 2
    assert "'b'" in notes[1] and "1 rows with missing values were dropped" in notes[2]
    table = tmp_path / "c.csv"
    for text, words in (
        ("a,b\n1,2\n3,\n5,6\n", "line 3, column 'b', found none (1 in 'b'). Choose --fill drop"),
        ("date,b\n2020-01-01,2\n", "in line 2, column 'date', found '2020-01-01'. Mend it, or"),
        ("a\n1\n2\n", "expected 3 or more samples"),
        ("a\n", "expected a header and rows"),
    ):
        table.write_text(text)
        with told(table, words):
            load_arrays(table)


# -- the published encoders --------------------------------------------------------------------

#: Share of pixels that are wrong in reconstructions from the means, and overlap of the sprites.
FOUND = {
    "vae": (0.0012, 0.967),
    "factor": (0.0031, 0.922),
    "betah": (0.0021, 0.944),
    "betab": (0.0092, 0.797),
    "btcvae": (0.0035, 0.909),
}


@pytest.fixture(scope="module")
def encoders(data_root):
    if not (data_root / "disentangling_vae").is_dir():
        pytest.skip(f"there is no folder disentangling_vae in {data_root}")
    return data_root


def decoded(weights, z):
    """The decoder of disentangling-vae, from its description."""

    def part(name):
        return (weights[f"decoder.{name}.{p}"] for p in ("weight", "bias"))

    for name in ("lin1", "lin2", "lin3"):
        z = F.linear(z, *part(name)).relu()
    h = z.view(-1, 32, 4, 4)
    for name in ("convT_64", "convT1", "convT2"):
        h = F.conv_transpose2d(h, *part(name), 2, 1).relu()
    return F.conv_transpose2d(h, *part("convT3"), 2, 1).sigmoid()


@pytest.mark.parametrize("name", ENCODERS)
def test_the_published_means_hold_the_sprites(encoders, name):
    sprites = Sprites()
    data = DistillPart(sprites, load_network(name, encoders))
    assert (data.network.name, data.shape, data.outputs) == (name, (1, 64, 64), 10)
    index = torch.randint(len(sprites), (300,), generator=torch.Generator().manual_seed(1))
    x, mean = data.batch(index)
    folder = encoders / "disentangling_vae" / ENCODERS[name]
    weights = torch.load(folder / "model.pt", map_location="cpu", weights_only=True)
    drawn, on = decoded(weights, mean) > 0.5, x > 0.5
    overlap = (drawn & on).sum((1, 2, 3)) / (drawn | on).sum((1, 2, 3))
    wrong, shared = FOUND[name]
    assert float((drawn != on).double().mean()) == pytest.approx(wrong, rel=0.2)
    assert float(overlap.mean()) == pytest.approx(shared, abs=0.02)


def test_the_means_follow_the_place_of_a_sprite(encoders):
    """Of the encoder that took the places apart, one mean each rises or falls with x and with y."""
    data = DistillPart(Sprites(), load_network("betab", encoders))
    step = torch.arange(32)
    for column, latent in ((3, 7), (4, 5)):
        factors = torch.tensor([1, 3, 7, 12, 12]).repeat(32, 1)
        factors[:, column] = step
        mean = data.batch(data.part.index(factors)).y[:, latent].double()
        assert torch.corrcoef(torch.stack([step.double(), mean]))[0, 1].abs() > 0.99
        assert mean.diff().sign().unique().numel() == 1
        assert mean.diff().abs().max() < 0.1 * (mean.max() - mean.min())
