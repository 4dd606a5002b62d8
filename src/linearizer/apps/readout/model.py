r"""What attributes and distill share: data to a few numbers, f(x) = g_y⁻¹(A g_x(x)).

Paper: appendix E (further experiments), which use a rectangular core.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ...bijections import ActNorm, Bijection, Chain, Flatten, encoder, glow, mlp
from ...data.kinds import Data, Part
from ...linearizer import Linearizer
from ...metrics.regression import Affine
from ...nets import Layers, batch_statistics
from ...operators import Dense, LowRank
from ...runs import pictures
from ...spaces import Space
from ...training.draws import Draw
from ...training.settings import Settings
from ..base import Stage

__all__ = [
    "Readout",
    "ReadoutConfig",
    "ReadoutModel",
    "Samples",
    "draw_spectrum",
    "kind_of",
    "linear_config",
]


#: Weight of what a decoder misses.
DECODE = 5.0
#: Least singular value of a core that is settled, as a share of the largest: one that f† in float32
#: does not yet take for zero.
LEAST = 3e-3
#: Samples among which pixels that never change are looked for.
SEEN = 20_000


class ReadoutConfig(Settings):
    """Settings of the two g and of how g_x is trained besides."""

    shape: tuple[int, ...] = Field((1, 8, 8), description="of the data, (C, H, W) or (dim,)")
    g: Literal["auto", "encoder", "mlp", "glow"] = Field(
        "auto",
        description="stack on the data; auto is encoder for images above 256 numbers, else mlp",
    )
    net: Literal["auto", "conv", "residual"] = Field(
        "auto", description="network of encoder; auto is residual from 32×32 in colour on"
    )
    mirror: bool = Field(False, description="residual networks see images and mirrored ones")
    blocks: int = Field(6, ge=1, description="blocks of mlp and glow")
    hidden: int | None = Field(
        None,
        ge=1,
        description="width of networks on the data; 256 for mlp, 16 for glow, 32 for encoder",
    )
    extra: int = Field(
        0, ge=0, description="coordinates of encoder beside the outputs: principal axes of the data"
    )
    decoder_hidden: int = Field(16, ge=1, description="channels of the decoder of encoder")
    output_blocks: int = Field(2, ge=0, description="blocks on the outputs; 0 for scales alone")
    output_hidden: int = Field(64, ge=1, description="width of the conditioners on the outputs")
    noise: float = Field(0.05, ge=0, description="added to the data of mlp and glow")
    likelihood: float = Field(1.0, ge=0, description="weight of −log p(x)/dim of mlp and glow")
    decode: float = Field(
        DECODE,
        ge=0,
        description=f"weight of what the decoder misses, ‖w‖²/dim; 0 leaves it to refine, with "
        f"{DECODE:g}",
    )
    decode_every: int = Field(
        4, ge=1, description="the decoder learns from every such sample: it is the slowest part"
    )
    refine: int = Field(
        0, ge=0, description="steps of a second stage that trains the decoder of encoder alone"
    )
    agree: float = Field(
        0.0, ge=0, description="weight of how far the network is from what the decoder was given"
    )
    spread: float = Field(
        0.1,
        gt=0,
        description="deviation of the finest waves of the data, which encoder adds to",
    )
    pixels: bool = Field(
        False,
        description="add to pixels that never change instead of waves, if there are enough of them",
    )
    save_memory: bool = Field(False, description="activation memory constant in depth")


C = TypeVar("C", bound=ReadoutConfig)


class Samples(NamedTuple):
    """A batch of samples, and their labels or the outputs that are wanted of them."""

    x: Tensor  #: (n, \*shape)
    y: Tensor


class ReadoutModel(nn.Module, abc.ABC):
    """A model that reads numbers from data: ``model()`` is the Linearizer from data to numbers."""

    config: Any
    read: Readout
    #: Mean scores of the images of each class, or without and with each attribute.
    typical: Tensor
    #: Whether the outputs are log-odds.
    logits: bool = False

    @property
    @abc.abstractmethod
    def output_names(self) -> list[str]:
        """Names of the outputs."""

    @property
    @abc.abstractmethod
    def output_kind(self) -> str:
        """What the outputs are: "classes" (one holds), "attributes" (any hold) or "numbers"."""

    def forward(self) -> Linearizer:
        return self.read()


class Readout(nn.Module):
    r"""``model()`` is the Linearizer from data to ``outputs`` numbers.

    With ``encoder`` as g_x the core sees the coordinates u alone, of which the first are a network
    of the data; :meth:`settle` makes u uncorrelated and of variance 1 after training. Then f†(y) is
    the most likely point for y, if u is Gaussian.

    Arguments:
        config: Settings.
        outputs: How many numbers.
        first: The network of ``encoder``, if it is not to be one that the settings tell.
    """

    def __init__(self, config: ReadoutConfig, outputs: int, first: nn.Module | None = None) -> None:
        super().__init__()
        self.config, self.outputs = config, outputs
        self.source = Space(_build_source(config, outputs, first))
        last = ActNorm((outputs,))
        self.target = Space(
            Chain(*mlp(outputs, config.output_blocks, config.output_hidden), last)
            if outputs > 1 and config.output_blocks
            else last
        )
        self.width = outputs + config.extra if self.encodes else self.source.dim
        core = (
            torch.eye(outputs, self.width)
            if self.encodes
            else torch.randn(outputs, self.width) / self.width**0.5
        )
        self.weight = nn.Parameter(core)

    @property
    def encodes(self) -> bool:
        """Whether g_x is ``encoder``."""
        return kind_of(self.config) == "encoder"

    def forward(self) -> Linearizer:
        if not self.encodes:
            return Linearizer(self.source, Dense(self.weight), self.target)
        V = F.pad(self.weight.mT, (0, 0, 0, self.source.dim - self.width))
        eye = torch.eye(self.outputs, dtype=V.dtype, device=V.device)
        return Linearizer(self.source, LowRank(eye, V), self.target)

    @property
    def separate(self) -> bool:
        """Whether each output has a row of the core for itself: g_y only shifts and scales."""
        return isinstance(self.target.g, ActNorm)

    def only(self, index: Sequence[int]) -> Linearizer:
        r"""Return the map to some of the outputs, S f: its f† asks nothing of the others."""
        if not isinstance(self.target.g, ActNorm):
            raise ValueError(
                "only: g_y mixes the outputs, so that none of them has a row of A for itself. "
                "Train with output_blocks = 0."
            )
        g, chosen = ActNorm((len(index),)).to(self.weight), list(index)
        with torch.no_grad():
            g.mean.copy_(self.target.g.mean[chosen])
            g.log_scale.copy_(self.target.g.log_scale[chosen])
            g.initialized.copy_(self.target.g.initialized)
        A = self().operator
        rows = LowRank(A.U[chosen], A.V) if isinstance(A, LowRank) else Dense(self.weight[chosen])
        return Linearizer(self.source, rows, Space(g))

    def outputs_of(self, x: Tensor) -> Tensor:
        """Return f(x) without the coordinates that the core does not see: no decoder has to run."""
        if not self.encodes:
            return self()(x)
        waves, encode, _, last = self._layers()
        u = encode(waves(x))[:, : self.width]
        return self.target.points(Dense(self.weight)(last.g(u)))

    @torch.no_grad()
    def find_pixels(self, part: Part) -> None:
        """Tell the encoder which pixels never change, from up to 20,000 samples."""
        if not self.encodes or not self.config.pixels:
            return
        waves, *_ = self._layers()
        index = torch.linspace(0, len(part) - 1, min(len(part), SEEN), dtype=torch.float64).long()
        first = part.batch(index[:1]).x
        unused = torch.ones(first.shape[1:], dtype=torch.bool)
        for some in index.split(500):
            unused &= (part.batch(some).x == first).all(0)
        waves.take_pixels(unused)

    def initialize(self, x: Tensor, y: Tensor) -> None:
        """Set what depends on data in both g, from data and wanted outputs with a little noise."""
        draw = Draw(0)
        if self.encodes:
            waves, encode, *_ = self._layers()
            z = waves.initialize(x)(x)
            for eigen in list(encode.conditioner.net.nets)[1:]:
                eigen.initialize(encode.conditioner.image(z[:, self.width :]))
        else:
            noise = (0.01 * _deviation(x)).clamp_min(self.config.noise)
            self.source.g.initialize(x + noise * draw.normal(x))
        self.target.g.initialize(y + 0.1 * _deviation(y) * draw.normal(y))
        if self.encodes and isinstance(first := encode.conditioner.net.nets[0], Layers):
            first.initialize(waves.mean, self.target.g)  # a fresh g is affine

    def _layers(self) -> list[Any]:
        return list(cast(Chain, self.source.g))

    def terms(self, x: Tensor, draw: Draw) -> tuple[Tensor, dict[str, Tensor]]:
        r"""Return f(x), and the terms that g_x is trained for besides.

        encoder: decode·‖w‖²/dim, where the decoder takes what the outputs v say as it is. And
        agree·‖E(D(v, u)) − v‖²/outputs: what is asked for is to be seen in the image.
        mlp, glow: likelihood·(−log p(x)/dim), p the Gaussian pulled back through g_x, which makes
        g_x⁻¹ of coordinates near the data's look like data.
        """
        c = self.config
        if not self.encodes:
            x = x + c.noise * draw.normal(x) if c.noise else x
            if not c.likelihood:
                return self()(x), {}
            z, log_det = self.source.g.with_log_det(x)
            unlikely = (0.5 * z.square().sum(1) - log_det).mean() / self.source.dim
            y = self.target.points(Dense(self.weight)(z))
            return y, {"-log p": c.likelihood * unlikely}
        # The layers by hand: only some samples take the way through the decoder, the slowest part.
        waves, encode, _, last = self._layers()
        z = waves(x)
        image = encode.conditioner.image(z[:, self.width :])
        settled = bool(last.g.initialized)
        first = encode.conditioner.net.nets[0]
        with nullcontext() if settled else batch_statistics(first):
            read = z[:, : self.outputs] + first(image)
        if settled:  # the outputs take all of u
            y = self.outputs_of(x)
        else:
            y = self.target.points(Dense(self.weight[:, : self.outputs])(read))
        if not c.decode:
            return y, {}
        # By place in the whole batch, so that several processes take the samples that one would.
        some = ((torch.arange(len(x)) + draw.start) % c.decode_every == 0).to(x.device)
        share = c.decode_every / len(x)
        return y, self._decode(z[some], image[some], read[some].detach(), share)

    def decoder_terms(self, x: Tensor) -> dict[str, Tensor]:
        """Return what the decoder alone is trained for."""
        with torch.no_grad():
            waves, encode, *_ = self._layers()
            z = waves(x)
            image = encode.conditioner.image(z[:, self.width :])
            read = z[:, : self.outputs] + encode.conditioner.net.nets[0](image)
        return self._decode(z, image, read, 1 / len(x))

    def _decode(self, z: Tensor, image: Tensor, read: Tensor, share: float) -> dict[str, Tensor]:
        c, m, r = self.config, self.outputs, self.width
        _, encode, decode, _ = self._layers()
        first, *eigen = encode.conditioner.net.nets
        own = z[:, m:r] + eigen[0](image) if eigen else z[:, m:r]
        rest = decode(torch.cat([read, own, z[:, r:]], 1))[:, r:]
        missed = share / self.source.dim * rest.square().sum()
        terms = {"decoded": (c.decode or DECODE) * missed}
        if c.agree:
            blank = torch.cat([read, own, torch.zeros_like(rest)], 1)
            drawn = encode.conditioner.image(decode.inverse(blank)[:, r:])
            fixed = {k: p.detach() for k, p in first.named_parameters()}
            seen = torch.func.functional_call(first, fixed, (drawn,))
            terms["agree"] = c.agree * share / m * (seen - read).square().sum()
        return terms

    def decoder_stage(
        self, data: Data, augment: Callable[[Tensor, Draw], Tensor] = lambda x, draw: x
    ) -> Stage | None:
        """Return a second stage that trains the decoder, with the network of the outputs fixed."""
        if not self.encodes or not self.config.refine:
            return None
        _, _, decode, _ = self._layers()
        part = decode.conditioner.net

        def decoder_loss(part: nn.Module, batch: Any, draw: Draw) -> dict[str, Tensor]:
            return self.decoder_terms(augment(batch.x, draw))

        settings = {"batch": 32, "rate": 2e-3, "weight_decay": 0.0, "ema": 0.995}
        steps = {"steps": self.config.refine}
        return Stage("decoder", part, decoder_loss, data.train, {**settings, **steps})

    def check(self, data: Data) -> None:
        """Refuse before training what could not be settled after it."""
        if self.encodes and len(data.train) <= self.width:
            raise ValueError(
                f"training: expected more images than outputs and extra coordinates "
                f"({self.width}), got {len(data.train)}. Give more images, or a smaller extra."
            )

    @torch.no_grad()
    def settle(self, part: Part, count: int = 20_000) -> None:
        r"""Turn and scale u to mean 0 and covariance I on the data, with f as it was.

        u = L z + μ makes A u = (A L) z + A μ; A μ goes into the last layer on the outputs. Singular
        values of A below 0.003 of the largest become that, so that f† is well conditioned.
        """
        if not self.encodes:
            return
        layers = self._layers()
        last = layers[3].g
        r = self.width
        u = torch.cat([Chain(*layers[:3])(x)[:, :r] for x in self.read_batches(part, count)])
        if bool(last.initialized):  # as when a settled model is rounded: undo, then set anew
            self._absorb(last, back=True)
            last.initialized.fill_(False)
        last.initialize(u)
        self._absorb(last)
        self.weight.copy_(_raise_least(self.weight))

    @torch.no_grad()
    def become(self, affine: Affine) -> None:
        """Take an affine map of the data as f; both g are as they were made, so affine.

        Singular values below 0.003 of the largest become that, as in :meth:`settle`.
        """
        like = self.weight
        g, norm = self.source.double(), cast(ActNorm, self.target.g)
        zero, scale = like.new_zeros(1, self.width).double(), torch.exp(-norm.log_scale.double())
        start = affine(g.points(zero))
        columns = [
            affine(g.points(F.one_hot(part, self.width).double())) - start
            for part in torch.arange(self.width).split(256)
        ]
        self.weight.copy_(_raise_least(torch.cat(columns).mT / scale[:, None]))
        norm.mean.copy_(start[0])
        self.source.to(like.dtype)

    def _absorb(self, last: Any, back: bool = False) -> None:
        """Put the inverse of the last layer into the core and g_y, or take it out again."""
        A = self.weight.double()
        L = last.double()
        eye = torch.eye(self.width, dtype=torch.float64, device=A.device)
        # Rows of ``points`` are g⁻¹(e_i), so that A L has the columns A (g⁻¹(e_i) − g⁻¹(0)).
        centre = L.inverse(torch.zeros_like(eye[:1]))
        columns = L.inverse(eye) - centre
        end = self.target.g
        norm = cast(ActNorm, list(end)[-1] if isinstance(end, Chain) else end)
        if back:
            A = torch.linalg.solve(columns, A.mT).mT
        shift = (A @ centre[0]) * torch.exp(-norm.log_scale.double())
        if not back:
            A = A @ columns.mT
        self.weight.copy_(A)
        norm.mean.copy_(norm.mean.double() + (-shift if back else shift))
        last.to(self.weight.dtype)

    def read_batches(self, part: Part, count: int, batch: int = 500) -> Iterator[Tensor]:
        """Yield the first ``count`` samples in batches, in the dtype of the model."""
        for index in torch.arange(min(count, len(part))).split(batch):
            yield part.batch(index).x.to(self.weight)


def _raise_least(A: Tensor) -> Tensor:
    """Raise singular values below LEAST of the largest: f† would make rounding large there."""
    U, S, Vh = torch.linalg.svd(A.double(), full_matrices=False)
    return U @ (S.clamp_min(LEAST * S[0])[:, None] * Vh)


@torch.no_grad()
def draw_spectrum(read: Readout, names: Sequence[str], folder: Path, k: int) -> dict[str, Any]:
    """Draw singular values, and the input directions that matter most with their outputs."""
    f = read()
    k = min(k, *f.operator.shape)
    U = f.operator.svd(k).U
    words = []
    # How the outputs change along each: where g_y mixes them, U does not say it.
    for change in f.target.points(U.mT) - f.target.points(-U.mT):
        strong = change.abs().argsort(descending=True)[:2].tolist()
        signed = [f"{'−' if change[i] < 0 else ''}{names[i]}" for i in strong]
        words.append(f"({', '.join(signed)})")
    reach = 3.0 if read.encodes else None
    result = pictures.draw_spectrum(f, folder, k, reach=reach, notes=words)
    return {**result, "strongest_outputs": words}


def _deviation(x: Tensor) -> Tensor:
    """Return the deviation of each number; for those that never change the median, or 1."""
    std = x.std(0)
    usual = std[std > 0]
    return torch.where(std > 0, std, usual.median() if len(usual) else torch.ones_like(std))


def linear_config(config: C) -> C:
    """Return settings of a model that is affine until it is trained, of any data."""
    shape = config.shape
    image = len(shape) == 3 and min(shape[1:]) >= 4
    image = image and (shape[0] % 2 == 0 or (shape[1] % 2 == 0 == shape[2] % 2))
    g = {"g": "glow" if image else "mlp", "blocks": 1, "hidden": 1, "output_blocks": 0}
    return config.model_copy(update={**g, "net": "auto", "layers": (), "extra": 0, "refine": 0})


def kind_of(config: ReadoutConfig) -> str:
    """Return which stack the data take."""
    if config.g != "auto":
        return config.g
    image = len(config.shape) == 3
    return "encoder" if image and math.prod(config.shape) > 256 else "mlp"


def _build_source(config: ReadoutConfig, outputs: int, first: nn.Module | None) -> Bijection:
    kind, shape = kind_of(config), config.shape
    if kind in ("encoder", "glow") and len(shape) != 3:
        raise ValueError(
            f"{kind}: expected images (C, H, W), got data of shape {shape}. Take g = mlp."
        )
    if math.prod(shape) < 2:
        raise ValueError("readout: expected data of two numbers or more, got single numbers.")
    if kind == "encoder" and outputs + config.extra >= math.prod(shape):
        raise ValueError(
            f"encoder: expected fewer outputs and extra coordinates than an image has numbers "
            f"({math.prod(shape)}), got {outputs + config.extra}. Take larger images, a smaller "
            "extra, or g = mlp."
        )
    if kind == "encoder":
        C, H, W = shape
        net = config.net
        if net == "auto":
            net = "residual" if C == 3 and min(H, W) >= 32 else "conv"
        return encoder(
            (C, H, W),
            outputs,
            config.extra,
            first or net,
            config.hidden or 32,
            config.decoder_hidden,
            config.spread,
            config.mirror,
            config.pixels,
        )
    if kind == "glow":
        C, H, W = shape
        return glow((C, H, W), config.blocks, config.hidden or 16, save_memory=config.save_memory)
    body = mlp(math.prod(shape), blocks=config.blocks, hidden=config.hidden or 256)
    flat = [] if len(shape) == 1 else [Flatten(shape)]
    return Chain(*flat, *body, save_memory=config.save_memory)
