r"""Any network to learn from, behind one call: x (n, \*shape) ↦ outputs (n, m).

:func:`load_network` takes a module, the name of a known encoder, a file of ONNX or torch.export, or
the code that builds it.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import importlib
import importlib.util
import inspect
import itertools
import logging
import math
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from .code import first_line, require_file, take
from .files import missing, root_folder
from .teachers import ENCODERS, VAE, Burgess, load_encoder

__all__ = ["Network", "load_network", "runs_code"]

#: Types of ONNX that are floats of torch and numpy.
FLOATS = {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
    "tensor(float16)": torch.float16,
}
#: How far outputs of one sample may differ between batches, as a share of the largest one.
ROUNDING = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
#: Parts of a .pt2 that are compiled or pickled rather than a graph and its tensors.
CODE = ("aotinductor/", "custom_obj", "opaque_obj")

Shape = tuple["int | None", ...]


@final
class Network(nn.Module):
    r"""A fixed network: x (n, \*shape) ↦ outputs (n, m) float32, without gradients.

    Outputs of more axes are flattened. It stays in evaluation mode, whatever holds it.

    Arguments:
        module: What is run, (n, \*shape) → (n, …); it is put in evaluation mode as it is.
        name: What to call it.
        shape: Of a sample, with None for axes of any length; None if nothing is known.
        outputs: m, if it is known; :meth:`probe` finds it otherwise.
        dtype: What it takes; the dtype of its weights if not given, or float32 without any.
        batch: The fewest and most samples it takes at once. Others are run in pieces, and the last
            sample is repeated where one has too few.

    Example:
        >>> net = Network(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)))
        >>> x = torch.rand(5, 3, 2, 2)
        >>> net.probe(x), net(x).shape, net(x).requires_grad
        (3, torch.Size([5, 3]), False)
    """

    def __init__(
        self,
        module: nn.Module,
        name: str = "",
        shape: Shape | None = None,
        outputs: int | None = None,
        dtype: torch.dtype | None = None,
        batch: tuple[int, int | None] = (1, None),
    ) -> None:
        super().__init__()
        least, most = batch
        if least < 1 or (most is not None and most < least):
            raise ValueError(
                f"Network: expected the fewest and most samples of a batch, from 1 on, got {batch}."
            )
        with contextlib.suppress(NotImplementedError):  # a graph of torch.export has no modes
            module.eval()
        self.training = False
        self.module, self.name = module, name or type(module).__name__
        self.shape, self.outputs, self.batch = shape, outputs, (least, most)
        self._dtype = dtype

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the module takes; samples are converted to it."""
        if self._dtype is not None:
            return self._dtype
        tensors = itertools.chain(self.module.parameters(), self.module.buffers())
        return next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)

    @property
    def chain(self) -> nn.Module:
        """The module, or its layers one after the other where they are known to be a chain."""
        return self.module.chain() if isinstance(self.module, Burgess) else self.module

    def extra_repr(self) -> str:
        return f"{self.name!r}, shape={self.shape}, outputs={self.outputs}"

    def train(self, mode: bool = True) -> Network:
        """Change nothing: the network stays in evaluation mode."""
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (n, m) float32 of samples (n, \\*shape) of floats, on the device of x."""
        self._check(x)
        if not len(x):
            return x.new_zeros(0, self.outputs or 0, dtype=torch.float32)
        most = self.batch[1] or len(x)
        with torch.no_grad():
            y = torch.cat([self._run(piece) for piece in x.split(most)])
        if not bool(y.isfinite().all()):
            row = int((~y.isfinite().all(1)).nonzero()[0, 0])
            raise ValueError(
                f"{self.name}: expected finite outputs, but those of sample {row} of a batch of "
                f"{len(x)} are not. Scale the data as the network was trained on, or take another "
                "network."
            )
        return y

    def probe(self, x: Tensor) -> int:
        """Find m by a run of two samples of x (n, \\*shape), which shows whether the network fits.

        Outputs must be finite and depend on their own sample alone: normalisation over the batch,
        and noise, are errors here.
        """
        self._check(x)
        if not len(x):
            raise ValueError(f"{self.name}: expected samples to probe it with, got none.")
        other = next((row for row in x[1:] if not torch.equal(row, x[0])), x[0])
        among, alone = self(torch.stack([x[0], other])), self(torch.stack([x[0], x[0]]))
        change = float((among[0] - alone[0]).abs().max())
        if change > ROUNDING.get(self.dtype, 1e-3) * float(alone.abs().max()):
            raise ValueError(
                f"{self.name}: expected outputs that depend on their own sample alone, but those "
                f"of one changed by {change:.2g} with the other one in its batch. Export the "
                "network in evaluation mode (call its eval()), without norms over the batch and "
                "without noise."
            )
        self.outputs = among.shape[1]
        return self.outputs

    def _check(self, x: Tensor) -> None:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
            got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x)
            raise ValueError(f"{self.name}: expected samples (n, …) of floats, got {got}.")
        if self.shape is not None and (
            len(self.shape) != x.ndim - 1
            or any(n not in (None, m) for n, m in zip(self.shape, x.shape[1:], strict=True))
        ):
            raise ValueError(
                f"{self.name}: expected samples of shape {_shape_text(self.shape)}, got "
                f"{_shape_text(x.shape[1:])}. Choose data of that shape, or another network."
            )

    def _run(self, x: Tensor) -> Tensor:
        """Run the module on no more samples than fit at once."""
        n, like = len(x), next(self.module.parameters(), x)
        if n < self.batch[0]:
            x = torch.cat([x, x[-1:].expand(self.batch[0] - n, *x.shape[1:])])
        try:
            y = self.module(x.to(like.device, self.dtype))
        except Exception as error:
            raise ValueError(
                f"{self.name}: it does not run on {len(x)} samples of shape "
                f"{_shape_text(x.shape[1:])} ({first_line(error)}). Choose data that fit it, or "
                "another network."
            ) from error
        if not isinstance(y, Tensor):
            raise ValueError(
                f"{self.name}: expected one tensor of outputs, got {type(y).__name__}. Wrap the "
                "network in a module that returns the one to learn from."
            )
        if not y.ndim or len(y) != len(x) or not y.numel() or not y.is_floating_point():
            raise ValueError(
                f"{self.name}: expected float outputs ({len(x)}, …) for {len(x)} samples, got "
                f"{y.dtype} of shape {tuple(y.shape)}. Wrap the network in a module that returns "
                "one row for each sample."
            )
        return y.reshape(len(y), -1)[:n].to(x.device, torch.float32)


def _shape_text(shape: Sequence[int | None]) -> str:
    """Write a shape as in (3, any, any)."""
    inner = ", ".join("any" if n is None else str(int(n)) for n in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


# -- where it comes from -----------------------------------------------------------------------


def load_network(spec: str | Path | nn.Module, root: str | Path | None = None) -> Network:
    r"""Load a network from wherever it is, in evaluation mode and without gradients.

    ======================================  =====================================================
    an nn.Module                            a copy of it
    vae, factor, betah, betab, btcvae       encoders of dSprites in the data folder
    a folder, or a .pt or .pth file         an encoder of a Burgess VAE, see :func:`load_encoder`
    file.onnx, or file.onnx#output          its first output or the one of that name
    file.pt2                                of torch.export.save
    file.py:attribute, package.module:…     a module, or a function without arguments that makes one
    ======================================  =====================================================

    The last one runs that code, so let it be your own. A .pt2 is a program too: pickled objects and
    compiled parts in it are refused, but what is left goes through torch.export.load, which torch
    says not to call on files of strangers. Ask them for ONNX: it, and weights, run no code.

    Arguments:
        spec: What to load.
        root: The data folder with disentangling_vae, see :func:`linearizer.data.root_folder`.

    Example:
        >>> net = load_network(nn.Linear(4, 2))
        >>> net.name, net(torch.rand(3, 4)).shape
        ('Linear', torch.Size([3, 2]))
    """
    if isinstance(spec, Network):
        return spec
    if isinstance(spec, nn.Module):
        name = type(spec).__name__
        return _from_module(_copy(spec, name), name)
    text = os.fspath(spec)
    path = Path(text).expanduser().absolute()
    if text in ENCODERS:
        folder = root_folder(root) / "disentangling_vae" / ENCODERS[text]
        if not (folder / "model.pt").is_file():
            raise missing(text, folder, "model.pt", downloadable=False)
        return _from_module(load_encoder(folder), text)
    if onnx := re.fullmatch(r"(.+\.onnx)(?:#(.*))?", text, re.IGNORECASE | re.DOTALL):
        return _from_onnx(Path(onnx[1]).expanduser().absolute(), onnx[2])
    if path.suffix.lower() == ".pt2":
        return _from_export(path)
    if code := re.fullmatch(r"(.+\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)", text):
        return _from_module(_build(code[1], code[2]), f"{Path(code[1]).name}:{code[2]}")
    if path.is_dir() or path.suffix.lower() in (".pt", ".pth"):
        name = path.parent.name if path.name == "model.pt" else path.name
        return _from_module(load_encoder(path), name)
    raise ValueError(
        f"load_network: expected one of {', '.join(ENCODERS)}, a folder or .pt file of {VAE}, an "
        f".onnx or .pt2 file, or file.py:attribute, got {text!r}.{_hint(text)}"
    )


def runs_code(spec: str) -> bool:
    """Return whether loading this network may run code: all but tensors and ONNX may."""
    path = Path(spec)
    tensors = path.is_dir() or path.suffix.lower() in (".pt", ".pth")
    onnx = re.fullmatch(r".+\.onnx(?:#.*)?", spec, re.IGNORECASE | re.DOTALL)
    return not (spec in ENCODERS or tensors or onnx)


def _hint(text: str) -> str:
    if text.lower().endswith(".py"):
        return f" Name what to take from it, as in {text}:attribute."
    near = difflib.get_close_matches(text.lower(), ENCODERS, 1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _copy(module: nn.Module, name: str) -> nn.Module:
    """Copy a module, as that of the caller may go on training."""
    try:
        with _quiet():
            return copy.deepcopy(module)
    except Exception as error:
        raise ValueError(
            f"{name}: expected a module that can be copied, but it cannot ({first_line(error)}). "
            "Give a function that builds it, as file.py:attribute."
        ) from error


def _from_module(module: nn.Module, name: str) -> Network:
    module.requires_grad_(False)
    if isinstance(module, Burgess):
        return Network(module, name, module.shape, module.latents)
    return Network(module, name)


class _Session(nn.Module):
    """One output of an ONNX file."""

    def __init__(self, session: Any, input: str, output: str) -> None:
        super().__init__()
        self.session, self.input, self.output = session, input, output

    def forward(self, x: Tensor) -> Tensor:
        feed = {self.input: x.cpu().numpy()}
        return torch.from_numpy(self.session.run([self.output], feed)[0])


def _from_onnx(path: Path, output: str | None) -> Network:
    require_file(path, "an ONNX network")
    try:
        runtime: Any = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ValueError(
            f"{path}: an ONNX file needs the package onnxruntime, which is not there. "
            'Run pip install "linearizer[export]".'
        ) from error
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ValueError(
            f"{path}: expected an ONNX network, but onnxruntime does not load it "
            f"({first_line(error)}). Export it again."
        ) from error
    inputs = session.get_inputs()
    if len(inputs) != 1 or inputs[0].type not in FLOATS:
        found = ", ".join(f"{i.name} {i.type}" for i in inputs) or "none"
        raise ValueError(
            f"{path}: expected one input of floats, with the samples along its first axis, found "
            f"{found}. Export the network with the others fixed."
        )
    outputs = {o.name: o for o in session.get_outputs()}
    chosen = next(iter(outputs)) if output is None else output
    if chosen not in outputs:
        raise ValueError(
            f"{path}: there is no output {chosen!r}. Name one of {', '.join(outputs)} after the #."
        )
    if outputs[chosen].type not in FLOATS:
        floats = [f"{path.name}#{o.name}" for o in outputs.values() if o.type in FLOATS]
        do = f"Take {' or '.join(floats)}." if floats else "Export it with such an output."
        raise ValueError(
            f"{path}: expected an output of floats, but {chosen} is {outputs[chosen].type}. {do}"
        )
    sizes, many = _known_sizes(inputs[0].shape), _known_sizes(outputs[chosen].shape)
    fixed = sizes[0] if sizes else None
    return Network(
        _Session(session, inputs[0].name, chosen),
        path.name if output is None else f"{path.name}#{output}",
        sizes[1:] if sizes else None,  # no axes at all stand for any number of them
        _count_outputs(many),
        FLOATS[inputs[0].type],
        (1, None) if fixed is None else (fixed, fixed),
    )


def _known_sizes(sizes: Sequence[Any]) -> Shape:
    """Keep the lengths that are numbers above 0."""
    return tuple(int(n) if isinstance(n, int) and n > 0 else None for n in sizes)


def _count_outputs(sizes: Shape) -> int | None:
    """Count the outputs of one sample, if their shape is known."""
    known = [n for n in sizes[1:] if n is not None]
    return math.prod(known) if sizes and len(known) == len(sizes) - 1 else None


# -- torch.export ------------------------------------------------------------------------------


def _from_export(path: Path) -> Network:
    require_file(path, "a network of torch.export")
    again = "Write it again, with torch.export.save"
    try:
        with zipfile.ZipFile(path) as archive:
            code = [name for name in archive.namelist() if any(part in name for part in CODE)]
        if not code:
            with _quiet(), _plain_tensors():
                program = torch.export.load(path)
                module = program.module()
    except pickle.UnpicklingError:
        code = ["a pickled object"]
    except Exception as error:
        raise ValueError(
            f"{path}: expected a network of torch.export, but it cannot be read "
            f"({first_line(error)}). {again} of torch {torch.__version__}."
        ) from error
    if code:
        raise ValueError(
            f"{path}: expected a graph and tensors alone, but it holds {code[0]}: such a file may "
            "hold code, which is not run. Export the network without compiling it."
        )
    nodes = {node.name: node.meta.get("val") for node in program.graph.nodes}
    inputs, outputs = program.graph_signature.user_inputs, program.graph_signature.user_outputs
    takes = nodes.get(str(inputs[0])) if len(inputs) == 1 else None
    if not isinstance(takes, Tensor) or not takes.is_floating_point() or not takes.ndim:
        found = ", ".join(map(str, inputs)) or "none"
        raise ValueError(
            f"{path}: expected one input of floats, with the samples along its first axis, found "
            f"{found}. {again}, from a module that takes one."
        )
    if len(outputs) != 1:
        found = ", ".join(map(str, outputs)) or "none"
        raise ValueError(
            f"{path}: expected one output, found {found}. {again}, from a module that returns one."
        )
    gives = nodes.get(str(outputs[0]))
    return Network(
        module,
        path.name,
        _known_sizes(takes.shape[1:]),
        _count_outputs(_known_sizes(gives.shape)) if isinstance(gives, Tensor) else None,
        takes.dtype,
        _batch_range(takes.shape[0], program.range_constraints),
    )


def _batch_range(size: Any, ranges: Any) -> tuple[int, int | None]:
    """Return the fewest and most samples at once; size is a number, or a symbol in ranges."""
    if isinstance(size, int):
        return size, size
    found = ranges.get(size.node.expr)
    if found is None:
        return 1, None
    most = int(found.upper) if found.upper.is_Integer else None  # the infinite one is no Integer
    return max(1, int(found.lower)), most


@contextlib.contextmanager
def _plain_tensors() -> Iterator[None]:
    """Let torch.load read tensors alone, also where torch.export.load asks it for more."""
    names = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ[names[0]] = "1"
    try:
        yield
    finally:
        del os.environ[names[0]]
        os.environ.update({k: v for k, v in before.items() if v is not None})


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the notes that torch makes about its own exporter."""
    logger = logging.getLogger("torch")
    level = logger.level
    try:
        logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*LeafSpec.* is deprecated", FutureWarning)
            yield
    finally:
        logger.setLevel(level)


# -- code of one's own -------------------------------------------------------------------------


def _build(source: str, attribute: str) -> nn.Module:
    """Take a network, or what a function builds, from a file or a module; this runs its code."""
    where = f"{source}:{attribute}"
    with take(source, attribute, "a network") as found:
        if isinstance(found, nn.Module):
            return _copy(found, where)
        if not callable(found) or not _takes_nothing(found):
            got = "one with arguments" if callable(found) else type(found).__name__
            raise ValueError(
                f"{where}: expected an nn.Module, or a function without arguments that builds one, "
                f"got {got}. Write such a function."
            )
        try:
            made = found()
        except (Exception, SystemExit) as error:
            raise ValueError(f"{where}: it fails ({first_line(error)}). Mend it.") from error
    if not isinstance(made, nn.Module):
        raise ValueError(
            f"{where}: expected a function that builds an nn.Module, but it gave "
            f"{type(made).__name__}. Return the network."
        )
    return made


def _takes_nothing(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # no signature is known of it
        return True
    return True
