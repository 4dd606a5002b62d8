r"""One-step flow matching: noise to data along straight lines of an induced space.

ż = A_t z in coordinates, so any number of solver steps is one operator B, and sampling is
f(x) = g_y⁻¹(B g_x(x)): a Linearizer, whose pseudo-inverse encodes.

Paper: section 4.1, appendices F and G.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from ...bijections import Bijection, Chain, Flatten, glow, mlp, subspace
from ...data.files import root_folder
from ...data.images import Batch
from ...data.kinds import Data, Part
from ...families import Family, GaussianVelocity, Leading, Preconditioned, Prediction, TimeLowRank
from ...linearizer import Linearizer
from ...metrics.perceptual import LPIPS, load_lpips
from ...nets import ResidualConv, UNet
from ...runs.pictures import image_grid
from ...solvers import collapse, integrate
from ...spaces import Space
from ...training.draws import Draw
from ...training.settings import Settings
from ..base import Stage, Terms
from ..images import suit_few_images
from ..subspace import Codes, layers_of, negative_log_density, subspace_terms

__all__ = ["Config", "Flow", "build", "describe_flow", "loss", "measure", "train_density"]

#: Networks that each kind of g may have inside.
NETS = {
    "subspace": ("auto", "mlp", "conv"),
    "mlp": ("auto", "mlp"),
    "glow": ("auto", "conv", "unet"),
}


class Config(Settings):
    """Settings of the model."""

    shape: tuple[int, int, int] = Field((1, 8, 8), description="images, (C, H, W)")
    g: Literal["subspace", "glow", "mlp"] = Field("subspace", description="stack on the images")
    spaces: Literal["noise", "one", "two"] = Field(
        "noise",
        description="noise is its own coordinates; or shares the one space of the data; or has a "
        "second one with the same weights and another flag",
    )
    core: Literal["gaussian", "velocity", "prediction"] = Field(
        "gaussian",
        description="A_t in closed form from second moments; or learned, as a velocity or a "
        "prediction of the end",
    )
    rank: int = Field(32, ge=2, description="of the core; with subspace also its coordinates")
    detail: int = Field(
        0, ge=0, description="subspace: further axes, of what its coordinates leave of the images"
    )
    detail_spread: float = Field(
        0.5, gt=0, description="subspace: how much of the detail's spread samples get"
    )
    reach: float = Field(
        0.0,
        ge=0,
        description="subspace: squared length of what u leaves of an image, over its numbers, from "
        "which on it counts as far from data and comes to lie nearer to 0, as noise does; 0: never",
    )
    blocks: int = Field(5, ge=1, description="blocks of the stack (subspace: of the one on u)")
    hidden: int | None = Field(
        None, ge=1, description="width of its networks; 512 for mlp, 16 channels for convolutions"
    )
    flow_hidden: int = Field(256, ge=1, description="subspace: width of the stack on u")
    nets: Literal["auto", "mlp", "conv", "unet"] = Field(
        "auto", description="networks inside the stack: mlp or conv (subspace), conv or unet (glow)"
    )
    depth: int = Field(1, ge=1, description="unet: residual blocks before each change of size")
    clamp: Literal["soft", "hard"] = Field(
        "soft", description="glow: bound of log-scales, smooth or cut off (as the authors' code)"
    )
    max_log_scale: float = Field(1.0, gt=0, description="glow: that bound")
    induced: float = Field(
        1.0, ge=0, description="learned core: weight of the error in coordinates"
    )
    image: float = Field(
        0.0, ge=0, description="learned core: weight of the error as a distance of images"
    )
    reconstruction: float = Field(
        1.0, ge=0, description="weight of decoding under noise in coordinates"
    )
    noise_reconstruction: Literal["none", "mse", "distance"] = Field(
        "none", description="not in subspace: the same for the noise x₀, and how it is measured"
    )
    alignment: float = Field(
        0.0, ge=0, description="learned core: weight of ‖A₀ g(x₀) − g(x₁)‖², as the paper prints it"
    )
    likelihood: float = Field(0.05, ge=0, description="weight of −log p of the coordinates")
    noise_likelihood: float = Field(
        0.0, ge=0, description="weight of −log p of the coordinates of the noise, in one space"
    )
    precondition: bool = Field(
        False, description="prediction: scale its time and size by the moments of both ends"
    )
    latent_noise: float = Field(0.2, gt=0, description="noise in coordinates; subspace learns it")
    distance: Literal["mse", "alex", "squeeze"] = Field(
        "mse", description="of images, not in subspace: squared error, or LPIPS on these features"
    )
    lpips: str | None = Field(None, description="folder of the LPIPS weights")
    mirror: bool = Field(False, description="learn mirror images as well")
    refine: int = Field(
        3000, ge=0, description="subspace: further steps of the likelihood on u, with g fixed"
    )
    dequantize: float = Field(0.02, ge=0, description="not in subspace: noise added to images")

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, values: Any) -> Any:
        """Other stacks have no second stage; runs may have been written with reach = none."""
        if isinstance(values, dict):
            values = {k: v for k, v in values.items() if (k, v) != ("reach", None)}
            if values.get("g", "subspace") != "subspace":
                values["refine"] = 0
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.spaces == "two" and self.g != "glow":
            raise ValueError('spaces = "two" needs g = "glow", whose networks take the flag')
        if self.nets not in NETS[self.g]:
            raise ValueError(f"nets = {self.nets!r} does not go with g = {self.g!r}")
        if self.core == "gaussian" and self.spaces != "noise":
            raise ValueError(
                'core = "gaussian" is the closed form for noise that is its own coordinates: it '
                'needs spaces = "noise"'
            )
        if self.detail and (self.g != "subspace" or self.core != "gaussian"):
            raise ValueError('detail needs g = "subspace" and core = "gaussian"')
        if self.precondition and self.core != "prediction":
            raise ValueError('precondition scales a prediction: it needs core = "prediction"')
        alone = self.g == "subspace" and self.spaces == "one"
        if alone and not self.likelihood:
            raise ValueError('g = "subspace" in one space needs a likelihood above 0')
        if self.noise_likelihood and not (alone and self.precondition):
            raise ValueError(
                'noise_likelihood needs g = "subspace" in one space, and precondition = true'
            )
        if self.g == "subspace" and self.core == "velocity":
            raise ValueError(
                'core = "velocity" would leave the noise outside the subspace as it is: take '
                '"gaussian" or "prediction"'
            )
        return self


def describe_flow(config: Config) -> str:
    """Say in one sentence what a flow of these settings is."""
    small = config.g == "subspace"
    if config.core == "gaussian":
        what = "An autoencoder with a flow prior" if small else f"A {config.g} stack"
        return f"{what} and the closed-form core: noise is its own coordinates, A_t is not learned."
    g = "an autoencoder with a flow on its code" if small else f"a {config.g} stack"
    core = "a velocity" if config.core == "velocity" else "a prediction of the end"
    where = {
        "noise": "of the data alone, as noise is its own coordinates",
        "one": "one for noise and data",
        "two": "with a flag that tells noise from data",
    }[config.spaces]
    return f"Flow matching with a learned core: A_t is {core}; g is {g}, {where}."


class Flow(nn.Module):
    r"""ż = A_t z from the coordinates of the noise to those of the data.

    Paper: section 4.1. Its version has one space, ``source is target``.

    Arguments:
        source: Space of the noise.
        family: A_t, as a velocity.
        target: Space of the data.
        leading: How many leading coordinates carry the data, where g sets them apart.

    Example:
        >>> X = Space(mlp(6, blocks=1))
        >>> flow = Flow(X, TimeLowRank(6, rank=2), X)
        >>> x0 = flow.noise(3)
        >>> torch.allclose(flow.collapse("rk4", 20)(x0), flow.integrate(x0, "rk4", 20), atol=1e-5)
        True
    """

    config: Config  #: what ``build`` made it of; a flow that was put together by hand has none
    log_noise: Tensor  #: only where g is a subspace
    initialize_samples = 2048

    def __init__(
        self, source: Space, family: Family, target: Space, leading: int | None = None
    ) -> None:
        super().__init__()
        if source.dim != target.dim:
            raise ValueError(
                f"Flow: expected two spaces of one dimension, got {source.dim} and {target.dim}. "
                "A velocity keeps its space."
            )
        self.source, self.family, self.target = source, family, target
        self.leading = leading

    def forward(self) -> Linearizer:
        """Return one step from noise to data: 100 steps of RK4 collapsed."""
        return self.collapse("rk4", 100)

    @torch.no_grad()
    def noise(self, n: int, seed: int = 0) -> Tensor:
        r"""Draw standard normal points (n, \*shape), the same for a seed on every device."""
        generator = torch.Generator().manual_seed(seed)
        # In float32 always, so that a seed is the same noise whatever torch's default is.
        drawn = torch.randn(n, *self.source.shape, generator=generator, dtype=torch.float32)
        return drawn.to(self._like())

    @torch.no_grad()
    def collapse(
        self,
        solver: str = "rk4",
        steps: int = 1000,
        t0: float = 0.0,
        t1: float = 1.0,
        rtol: float = 0.0,
    ) -> Linearizer:
        """Return all steps as one Linearizer from the noise's space to the data's."""
        B = collapse(self.family, solver, steps, t0, t1, rtol)
        return Linearizer(self.source, B, self.target)

    @torch.no_grad()
    def integrate(
        self, x0: Tensor, solver: str = "rk4", steps: int = 1000, through_data: bool = False
    ) -> Tensor:
        r"""Take the steps one by one, which ``collapse`` equals.

        With ``through_data`` every state on the way is a point of data, x ← x ⊕ Δt ⊙ f(x, t): what
        the loop costs a model that knows nothing of coordinates.
        """
        z = self.source.coordinates(x0)
        if not through_data or steps < 1:
            return self.target.points(integrate(self.family, z, solver, steps))
        x = self.target.points(z)
        for n in range(steps):
            z = self.target.coordinates(x)
            z = integrate(self.family, z, solver, 1, n / steps, (n + 1) / steps)
            x = self.target.points(z)
        return x

    def initialize(self, batch: Batch) -> None:
        """Set ActNorm and principal axes from images."""
        x, draw = batch.x, Draw(0)
        if self.leading is None:  # constant pixels would have no scale
            x = x + 0.02 * draw.normal(x)
            if not isinstance(self.source.g, Flatten):  # the weights serve both
                x = torch.cat([x, draw.normal(x)])
        self.target.g.initialize(x)
        if (core := preconditioned(self)) is not None:
            z0 = self.source.coordinates(draw.normal(x))[:, : len(core.log_start)]
            core.log_start.data.copy_(z0.square().mean(0).sqrt().log())

    def _like(self) -> Tensor:
        return next(iter([*self.parameters(), *self.buffers()]), torch.zeros(()))


def build(config: Config) -> Flow:
    """Return the flow that the settings describe."""
    dim, leading = math.prod(config.shape), config.rank + config.detail
    small = config.g == "subspace"
    if leading > dim - small:
        raise ValueError(
            f"flow: rank is {leading} (with the detail), but the images have only {dim} numbers"
            f"{', of which one must be left' if small else ''}. Lower it."
        )
    target = Space(_stack(config))
    if config.spaces == "noise":
        source = Space(Flatten(config.shape))
    else:
        source = target if config.spaces == "one" else Space(_with_flag(target.g, 0.0))
    if config.core == "gaussian":
        basis = torch.eye(leading if small else dim, leading)
        family: Family = GaussianVelocity(basis, torch.ones(leading), 0.0 if small else 1.0, dim)
    else:
        family = TimeLowRank(config.rank if small else dim, config.rank)
        if config.precondition:
            family = Preconditioned(family, torch.ones(config.rank if small else dim))
        if config.core == "prediction":
            family = Prediction(Leading(family, dim) if small else family)
    flow = Flow(source, family, target, leading if small else None)
    flow.config = config
    if small:
        flow.log_noise = nn.Parameter(torch.full((config.rank,), -1.5))
    return flow


def _stack(config: Config) -> Bijection:
    shape = config.shape
    if config.g == "subspace":
        width, depth = config.flow_hidden, config.blocks
        return subspace(
            shape,
            config.rank,
            config.hidden,
            config.nets,
            depth,
            width,
            detail=config.detail,
            reach=config.reach * math.prod(shape) or None,
        )
    if config.g == "mlp":
        layers = mlp(math.prod(shape), config.blocks, config.hidden or 512)
        return Chain(Flatten(shape), *layers)
    extra = config.spaces == "two"

    def conditioner(inputs: int, outputs: int) -> nn.Module:
        net: nn.Module
        if config.nets == "unet":
            net = UNet(inputs + extra, outputs, config.hidden or 16, blocks=config.depth)
        else:
            net = ResidualConv(inputs + extra, outputs, config.hidden or 16)
        return _Flagged(net) if extra else net

    return glow(
        shape,
        config.blocks,
        conditioner=conditioner,
        max_log_scale=config.max_log_scale,
        clamp=config.clamp,
    )


class _Flagged(nn.Module):
    """A network that sees one more channel, which holds a constant."""

    flag: float = 1.0

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(torch.cat([x, torch.full_like(x[:, :1], self.flag)], 1))


def _with_flag(g: Bijection, flag: float) -> Bijection:
    """Return the bijection with another flag: a copy of its modules around the same tensors."""
    # Whatever holds no flag is shared as a module, so that a change of device keeps it so.
    whole = [m for m in g.modules() if not any(isinstance(n, _Flagged) for n in m.modules())]
    other = copy.deepcopy(g, {id(m): m for m in whole})
    for module in other.modules():
        if isinstance(module, _Flagged):
            module.flag = flag
    return other


# -- losses -------------------------------------------------------------------------------------


def loss(model: Flow, batch: Batch, draw: Draw) -> Terms:
    r"""Return the terms whose weights the settings give.

    z₀ and z₁ are the coordinates of noise and data. A subspace has its own reconstruction and
    likelihood (see :func:`subspace_terms`). Other stacks have

    - reconstruction: d(x₁, g⁻¹(z₁ + σε)); without noise it would be 0, as g is exact
    - reconstruction of x₀: the same of the noise
    - likelihood: (½‖z₁‖² − log|det ∂g|)/dim, which also keeps g from shrinking to nothing

    A learned core adds those of :func:`_core_terms`; in one space, g and core are trained together.
    """
    c, x1 = model.config, batch.x
    x0 = draw.normal(x1)
    t = draw.uniform(x1.flatten(1)[:, 0])
    if c.mirror:
        left = draw.uniform(t) < 0.5
        x1 = torch.where(left[:, None, None, None], x1.flip(-1), x1)
    terms: Terms = {}
    if c.g == "subspace":
        terms, z1 = subspace_terms(model, x1, draw)
        if c.spaces == "one":
            more, z0 = _noise_terms(model, *encode_part(model, x0))
            return terms | more | _core_terms(model, x1, z0, z1, t)
    elif c.likelihood:
        x1 = x1 + c.dequantize * draw.normal(x1)
        unlikely, z1 = negative_log_density(model.target.g, x1)
        terms["-log p"] = c.likelihood * unlikely.mean() / z1.shape[1]
    else:
        z1 = model.target.coordinates(x1)
    if c.g != "subspace" and c.reconstruction:
        noisy = model.target.points(z1 + c.latent_noise * draw.normal(z1))
        terms["reconstruction"] = c.reconstruction * _distance(c, noisy, x1)
    z0 = model.source.coordinates(x0)
    if c.g != "subspace" and c.noise_reconstruction != "none":
        noisy = model.source.points(z0 + c.latent_noise * draw.normal(z0))
        far = _distance(c, noisy, x0, c.noise_reconstruction == "mse")
        terms["reconstruction of x₀"] = c.reconstruction * far
    if c.core != "gaussian":
        terms |= _core_terms(model, x1, z0, z1.detach() if c.g == "subspace" else z1, t)
    return terms


def encode_part(model: Flow, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return u of images before the last stack, (n, rank), and log|det| of u ↦ u', (n,)."""
    axes, encode, *_ = layers_of(model)
    with torch.no_grad():
        start = axes(x)
    h, log_det = encode.with_log_det(start)
    return h[:, : model.config.rank], log_det


def preconditioned(model: Flow) -> Preconditioned | None:
    """Return the part of a learned core that knows the moments of both ends."""
    return next((m for m in model.family.modules() if isinstance(m, Preconditioned)), None)


def _noise_terms(model: Flow, u: Tensor, bend: Tensor) -> tuple[Terms, Tensor]:
    r"""Return −log p of the noise's coordinates F(u), given the rest of it, and z₀.

    p is a normal density of mean 0 and learned deviations σ₀: noise then is Gaussian in the same
    coordinates as data, which is what a linear flow from one to the other needs. No terms, if the
    settings give them no weight.
    """
    z, log_det = layers_of(model)[3].g.with_log_det(u)
    if not model.config.noise_likelihood:
        return {}, z
    core = preconditioned(model)
    assert core is not None
    each = 0.5 * (z / core.log_start.exp()).square() + core.log_start
    bits = each.sum(1) - log_det - bend
    return {"-log p of noise": model.config.noise_likelihood * bits.mean()}, z


def _core_terms(model: Flow, x1: Tensor, z0: Tensor, z1: Tensor, t: Tensor) -> Terms:
    r"""Return the terms of a learned core.

    With z_t = (1−t)z₀ + t z₁ a velocity is compared with v = z₁ − z₀, a prediction with z₁:

    - induced: ‖A_t z_t − v‖²/dim, or ‖D_t z_t − z₁‖²/dim
    - image: d(g⁻¹(A_t z_t), g⁻¹(v)), or d(g⁻¹(D_t z_t), x₁), with d the distance of images
    - alignment: ‖A₀z₀ − z₁‖²/dim as printed, of a velocity too; or ‖D₀z₀ − z₁‖²/dim
    """
    c, family = model.config, model.family
    predicts = isinstance(family, Prediction)
    A = family.family if isinstance(family, Prediction) else family
    if isinstance(A, Leading):
        A, z0, z1 = A.family, z0[:, : model.leading], z1[:, : model.leading]
    if isinstance(A, Preconditioned):
        t = A.times(t)
    wanted = z1 if predicts else z1 - z0
    found = A(t)((1 - t[:, None]) * z0 + t[:, None] * z1)
    terms: Terms = {}
    if c.induced:
        terms["induced"] = c.induced * (found - wanted).square().mean()
    if c.image:
        y = x1 if predicts else model.target.points(wanted)
        whole = F.pad(found, (0, model.target.dim - found.shape[1]))
        terms["image"] = c.image * _distance(c, model.target.points(whole), y)
    if c.alignment:
        gap = A(torch.zeros_like(t))(z0) - z1
        terms["alignment"] = c.alignment * gap.square().mean()
    return terms


def _distance(config: Config, x: Tensor, y: Tensor, plain: bool = False) -> Tensor:
    if plain or config.distance == "mse":
        return (x - y).square().mean()
    return _lpips(config.distance, config.lpips).to(x)(x, y).mean()


@cache
def _lpips(backbone: str, folder: str | None) -> LPIPS:
    return load_lpips(backbone, folder or root_folder(None) / "lpips")


@torch.no_grad()
def measure(model: Flow, batch: Batch, draw: Draw) -> Terms:
    r"""Return for each image the PSNR of decoding, and two moments of its coordinates.

    A subspace decodes from its leading coordinates alone, other stacks under the latent noise.
    Coordinates that are standard normal have the second moment 1 and the fourth moment 3.
    """
    z, r = model.target.coordinates(batch.x), model.leading
    if r is not None:
        back = model.target.points(torch.cat([z[:, :r], torch.zeros_like(z[:, r:])], 1))
    else:
        back = model.target.points(z + model.config.latent_noise * draw.normal(z))
    error = (back - batch.x).flatten(1).square().mean(1)
    return {
        "psnr": -10 * error.clamp_min(1e-12).log10(),
        "second moment": z[:, :r].square().mean(1),
        "fourth moment": z[:, :r].pow(4).mean(1),
    }


def suit_few(data: Data) -> dict[str, dict[str, Any]]:
    """Return settings for few images; of photos, mirror images are as many again."""
    found = suit_few_images(data)
    return {**found, "model": {"mirror": True}} if found and data.train.shape[0] == 3 else found


# -- before and after the first stage -----------------------------------------------------------


def start(model: Flow, data: Data) -> None:
    """Load LPIPS where the loss needs it: what is missing is said before a folder is made."""
    if model.config.distance != "mse":
        _lpips(model.config.distance, model.config.lpips)


@torch.no_grad()
def train_density(model: Flow, data: Data) -> Stage | None:
    r"""Return the stage that trains the density of u + σε, and of the detail given u, alone.

    The codes no longer move, so it needs no images and is cheap; samples are as good as this
    density. The axes of the detail are those of what D leaves now.
    """
    c = model.config
    if c.g != "subspace" or not c.refine:
        return None
    axes, encode, decode, last, *fine = layers_of(model)
    codes = torch.cat([decode(encode(axes(x))) for x in _images(model, data.train)])
    u, v = codes[:, : c.rank], codes[:, :0]
    if fine:
        own = fine[0].g
        own.initialized.fill_(False)
        some = 8192 if own.dim < 4096 else 4096  # of the smaller Gram matrix the axes are found
        own.initialize(codes[:: -(-len(codes) // some), c.rank :])
        v = torch.cat([own(w)[:, : c.detail] for w in codes[:, c.rank :].split(512)])
    noise = model.log_noise.detach().exp()
    parts = [last.g, *(layer.g for layer in fine[1:])]
    both_ends = c.spaces == "one"
    u0, bend = u[:, :0], u[:, 0]
    if both_ends:
        parts.append(model.family)
        images = enumerate(_images(model, data.train))
        drawn = [encode_part(model, Draw(i).normal(x)) for i, x in images]
        u0, bend = (torch.cat(some) for some in zip(*drawn, strict=True))

    def unlikely(part: nn.ModuleList, batch: tuple[Tensor, ...], draw: Draw) -> Terms:
        u, v, u0, bend = batch
        stack, *detail = cast(list[Bijection], list(part))
        bits, z = negative_log_density(stack, u + noise.to(u) * draw.normal(u))
        terms = {"-log p": bits.mean()}
        if both_ends:
            more, z0 = _noise_terms(model, u0, bend)
            more |= _core_terms(model, u, z0, z, draw.uniform(bend))
            return terms | {k: v / c.likelihood for k, v in more.items()}  # as −log p has 1 here
        for g in detail:
            # Apart from u: neither its gradient nor its share in the clipping reaches F.
            both = torch.cat([z.detach(), v + 0.05 * draw.normal(v)], 1)
            fine, log_det = g.with_log_det(both)
            bits = 0.5 * fine[:, c.rank :].square().sum(1) - log_det
            terms["-log p of the detail"] = bits.mean() / c.detail
        return terms

    training = {"steps": c.refine, "batch": 512, "rate": 2e-3}
    source = Codes(u.clone(), v.clone(), u0, bend)
    return Stage("density", nn.ModuleList(parts), unlikely, source, training)


def _images(model: Flow, part: Part, limit: int | None = None) -> Iterator[Tensor]:
    """Yield images in parts, and their mirror images where the model learns them."""
    for i in torch.arange(min(len(part), limit or len(part))).split(500):
        x = part.batch(i).x.to(model._like())
        yield x
        if model.config.mirror:
            yield x.flip(-1)


def finish(model: Flow, data: Data) -> None:
    """Set a Gaussian core from the training images."""
    if isinstance(model.family, GaussianVelocity):
        set_core(model, _images(model, data.train, 20_000))


@torch.no_grad()
def set_core(model: Flow, batches: Iterable[Tensor]) -> None:
    r"""Set a Gaussian core from the second moments of the coordinates of images."""
    core, r = model.family, model.leading
    if not isinstance(core, GaussianVelocity):
        raise ValueError(f"set_core: expected a Gaussian core, got {type(core).__name__}.")
    spread = torch.ones(r or model.target.dim).to(core.basis)
    if r is not None:
        spread[model.config.rank :] = model.config.detail_spread
    coordinates = (model.target.coordinates(x)[:, :r] * spread for x in batches)
    found = GaussianVelocity.from_coordinates(coordinates, core.basis.shape[1])
    k = len(found.values)  # fewer than asked for where there are few images
    core.basis.zero_()
    core.basis[:r, :k] = found.basis
    core.rest.copy_(found.rest if r is None else torch.zeros(()))
    core.values.copy_(core.rest)
    core.values[:k] = found.values


@torch.no_grad()
def preview(model: Flow, data: Data, path: Path) -> None:
    """Draw samples, and held-out images beside what their encodings decode to."""
    f = model()
    n = min(10, len(data.val))
    x = data.val.batch(torch.arange(n)).x.to(model._like())
    rows = [*(f(model.noise(n, seed)) for seed in range(3)), x, f(f.pinv()(x))]
    labels = ["f(noise)", "", "", "held out x", "f(f†(x))"]
    image_grid(path, rows, labels, [""] * n, "One-step samples and reconstructions")
