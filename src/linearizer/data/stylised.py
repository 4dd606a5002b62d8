r"""Photos beside what style networks make of them: pairs of crops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ..training.settings import did_you_mean
from .catalogue import load_images
from .files import Progress, root_folder
from .images import check_index
from .kinds import Data, ImageSettings, Kind
from .photos import Photos, load_photo
from .teachers import load_styles

__all__ = ["STYLISED", "Pair", "StyleSettings", "Stylised"]

#: Longer photos are shrunk to this side: style networks are made for strokes of a few pixels.
LONGEST = 640
#: Sides of a photo that is taken as a whole divide by this.
WHOLE = 16
#: Bytes of stylised photos that are kept; others are made again each time.
KEPT = 2 << 30


class Pair(NamedTuple):
    r"""Crops before and after: x and y (n, 3, H, W) in [0, 1], and which style made y."""

    x: Tensor
    y: Tensor
    style: Tensor  #: (n,); the number of styles stands for none: y is x
    judge: Any = None  #: (x, y) ↦ how different they look, (n,); None where it is not known


@final
class Stylised:
    r"""Crops of photos with each style: style and place of a crop follow from its number alone.

    A style network sees a whole photo, as it will in use, when a crop of its result is first asked
    for; results are kept as bytes, up to 2 GB. One more style, the last, leaves photos as they are.

    Arguments:
        photos: What is stylised.
        styles: Networks (1, 3, H, W) → (1, 3, H, W) by name.
        size: Side of the crops; None takes a single photo as a whole, its last rows and columns
            repeated until the sides divide by 16.
        crops: Of each photo and style; 1 is the centre.
        judge: Handed on with each pair.
        longest: Photos with a longer side are shrunk to this.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> from linearizer.data.images import Picture
        >>> Image.new("RGB", (80, 60), "white").save(file := io.BytesIO(), "png")
        >>> photos = Photos({"white": Picture("white.png", file.getvalue)})
        >>> data = Stylised(photos, {"dark": lambda x: x / 2}, size=32, crops=4)
        >>> x, y, style, _ = data.batch(torch.tensor([0, 7]))
        >>> len(data), style.tolist(), y.amax((1, 2, 3)).sub(x.amax((1, 2, 3))).tolist()
        (8, [0, 1], [-0.4980..., 0.0])
    """

    def __init__(
        self,
        photos: Photos,
        styles: Mapping[str, Callable[[Tensor], Tensor]],
        size: int | None,
        crops: int = 64,
        judge: Any = None,
        longest: int = LONGEST,
    ) -> None:
        if min(1 if size is None else size, crops, len(photos)) < 1:
            raise ValueError(
                "Stylised: expected photos, and crops of a size and number of 1 or more, got "
                f"{len(photos)} photos, size {size} and {crops} crops."
            )
        if size is None and len(photos) > 1:
            raise ValueError(f"Stylised: expected one photo to take as a whole, got {len(photos)}.")
        self.photos, self.names, self.size, self.crops = photos, tuple(styles), size, crops
        self.judge, self.longest = judge, longest
        self.styles = dict(styles)
        self._made: dict[tuple[int, int], Tensor] = {}
        self._kept = 0

    def __len__(self) -> int:
        return len(self.photos) * (len(self.names) + 1) * self.crops

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape (3, H, W) of one crop."""
        if self.size is not None:
            return 3, self.size, self.size
        height, width = (-(-side // WHOLE) * WHOLE for side in self._bytes(0, -1).shape[1:])
        return 3, height, width

    def batch(self, index: Tensor) -> Pair:
        """Return the crops of these numbers (n,)."""
        check_index(index, len(self), "Stylised")
        x = torch.empty(len(index), 2, *self.shape)
        style = index // self.crops % (len(self.names) + 1)
        photo = index // self.crops // (len(self.names) + 1)
        for out, number, i, s in zip(
            x, index.tolist(), photo.tolist(), style.tolist(), strict=True
        ):
            both = torch.stack([self._bytes(i, -1), self._bytes(i, s)])
            out.copy_(self._cut(both, number))
        x /= 255
        return Pair(x[:, 0].contiguous(), x[:, 1].contiguous(), style, self.judge)

    def _cut(self, both: Tensor, number: int) -> Tensor:
        height, width = both.shape[-2:]
        if self.size is None:
            pad = (0, self.shape[2] - width, 0, self.shape[1] - height)
            return F.pad(both.to(torch.float32), pad, mode="replicate")
        side = min(self.size, height, width)
        if self.crops == 1:
            top, left = (height - side) // 2, (width - side) // 2
        else:
            generator = torch.Generator().manual_seed(number)
            down, right = torch.rand(2, generator=generator).tolist()
            top, left = int(down * (height - side + 1)), int(right * (width - side + 1))
        cut = both[..., top : top + side, left : left + side].to(torch.float32)
        if side < self.size:
            cut = F.interpolate(cut, (self.size, self.size), mode="bicubic").clamp_(0, 255)
        return cut

    def _bytes(self, i: int, style: int) -> Tensor:
        """Return photo i in a style, (3, H, W) uint8; style −1 is none."""
        style %= len(self.names) + 1
        if (i, style) in self._made:
            return self._made[i, style]
        if style == len(self.names):
            x = shrink(self.photos.photo(i), self.longest)
        else:
            before = self._bytes(i, -1).to(torch.float32)[None] / 255
            with torch.no_grad():
                x = self.styles[self.names[style]](before)[0]
        made = x.clamp(0, 1).mul(255).round().to(torch.uint8)
        if self._kept + made.numel() <= KEPT:
            self._made[i, style] = made
            self._kept += made.numel()
        return made


def shrink(photo: Tensor, longest: int = LONGEST) -> Tensor:
    """Make a photo (3, H, W) smaller where its longer side is above ``longest``."""
    height, width = photo.shape[-2:]
    share = longest / max(height, width)
    if share >= 1:
        return photo
    sides = max(1, round(share * height)), max(1, round(share * width))
    return F.interpolate(photo[None], sides, mode="bilinear", antialias=True)[0]


#: Photos of the validation part that are used: each is stylised as a whole.
VALIDATED = 8


class StyleSettings(ImageSettings):
    """Photos, and the networks that stylise them."""

    size: int | None = Field(None, ge=16, description="side of the crops; 128 if not given")
    teachers: str | None = Field(
        None,
        description="folder of style networks (pytorch/examples, fast_neural_style); "
        "style_models in the data folder if not given",
    )
    styles: str = Field(
        "", description="names of those to take, with commas between; all of them if empty"
    )
    image: str | None = Field(
        None,
        description="one photo to train on instead of many, as a whole; where it is longer than "
        "two crops, it is shrunk to that",
    )


def _load(settings: StyleSettings, root: Path | None, progress: Progress | None) -> Data:
    """Load crops of photos and of what each style network makes of them."""
    from ..metrics.perceptual import load_lpips  # loads torch's compiler, which takes a second

    folder, size = root_folder(root), settings.size or 128
    nets = load_styles(settings.teachers or folder / "style_models")
    chosen = [name.strip() for name in settings.styles.split(",") if name.strip()] or list(nets)
    for name in chosen:
        if name not in nets:
            raise ValueError(f"styles: there is no network {name!r}. {did_you_mean(name, nets)}")
    styles = {name: nets[name] for name in chosen}
    notes = [f"styles: {', '.join(chosen)}"]
    try:
        judge = load_lpips("alex", folder / "lpips").requires_grad_(False)
    except (ValueError, OSError):
        judge = None
        notes.append(f"no LPIPS weights in {folder / 'lpips'}: trained on pixels alone")
    if settings.image is not None:
        photo = load_photo(Path(settings.image), size)
        whole = Stylised(photo, styles, None, crops=1, judge=judge, longest=2 * size)
        name = Path(settings.image).name
        notes.append(f"{name}: what is measured is the fit to this photo, not to others")
        return Data(name, whole, whole, photo, tuple(notes))
    loaded = load_images(settings.model_copy(update={"size": size}), root, progress, whole=True)
    train = Stylised(loaded.train, styles, size, judge=judge)
    val = Stylised(loaded.val.first(VALIDATED), styles, size, crops=1, judge=judge)
    return Data(loaded.name, train, val, loaded.test, (*loaded.notes, *notes))


STYLISED = Kind(StyleSettings, _load, "--content", frozenset({"name", "teachers", "image"}))
