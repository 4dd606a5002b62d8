r"""One-step flow matching: noise to data along straight lines of an induced space.

ż = A_t z in coordinates, so any number of solver steps is one operator B, and sampling is
f(x) = g_y⁻¹(B g_x(x)): a Linearizer, whose pseudo-inverse encodes.

Paper: section 4.1, appendices F and G.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ..bijections import Bijection, Chain, Flatten, glow, mlp, subspace
from ..draws import Draw
from ..families import Family, GaussianVelocity, Leading, Prediction, TimeLowRank
from ..linearizer import Linearizer
from ..nets import ResidualConv, UNet
from ..perceptual import LPIPS, load_lpips
from ..pictures import image_grid
from ..settings import Settings
from ..solvers import collapse, integrate
from ..spaces import Space
from .base import App, Refinement

__all__ = ["APP", "Config", "Flow", "build", "loss", "measure"]


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
    blocks: int = Field(5, ge=1, description="blocks of the stack (subspace: of the one on u)")
    hidden: int | None = Field(
        None, ge=1, description="width of its networks; 512 for mlp, 16 channels for convolutions"
    )
    flow_hidden: int = Field(256, ge=1, description="subspace: width of the stack on u")
    nets: Literal["auto", "mlp", "conv", "unet"] = Field(
        "auto", description="networks inside the stack: mlp or conv (subspace), conv or unet (glow)"
    )
    induced: float = Field(
        1.0, ge=0, description="learned core: weight of the error in coordinates"
    )
    image: float = Field(
        0.0, ge=0, description="learned core: weight of the error as a distance of images"
    )
    reconstruction: float = Field(
        1.0, ge=0, description="weight of decoding under noise in coordinates"
    )
    alignment: float = Field(
        0.0, ge=0, description="learned core: weight of the one-step error at t = 0"
    )
    likelihood: float = Field(0.05, ge=0, description="weight of −log p of the coordinates")
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

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.spaces == "two" and self.g != "glow":
            raise ValueError('spaces = "two" needs g = "glow", whose networks take the flag')
        if self.nets not in {"subspace": ("auto", "mlp", "conv"), "mlp": ("auto", "mlp"),
                             "glow": ("auto", "conv", "unet")}[self.g]:  # fmt: skip
            raise ValueError(f"nets = {self.nets!r} does not go with g = {self.g!r}")
        if self.core == "gaussian" and self.spaces != "noise":
            raise ValueError('core = "gaussian" is the closed form for noise that is its own '
                             'coordinates: it needs spaces = "noise"')  # fmt: skip
        if self.detail and (self.g != "subspace" or self.core != "gaussian"):
            raise ValueError('detail needs g = "subspace" and core = "gaussian"')
        if self.g == "subspace" and self.core == "velocity":
            raise ValueError('core = "velocity" would leave the noise outside the subspace as it '
                             'is: take "gaussian" or "prediction"')  # fmt: skip
        return self


class Flow(nn.Module):
    r"""ż = A_t z from the coordinates of the noise to those of the data.

    Paper: section 4.1. Its version has one space, ``source is target``.

    Arguments:
        source: Space of the noise.
        family: A_t, as a velocity.
        target: Space of the data.

    Example:
        >>> X = Space(mlp(6, blocks=1))
        >>> flow = Flow(X, TimeLowRank(6, rank=2), X)
        >>> x0 = flow.noise(3)
        >>> torch.allclose(flow.collapse("rk4", 20)(x0), flow.integrate(x0, "rk4", 20), atol=1e-5)
        True
    """

    config: Config | None
    log_noise: Tensor  # only where g is a subspace
    initialize_samples = 2048

    def __init__(self, source: Space, family: Family, target: Space) -> None:
        super().__init__()
        if source.dim != target.dim:
            raise ValueError(
                f"Flow: expected two spaces of one dimension, got {source.dim} and {target.dim}. "
                "A velocity keeps its space."
            )
        self.source, self.family, self.target = source, family, target
        self.config = None

    def forward(self) -> Linearizer:
        """One step from noise to data: 100 steps of RK4 collapsed."""
        return self.collapse("rk4", 100)

    @torch.no_grad()
    def noise(self, n: int, seed: int = 0) -> Tensor:
        """Standard normal points (n, \\*shape), the same for a seed on every device."""
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
        """All steps as one Linearizer from the noise's space to the data's."""
        return Linearizer(
            self.source, collapse(self.family, solver, steps, t0, t1, rtol), self.target
        )

    @torch.no_grad()
    def integrate(
        self, x0: Tensor, solver: str = "rk4", steps: int = 1000, through_data: bool = False
    ) -> Tensor:
        r"""The loop that ``collapse`` equals.

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

    def initialize(self, batch: Any) -> None:
        """ActNorm and principal axes, from images."""
        g, x = self.target.g, batch.x
        draw = Draw(0)
        if self.config is not None and self.config.distance != "mse":
            _lpips(self.config.distance, self.config.lpips)  # says at once what is missing
        if self._kept() is None:  # constant pixels would have no scale
            x = x + 0.02 * draw.normal(x)
        if self.config is None or self.config.spaces != "noise":
            x = torch.cat([x, draw.normal(x)])  # the weights serve both
        g.initialize(x)

    @torch.no_grad()
    def close_form(self, batches: Iterable[Tensor]) -> None:
        r"""Set a Gaussian core from the second moments of the data's coordinates."""
        core = self._gaussian()
        if core is None:
            raise ValueError("close_form: the core of this flow is learned, not Gaussian.")
        r, rank = self._kept(), core.basis.shape[1]
        spread = torch.ones(r or self.target.dim).to(core.basis)
        if self.config is not None and r is not None:
            spread[self.config.rank :] = self.config.detail_spread
        found = GaussianVelocity.from_coordinates(
            (self.target.coordinates(x)[:, :r] * spread for x in batches), rank
        )
        k = len(found.values)  # fewer than asked for where there are few images
        core.basis.zero_()
        core.basis[:r, :k] = found.basis
        core.rest.copy_(found.rest if r is None else torch.zeros(()))
        core.values.copy_(core.rest)
        core.values[:k] = found.values

    def _gaussian(self) -> GaussianVelocity | None:
        return self.family if isinstance(self.family, GaussianVelocity) else None

    def _kept(self) -> int | None:
        """How many leading coordinates carry the data, where g sets them apart."""
        c = self.config
        return c.rank + c.detail if c is not None and c.g == "subspace" else None

    def _like(self) -> Tensor:
        return next(iter([*self.parameters(), *self.buffers()]), torch.zeros(()))


def build(config: Config) -> Flow:
    """The flow that the settings describe."""
    shape, dim = config.shape, config.shape[0] * config.shape[1] * config.shape[2]
    small = config.g == "subspace"
    if config.rank + config.detail > dim - small:
        raise ValueError(
            f"flow: rank is {config.rank + config.detail} (with the detail), but the images have "
            f"only {dim} numbers{', of which one must be left' if small else ''}."
        )
    target = Space(_stack(config))
    if config.spaces == "noise":
        source = Space(Flatten(shape))
    elif config.spaces == "one":
        source = target
    else:
        source = Space(_with_flag(target.g, 0.0))
    if config.core == "gaussian":
        kept = config.rank + config.detail
        family: Family = GaussianVelocity(
            torch.eye(kept if small else dim, kept), torch.ones(kept), 0.0 if small else 1.0, dim
        )
    else:
        width = config.rank if small else dim
        family = TimeLowRank(width, config.rank)
        if config.core == "prediction":
            family = Prediction(Leading(family, dim) if small else family)
    flow = Flow(source, family, target)
    flow.config = config
    if small:
        flow.log_noise = nn.Parameter(torch.full((config.rank,), -1.5))
    return flow


def _stack(config: Config) -> Bijection:
    shape = config.shape
    if config.g == "subspace":
        return subspace(
            shape, config.rank, config.hidden, config.nets, config.blocks, config.flow_hidden,
            detail=config.detail,
        )  # fmt: skip
    if config.g == "mlp":
        return Chain(Flatten(shape), *mlp(shape[0] * shape[1] * shape[2], config.blocks,
                                          config.hidden or 512))  # fmt: skip
    Net = UNet if config.nets == "unet" else ResidualConv
    extra = config.spaces == "two"

    def conditioner(inputs: int, outputs: int) -> nn.Module:
        net = Net(inputs + extra, outputs, config.hidden or 16)
        return _Flagged(net) if extra else net

    return glow(shape, config.blocks, conditioner=conditioner)


class _Flagged(nn.Module):
    """A network that sees one more channel, which holds a constant."""

    flag: float = 1.0

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(torch.cat([x, torch.full_like(x[:, :1], self.flag)], 1))


def _with_flag(g: Bijection, flag: float) -> Bijection:
    """The same bijection with another flag: a copy of the modules that holds the same tensors."""
    # Whatever holds no flag is shared as a module, so that a change of device keeps it so.
    whole = [m for m in g.modules() if not any(isinstance(n, _Flagged) for n in m.modules())]
    other = copy.deepcopy(g, {id(m): m for m in whole})
    for module in other.modules():
        if isinstance(module, _Flagged):
            module.flag = flag
    return other


# -- losses -------------------------------------------------------------------------------------


def loss(model: Flow, batch: Any, draw: Draw) -> dict[str, Tensor]:
    r"""The terms whose weights the settings give; z₀ and z₁ are the coordinates of noise and data.

    With z_t = (1−t)z₀ + t z₁ a velocity is compared with v = z₁ − z₀, a prediction with z₁:

    - induced: ‖A_t z_t − v‖²/dim, or ‖D_t z_t − z₁‖²/dim
    - image: d(g⁻¹(A_t z_t), g⁻¹(v)), or d(g⁻¹(D_t z_t), x₁), with d the distance of images
    - reconstruction: d(x₁, g⁻¹(z₁ + σε)); without noise it would be 0, as g is exact
    - alignment: ‖z₀ + A₀z₀ − z₁‖²/dim, or ‖D₀z₀ − z₁‖²/dim
    - likelihood: (½‖z₁‖² − log|det ∂g|)/dim, which also keeps g from shrinking to nothing

    A subspace has its own reconstruction and likelihood (see :func:`subspace_terms`), and its
    coordinates take no gradient from the core.
    """
    c = model.config
    assert c is not None
    x1 = batch.x
    x0 = draw.normal(x1)
    t = draw.uniform(x1.flatten(1)[:, 0])
    if c.mirror:
        left = draw.uniform(t) < 0.5
        x1 = torch.where(left[:, None, None, None], x1.flip(-1), x1)
    small = c.g == "subspace"
    terms: dict[str, Tensor] = {}
    if small:
        terms, z1 = subspace_terms(model, x1, draw)
    elif c.likelihood:
        x1 = x1 + c.dequantize * draw.normal(x1)
        z1, log_det = model.target.g.with_log_det(x1)
        unlikely = (0.5 * z1.square().sum(1) - log_det).mean() / z1.shape[1]
        terms["-log p"] = c.likelihood * unlikely
    else:
        z1 = model.target.coordinates(x1)
    if not small and c.reconstruction:
        noisy = model.target.points(z1 + c.latent_noise * draw.normal(z1))
        terms["reconstruction"] = c.reconstruction * _distance(c, noisy, x1)
    if c.core == "gaussian":
        return terms
    z0 = model.source.coordinates(x0)
    A, wanted = _core(model), z1 if c.core == "prediction" else z1 - z0
    zt = (1 - t[:, None]) * z0 + t[:, None] * z1
    found = A(t)(zt)
    if c.induced:
        terms["induced"] = c.induced * _mean(found - wanted, model)
    if c.image:
        x = model.target.points(found)
        y = x1 if c.core == "prediction" else model.target.points(wanted)
        terms["image"] = c.image * _distance(c, x, y)
    if c.alignment:
        first = A(torch.zeros_like(t))(z0)
        gap = first - z1 if c.core == "prediction" else z0 + first - z1
        terms["alignment"] = c.alignment * _mean(gap, model)
    return terms


def subspace_terms(model: Any, x: Tensor, draw: Draw) -> tuple[dict[str, Tensor], Tensor]:
    r"""Reconstruction and likelihood of a subspace (see ``bijections.subspace``), and z₁.

    With u and w before the last stack F, and learned noise σ: ‖x − x̂(u + σε)‖², where x̂ decodes
    from u alone (w = 0), and −log p(u + σε) − Σ log σ, where F carries p to a normal density. Their
    weighted sum is the bound of a variational autoencoder whose prior is F.
    """
    c = model.config
    axes, encode, decode, last, *_ = _parts(model)
    r = c.rank
    with torch.no_grad():
        start = axes(x)
    h = encode(start)
    u, w = h[:, :r], h[:, r:]
    noisy = u + model.log_noise.exp() * draw.normal(u)
    back = encode.inverse(decode.inverse(torch.cat([noisy, torch.zeros_like(w)], 1)))
    error = axes.lengths(back - start)
    z, log_det = last.g.with_log_det(noisy)
    bits = 0.5 * z.square().sum(1) - log_det - model.log_noise.sum()
    terms = {
        "reconstruction": c.reconstruction * error.mean(),
        "-log p": c.likelihood * bits.mean(),
    }
    return terms, torch.cat([z.detach(), torch.zeros_like(w)], 1)


def _parts(model: Any) -> list[Any]:
    """The layers of a subspace."""
    return list(model.target.g)


def _core(model: Flow) -> Family:
    return model.family.family if isinstance(model.family, Prediction) else model.family


def _mean(gap: Tensor, model: Flow) -> Tensor:
    """Mean square over the coordinates that carry the data."""
    return gap[:, : model._kept()].square().mean()


def _distance(config: Config, x: Tensor, y: Tensor) -> Tensor:
    if config.distance == "mse":
        return (x - y).square().mean()
    return _lpips(config.distance, config.lpips).to(x)(x, y).mean()


@cache
def _lpips(backbone: str, folder: str | None) -> LPIPS:
    root = os.environ.get("LINEARIZER_DATA") or "~/.cache/linearizer/data"
    return load_lpips(backbone, folder or Path(root) / "lpips")


@torch.no_grad()
def measure(model: Flow, batch: Any, draw: Draw) -> dict[str, Tensor]:
    r"""For each image: PSNR of decoding, and the second and fourth moment of its coordinates.

    A subspace decodes from its leading coordinates alone, other stacks under the latent noise.
    Coordinates that are standard normal have the moments 1 and 3.
    """
    z, c = model.target.coordinates(batch.x), model.config
    assert c is not None
    if (r := model._kept()) is not None:
        back = model.target.points(torch.cat([z[:, :r], torch.zeros_like(z[:, r:])], 1))
    else:
        back = model.target.points(z + c.latent_noise * draw.normal(z))
    error = (back - batch.x).flatten(1).square().mean(1)
    return {
        "psnr": -10 * error.clamp_min(1e-12).log10(),
        "second moment": z[:, :r].square().mean(1),
        "fourth moment": z[:, :r].pow(4).mean(1),
    }


def facts(data: Any) -> dict[str, Any]:
    """The shape, which the data decide."""
    shape = getattr(data.train, "shape", None)
    if shape is None or len(shape) != 3:
        raise ValueError(f"flow: {data.name} holds no images. Name a data set of images.")
    return {"shape": shape}


class Codes:
    """Where images lie before the last stacks of a subspace, part by part, each (n, k)."""

    def __init__(self, *parts: Tensor) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])

    def batch(self, index: Tensor) -> tuple[Tensor, ...]:
        return tuple(part[index] for part in self.parts)


@torch.no_grad()
def refine(model: Flow, data: Any) -> Refinement | None:
    r"""Likelihood of u + σε, and of the detail given u, on codes that no longer move.

    It is cheap, since it needs no images, and samples are as good as this density. The axes of the
    detail are those of what D leaves now.
    """
    c = model.config
    assert c is not None
    if c.g != "subspace" or not c.refine:
        return None
    axes, encode, decode, last, *fine = _parts(model)
    codes = torch.cat([decode(encode(axes(x))) for x in _images(model, data.train)])
    u, v = codes[:, : c.rank], codes[:, :0]
    if fine:
        own = fine[0].g
        own.initialized.fill_(False)
        some = 8192 if own.dim < 4096 else 4096  # of the smaller Gram matrix the axes are found
        own.initialize(codes[:: -(-len(codes) // some), c.rank :])
        v = torch.cat([own(w)[:, : c.detail] for w in codes[:, c.rank :].split(512)])
    noise = model.log_noise.detach().exp()

    def unlikely(part: Any, batch: tuple[Tensor, Tensor], draw: Draw) -> dict[str, Tensor]:
        u, v = batch
        z, log_det = part[0].with_log_det(u + noise.to(u) * draw.normal(u))
        terms = {"-log p": (0.5 * z.square().sum(1) - log_det).mean()}
        if len(part) > 1:
            # Apart from u: neither its gradient nor its share in the clipping reaches F.
            both = torch.cat([z.detach(), v + 0.05 * draw.normal(v)], 1)
            fine, more = part[1].with_log_det(both)
            bits = 0.5 * fine[:, c.rank :].square().sum(1) - more
            terms["-log p of the detail"] = bits.mean() / c.detail
        return terms

    part = nn.ModuleList([last.g, *(layer.g for layer in fine[1:])])
    codes_of = Codes(u.clone(), v.clone())
    return Refinement(part, unlikely, codes_of, {"steps": c.refine, "batch": 512, "rate": 2e-3})


def _images(model: Flow, images: Any, limit: int | None = None) -> Iterator[Tensor]:
    """Images in parts, and their mirror images where the model learns them."""
    mirror = model.config is not None and model.config.mirror
    for i in torch.arange(min(len(images), limit or len(images))).split(500):
        x = images.batch(i).x.to(model._like())
        yield x
        if mirror:
            yield x.flip(-1)


@torch.no_grad()
def finish(model: Flow, data: Any) -> None:
    """Set a closed-form core from the training images."""
    if model._gaussian() is not None:
        model.close_form(_images(model, data.train, 20_000))


@torch.no_grad()
def preview(model: Flow, data: Any, path: Path) -> None:
    """Samples, and test images beside what their encodings decode to."""
    f = model()
    n = min(10, len(data.val))
    x = data.val.batch(torch.arange(n)).x.to(model._like())
    rows = [f(model.noise(n, seed)) for seed in range(3)]
    image_grid(
        path,
        [*rows, x, f(f.pinv()(x))],
        ["f(noise)", "", "", "held out x", "f(f†(x))"],
        [""] * n,
        "One-step samples and reconstructions",
    )


_PAPER = {
    "g": "glow", "nets": "unet", "spaces": "one", "core": "velocity", "rank": 16, "blocks": 6,
    "hidden": 16, "induced": 1.0, "image": 1.0, "reconstruction": 1.0, "alignment": 1.0,
    "likelihood": 0.0,
}  # fmt: skip

_BEST = {
    "g": "subspace",
    "nets": "conv",
    "hidden": 16,
    "rank": 32,
    "likelihood": 0.1,
    "refine": 6000,
}
_LONG = {"steps": 5000, "rate": 2e-3, "validate_every": 1000, "checkpoint_every": 500}

APP = App(
    name="flow",
    Config=Config,
    model=build,
    loss=loss,
    measure=measure,
    metric="psnr",
    maximize=True,
    linearizer=Flow.forward,
    facts=facts,
    decided=("shape",),
    preview=preview,
    refine=refine,
    finish=finish,
    data="digits",
    training={"steps": 3000, "batch": 128, "rate": 1e-3, "ema": 0.999},
    presets={
        "paper": {"model": _PAPER, "training": {"steps": 4000}},
        "authors": {
            "model": {**_PAPER, "spaces": "two", "core": "prediction", "nets": "conv",
                      "alignment": 0.0},
            "training": {"steps": 4000},
        },
        "best": {"model": _BEST, "training": _LONG},
        "digits": {
            "model": {"rank": 24, "hidden": 256, "flow_hidden": 128},
            "training": {"rate": 2e-3, "batch": 256},
        },
        "mnist": {
            "data": {"name": "mnist", "size": 32},
            "model": {**_BEST, "detail": 256, "refine": 8000},
            "training": _LONG,
        },
        "celeba": {
            "data": {"name": "celeba", "size": 64},
            "model": {**_BEST, "rank": 64, "detail": 64, "detail_spread": 1.0, "likelihood": 0.15,
                      "mirror": True},
            "training": {**_LONG, "steps": 4000, "batch": 64},
        },
    },
)  # fmt: skip
