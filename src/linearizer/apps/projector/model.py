r"""The global projector: f(x) = g⁻¹(Λ g(x)) with Λ a diagonal of zeros and ones.

Λ² = Λ, so f(f(x)) = f(x) for every x there is, by architecture.

Paper: section 4.3, figure 7 and appendix G (linear idempotent generative network).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from ...bijections import (
    AffineCoupling,
    Bijection,
    Chain,
    Flatten,
    OnPart,
    PrincipalAxes,
    revnet,
    subspace,
)
from ...data.images import Batch
from ...data.kinds import Data, Part
from ...linearizer import Linearizer
from ...nets import Bottleneck
from ...operators import Diagonal, Projector
from ...runs.pictures import image_grid
from ...spaces import Space
from ...training.draws import Draw
from ...training.settings import Settings
from ..base import Stage, Terms
from ..subspace import Codes, layers_of, negative_log_density, subspace_terms

__all__ = [
    "Config",
    "Projection",
    "complement",
    "draw_strangers",
    "draw_strokes",
    "join",
    "loss",
    "measure",
    "meet",
    "train_density",
]


class Config(Settings):
    """Settings of the model."""

    shape: tuple[int, int, int] = Field((1, 8, 8), description="images, (C, H, W)")
    g: Literal["subspace", "revnet"] = Field("subspace", description="stack on the images")
    rank: int | None = Field(
        None, ge=1, description="directions that Λ keeps, 32 for subspace; revnet learns how many"
    )
    detail: int = Field(
        0, ge=0, description="subspace: further axes for ranks above, of what u leaves of images"
    )
    blocks: int = Field(6, ge=1, description="blocks of the stack (subspace: of the one on u)")
    hidden: int | None = Field(
        None, ge=1, description="subspace: width of E and D; 512 for mlp, 16 channels for conv"
    )
    flow_hidden: int = Field(128, ge=1, description="subspace: width of the stack on u")
    nets: Literal["auto", "mlp", "conv"] = Field("auto", description="subspace: kind of E and D")
    reconstruction: float = Field(1.0, ge=0, description="weight of ‖f(x) − x‖²")
    mean: bool = Field(True, description="revnet: ‖·‖² as a mean over pixels, not a sum")
    sparsity: float = Field(0.75, ge=0, description="revnet: weight of rank/dim")
    isometry: float = Field(0.001, ge=0, description="revnet: weight of |‖g(x) − g(0)‖² − ‖x‖²|")
    warm: bool = Field(
        False, description="revnet: start as the principal axes of the data, sparsity from 0 on"
    )
    freeze: float = Field(
        1.0, ge=0, le=1, description="revnet: share of training after which Λ stays as it is"
    )
    reach: float = Field(
        0.05,
        ge=0,
        description="subspace: squared length of what u leaves of an image, over its numbers, from "
        "which on it counts as far from data and comes to lie nearer to 0; 0 for never",
    )
    likelihood: float = Field(0.1, ge=0, description="subspace: weight of −log p(u)")
    restore: float = Field(0.5, ge=0, description="subspace: weight of ‖f(spoiled x) − x‖²")
    strangers: float = Field(
        3.0, ge=0, description="subspace: weight of what draws other images to where data lie"
    )
    refine: int = Field(
        3000, ge=0, description="subspace: further steps of the likelihood on u, with g fixed"
    )

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, values: Any) -> Any:
        """A revnet has no second stage."""
        if isinstance(values, dict) and values.get("g", "subspace") != "subspace":
            return {**values, "refine": 0}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.g == "revnet" and (self.detail or self.rank is not None):
            raise ValueError('rank and detail need g = "subspace": revnet learns its rank')
        return self


class Projection(nn.Module):
    """``model(rank)`` is the projector of that rank, a Linearizer from images to images."""

    log_noise: Tensor  #: only where g is a subspace
    strength: Tensor
    usual: Tensor
    initialize_samples = 4096

    def __init__(self, config: Config) -> None:
        super().__init__()
        dim = math.prod(config.shape)
        self.config = config
        self.logits: Tensor
        if config.g == "subspace":
            rank = config.rank or min(32, dim // 2)
            self.target = Space(_subspace(config, rank))
            self.register_buffer("logits", torch.where(torch.arange(dim) < rank, 1.0, -1.0))
            self.log_noise = nn.Parameter(torch.full((rank,), -1.5))
        else:
            self.target = Space(_revnet(config))
            self.logits = nn.Parameter(torch.full((dim,), 0.1))  # all kept, but not by much
        # By falling strength the directions follow each other where another rank is asked for.
        self.register_buffer("strength", torch.arange(dim, 0, -1.0) / dim)
        # Percentiles 0 … 100 of the score of held-out data.
        self.register_buffer("usual", torch.zeros(101))

    def forward(self, rank: int | None = None) -> Linearizer:
        r"""Return g⁻¹(Λ g(x)), with Λ as trained or with the ``rank`` strongest directions."""
        X = self.target
        if rank is None:
            return Linearizer(X, Projector(self.logits), X)
        if not 0 <= rank <= self.largest:
            raise ValueError(f"projector: expected 0 ≤ rank ≤ {self.largest}, got {rank}.")
        return self._onto(self.order()[:rank])

    @property
    def largest(self) -> int:
        """The largest rank that can be asked for."""
        c = self.config
        return len(self.log_noise) + c.detail if c.g == "subspace" else self.target.dim

    def order(self) -> Tensor:
        """Return the directions, those that Λ keeps first, and then by falling strength."""
        kept = (self.logits > 0).to(self.strength)
        return (kept * (1 + self.strength.max()) + self.strength).argsort(
            descending=True, stable=True
        )

    @torch.no_grad()
    def onto(self, x: Tensor, rank: int) -> Linearizer:
        r"""Return the projector onto the directions that carry most of these points' norm.

        They are ``rank`` of those that Λ keeps. Two such projectors, for two kinds of points, have
        a :func:`meet` and a :func:`join`.
        """
        kept = self.order()[: int((self.logits > 0).sum())]
        if not 0 <= rank <= len(kept):
            raise ValueError(f"projector: expected 0 ≤ rank ≤ {len(kept)}, got {rank}.")
        energy = torch.cat([self.target.coordinates(p) for p in x.split(500)]).square().mean(0)
        return self._onto(kept[energy[kept].argsort(descending=True, stable=True)[:rank]])

    @torch.no_grad()
    def score(self, x: Tensor, rank: int | None = None) -> Tensor:
        r"""Return ‖(I − Λ) g(x)‖, (n,): how much of each point is not like the data."""
        rest = complement(self(rank)).operator
        return torch.cat([rest(self.target.coordinates(p)).norm(dim=1) for p in x.split(500)])

    @torch.no_grad()
    def inpaint(self, y: Tensor, known: Tensor, steps: int = 20, rank: int | None = None) -> Tensor:
        r"""Return images with the known pixels of y, and the others as the projector has them.

        x ← x ⊕ f†(y ⊖ f(x)) with f the known pixels of x, and x ← P(x), in turn.

        Arguments:
            y: Images, (n, \*shape); their unknown pixels do not matter.
            known: True where a pixel is known; (\*shape), one channel of it, or one for each image.
            steps: How often both are done.
        """
        try:
            known = known.to(torch.bool).expand(y.shape)
        except RuntimeError:
            raise ValueError(
                f"inpaint: expected known as {tuple(self.target.shape)}, one for all images or one "
                f"for each, got {tuple(known.shape)}."
            ) from None
        y, P = torch.where(known, y, 0.0), self(rank)
        pixels = Space(Flatten(self.target.shape))
        f = Linearizer(pixels, Diagonal(known.flatten(1).to(y)), pixels)
        x = y
        for _ in range(steps):
            x = f.back_project(P(x), y)
        return torch.where(known, y, x)

    def _onto(self, directions: Tensor) -> Linearizer:
        logits = torch.full_like(self.strength, -1.0).index_fill(0, directions, 1.0)
        return Linearizer(self.target, Projector(logits), self.target)

    def initialize(self, batch: Batch) -> None:
        """Set principal axes from images."""
        x = batch.x
        if self.config.g == "subspace":
            self.target.g.initialize(x)
        elif self.config.warm:
            *before, axes = layers_of(self)
            y = Chain(*before)(x).detach().double()
            axes.mean.copy_(y.mean(0))
            axes.align(torch.linalg.eigh((y - y.mean(0)).mT @ (y - y.mean(0)))[1].flip(1))

    def _like(self) -> Tensor:
        return self.logits


def _revnet(config: Config) -> Chain:
    if not config.warm:
        return revnet(config.shape, config.blocks)
    _, H, W = config.shape

    def from_zero(inputs: int, outputs: int) -> nn.Module:
        net = Bottleneck(inputs, (H // 2, W // 2))
        last = [m for m in net.modules() if isinstance(m, nn.Linear | nn.ConvTranspose2d)][-1]
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
        return net

    dim = math.prod(config.shape)
    return Chain(*revnet(config.shape, config.blocks, from_zero), PrincipalAxes((dim,), dim))


def _subspace(config: Config, rank: int) -> Chain:
    dim, detail = math.prod(config.shape), config.detail
    if rank + detail >= dim or rank < 2:
        raise ValueError(
            f"projector: expected 2 ≤ rank and rank + detail < {dim}, the images' numbers, "
            f"got {rank} and {detail}. Lower them, or take larger images."
        )
    g = subspace(
        config.shape,
        rank,
        config.hidden,
        config.nets,
        config.blocks,
        config.flow_hidden,
        detail=detail,
        reach=config.reach * dim or None,
    )
    far = AffineCoupling((dim,), _Far(rank, detail, dim), "first", max_log_scale=20.0, cut=rank)
    # Turns u so that its directions come by strength, which is known after training.
    turn = PrincipalAxes((rank,), rank)
    turn.align(torch.eye(rank))
    # Of the detail its axes are enough here.
    return Chain(*list(g)[:5] if detail else g, far, OnPart(turn, dim))


class _Far(nn.Module):
    r"""w ↦ (γ·n, log √(1 − γ²)), n = √dim·R v/‖v‖: where w is long, its direction decides.

    w is what comes after u and the detail, v the same without its part along an even grey, which
    most images share, and R has orthonormal rows, drawn once. With ‖w‖² from κ to 3κ, γ goes from 0
    to 1: z stays as it is near the data, and far from them it is normal if v points anywhere. κ is
    set after training; until then γ = 0.
    """

    R: Tensor
    reach: Tensor
    grey: Tensor

    def __init__(self, rank: int, detail: int, dim: int) -> None:
        super().__init__()
        self.detail = detail
        rest = dim - rank - detail
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(rest, rank, generator=generator, dtype=torch.float64)
        R = torch.linalg.qr(drawn)[0].mT if rest >= rank else F.normalize(drawn.mT, dim=1)
        self.register_buffer("R", R.to(torch.get_default_dtype()))
        self.register_buffer("reach", torch.tensor(1e30))
        self.register_buffer("grey", torch.zeros(rest))  # of length 1, once it is known

    def forward(self, w: Tensor) -> Tensor:
        w = w[:, self.detail :]
        length = w.square().sum(1, keepdim=True)
        t = ((length / self.reach).clamp_min(1e-30).log() / math.log(3.0)).clamp(0, 1)
        mix = 0.9999 * t * t * (3 - 2 * t)
        v = w - (w @ self.grey)[:, None] * self.grey
        n = (v @ self.R.mT) * (v.shape[1] / v.square().sum(1, keepdim=True).clamp_min(1e-12)).sqrt()
        return torch.cat([mix * n, (0.5 * (1 - mix * mix).log()).expand_as(n)], 1)


def _align(f: Linearizer, h: Linearizer, what: str) -> tuple[Projector, Projector]:
    P, Q = f.operator, h.operator
    if f.source is not h.source or f.source is not f.target or h.source is not h.target:
        raise ValueError(f"{what}: expected two projectors of one Space. Take both from one model.")
    if not isinstance(P, Projector) or not isinstance(Q, Projector):
        raise ValueError(f"{what}: expected two cores of zeros and ones on the diagonal.")
    return P, Q


def complement(f: Linearizer) -> Linearizer:
    """Return I − f: what an input has that the range of f has not."""
    P, _ = _align(f, f, "complement")
    return Linearizer(f.source, P.complement(), f.target)


def meet(f: Linearizer, h: Linearizer) -> Linearizer:
    """Return the projector onto what both ranges share."""
    P, Q = _align(f, h, "meet")
    return Linearizer(f.source, P.meet(Q), f.target)


def join(f: Linearizer, h: Linearizer) -> Linearizer:
    """Return the projector onto the span of both ranges."""
    P, Q = _align(f, h, "join")
    return Linearizer(f.source, P.join(Q), f.target)


# -- losses -------------------------------------------------------------------------------------


def loss(model: Projection, batch: Batch, draw: Draw) -> Terms:
    r"""Return the paper's three terms, or those of a subspace.

    revnet: ‖f(x) − x‖², rank(Λ)/dim with the gradient of the probabilities, and
    |‖g(x) − g(0)‖² − ‖x‖²|.

    subspace: those of the flow (reconstruction under learned noise, and likelihood), and

    - restored: ‖x̂(u) − x‖² for images spoiled by noise, gaps, strokes, contrast
    - strangers: coordinates of other drawings as far out as those of data
    """
    c, x = model.config, batch.x
    if c.g == "revnet":
        return _paper_terms(model, x, draw)
    terms, _ = subspace_terms(model, x, draw)
    if not c.restore and not c.strangers:
        return terms
    axes, encode, decode, last, *_ = layers_of(model)
    # By place in the whole batch, so that the loss does not depend on how the batch is cut.
    place = torch.arange(draw.start, draw.start + len(x), device=x.device) % 4
    clean = x[place < 2]
    faulty, other = spoil(x, draw)[place < 2], draw_strokes(x, draw, 3)[place == 2]
    n = len(clean)
    with torch.no_grad():
        start, wanted = axes(torch.cat([faulty, other])), axes(clean)
    # u is known after the first coupling, and D only brings the rest back.
    r = len(model.log_noise)
    u = encode(start)[:, :r]
    blank = torch.zeros_like(wanted[:, r:])
    gap = encode.inverse(decode.inverse(torch.cat([u[:n], blank], 1))) - wanted
    far = last.g(u[n:]).square().mean(1).clamp_min(1e-6).log()
    # Sums over a set number of places: a quarter of them, or a half.
    terms["restored"] = c.restore * axes.lengths(gap).sum() * 2 / len(x)
    terms["strangers"] = c.strangers * far.square().sum() * 4 / len(x)
    return terms


def _paper_terms(model: Projection, x: Tensor, draw: Draw) -> Terms:
    c, g, logits = model.config, model.target.g, model.logits
    if draw.done >= c.freeze:
        with torch.no_grad():  # out of reach of what is left of the optimiser's momentum
            logits.copy_(torch.where(logits > 0, 1.0, -1.0) * logits.abs().clamp_min(0.1))
        logits = logits.detach() + 0 * logits  # a gradient of zero
    diagonal = Projector(logits).diagonal
    z = g(x)
    gap = (g.inverse(z * diagonal) - x).flatten(1).square()
    sparsity = c.sparsity * min(1.0, draw.done / 0.5) if c.warm else c.sparsity
    terms = {
        "reconstruction": c.reconstruction * (gap.mean() if c.mean else gap.sum(1).mean()),
        "sparsity": sparsity * diagonal.mean(),
    }
    if c.isometry:
        zero = g(torch.zeros_like(x[:1]))
        lengths = (z - zero).square().sum(1) - x.flatten(1).square().sum(1)
        terms["isometry"] = c.isometry * lengths.abs().mean()
    return terms


# -- images that are not data -------------------------------------------------------------------


def draw_noise(like: Tensor, draw: Draw) -> Tensor:
    """Draw Gaussian noise, each image at a size of its own between 0.3 and 10."""
    size = 10 ** (1.5 * draw.uniform(like[:, :1, :1, :1]) - 0.5)
    return size * draw.normal(like)


def spoil(x: Tensor, draw: Draw) -> Tensor:
    """Return each image with one fault: noise, a gap, a stroke, or another contrast."""
    kind = (4 * draw.uniform(x[:, :1, :1, :1])).floor()
    a = draw.uniform(x[:, :1, :1, :1])
    contrast = 0.3 + 1.7 * a
    faults = [
        x + 0.4 * a * draw.normal(x),
        x * ~_box(x, draw),
        torch.maximum(x, draw_strokes(x, draw, 1)),
        x * contrast,
    ]
    out = x
    for i, fault in enumerate(faults):
        out = torch.where(kind == i, fault, out)
    return out


def draw_strangers(x: Tensor, draw: Draw) -> Tensor:
    """Draw images of other kinds: uniform noise, shuffled pixels, clouds, strokes, one shade."""
    kind = (5 * draw.uniform(x[:, :1, :1, :1])).floor()
    order = draw.uniform(x[:, 0].flatten(1)).argsort(1)
    shuffled = x.flatten(2).gather(2, order[:, None].expand(-1, x.shape[1], -1)).reshape_as(x)
    coarse = draw.normal(x[:, :, :4, :4])
    clouds = 0.5 + 0.5 * F.interpolate(coarse, x.shape[2:], mode="bilinear", align_corners=False)
    others = [
        draw.uniform(x),
        shuffled,
        clouds,
        draw_strokes(x, draw, 3),
        draw.uniform(x[:, :1, :1, :1]).expand_as(x),
    ]
    out = others[0]
    for i, other in enumerate(others[1:], 1):
        out = torch.where(kind == i, other, out)
    return out


def draw_strokes(like: Tensor, draw: Draw, count: int) -> Tensor:
    """Draw bright bent lines on black, (n, C, H, W)."""
    n, _, H, W = like.shape
    ends = 0.1 + 0.8 * draw.uniform(like.new_empty(n, count, 3, 2))
    s = torch.linspace(0, 1, 16, dtype=like.dtype, device=like.device)
    weights = torch.stack([(1 - s) ** 2, 2 * s * (1 - s), s**2], 1)  # a Bézier curve
    points = (weights @ ends).flatten(1, 2)  # (n, 16·count, 2)
    rows = (torch.arange(H, dtype=like.dtype, device=like.device) + 0.5) / H
    columns = (torch.arange(W, dtype=like.dtype, device=like.device) + 0.5) / W
    gaps = (points[:, :, 0, None, None] - rows[:, None]).square() + (
        points[:, :, 1, None, None] - columns
    ).square()
    thick = 0.03 + 0.03 * draw.uniform(like[:, 0, :1, :1])
    return ((1.5 - gaps.amin(1).sqrt() / thick).clamp(0, 1)[:, None]).expand_as(like)


def _box(x: Tensor, draw: Draw) -> Tensor:
    """Choose a rectangle in each image, of up to half its sides, (n, 1, H, W)."""
    H, W = x.shape[2:]
    u = draw.uniform(x.new_empty(len(x), 4))[:, :, None]
    inside = []
    for start, size, n in ((u[:, 0], u[:, 1], H), (u[:, 2], u[:, 3], W)):
        place = (torch.arange(n, dtype=x.dtype, device=x.device) + 0.5) / n
        middle, half = 0.15 + 0.7 * start, 0.1 + 0.2 * size
        inside.append((place - middle).abs() < half)
    return (inside[0][:, :, None] & inside[1][:, None, :])[:, None]


# -- after the first stage ----------------------------------------------------------------------


@torch.no_grad()
def train_density(model: Projection, data: Data) -> Stage | None:
    r"""Return the stage that trains the density of u + σε alone, on codes that no longer move.

    After it, normal coordinates are those of data.
    """
    c = model.config
    if c.g != "subspace" or not c.refine:
        return None
    axes, encode, _, last, *_ = layers_of(model)
    noise = model.log_noise.detach().exp()
    u = _coordinates(Chain(axes, encode), data.train, len(data.train))[:, : len(noise)].clone()

    def unlikely(g: Bijection, batch: tuple[Tensor], draw: Draw) -> Terms:
        u = batch[0]
        return {"-log p": negative_log_density(g, u + noise.to(u) * draw.normal(u))[0].mean()}

    return Stage(
        "density", last.g, unlikely, Codes(u), {"steps": c.refine, "batch": 512, "rate": 2e-3}
    )


@torch.no_grad()
def measure(model: Projection, batch: Batch, draw: Draw) -> Terms:
    """Return for each image the PSNR of f(x), and the rank of Λ."""
    back = model()(batch.x)
    error = (back - batch.x).flatten(1).square().mean(1)
    return {
        "psnr": -10 * error.clamp_min(1e-12).log10(),
        "rank": (model.logits > 0).sum().expand(len(error)).to(error),
    }


@torch.no_grad()
def finish(model: Projection, data: Data) -> None:
    r"""Order the directions by how much of the data they carry.

    The strength of direction i is E‖∂x/∂zᵢ‖²·E[zᵢ²]. For that u is turned to the principal axes of
    E[JᵀJ], J = ∂g⁻¹/∂u, and the detail takes those of what D leaves.
    """
    g, c = model.target.g, model.config
    if c.g == "revnet":
        model.strength.copy_(_coordinates(g, data.train, 4000).square().mean(0))
        model.logits.copy_(torch.where(model.logits > 0, 1.0, -1.0))
    else:
        _sort_directions(model, data)
    x = data.val.batch(torch.arange(min(len(data.val), 2000))).x.to(model._like())
    model.usual.copy_(model.score(x).quantile(torch.linspace(0, 1, 101).to(x)))


def _sort_directions(model: Projection, data: Data) -> None:
    """Turn u and set the axes of the detail, so that the directions of a subspace come in order."""
    g, c, layers = model.target.g, model.config, layers_of(model)
    r = len(model.log_noise)
    layers[-1].g.align(torch.eye(r))
    lengths = torch.ones_like(model.strength)  # of a unit of each coordinate, in pixels
    axes, far = layers[0], layers[-2].conditioner
    grey = axes.turn(torch.ones_like(axes.mean)[None])[:, r:]
    if c.detail:
        own = layers[4].g
        own.initialized.fill_(False)
        own.initialize(_coordinates(Chain(*layers[:3]), data.train, 8192)[:, r:])
        lengths[r : r + c.detail] = own.scale
        grey = own.turn(grey)[:, c.detail :]
    far.grey.copy_(F.normalize(grey[0], dim=0))
    # As far as what can still be restored.
    x = data.val.batch(torch.arange(min(len(data.val), 2000))).x.to(model._like())
    rest = Chain(*layers[:-2])(spoil(x, Draw(0)))[:, r + c.detail :]
    far.reach.copy_(rest.square().sum(1).quantile(0.99))
    z = _coordinates(g, data.train, 4000)
    some = (z * (model.logits > 0))[:256]
    J = torch.stack([_slope(g, some, i) for i in range(r)])  # (r, images · pixels)
    values, Q = torch.linalg.eigh((J @ J.mT).double() / len(some))
    layers[-1].g.align(Q.flip(1))
    model.strength.copy_(_coordinates(g, data.train, 4000).square().mean(0) * lengths.square())
    model.strength[:r] *= values.flip(0).clamp_min(0).to(model.strength)


def _coordinates(g: Bijection, part: Part, n: int) -> Tensor:
    like = next(g.parameters())
    index = torch.arange(min(n, len(part)))
    return torch.cat([g(part.batch(i).x.to(like)) for i in index.split(500)])


def _slope(g: Bijection, z: Tensor, i: int, step: float = 0.05) -> Tensor:
    """Return ∂g⁻¹/∂zᵢ at points z, flat."""
    shift = torch.zeros_like(z)
    shift[:, i] = step
    return ((g.inverse(z + shift) - g.inverse(z - shift)) / (2 * step)).flatten()


@torch.no_grad()
def plain(model: Projection, data: Data) -> Projection | None:
    """Return the projector onto as many principal axes, which a fresh subspace is."""
    c = model.config
    if c.g != "subspace":
        return None
    found = Projection(c.model_copy(update={"reach": 0.0}))
    count = min(found.initialize_samples, len(data.train))
    found.initialize(data.train.batch(torch.arange(count)))
    finish(found, data)
    return found


@torch.no_grad()
def preview(model: Projection, data: Data, path: Path) -> None:
    """Draw held-out images, spoiled ones, noise and strangers, each above its projection."""
    f, draw = model(), Draw(1)
    n = min(10, len(data.val))
    x = data.val.batch(torch.arange(n)).x.to(model._like())
    inputs = {
        "held out x": x,
        "spoiled": spoil(x, draw),
        "noise": draw_noise(x, draw),
        "strokes": draw_strokes(x, draw, 3),
        "other": draw_strangers(x, draw),
    }
    rows = [row for these in inputs.values() for row in (these, f(these))]
    labels = [label for name in inputs for label in (name, "f(·)")]
    image_grid(path, rows, labels, [""] * n, f"Projections, rank {f.rank()}")
