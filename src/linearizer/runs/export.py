r"""Write a Linearizer as a file that runs without this library: ONNX or torch.export.

A file holds x ↦ g_y⁻¹(A g_x(x)) with all matrices worked out. It is read back and compared with f
before it takes its name.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import functools
import importlib
import io
import itertools
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..bijections import ActNorm, Bijection, Chain, InvertibleLinear, OnPart, SpatialSplit2x2
from ..bijections.adapters import NormflowsBijection, ZukoBijection, _Adapter
from ..bijections.mixing import _mix
from ..bijections.reshape import _shuffle, _unshuffle
from ..linearizer import Linearizer
from ..operators import (
    Convolution,
    Dense,
    Diagonal,
    Identity,
    LowRank,
    MixingConvolution,
    Operator,
    Projector,
    ScaledIdentityPlusLowRank,
)
from ..operators.convolution import multiplier
from ..training.checkpoint import check_target

__all__ = ["FORMATS", "Exported", "export", "frozen", "register"]

FORMATS = ("onnx", "torch-export")

#: A circular kernel with more taps than this goes through Fourier space.
_DIRECT_TAPS = 64
#: What one ONNX file can hold.
_ONNX_BYTES = 2**31 - 2**24

Module = TypeVar("Module", bound=nn.Module)


class Exported(NamedTuple):
    """A file that was written and checked."""

    path: Path
    format: str
    max_error: float  #: largest |file(x) − f(x)| / max(1, |f(x)|) over the points checked
    input_shape: tuple[int, ...]  #: without the batch
    output_shape: tuple[int, ...]  #: without the batch
    dtype: torch.dtype  #: of the file's input and output
    bytes: int


def frozen(f: Linearizer) -> nn.Module:
    r"""f as a plain module: parametrizations and the core become fixed tensors, checks go.

    Triangular solves become matrices, a circular convolution becomes a padded one or two real
    matrix products each way. f itself stays as it is.

    Example:
        >>> X = Space(mlp(4))
        >>> f = Linearizer(X, Dense(torch.randn(4, 4)), X)
        >>> x = torch.randn(3, 4)
        >>> torch.allclose(frozen(f)(x), f(x), atol=1e-4)
        True
    """
    return _freeze(_copy(f))


def export(
    f: Linearizer, path: Path, format: str, example: Tensor, tolerance: float = 1e-4
) -> Exported:
    r"""Write f to ``path`` and check the file against f.

    Any Linearizer will do: f, f.pinv(), f.T, a product, a collapsed flow. The batch axis stays
    free. The file is written under another name, loaded, run on the example and on two other batch
    sizes, and takes its name only if it agrees.

    Arguments:
        f: The map. One A for all samples.
        path: The file to write; its folder is made if it is missing.
        format: "onnx" (run by onnxruntime) or "torch-export" (run by ``torch.export.load``).
        example: Points of the source, (batch, \*source.shape); typical data, as the check uses it.
        tolerance: Largest error |file(x) − f(x)| / max(1, |f(x)|) that passes.
    """
    path = Path(path)
    _check_request(f, path, format, example, tolerance)
    if format == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            _package(package)
    twin = _copy(f)  # some peers' layers set themselves on a first pass: not in f
    with torch.no_grad():
        # Batches of n, 1 and n + 1 points: a graph that fixed its batch size shows.
        x = example.detach()
        points = (x, x[:1], torch.cat([x, x[:1]]))
        pairs = [(x.cpu(), twin(x).cpu()) for x in points]
        module = _freeze(twin).cpu()
        path.parent.mkdir(parents=True, exist_ok=True)
        suffix = ".onnx" if format == "onnx" else ".pt2"
        with tempfile.TemporaryDirectory(prefix=".export-", dir=path.parent) as folder:
            draft = Path(folder) / f"{path.stem}{suffix}"
            write = _write_onnx if format == "onnx" else _write_torch
            run, dtype = write(f, module, pairs[0][0], draft)
            error = _largest_error(run, dtype, pairs)
            if not error <= tolerance:
                raise ValueError(
                    f"export: expected the {format} file to equal f within {tolerance:g}, but it "
                    f"differs by {error:.2g} of max(1, |f(x)|). Give data that f was made for, or "
                    "a larger tolerance."
                )
            size = draft.stat().st_size
            os.replace(draft, path)
    return Exported(path, format, error, f.source.shape, f.target.shape, dtype, size)


def _check_request(
    f: Linearizer, path: Path, format: str, example: Tensor, tolerance: float
) -> None:
    if format not in FORMATS:
        close = difflib.get_close_matches(str(format), FORMATS, n=1, cutoff=0.4)
        raise ValueError(
            f"export: expected a format of {', '.join(FORMATS)}, got {format!r}."
            + (f" Did you mean {close[0]!r}?" if close else "")
        )
    if not tolerance > 0:
        raise ValueError(f"export: expected a tolerance > 0, got {tolerance}.")
    if path.is_dir():
        raise ValueError(f"export: expected a file name, but {path} is a folder. Add a name to it.")
    check_target(path)
    _check_map(f)
    f.source.g._check(example, f.source.shape, "example")
    if not len(example):
        raise ValueError("export: expected at least one example point, got an empty batch.")


def _check_map(f: Linearizer) -> None:
    if not isinstance(f, Linearizer):
        raise TypeError(f"export: expected a Linearizer, got {type(f).__name__}.")
    if f.operator.batch is not None:
        raise ValueError(
            f"export: expected one A for all samples, but the operator holds {f.operator.batch}, "
            "one for each. Build a Linearizer with the one you want."
        )


# -- freezing ----------------------------------------------------------------------------------


def _copy(module: Module) -> Module:
    """A copy without gradients; results of a computation, which deepcopy refuses, included."""
    memo: dict[int, Any] = {}
    for t in itertools.chain(module.parameters(), module.buffers()):
        fixed = t.detach().clone(memory_format=torch.contiguous_format)
        memo[id(t)] = (
            nn.Parameter(fixed, requires_grad=False) if isinstance(t, nn.Parameter) else fixed
        )
    with torch.no_grad():
        return copy.deepcopy(module, memo).eval()


@torch.no_grad()
def _freeze(f: Linearizer) -> nn.Module:
    """The plain module, made of the parts of f, which is a copy and is used up."""
    _check_map(f)
    for module in list(f.modules()):
        if parametrize.is_parametrized(module):
            _settle(module)
    return _Frozen(f).eval().requires_grad_(False)


def _settle(module: nn.Module) -> None:
    """Put values in place of parametrizations; torch's own remover edits a class f shares."""
    names = list(module.parametrizations)  # type: ignore[arg-type]
    values = {name: getattr(module, name) for name in names}
    module.__class__ = parametrize.type_before_parametrizations(module)
    del module.parametrizations
    _hold(module, **values)


class _Frozen(nn.Module):
    """g_x, A and g_y⁻¹ in turn."""

    def __init__(self, f: Linearizer) -> None:
        super().__init__()
        self.source = _layer(f.source.g, False)
        self.core = _core(f.operator)
        self.target = _layer(f.target.g, True)

    def forward(self, x: Tensor) -> Tensor:
        return self.target(self.core(self.source(x)))


@functools.singledispatch
def _core(A: Operator) -> nn.Module:
    """A as a plain module."""
    return _Operator(A)


@functools.singledispatch
def _layer(g: Bijection, inverse: bool) -> nn.Module:
    """g or g⁻¹ as a plain module."""
    return _Layer(g, inverse)


Plain = TypeVar("Plain", bound=Callable[..., nn.Module])


def register(cls: type[Operator] | type[Bijection]) -> Callable[[Plain], Plain]:
    r"""Write a class of operators or bijections, and those that inherit from it, in another way.

    Without, its own ``forward`` and ``inverse`` are traced. What takes its place is a plain module
    with all numbers worked out, as buffers: A ↦ module, or (g, inverse) ↦ module of g or g⁻¹.

    Arguments:
        cls: The class.

    Example:
        >>> from linearizer.runs.export import register
        >>> class Shuffle(Bijection):
        ...     def forward(self, x): return torch.pixel_shuffle(x, 2)
        ...     def inverse(self, z): return torch.pixel_unshuffle(z, 2)
        >>> @register(Shuffle)
        ... def plain(g, inverse):
        ...     return torch.nn.PixelUnshuffle(2) if inverse else torch.nn.PixelShuffle(2)
        >>> X = Space(Shuffle((4, 2, 2), (1, 4, 4)))
        >>> frozen(Linearizer(X, Identity(16), X)).source[0]
        PixelShuffle(upscale_factor=2)
    """
    if not isinstance(cls, type) or not issubclass(cls, Operator | Bijection):
        raise TypeError(f"export.register: expected a class of operators or bijections, got {cls}.")
    table = _core if issubclass(cls, Operator) else _layer

    def add(plain: Plain) -> Plain:
        table.register(cls, plain)
        return plain

    return add


def _hold(module: nn.Module, **tensors: Tensor) -> None:
    # Contiguous: torch.export.save wants each tensor to fill its storage.
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor.detach().contiguous())


class _Layer(nn.Module):
    """A bijection's own code, past the checks of a call."""

    def __init__(self, layer: Bijection, inverse: bool) -> None:
        super().__init__()
        self.layer, self.inverse = layer, inverse

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.inverse(x) if self.inverse else self.layer.forward(x)


class _Scale(nn.Module):
    mean: Tensor
    factor: Tensor

    def __init__(self, layer: ActNorm) -> None:
        super().__init__()
        _hold(self, mean=layer.mean, factor=layer.log_scale.exp())

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) * self.factor


class _Unscale(nn.Module):
    mean: Tensor
    factor: Tensor

    def __init__(self, layer: ActNorm) -> None:
        super().__init__()
        _hold(self, mean=layer.mean, factor=torch.exp(-layer.log_scale))

    def forward(self, z: Tensor) -> Tensor:
        return z * self.factor + self.mean


class _Mix(nn.Module):
    """W or W⁻¹ worked out in float64."""

    W: Tensor

    def __init__(self, layer: InvertibleLinear, inverse: bool) -> None:
        super().__init__()
        exact = copy.deepcopy(layer).double()
        W = exact.weight()
        if inverse:
            lower, upper, _ = exact._factors()
            W = torch.eye(len(W), dtype=W.dtype, device=W.device)[exact.permutation.argsort()]
            W = torch.linalg.solve_triangular(lower, W, upper=False, unitriangular=True)
            W = torch.linalg.solve_triangular(upper, W, upper=True)
        _hold(self, W=W.to(layer.raw.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.W) if x.ndim == 2 else _mix(self.W, x)


class _Split(nn.Module):
    order: Tensor

    def __init__(self, layer: SpatialSplit2x2, inverse: bool) -> None:
        super().__init__()
        self.channels, self.inverse = layer.shape[0], inverse
        _hold(self, order=layer.order.argsort() if inverse else layer.order)

    def forward(self, x: Tensor) -> Tensor:
        if self.inverse:
            patches = x.unflatten(1, (4, self.channels)).index_select(1, self.order)
            return _shuffle(patches.transpose(1, 2).flatten(1, 2))
        patches = _unshuffle(x).unflatten(1, (self.channels, 4)).transpose(1, 2)
        return patches.index_select(1, self.order).flatten(1, 2)


class _Part(nn.Module):
    def __init__(self, layer: OnPart, inverse: bool) -> None:
        super().__init__()
        self.start, self.end = layer.start, layer.end
        self.inner = _layer(layer.g, inverse)

    def forward(self, x: Tensor) -> Tensor:
        part = self.inner(x[:, self.start : self.end])
        return torch.cat([x[:, : self.start], part, x[:, self.end :]], 1)


class _Peer(nn.Module):
    """An adapter without the look at the batch's length, which would fix it."""

    def __init__(self, adapter: _Adapter, inverse: bool) -> None:
        super().__init__()
        self.adapter, self.inverse = adapter, inverse

    def forward(self, x: Tensor) -> Tensor:
        g = self.adapter
        if self.inverse:
            x = g._decode(x.reshape(x.shape[0], *g.peer_shape))
            return x.reshape(x.shape[0], *g.shape)
        if isinstance(g, ZukoBijection):
            return g.forward(x)
        if isinstance(g, NormflowsBijection):
            for flow in reversed(g.peer):
                x, _ = flow.inverse(x)
            return x.flatten(1)
        return g._encode(x)[0].flatten(1)


class _Operator(nn.Module):
    """An operator's own code, past the checks of a call."""

    def __init__(self, A: Operator) -> None:
        super().__init__()
        self.A = A

    def forward(self, z: Tensor) -> Tensor:
        return self.A.forward(z)


class _Linear(nn.Module):
    A: Tensor

    def __init__(self, A: Tensor) -> None:
        super().__init__()
        _hold(self, A=A)

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(z, self.A)


class _Times(nn.Module):
    factor: Tensor

    def __init__(self, factor: Tensor) -> None:
        super().__init__()
        _hold(self, factor=factor)

    def forward(self, z: Tensor) -> Tensor:
        return z * self.factor


class _TimesPlusLowRank(nn.Module):
    def __init__(self, A: ScaledIdentityPlusLowRank) -> None:
        super().__init__()
        self.times = _Times(A.alpha)
        self.low_rank = _low_rank(A)

    def forward(self, z: Tensor) -> Tensor:
        return self.times(z) + self.low_rank(z)


class _Convolve(nn.Module):
    """Pad, then a convolution, depthwise or across channels."""

    kernel: Tensor

    def __init__(self, A: Convolution | MixingConvolution) -> None:
        super().__init__()
        (kh, kw), (oh, ow) = A.kernel.shape[-2:], A.origin
        self.image, self.circular = A.image, A.padding == "circular"
        self.rows, self.columns = (oh, kh - 1 - oh), (ow, kw - 1 - ow)
        depthwise = isinstance(A, Convolution)
        self.groups = self.image[0] if depthwise else 1
        _hold(self, kernel=A.kernel[:, None] if depthwise else A.kernel)

    def forward(self, z: Tensor) -> Tensor:
        image = z.unflatten(1, self.image)
        if self.circular:
            image = _wrap(_wrap(image, -2, *self.rows), -1, *self.columns)
        else:
            image = F.pad(image, (*self.columns, *self.rows))
        return F.conv2d(image, self.kernel, groups=self.groups).flatten(1)


def _wrap(image: Tensor, axis: int, before: int, after: int) -> Tensor:
    n = image.shape[axis]
    parts = [image.narrow(axis, n - before, before), image, image.narrow(axis, 0, after)]
    return torch.cat([part for part in parts if part.shape[axis]], axis)


class _Fourier(nn.Module):
    r"""irfft2(k̂ · rfft2(z)), the transforms as real matrices.

    Real and imaginary parts stand on top of each other along the rows.
    """

    columns: Tensor
    rows: Tensor
    back: Tensor
    real: Tensor
    imag: Tensor

    def __init__(self, A: Convolution | MixingConvolution) -> None:
        super().__init__()
        _, H, W = self.image = A.image
        dtype, device = A.dtype, A.device
        m = multiplier(A.kernel.data.double(), A.origin, (H, W))  # (C, H, K) or (C_out, C, H, K)
        self.kept = m.shape[-1]
        columns = torch.fft.rfft(torch.eye(W, dtype=torch.float64, device=device))  # (W, K)
        rows = torch.fft.fft(torch.eye(H, dtype=torch.float64, device=device))  # (H, H)
        # Frequencies that stand for themselves and their mirror image count twice.
        weight = torch.full((self.kept,), 2.0, dtype=torch.float64, device=device)
        weight[0] = 1.0
        if W % 2 == 0:
            weight[-1] = 1.0
        tensors = {
            "columns": torch.cat([columns.real, columns.imag], 1),
            "rows": torch.cat(
                [torch.cat([rows.real, -rows.imag], 1), torch.cat([rows.imag, rows.real], 1)]
            ),
            "back": torch.cat([columns.real * weight, columns.imag * weight], 1).mT / (H * W),
            "real": torch.cat([m.real, m.real], -2),
            "imag": torch.cat([-m.imag, m.imag], -2),
        }
        _hold(self, **{name: tensor.to(dtype) for name, tensor in tensors.items()})

    def forward(self, z: Tensor) -> Tensor:
        H, K = self.image[1], self.kept
        waves = z.unflatten(1, self.image) @ self.columns  # (batch, C, H, 2K)
        waves = self.rows @ torch.cat([waves[..., :K], waves[..., K:]], -2)  # (batch, C, 2H, K)
        turned = torch.cat([waves[..., H:, :], waves[..., :H, :]], -2)
        waves = self.rows.mT @ (_multiply(self.real, waves) + _multiply(self.imag, turned))
        waves = torch.cat([waves[..., :H, :], waves[..., H:, :]], -1)
        return (waves @ self.back).flatten(1)


def _multiply(m: Tensor, waves: Tensor) -> Tensor:
    """Each channel by its own m (C, H, K), or all of them by matrices (C_out, C, H, K)."""
    return m * waves if m.ndim == 3 else torch.einsum("oihk,bihk->bohk", m, waves)


# -- which module stands for which class -------------------------------------------------------


@register(Chain)
def _chain(g: Chain, inverse: bool) -> nn.Module:
    layers = reversed(list(g)) if inverse else iter(g)
    return nn.Sequential(*(_layer(layer, inverse) for layer in layers))


@register(ActNorm)
def _act_norm(g: ActNorm, inverse: bool) -> nn.Module:
    return _Unscale(g) if inverse else _Scale(g)


register(InvertibleLinear)(_Mix)
register(SpatialSplit2x2)(_Split)
register(OnPart)(_Part)
register(_Adapter)(_Peer)


@register(Identity)
def _identity(A: Identity) -> nn.Module:
    return nn.Identity()


@register(Dense)
def _dense(A: Dense) -> nn.Module:
    return _Linear(A.matrix)


@register(Diagonal)
@register(Projector)
def _diagonal(A: Diagonal | Projector) -> nn.Module:
    return _Times(A.diagonal)


@register(LowRank)
def _low_rank(A: LowRank | ScaledIdentityPlusLowRank) -> nn.Module:
    return nn.Sequential(_Linear(A.V.mT), _Linear(A.U))


@register(ScaledIdentityPlusLowRank)
def _scaled(A: ScaledIdentityPlusLowRank) -> nn.Module:
    return _TimesPlusLowRank(A) if A.U.shape[-1] else _Times(A.alpha)


@register(Convolution)
@register(MixingConvolution)
def _convolution(A: Convolution | MixingConvolution) -> nn.Module:
    (kh, kw), (_, H, W) = A.kernel.shape[-2:], A.image
    direct = kh * kw <= _DIRECT_TAPS and kh <= H and kw <= W
    return _Convolve(A) if direct or A.padding == "zero" else _Fourier(A)


# -- writing -----------------------------------------------------------------------------------

#: Runs a written file on a CPU tensor.
Run = Callable[[Tensor], Tensor]


def _write_torch(
    f: Linearizer, module: nn.Module, x: Tensor, path: Path
) -> tuple[Run, torch.dtype]:
    with _quiet():
        torch.export.save(_capture(f, module, x), path)
        run = torch.export.load(path).module()
    return run, x.dtype


def _write_onnx(f: Linearizer, module: nn.Module, x: Tensor, path: Path) -> tuple[Run, torch.dtype]:
    """In the dtype of f if onnxruntime has all that it needs in it, else in float32."""
    tensors = {id(t): t for t in itertools.chain(module.parameters(), module.buffers())}
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    if size > _ONNX_BYTES:
        raise ValueError(
            f"export: expected under 2 GB of weights, which is what an ONNX file holds, got "
            f"{size / 2**30:.1f} GB. Use the format torch-export."
        )
    for dtype in dict.fromkeys([x.dtype, torch.float32]):
        _convert(f, module.to(dtype), x.to(dtype), path)
        try:
            return _session(path), dtype
        except Exception as error:
            if dtype == torch.float32:
                raise ValueError(
                    f"export: onnxruntime does not run the map ({_first_line(error)}). "
                    "Use the format torch-export."
                ) from error
    raise AssertionError("float32 returns or raises")


def _convert(f: Linearizer, module: nn.Module, x: Tensor, path: Path) -> None:
    from .. import __version__

    program = _capture(f, module, x)
    try:
        with _quiet():
            converted = torch.onnx.export(
                program, dynamo=True, input_names=["x"], output_names=["y"], verbose=False
            )
    except Exception as error:
        raise ValueError(
            f"export: {_suspect(f)} does not convert to ONNX ({_first_line(error)}). "
            "Use the format torch-export, or a bijection of this library."
        ) from error
    assert converted is not None
    model = converted.model
    _tidy(model)
    model.producer_name, model.producer_version = "linearizer", __version__
    model.metadata_props.update(
        producer="linearizer",
        source_shape=str(list(f.source.shape)),
        target_shape=str(list(f.target.shape)),
        operator=type(f.operator).__name__,
    )
    with _quiet():
        converted.save(path, external_data=False)


def _tidy(model: Any) -> None:
    """The free axis is called batch; no traces of the source tree that it was made from."""
    traced = str(model.graph.inputs[0].shape[0])
    model.graph.metadata_props.clear()
    for node in model.graph:
        node.metadata_props.clear()
    outputs = (value for node in model.graph for value in node.outputs)
    for value in itertools.chain(model.graph.inputs, model.graph.initializers.values(), outputs):
        value.metadata_props.clear()
        for i, size in enumerate(value.shape or ()):
            if str(size) == traced:
                value.shape[i] = "batch"


def _session(path: Path) -> Run:
    runtime = _package("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["y"], {"x": x.numpy()})[0])

    return run


def _capture(f: Linearizer, module: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    # Two points, as a batch of one would be taken for a constant; zeros, as the file keeps them.
    example = x.new_zeros(2, *x.shape[1:])
    shapes = ({0: torch.export.Dim("batch")},)
    fault: Exception | None = None
    for strict in (False, True):  # peers that ask for len(x) need the strict tracer
        try:
            with _quiet():
                program = torch.export.export(
                    module, (example,), dynamic_shapes=shapes, strict=strict
                )
            for node in program.graph.nodes:
                node.meta.pop("stack_trace", None)  # names of folders on this machine
            return program
        except Exception as error:
            fault = fault or error
    raise ValueError(
        f"export: {_suspect(f)} cannot be traced ({_first_line(fault)}). "
        "Use a bijection of this library."
    ) from fault


def _suspect(f: Linearizer) -> str:
    """What of f is not ours, to be named where a file cannot be made."""
    package = __name__.split(".")[0]
    found = []
    for module in f.modules():
        if isinstance(module, _Adapter):
            peer = module.peer[0] if isinstance(module.peer, nn.ModuleList) else module.peer
            found.append(f"{type(peer).__name__} of {type(peer).__module__.split('.')[0]}")
        elif isinstance(module, Bijection | Operator) and (
            type(module).__module__.split(".")[0] != package
        ):
            found.append(type(module).__name__)
    return ", ".join(dict.fromkeys(found)) or "the map"


def _first_line(error: Exception | None) -> str:
    text = str(error.__cause__ or error).strip() if error else ""
    return re.split(r"\n| : \[| \(unhinted", text)[0].rstrip(".")[:200] or type(error).__name__


def _largest_error(run: Run, dtype: torch.dtype, pairs: list[tuple[Tensor, Tensor]]) -> float:
    errors = [0.0]
    for x, y in pairs:
        try:
            got = run(x.to(dtype)).double()
        except Exception as error:
            raise ValueError(
                f"export: the file does not run on a batch of {len(x)} ({_first_line(error)}). "
                "Use a bijection of this library."
            ) from error
        assert got.shape == y.shape
        errors.append(float(((got - y).abs() / y.abs().clamp(min=1.0)).max()))
    return float(torch.tensor(errors, dtype=torch.float64).max())  # NaN stays, and fails


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"export: the format onnx needs the package {name}, which is not there. "
            'Run pip install "linearizer[export]".'
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the notes that torch's exporter makes about itself, and the graphs that it prints."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            # torch copies its own LeafSpec, which it deprecates.
            warnings.filterwarnings("ignore", r".*LeafSpec.* is deprecated", FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
