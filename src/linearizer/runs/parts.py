r"""Known parts: a module as words and numbers beside its tensors, and back. No code, no pickle.

A description is a list with one entry for each module, those that it is made of before it. An
entry names a known class and has what an object of it holds: plain values, tensors by their names
in the weights file, other entries by their numbers. An object that is used twice is one entry, so
that a Space stays the same Space. Layers of torch are built by their constructors; all other parts
get their attributes back, and no constructor runs. (A class that later has one attribute more gives
it a value in the class, and older files load.)

What reads a file imports nothing that the file names, and makes no tensor that is not in it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from types import ModuleType
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .. import bijections, families, linearizer, nets, operators, spaces
from ..bijections import Bijection, Chain
from ..linearizer import Linearizer
from ..operators import Operator
from ..spaces import Space

__all__ = ["DERIVED", "describe", "known", "register", "restore"]

#: Starts the names of tensors that are no part of a state_dict.
DERIVED = "derived:"

#: Layers of torch, and the attributes that are arguments of their constructors.
_LAYERS: dict[type[nn.Module], tuple[str, ...]] = {
    kind: tuple(arguments.split())
    for arguments, kinds in (
        ("in_features out_features bias", (nn.Linear,)),
        ("in_channels out_channels kernel_size stride padding dilation groups bias padding_mode",
         (nn.Conv1d, nn.Conv2d, nn.Conv3d)),
        ("in_channels out_channels kernel_size stride padding output_padding groups bias dilation "
         "padding_mode", (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)),
        ("num_groups num_channels eps affine", (nn.GroupNorm,)),
        ("normalized_shape eps elementwise_affine bias", (nn.LayerNorm,)),
        ("kernel_size stride padding ceil_mode count_include_pad divisor_override",
         (nn.AvgPool2d,)),
        ("kernel_size stride padding dilation return_indices ceil_mode", (nn.MaxPool2d,)),
        ("output_size", (nn.AdaptiveAvgPool2d,)),
        ("size scale_factor mode align_corners recompute_scale_factor", (nn.Upsample,)),
        ("upscale_factor", (nn.PixelShuffle,)),
        ("downscale_factor", (nn.PixelUnshuffle,)),
        ("start_dim end_dim", (nn.Flatten,)),
        ("dim unflattened_size", (nn.Unflatten,)),
        ("negative_slope inplace", (nn.LeakyReLU,)),
        ("alpha inplace", (nn.ELU, nn.CELU)),
        ("beta threshold", (nn.Softplus,)),
        ("min_val max_val inplace", (nn.Hardtanh,)),
        ("approximate", (nn.GELU,)),
        ("num_parameters init", (nn.PReLU,)),
        ("inplace", (nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid)),
        ("", (nn.Identity, nn.LogSigmoid, nn.Sigmoid, nn.Softsign, nn.Tanh, nn.Tanhshrink)),
    )
    for kind in kinds
}  # fmt: skip
_PACKAGE = __name__.split(".")[0]
#: Networks that an application has inside its g, and in which module.
_IN_APPS = {"Across": "forecast.model", "_Far": "projector.model", "_Flagged": "flow.model"}
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64,
                  torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
                  torch.complex64, torch.complex128)
}  # fmt: skip
#: What every module has, and no description.
_OF_TORCH = frozenset({*vars(nn.Module()), "_compiled_call_impl"})
#: How deep lists of lists may go.
_DEPTH = 16
#: Coordinates up to which parts are tried together.
_TRIED = 2**24

M = TypeVar("M", bound=nn.Module)
_registered: dict[str, type[nn.Module]] = {}


# -- which classes are known ---------------------------------------------------------------


def register(cls: type[M], name: str | None = None) -> type[M]:
    """Make a class known in this process: what it builds is saved, and files that name it load.

    Its attributes must be plain values, parameters, buffers and modules that are known as well.
    Their names are part of the files.

    Arguments:
        cls: A Bijection, Operator or Family of yours, or a network inside of one.
        name: What files call it; the name of the class by default.

    Example:
        >>> @lz.parts.register
        ... class Sinh(Bijection):
        ...     def forward(self, x): return torch.asinh(x)
        ...     def inverse(self, z): return torch.sinh(z)
        >>> lz.parts.known()["Sinh"] is Sinh
        True
    """
    if not isinstance(cls, type) or not issubclass(cls, nn.Module) or inspect.isabstract(cls):
        raise TypeError(f"parts.register: expected a class of modules to build, got {cls!r}.")
    name = cls.__name__ if name is None else name
    if _of_torch(cls) or cls in _library().values():
        raise ValueError(f"parts.register: {cls.__name__} is known already. Leave this out.")
    taken = known().get(name)
    # A class that is defined again, as in a notebook, takes the place of its older self.
    if name in _IN_APPS or (taken is not None and _home(taken) != _home(cls)):
        raise ValueError(
            f"parts.register: the name {name!r} belongs to another class. Give one of its own, as "
            f"in register({cls.__name__}, name=…)."
        )
    _registered[name] = cls
    return cls


def known() -> dict[str, type[nn.Module]]:
    """All classes that a description may name."""
    torchs = {f"nn.{kind.__name__}": kind for kind in (*_LAYERS, *_CONTAINERS)}
    return {**_registered, **torchs, **_library()}


@functools.cache
def _library() -> dict[str, type[nn.Module]]:
    """The concrete modules of the algebra, by name."""
    found: dict[str, type[nn.Module]] = {}
    for home in (nets, bijections, operators, families, spaces, linearizer):
        for module in _with_submodules(home):
            for name, cls in vars(module).items():
                if (
                    isinstance(cls, type)
                    and issubclass(cls, nn.Module)
                    and cls.__module__ == module.__name__
                    and name == cls.__name__
                    and not inspect.isabstract(cls)
                ):
                    assert name not in found, f"two parts are called {name}"
                    found[name] = cls
    return found


def _with_submodules(package: ModuleType) -> list[ModuleType]:
    inside = f"{package.__name__}."
    return [package, *(m for name, m in sorted(sys.modules.items()) if name.startswith(inside))]


def _of_torch(cls: type) -> bool:
    return cls in _LAYERS or cls in _CONTAINERS


def _home(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


# -- a module to its description -----------------------------------------------------------


def describe(root: nn.Module) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """The entries of a module and all that it is made of, itself the last, and its tensors.

    Tensors have the names of its state_dict, each its first one; those that it leaves out (buffers
    that are not persistent) start with :data:`DERIVED`.

    Example:
        >>> entries, tensors = describe(Dense(torch.eye(2)))
        >>> entries[0]["part"], entries[0]["buffers"], list(tensors)
        ('Dense', {'matrix': {'tensor': 'matrix'}}, ['matrix'])
    """
    writer = _Writer(root)
    writer.write(root, "")
    if writer.ours and _problem(root) is None:
        writer.entries[-1]["tried"] = True
    return writer.entries, writer.tensors


class _Writer:
    def __init__(self, root: nn.Module) -> None:
        self.entries: list[dict[str, Any]] = []
        self.tensors: dict[str, Tensor] = {}
        self.ours = True  # all parts of the library or of torch
        self._numbers: dict[int, int | None] = {}  # of modules; None while it is being written
        self._twins: dict[int, int] = {}  # of modules, by the dict of their buffers
        self._names: dict[int, str] = {}  # of tensors
        self._known = {cls: name for name, cls in known().items()}
        for path, module in root.named_modules():
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None:
                    start = DERIVED if name in module._non_persistent_buffers_set else ""
                    own = f"{start}{path}.{name}" if path else f"{start}{name}"
                    if self._names.setdefault(id(tensor), own) == own:
                        self.tensors[own] = tensor

    def write(self, module: nn.Module, path: str) -> int:
        """The number of the module's entry, which is written unless it is there."""
        if id(module) in self._numbers:
            number = self._numbers[id(module)]
            if number is None:
                self._refuse(path, module, "holds itself", "Take it out of itself")
            return number
        self._numbers[id(module)] = None
        entry = self._start(module, path)
        twin = self._twins.get(id(module._buffers))
        if twin is not None:  # made by resize: whatever one of the two holds, both hold
            entry["twin"] = twin
        else:
            for key, held in (("parameters", module._parameters), ("buffers", module._buffers)):
                if held:
                    entry[key] = {name: self._tensor(t) for name, t in held.items()}
            if module._modules:
                entry["parts"] = {
                    name: None if part is None else self.write(part, f"{path}.{name}".lstrip("."))
                    for name, part in module._modules.items()
                }
        number = len(self.entries)
        self.entries.append(entry)
        self._numbers[id(module)] = number
        self._twins.setdefault(id(module._buffers), number)
        return number

    def _start(self, module: nn.Module, path: str) -> dict[str, Any]:
        cls = type(module)
        name = self._known.get(cls)
        if cls.__module__ == f"{_PACKAGE}.apps.{_IN_APPS.get(cls.__name__)}":
            name = cls.__name__
        if parametrize.is_parametrized(module):
            advice = "Make its tensors plain by parametrize.remove_parametrizations"
            self._refuse(path, module, "is parametrized, which is code", advice)
        if name is None:
            advice = f"Register its class, linearizer.parts.register({cls.__name__})"
            self._refuse(path, module, "is no known part", advice)
        hooks = (v for k, v in vars(module).items() if k in _OF_TORCH and k.endswith("_hooks"))
        if any(hooks) or "forward" in vars(module):
            why = "has hooks or a forward of its own, which are code"
            self._refuse(path, module, why, "Remove them")
        entry: dict[str, Any] = {"part": name}
        if name in _registered:
            entry["of"], self.ours = cls.__module__, False
        if cls in _LAYERS:
            plain = {key: getattr(module, key) for key in _LAYERS[cls]}
            if "bias" in plain:
                plain["bias"] = plain["bias"] is not None
        else:
            plain = {
                key: value
                for key, value in vars(module).items()
                if key not in _OF_TORCH and not _is_cached(cls, key)
            }
        values = {}
        for key, value in plain.items():
            try:
                values[key] = _encode(value)
            except TypeError as problem:
                advice = (
                    "Keep numbers and text there, tensors as buffers or parameters, modules as "
                    "attributes or in an nn.ModuleList"
                )
                self._refuse(path, module, f"has {key} {problem}", advice)
        if values:
            entry["values"] = values
        return entry

    def _tensor(self, tensor: Tensor | None) -> dict[str, Any] | None:
        if tensor is None:
            return None
        facts: dict[str, Any] = {"tensor": self._names[id(tensor)]}
        if isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
            facts["fixed"] = True
        # Arithmetic rounds differently in another layout, as that of channels last.
        strides = torch.empty_like(tensor, device="meta").stride()
        usual = torch.empty(tensor.shape, device="meta").stride()
        if tensor.numel() and strides != usual:
            facts["strides"] = list(strides)
        return facts

    def _refuse(self, path: str, module: nn.Module, why: str, advice: str) -> NoReturn:
        cls = type(module)
        raise ValueError(
            f"save: {path or 'the module'} ({cls.__name__} of {cls.__module__}) {why}. "
            f"{advice}, or keep the weights alone: save(…, weights_only=True)."
        )


def _is_cached(cls: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(cls, name, None), functools.cached_property)


def _encode(value: Any, depth: int = 0) -> Any:
    """Plain values as JSON has them; what it has not is a table with one name."""
    if depth > _DEPTH:
        raise TypeError("nested too deep")
    inner = functools.partial(_encode, depth=depth + 1)
    if value is None or isinstance(value, bool) or type(value) is str:
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if type(value) in (tuple, torch.Size):
        return {"tuple": [inner(v) for v in value]}
    if type(value) is list:
        return [inner(v) for v in value]
    if type(value) is dict:
        return {"dict": [[inner(k), inner(v)] for k, v in value.items()]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    raise TypeError(f"of class {type(value).__name__} ({type(value).__module__})")


# -- and back ------------------------------------------------------------------------------


def restore(entries: Any, tensors: Mapping[str, Tensor], where: str) -> nn.Module:
    """The module of a description, with these tensors; ``where`` names the file in errors.

    Example:
        >>> A = Dense(torch.eye(2))
        >>> restore(*describe(A), "a list").matrix
        tensor([[1., 0.],
                [0., 1.]])
    """
    reader = _Reader(tensors, where)
    _expect(isinstance(entries, list) and len(entries) > 0, where, "expected a list of parts")
    for entry in entries:
        reader.read(entry)
    left = sorted(tensors.keys() - reader.made.keys())
    if left:
        raise ValueError(f"{where}: the weights hold {left[0]}, which no part names.")
    root = reader.parts[-1]
    problem = _problem(root) if entries[-1].get("tried") is True else None
    if problem is not None:
        raise ValueError(f"{where}: the parts do not fit together: {problem}.")
    return root


class _Reader:
    def __init__(self, tensors: Mapping[str, Tensor], where: str) -> None:
        self.tensors, self.where = tensors, where
        self.parts: list[nn.Module] = []
        self.made: dict[str, Tensor] = {}
        self._known = known()

    def read(self, entry: Any) -> None:
        where = f"{self.where}: part {len(self.parts)}"
        _expect(isinstance(entry, dict), where, "expected a table")
        name = entry.get("part")
        cls = self._known.get(name) if isinstance(name, str) else None
        if cls is None and isinstance(name, str) and name in _IN_APPS:
            cls = getattr(importlib.import_module(f"{_PACKAGE}.apps.{_IN_APPS[name]}"), name)
        if cls is None:
            home = f" of {entry['of']}" if isinstance(entry.get("of"), str) else ""
            raise ValueError(
                f"{where} is {name!r}{home}, which is not known here. If it is a class of yours, "
                "import it and call linearizer.parts.register(…) with it before you load."
            )
        where = f"{where} ({name})"
        values, children, parameters, buffers = (
            self._table(entry, key, where) for key in ("values", "parts", "parameters", "buffers")
        )
        plain = {key: _decode(value, where) for key, value in values.items()}
        held: dict[str, dict[str, Any]] = {
            "_parameters": {k: self._tensor(v, True, where) for k, v in parameters.items()},
            "_buffers": {k: self._tensor(v, False, where) for k, v in buffers.items()},
            "_modules": {k: self._part(v, where) for k, v in children.items()},
        }
        if cls in _LAYERS:
            self.parts.append(_build(cls, plain, held, where))
            return
        part = cls.__new__(cls)
        nn.Module.__init__(part)
        for key, value in plain.items():
            shadows = inspect.getattr_static(cls, key, None)
            harmless = not callable(shadows) and not hasattr(shadows, "__get__")
            _expect(key not in _OF_TORCH and harmless, where, f"it has no value {key!r}")
            vars(part)[key] = value
        if "twin" in entry:
            twin = self._part(entry["twin"], where)
            alone = type(twin) is cls and not any(held.values())
            _expect(alone, where, "expected a twin of the same kind, and nothing besides")
            for key in (*held, "_non_persistent_buffers_set"):
                vars(part)[key] = vars(twin)[key]
        else:
            for key, own in held.items():
                vars(part)[key].update(own)
            part._non_persistent_buffers_set.update(
                key
                for key, facts in buffers.items()
                if facts is not None and facts["tensor"].startswith(DERIVED)
            )
        _check(part, where)
        self.parts.append(part)

    def _table(self, entry: dict[str, Any], key: str, where: str) -> dict[str, Any]:
        table = entry.get(key, {})
        _expect(isinstance(table, dict), where, f"expected {key} as a table")
        for name in table:
            _expect(bool(name) and "." not in name, where, f"expected a name, got {name!r}")
        return table

    def _part(self, number: Any, where: str) -> nn.Module | None:
        if number is None:
            return None
        if type(number) is not int or not 0 <= number < len(self.parts):
            raise ValueError(f"{where}: expected the number of a part before it, got {number!r}.")
        return self.parts[number]

    def _tensor(self, facts: Any, learned: bool, where: str) -> Tensor | None:
        if facts is None:
            return None
        _expect(isinstance(facts, dict), where, "expected facts of a tensor")
        name = facts.get("tensor")
        if not isinstance(name, str) or name not in self.tensors:
            raise ValueError(f"{where}: the weights have no tensor {name!r}.")
        if name not in self.made:
            tensor = _laid_out(self.tensors[name], facts.get("strides"), where)
            if learned:
                right = tensor.is_floating_point() or tensor.is_complex()
                _expect(right, where, f"expected a floating {name}, got {tensor.dtype}")
                tensor = nn.Parameter(tensor, requires_grad=facts.get("fixed") is not True)
            self.made[name] = tensor
        tensor = self.made[name]
        if learned and not isinstance(tensor, nn.Parameter):
            raise ValueError(f"{where}: the tensor {name} is a parameter here, a buffer elsewhere.")
        return tensor


def _build(
    cls: type[nn.Module], arguments: dict[str, Any], held: dict[str, dict[str, Any]], where: str
) -> nn.Module:
    """A layer of torch by its constructor, without memory; then with its tensors."""
    right = arguments.keys() == set(_LAYERS[cls]) and not held["_modules"]
    _expect(right, where, f"expected the values {list(_LAYERS[cls])}, got {list(arguments)}")
    try:
        with torch.device("meta"):
            layer = cls(**arguments)
    except Exception as problem:
        raise ValueError(f"{where}: torch refuses its values: {_first_line(problem)}.") from None
    for key in ("_parameters", "_buffers"):
        own = vars(layer)[key]
        right = own.keys() == held[key].keys()
        _expect(right, where, f"expected the tensors {list(own)}, got {list(held[key])}")
        for name, tensor in held[key].items():
            size, wanted = (None if t is None else tuple(t.shape) for t in (tensor, own[name]))
            _expect(size == wanted, where, f"expected {name} of shape {wanted}, got {size}")
            own[name] = tensor
    return layer


def _laid_out(tensor: Tensor, strides: Any, where: str) -> Tensor:
    """A copy of the tensor with these strides, between which there are no gaps."""
    if strides is None:
        return tensor.clone()
    right = isinstance(strides, list) and all(type(s) is int and 0 < s < 2**62 for s in strides)
    _expect(right and len(strides) == tensor.ndim, where, f"expected strides, got {strides!r}")
    step = 1
    for stride, n in sorted(zip(strides, tensor.shape, strict=True)):
        if n > 1:
            _expect(stride == step, where, f"expected strides without gaps, got {strides}")
            step *= n
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def _decode(value: Any, where: str, depth: int = 0) -> Any:
    _expect(depth <= _DEPTH, where, "its values are nested too deep")
    inner: Callable[[Any], Any] = functools.partial(_decode, where=where, depth=depth + 1)
    if isinstance(value, list):
        return [inner(v) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items() if len(value) == 1 else ((None, None),)
    if kind == "tuple" and isinstance(content, list):
        return tuple(inner(v) for v in content)
    if kind == "dict" and isinstance(content, list):
        pairs = [inner(pair) for pair in content]
        if all(isinstance(p, list) and len(p) == 2 for p in pairs):
            with contextlib.suppress(TypeError):  # a list as a name
                return dict(pairs)
    if kind == "float" and content in ("nan", "inf", "-inf"):
        return float(content)
    if kind == "dtype" and isinstance(content, str) and content in _DTYPES:
        return _DTYPES[content]
    raise ValueError(f"{where}: expected a plain value, got {str(value)[:80]}.")


def _check(part: nn.Module, where: str) -> None:
    """What constructors would refuse."""
    try:
        if isinstance(part, Bijection):
            for shape in (part.shape, part.out_shape):
                right = isinstance(shape, tuple) and all(type(n) is int and n > 0 for n in shape)
                if not right or math.prod(shape) != part.dim:
                    raise ValueError(f"expected a shape of {part.dim} numbers, got {shape}")
        if isinstance(part, Operator) and not all(type(n) is int for n in part.shape):
            raise ValueError(f"expected a shape of two numbers, got {part.shape}")
        if isinstance(part, Chain):
            Chain(*part)
        elif isinstance(part, Space):
            Space(part.g)
        elif isinstance(part, Linearizer):
            Linearizer(part.source, part.operator, part.target)
    except Exception as problem:
        raise ValueError(f"{where} is not whole: {_first_line(problem)}.") from None


@torch.no_grad()
def _problem(root: nn.Module) -> str | None:
    """What goes wrong with no points at all, which shows sizes that differ and costs nothing."""
    training = [m for m in root.modules() if m.training]
    try:
        root.eval()
        for part in _try(root):
            like = next(
                (t for t in (*part.parameters(), *part.buffers()) if t.is_floating_point()),
                torch.zeros(()),
            )
            if isinstance(part, Bijection):
                part.inverse(part(like.new_zeros(0, *part.shape)))
            elif part.batch is None:
                size = part(like.new_zeros(0, part.shape[1])).shape
                if size != (0, part.shape[0]):
                    return f"a core of shape {part.shape} gives {tuple(size)}"
    except Exception as problem:
        return _first_line(problem)
    finally:
        for module in training:
            module.training = True
    return None


def _try(root: nn.Module) -> Iterator[Bijection | Operator]:
    whole: list[Any] = [m.g for m in root.modules() if isinstance(m, Space)]
    whole += [m.operator for m in root.modules() if isinstance(m, Linearizer)]
    for part in whole or [root]:
        size = part.dim if isinstance(part, Bijection) else 0
        size = max(part.shape) if isinstance(part, Operator) else size
        if 0 < size <= _TRIED:
            yield part


def _expect(right: bool, where: str, what: str) -> None:
    if not right:
        raise ValueError(f"{where}: {what}.")


def _first_line(problem: Exception) -> str:
    text = " ".join(str(problem).split("\n")[0].split()).rstrip(".")
    return text[:200] or type(problem).__name__
