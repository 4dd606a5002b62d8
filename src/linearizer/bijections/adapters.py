r"""Bijections of zuko, FrEIA, normflows and nflows as ours: z = flatten(peer(x)).

Nothing is imported from a peer: its objects are recognised by their classes. Their parameters are
registered, so that they train, save and move with the rest. What a peer must be:

- One fixed function with an exact inverse. Dropout, batch norm, sampling layers and inverses that
  hold only approximately are refused. Peers that invert by iteration (zuko's CNF, NAF and other
  bisections) come back to their own tolerance, which is theirs to set.
- Onto: coordinates are added and scaled, so all of ℝ^dim must come back. A last layer like a
  sigmoid takes that away; so do zuko's softclip between layers and the bounded bisection of GF.
- Without conditions: g sees x only.

The peers' ActNorm sets itself from the first batch that passes, in normflows and FrEIA even from
an inverse pass. Call ``g.initialize(data)`` before anything else: it runs data forward once.
"""

from __future__ import annotations

import abc
import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Transform

from ..nets import refuse_mode_dependent
from .base import Bijection

__all__ = ["from_freia", "from_nflows", "from_normflows", "from_zuko"]

#: Layers of the peers that depend on the batch, that sample, or whose inverse is approximate.
_INEXACT = {
    "BatchNorm",
    "HamiltonianMonteCarlo",
    "IResNetLayer",
    "InvAutoConv2D",
    "InvAutoFC",
    "MetropolisHastings",
    "OrthogonalTransform",
    "iResBlock",
}


def from_zuko(transform: Any, shape: tuple[int, ...]) -> Bijection:
    r"""z = t(flatten(x)), t a transform of zuko or of ``torch.distributions``.

    A lazy transform is built again at each call, so that gradients reach its parameters. A bare
    one is used as it is and has no parameters to train.

    Arguments:
        transform: A zuko Flow (its ``transform`` is taken), a lazy transform, or a Transform.
        shape: Of the data. Transforms act on the last axis, so they see (batch, dim).

    Example:
        >>> g = from_zuko(torch.distributions.AffineTransform(1.0, 2.0), (2, 3))
        >>> z, log_det = g.with_log_det(torch.zeros(4, 2, 3))
        >>> torch.equal(z, torch.ones(4, 6)), torch.allclose(log_det.exp(), torch.tensor(64.0))
        (True, True)
    """
    if isinstance(transform, nn.Module):
        if hasattr(transform, "transform") and hasattr(transform, "base"):
            transform = transform.transform
        _refuse_inexact(transform, "from_zuko")
    built = _build_zuko(transform)
    if not built.bijective or built.domain.event_dim > 1:
        raise ValueError(
            "from_zuko: expected a bijective transform of vectors (it sees flattened data), got "
            f"{type(built).__name__} with bijective={built.bijective} and event_dim="
            f"{built.domain.event_dim}. Leave out what folds or reshapes."
        )
    size = (math.prod(shape),)
    if transform is built:
        peer_shape = tuple(built.forward_shape(torch.Size(size)))
    else:
        peer_shape = _try("from_zuko", built, transform, size)
    return ZukoBijection(transform, shape, peer_shape)


def from_freia(inn: Any, shape: tuple[int, ...]) -> Bijection:
    r"""z = flatten(inn(x)), inn a network or a single module of FrEIA.

    Arguments:
        inn: SequenceINN, GraphINN with one input and one output, or an InvertibleModule.
        shape: Of the data, which the network sees as it is: images stay images.
    """
    _require(inn, "FrEIA", "from_freia", "a SequenceINN, GraphINN or InvertibleModule")
    _refuse_inexact(inn, "from_freia")
    if inn.dims_c or any(c is not None for c in getattr(inn, "conditions", [])):
        raise ValueError(
            f"from_freia: expected a network without conditions, got {type(inn).__name__} with "
            "some. g sees x only: build it without, and let the operator carry the condition."
        )
    shape = tuple(shape)
    inputs, outputs = _freia_shapes(inn, shape)
    if inputs != [shape] or len(outputs) != 1:
        raise ValueError(
            f"from_freia: expected a network from one tensor of shape {shape} to one tensor, got "
            f"{type(inn).__name__} from {inputs} to {outputs}. Give the shape that it was built "
            "for, and join several outputs by Flatten and Concat."
        )
    return FreiaBijection(inn, shape, outputs[0])


def from_normflows(flow: Any, shape: tuple[int, ...]) -> Bijection:
    r"""z = flatten(flow⁻¹(x)): g is their ``inverse``, from data to latents, g⁻¹ their ``forward``.

    Autoregressive flows are slow in one of the two directions, and with this choice
    ``MaskedAffineAutoregressive`` is slow in g; wrap it in their ``Reverse`` to swap.

    Arguments:
        flow: A NormalizingFlow (its flows are taken, not its distributions) or a single Flow.
        shape: Of the data, which the flow sees as it is: images stay images.
    """
    _require(flow, "normflows", "from_normflows", "a NormalizingFlow or a Flow")
    flows = nn.ModuleList([flow])
    if hasattr(flow, "q0") and hasattr(flow, "flows"):
        flows = flow.flows
    pieces = [{"Split": 1, "Merge": -1}.get(type(f).__name__, 0) for f in flows]
    if hasattr(flow, "merges") or sum(pieces) != 0:
        raise ValueError(
            f"from_normflows: expected a flow from one tensor to one, got {type(flow).__name__} "
            "that leaves the data in several (multi-scale). Use one scale, with Squeeze."
        )
    _refuse_inexact(flows, "from_normflows")

    def encode(x: Tensor) -> Tensor:
        return NormflowsBijection(copy.deepcopy(flows), shape, shape)._encode(x)[0]

    return NormflowsBijection(flows, shape, _try("from_normflows", encode, flows, shape))


def from_nflows(transform: Any, shape: tuple[int, ...]) -> Bijection:
    r"""z = flatten(t(x)), t a transform of nflows, in their direction from data to noise.

    Arguments:
        transform: A Transform, or a Flow, whose transform is taken.
        shape: Of the data, which the transform sees as it is: images stay images.
    """
    _require(transform, "nflows", "from_nflows", "a Transform or a Flow")
    if hasattr(transform, "_transform") and hasattr(transform, "_distribution"):
        transform = transform._transform
    _refuse_inexact(transform, "from_nflows")

    def encode(x: Tensor) -> Tensor:
        return copy.deepcopy(transform)(x)[0]

    return NflowsBijection(transform, shape, _try("from_nflows", encode, transform, shape))


class _Adapter(Bijection):
    """What the four share: flat coordinates outside, the peer's own shapes inside.

    An empty batch never reaches the peer: many fail on it, and an ActNorm would become NaN.
    """

    peer: Any

    def __init__(self, peer: Any, shape: tuple[int, ...], peer_shape: tuple[int, ...]) -> None:
        super().__init__(shape, (math.prod(shape),))
        if math.prod(peer_shape) != self.dim:
            raise ValueError(
                f"{type(self).__name__}: expected the peer to keep the {self.dim} numbers of "
                f"{self.shape}, but it gives {peer_shape}. Check the size that it was built for."
            )
        self.peer = peer
        self.peer_shape = tuple(peer_shape)

    @abc.abstractmethod
    def _encode(self, x: Tensor) -> tuple[Tensor, Tensor | float]:
        """The peer's own z and log |det|."""

    @abc.abstractmethod
    def _decode(self, z: Tensor) -> Tensor:
        """The peer's own x."""

    def forward(self, x: Tensor) -> Tensor:
        return self._encode(x.contiguous())[0].flatten(1) if len(x) else x.flatten(1)

    def inverse(self, z: Tensor) -> Tensor:
        if not len(z):
            return z.reshape(0, *self.shape)
        x = self._decode(z.contiguous().reshape(len(z), *self.peer_shape))
        return x.reshape(len(z), *self.shape)

    def with_log_det(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not len(x):
            return x.flatten(1), x.new_zeros(0)
        z, log_det = self._encode(x.contiguous())
        log_det = log_det.to(z) if isinstance(log_det, Tensor) else z.new_tensor(log_det)
        if log_det.ndim > 1:  # one for each number, from transforms that act on each alone
            log_det = log_det.flatten(1).sum(1)
        return z.flatten(1), log_det.expand(len(z))


class ZukoBijection(_Adapter):
    """See :func:`from_zuko`."""

    def forward(self, x: Tensor) -> Tensor:
        return _build_zuko(self.peer)(x.flatten(1))

    def _encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        transform, x = _build_zuko(self.peer), x.flatten(1)
        if hasattr(transform, "call_and_ladj"):  # zuko adds it to every Transform
            return transform.call_and_ladj(x)
        z = transform(x)
        return z, transform.log_abs_det_jacobian(x, z)

    def _decode(self, z: Tensor) -> Tensor:
        return _build_zuko(self.peer).inv(z)


class FreiaBijection(_Adapter):
    """See :func:`from_freia`."""

    # Haar layers scale their input in place: they are given a copy. jac=False is no option, as
    # SequenceINN then adds the None of some layers to a number.

    def _encode(self, x: Tensor) -> tuple[Tensor, Tensor | float]:
        z, log_det = self.peer((x.clone(),))
        return (z if isinstance(z, Tensor) else z[0]), log_det

    def _decode(self, z: Tensor) -> Tensor:
        x, _ = self.peer((z.clone(),), rev=True)
        return x if isinstance(x, Tensor) else x[0]


class NormflowsBijection(_Adapter):
    """See :func:`from_normflows`."""

    # Their NormalizingFlow sums log-determinants in the default dtype, so we walk its flows.

    def _encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(len(x))
        for flow in reversed(self.peer):
            x, log_det = flow.inverse(x)
            total = total + log_det
        return x, total

    def _decode(self, z: Tensor) -> Tensor:
        for flow in self.peer:
            z, _ = flow(z)
        return z


class NflowsBijection(_Adapter):
    """See :func:`from_nflows`."""

    def _encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.peer(x)

    def _decode(self, z: Tensor) -> Tensor:
        return self.peer.inverse(z)[0]

    def _initialize(self, x: Tensor) -> Tensor:
        training = self.training
        z = self.train()(x)  # their ActNorm sets itself in training only
        self.train(training)
        return z


def _build_zuko(transform: Any) -> Transform:
    if isinstance(transform, Transform):
        return transform
    try:
        built = transform() if isinstance(transform, nn.Module) else transform
    except Exception as error:
        raise TypeError(
            f"from_zuko: expected a lazy transform that is built without a context, but "
            f"{type(transform).__name__} fails with: {error}"
        ) from error
    if not isinstance(built, Transform):
        raise TypeError(
            "from_zuko: expected a zuko Flow, a lazy transform or a Transform, got "
            f"{type(transform).__name__}. Pass the flow's transform."
        )
    return built


def _freia_shapes(
    inn: Any, shape: tuple[int, ...]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Shapes that go in and come out, as FrEIA declares them."""
    if hasattr(inn, "module_list") and hasattr(inn, "shapes"):
        return [tuple(inn.shapes[0])], [tuple(inn.shapes[-1])]
    if hasattr(inn, "global_out_shapes"):
        return [tuple(s) for s in inn.dims_in], [tuple(s) for s in inn.global_out_shapes]
    # A single module holds its dims_in as a list, or as the one shape, or (upsampling) the output.
    dims = [inn.dims_in] if isinstance(inn.dims_in[0], int) else inn.dims_in
    inputs = [tuple(s) for s in dims]
    outputs = [tuple(s) for s in inn.output_dims([shape])] if len(inputs) == 1 else []
    return ([shape] if outputs == inputs else inputs), outputs


def _require(peer: object, package: str, where: str, expected: str) -> None:
    known = any(package in c.__module__.split(".") for c in type(peer).__mro__)
    if not known or not isinstance(peer, nn.Module):
        raise TypeError(
            f"{where}: expected {expected} of {package}, got {type(peer).__name__} of "
            f"{type(peer).__module__}. Use the adapter of its own library."
        )


def _refuse_inexact(peer: nn.Module, where: str) -> None:
    for name, module in peer.named_modules():
        if _INEXACT & {c.__name__ for c in type(module).__mro__}:
            raise ValueError(
                f"{where}: the peer holds {type(module).__name__} at {name or 'its root'!r}, "
                "which is not one fixed function with an exact inverse. Build it without."
            )
    refuse_mode_dependent(peer, where)


def _try(
    where: str, encode: Callable[[Tensor], Any], peer: nn.Module, shape: tuple[int, ...]
) -> tuple[int, ...]:
    """The shape that a peer gives, which it does not declare: two points of (0, 1) are tried.

    ``encode`` must work on a copy of a peer that has an ActNorm to spoil.
    """
    tensors = itertools.chain(peer.parameters(), peer.buffers())
    like = next((t for t in tensors if t.is_floating_point()), torch.zeros(()))
    x = torch.linspace(0.1, 0.9, 2 * math.prod(shape)).to(like).reshape(2, *shape)
    try:
        with torch.no_grad():
            z = encode(x)
    except Exception as error:
        raise ValueError(
            f"{where}: expected a peer that takes data of shape {tuple(x.shape)} and nothing "
            f"else, but it fails with: {str(error) or type(error).__name__}"
        ) from error
    if not isinstance(z, Tensor):
        raise ValueError(
            f"{where}: expected a peer that gives one tensor, got a {type(z).__name__}. "
            "Merge its parts, or use one scale."
        )
    return tuple(z.shape[1:])
