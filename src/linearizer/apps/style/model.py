r"""Styles as operators: f_s(x) = g_y⁻¹(A_s g_x(x)), one pair of g for all and one kernel each.

A style is a point of a vector space of operators: it can be blended, weakened, strengthened and
undone, and a new one is found by least squares. Paper: section 4.2 and appendix G.3.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ...bijections import Bijection, glow, patches, resize
from ...data.kinds import Data
from ...data.stylised import Pair
from ...families import StyleKernel
from ...linearizer import Linearizer
from ...metrics.images import psnr
from ...metrics.perceptual import LPIPS
from ...nets import LocalConv
from ...operators import Convolution, MixingConvolution
from ...runs.pictures import image_grid
from ...spaces import Space
from ...training.draws import Draw
from ...training.settings import Settings, did_you_mean

__all__ = ["PHOTO", "RTOL", "STRIP", "Config", "Style", "loss", "measure", "parse_blend"]

#: Singular values below this share of the largest are not undone.
RTOL = 1e-5
#: The style that leaves a photo as it is.
PHOTO = "photo"
#: Weights of the second style along the paper's strip.
STRIP = (0.0, 0.35, 0.40, 0.45, 0.50, 0.55, 0.60, 0.65, 1.0)
NAME = re.compile(r"[A-Za-z_]\w*")


class Config(Settings):
    """Settings of the model."""

    shape: tuple[int, int, int] = Field((3, 128, 128), description="crops, (C, H, W)")
    names: tuple[str, ...] = Field(("style",), description="one for each style network")
    added: tuple[str, ...] = Field((), description="styles that were fitted afterwards")
    g: Literal["patches", "glow"] = Field(
        "patches", description="stack; glow is the paper's, with pixels as coordinates"
    )
    squeezes: int = Field(2, ge=1, le=4, description="halvings of the image (patches)")
    blocks: int = Field(2, ge=1, description="blocks of g_x")
    output_blocks: int = Field(4, ge=1, description="blocks of g_y")
    hidden: int = Field(48, ge=1, description="channels of the conditioners")
    depth: int = Field(1, ge=0, description="residual layers of the conditioners (patches)")
    mixing: bool = Field(True, description="a kernel that mixes channels, or one for each")
    kernel: int = Field(3, ge=1, description="side of the kernel")
    hypernetwork: int = Field(16, ge=1, description="width of the network that makes kernels")
    pixel: float = Field(1.0, ge=0, description="weight of |f(x) − y|")
    squares: float = Field(0.0, ge=0, description="weight of (f(x) − y)²")
    perceptual: float = Field(0.5, ge=0, description="weight of LPIPS, where its weights are there")
    texture: float = Field(
        0.2, ge=0, description="weight of the Gram matrices of its features, late in training"
    )
    condition: float = Field(
        0.003, ge=0, description="weight that keeps operators far from singular (mixing)"
    )
    save_memory: bool = Field(False, description="activation memory constant in depth")


def parse_blend(text: str, known: Mapping[str, Any] | tuple[str, ...]) -> dict[str, float]:
    r"""Read the weights of styles from a sum.

    Example:
        >>> parse_blend("0.6*candy + 0.4 mosaic - udnie", ("candy", "mosaic", "udnie"))
        {'candy': 0.6, 'mosaic': 0.4, 'udnie': -1.0}
    """
    form = re.compile(
        r"\s*([+-]?)\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)\s*\*?\s*)?([A-Za-z_]\w*)\s*"
    )
    weights: dict[str, float] = {}
    at = 0
    while at < len(text) or not weights:
        found = form.match(text, at)
        if found is None or (weights and not found[1]):
            rest = text[at:].strip()
            raise ValueError(
                f"style: expected a sum such as '0.6*candy + 0.4*mosaic', got {text!r}"
                f"{f', which cannot be read from {rest!r} on' if rest else ''}. "
                f"Known: {', '.join(known)}."
            )
        sign, number, name = found.groups()
        if name not in known:
            raise ValueError(f"style: there is no style {name!r}. {did_you_mean(name, known)}")
        weight = (-1.0 if sign == "-" else 1.0) * float(number or 1)
        weights[name] = weights.get(name, 0.0) + weight
        at = found.end()
    return weights


class Style(nn.Module):
    """``model("0.6*candy + 0.4*mosaic", strength=0.8)`` is a Linearizer from photos to pictures."""

    initialize_samples = 96

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        names = (*config.names, *config.added)
        for name in names:
            check_name(name)
        if twice := next((n for n in names if names.count(n) > 1), None):
            raise ValueError(f"style: expected each style once, but {twice!r} is there twice.")
        g_x, g_y = (_stack(config, n) for n in (config.blocks, config.output_blocks))
        self.source, self.target = Space(g_x), Space(g_y)
        self.family = StyleKernel(
            len(config.names),
            self._coordinate_shape(config.shape),
            config.kernel,
            config.mixing,
            max(config.hypernetwork, len(config.names)),
        )
        self.plain = nn.Parameter(self.family.neutral())
        self.added = nn.ParameterDict(
            {_key(name): nn.Parameter(self.family.neutral(), False) for name in config.added}
        )
        self._spaces: dict[tuple[int, ...], tuple[Space, Space]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all known styles, and "photo", which is none."""
        return (*self.config.names, *self.config.added, PHOTO)

    @property
    def multiple(self) -> int:
        """The number that sides of an image are multiples of."""
        return 2**self.config.squeezes if self.config.g == "patches" else 2

    @property
    def reach(self) -> int | None:
        """How many pixels away f may look, apart from the wrap at the border; None is all."""
        if self.config.g != "patches":
            return None
        modules = (*self.source.modules(), *self.target.modules())
        reach = sum(m.reach for m in modules if isinstance(m, LocalConv))
        return self.multiple * (reach + self.config.kernel + 1)

    def _coordinate_shape(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the shape of coordinates, as an image, of images (3, H, W)."""
        C, H, W = shape
        if self.config.g == "glow":
            return C, H, W
        s = 2**self.config.squeezes
        return C * s * s, H // s, W // s

    def spaces(self, shape: tuple[int, ...] | None = None) -> tuple[Space, Space]:
        """Return the two Spaces for images (3, H, W); those of the last eight shapes are kept."""
        shape = tuple(shape or self.config.shape)
        if shape == self.config.shape:
            return self.source, self.target
        if shape not in self._spaces:
            if len(self._spaces) >= 8:
                self._spaces.pop(next(iter(self._spaces)))
            self._spaces[shape] = (
                Space(resize(self.source.g, shape)),
                Space(resize(self.target.g, shape)),
            )
        return self._spaces[shape]

    def kernel(self, name: str) -> Tensor:
        """Return the kernel of one style."""
        if name == PHOTO:
            return self.plain
        if name in self.config.added:
            return self.added[_key(name)]
        if name not in self.config.names:
            raise ValueError(f"style: there is no style {name!r}. {did_you_mean(name, self.names)}")
        return self.family.kernels(float(self.config.names.index(name)))

    def blend(self, style: str | Mapping[str, float], strength: float = 1.0) -> Tensor:
        r"""Return the kernel A₀ + strength·(Σ wᵢ Aᵢ − A₀), A₀ that of the photo itself."""
        weights = parse_blend(style, self.names) if isinstance(style, str) else dict(style)
        if not weights or not all(map(math.isfinite, (strength, *weights.values()))):
            raise ValueError(
                "style: expected styles with finite weights and a finite strength, got "
                f"{weights} and {strength}."
            )
        kernel = sum((w * self.kernel(name) for name, w in weights.items()), 0 * self.plain)
        return kernel if strength == 1 else self.plain + strength * (kernel - self.plain)

    def forward(
        self,
        style: str | Mapping[str, float] | None = None,
        strength: float = 1.0,
        shape: tuple[int, ...] | None = None,
    ) -> Linearizer:
        r"""Return the map of a style or of a blend, for images of any size.

        Arguments:
            style: "candy", "0.6*candy + 0.4*mosaic", or weights by name; the first style if None.
            strength: 0 leaves the photo, 1 is the style, more exaggerates it.
            shape: (3, H, W) with sides that divide by ``multiple``.
        """
        kernel = self.blend(self.config.names[0] if style is None else style, strength)
        return self.map(kernel, shape)

    def map(self, kernel: Tensor, shape: tuple[int, ...] | None = None) -> Linearizer:
        """Return the Linearizer of any kernel."""
        source, target = self.spaces(shape)
        operator = self.family.operator(kernel, self._coordinate_shape(source.g.shape))
        return Linearizer(source, operator, target)

    def condition(self, kernel: Tensor) -> float:
        """Return σ_max/σ_min of a kernel's operator, on a grid of 32 × 32 frequencies."""
        C = self.family.image[0]
        A = self.family.operator(kernel.detach().double(), (C, 32, 32))
        if isinstance(A, MixingConvolution):
            values = torch.linalg.svdvals(A._blocks())
        else:
            assert isinstance(A, Convolution)
            values = A._multiplier().abs()
        largest, least = float(values.max()), float(values.min())
        return largest / least if least > 0 else math.inf

    def spread(self, kernels: Tensor) -> Tensor:
        r"""Average log(‖A_ω‖²‖A_ω⁻¹‖²/C²) over 8 × 8 frequencies ω; 0 where A is a rotation."""
        C = self.family.image[0]
        A = self.family.operator(kernels, (C, 8, 8))
        assert isinstance(A, MixingConvolution)
        blocks = A._blocks()
        norms = [X.abs().square().sum((-2, -1)) / C for X in (blocks, torch.linalg.inv(blocks))]
        return (norms[0] * norms[1]).log().mean()

    def kernels(self) -> Tensor:
        """Return the kernels of all styles that are trained, the photo's last."""
        numbers = torch.arange(len(self.config.names)).double()
        return torch.cat([self.family.kernels(numbers), self.plain[None]])

    def initialize(self, batch: Pair) -> None:
        """Set ActNorm of both g from photos and pictures, then each kernel by least squares."""
        draw = Draw(0)
        self.source.g.initialize(batch.x + 0.02 * draw.normal(batch.x))
        self.target.g.initialize(batch.y + 0.02 * draw.normal(batch.y))
        with torch.no_grad():
            last = _last_shift(self.source.g)
            if last is not None:  # a constant part in each coordinate, from which A can make a bias
                last.mean -= torch.exp(-last.log_scale)
            kernels = []
            for s in range(len(self.config.names) + 1):
                mine = batch.style == s
                few = int(mine.sum()) < 2
                kernels.append(
                    self.plain.clone() if few else self.fit(batch.x[mine], batch.y[mine])
                )
            self.family.assign(torch.stack(kernels[:-1]))
            self.plain.copy_(kernels[-1])

    @torch.no_grad()
    def fit(
        self,
        before: Tensor,
        after: Tensor,
        ridge: float = 1e-3,
        prior: Tensor | None = None,
    ) -> Tensor:
        r"""Fit the kernel of a style to pairs: argmin ‖A g_x(x) − g_y(y)‖² + ridge‖A − A_prior‖².

        Closed form: one linear system of (C·k·k) unknowns for each output channel. Nothing is
        trained.

        Arguments:
            before, after: Photos and what the style makes of them, (n, 3, H, W).
            ridge: Relative to the mean square of the coordinates.
            prior: What the kernel is drawn to; zero if not given.
        """
        source, target = self.spaces(tuple(before.shape[1:]))
        image = self._coordinate_shape(tuple(before.shape[1:]))
        k, C = self.config.kernel, image[0]
        groups = 1 if self.config.mixing else C
        width = C // groups * k * k
        exact = {"dtype": torch.float64, "device": before.device}
        gram = torch.zeros(groups, width, width, **exact)  # type: ignore[call-overload]
        cross = torch.zeros(groups, width, C // groups, **exact)  # type: ignore[call-overload]
        low = (k - 1) // 2
        for x, y in zip(before.split(8), after.split(8), strict=True):
            z, w = (space.g(part).unflatten(1, image) for space, part in ((source, x), (target, y)))
            padded = F.pad(z, (low, k - 1 - low, low, k - 1 - low), mode="circular")
            taps = F.unfold(padded, k).unflatten(1, (groups, width)).double()
            wanted = w.flatten(2).unflatten(1, (groups, C // groups)).double()
            gram += torch.einsum("ngap,ngbp->gab", taps, taps)
            cross += torch.einsum("ngap,ngop->gao", taps, wanted)
        start = torch.zeros_like(self.plain) if prior is None else prior.detach()
        known = start.double().reshape(groups, C // groups, width).mT
        size = ridge * gram.diagonal(dim1=1, dim2=2).mean() * torch.eye(width).to(gram)
        change = torch.linalg.solve(gram + size, cross - gram @ known)
        return (known + change).mT.reshape(self.family.kernel_shape).to(self.plain)

    def add(self, name: str, kernel: Tensor) -> Style:
        """Return a model that knows one style more."""
        check_name(name)
        if name in (*self.config.names, PHOTO):
            raise ValueError(
                f"style: {name!r} is a style of this model already. Choose another name."
            )
        names = (*(n for n in self.config.added if n != name), name)
        model = Style(self.config.model_copy(update={"added": names})).to(self.plain)
        model.load_state_dict({**self.state_dict(), f"added.{_key(name)}": kernel})
        return model.eval()

    def render(self, x: Tensor, kernel: Tensor, undo: bool = False, rtol: float = RTOL) -> Tensor:
        """Apply f or f† to images (n, 3, H, W) of any size: pad below and right, and cut back."""
        H, W = x.shape[-2:]
        padded = self.pad_sides(x)
        f = self.map(kernel, tuple(padded.shape[1:]))
        return (f.pinv(rtol) if undo else f)(padded)[..., :H, :W]

    def pad_sides(self, x: Tensor) -> Tensor:
        """Repeat the last rows and columns of images until the sides are multiples."""
        H, W = x.shape[-2:]
        if not H or not W:
            raise ValueError(f"style: expected images with pixels, got {tuple(x.shape)}.")
        return F.pad(x, (0, -W % self.multiple, 0, -H % self.multiple), mode="replicate")


def _key(name: str) -> str:
    """Return where an added kernel is kept: a style may be called like an attribute of torch."""
    return f"{name}_kernel"


def check_name(name: str) -> None:
    """Raise unless a style can be called by this name."""
    if not NAME.fullmatch(name) or name == PHOTO:
        raise ValueError(
            f"style: expected a name of letters, digits and _, which is not {PHOTO!r}, got "
            f"{name!r}. Names stand in sums such as '0.6*candy + 0.4*mosaic'."
        )


def _stack(config: Config, blocks: int) -> Bijection:
    if config.g == "glow":
        return glow(config.shape, blocks, config.hidden, save_memory=config.save_memory)
    sizes = (config.squeezes, blocks, config.hidden, config.depth)
    return patches(config.shape, *sizes, save_memory=config.save_memory)


def _last_shift(g: Bijection) -> Any:
    """Return the last ActNorm of a stack, or None."""
    layers = list(g)  # type: ignore[call-overload]
    return layers[-2] if hasattr(layers[-2], "log_scale") else None


def _render_pairs(model: Style, batch: Pair, kernels: Tensor) -> Tensor:
    """Return f of each photo in the style of its pair."""
    return model.map(kernels[batch.style], batch.x.shape[1:])(batch.x)


#: Share of the training after which textures count, more and more.
LATE = 0.6


def texture(judge: LPIPS, x: Tensor, y: Tensor) -> Tensor:
    r"""Average ‖G(x) − G(y)‖²/‖G(y)‖² over three layers, G the Gram matrix of the features.

    Strokes that fall elsewhere than the style network's count as much as its own do.
    """
    total = x.new_zeros(())
    with torch.no_grad():
        wanted = [_gram(h) for h in judge.activations(y)[:3]]
    for h, G in zip(judge.activations(x), wanted, strict=False):
        error = (_gram(h) - G).square().sum((1, 2)) / G.square().sum((1, 2))
        total = total + error.mean() / 3
    return total


def _gram(h: Tensor) -> Tensor:
    flat = h.flatten(2)
    return flat @ flat.mT / flat.shape[2]


def loss(model: Style, batch: Pair, draw: Draw) -> dict[str, Tensor]:
    r"""pixel·|f_s(x) − y| + perceptual·LPIPS(f_s(x), y), y the style network's picture.

    And condition·spread(A), so that styles can be undone; and late in training, where strokes are
    in place, textures.
    """
    config, kernels = model.config, model.kernels()
    made = _render_pairs(model, batch, kernels)
    terms = {"pixel": config.pixel * (made - batch.y).abs().mean()}
    if config.squares:
        terms["squares"] = config.squares * (made - batch.y).square().mean()
    if batch.judge is not None and config.perceptual:
        # A little beyond the range, so that gradients lead back into it.
        seen = made.clamp(-0.2, 1.2)
        terms["perceptual"] = config.perceptual * batch.judge(seen, batch.y).mean()
        if config.texture and draw.done > LATE:
            share = (draw.done - LATE) / (1 - LATE)
            terms["texture"] = config.texture * share * texture(batch.judge, seen, batch.y)
    if config.condition and config.mixing:
        terms["condition"] = config.condition * model.spread(kernels)
    return terms


def measure(model: Style, batch: Pair, draw: Draw) -> dict[str, Tensor]:
    """Return PSNR and LPIPS to the style network's picture, or to the photo where y is one."""
    made = _render_pairs(model, batch, model.kernels()).clamp(0, 1)
    rows = {"psnr": psnr(made, batch.y).clamp_max(100)}
    if batch.judge is not None:
        rows["lpips"] = batch.judge(made, batch.y)
    return rows


def facts(data: Data) -> dict[str, Any]:
    """Return the shape and the names, which the data decide."""
    return {"shape": data.train.shape, "names": data.train.names}


@torch.no_grad()
def preview(model: Style, data: Data, path: Path) -> None:
    """Draw crops of photos, and each style of them by its network and by f."""
    styles, val = model.config.names, data.val
    n = min(8, len(val.photos))
    title = "Style networks, and one pair of g with an operator each"
    if n == 1:
        batch = val.batch(torch.arange(len(styles) + 1))
        made = _render_pairs(model, batch, model.kernels()).clamp(0, 1)
        image_grid(path, [batch.y, made], ["network", "f"], [*styles, PHOTO], title, cell=1.6)
        return
    each = torch.arange(n) * (len(styles) + 1)
    rows, labels = [], []
    for s in (len(styles), *range(len(styles))):
        batch = val.batch(each + s)
        rows += [batch.y, _render_pairs(model, batch, model.kernels()).clamp(0, 1)]
        labels += [PHOTO if s == len(styles) else f"{styles[s]}, network", "f"]
    image_grid(path, rows, labels, [], title)
