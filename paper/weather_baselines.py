r"""What forecasts are compared with: x (n, look_back, channels) ↦ ŷ (n, horizon, channels).

None of them lets one channel see another. ``LastValue`` has nothing to train, ``RidgeLinear`` is
solved in closed form, ``DLinear`` and ``PatchTST`` train through ``fit`` with ``forecast_loss``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linearizer.data import Windows
from linearizer.training.draws import Draw

__all__ = [
    "DLinear",
    "LastValue",
    "PatchTST",
    "RidgeLinear",
    "forecast_errors",
    "forecast_loss",
    "forecast_measure",
]

RIDGES = tuple(10.0**k for k in range(-6, 2))


@final
class LastValue(nn.Module):
    r"""ŷ_h = x_last for every step h: the weather stays as it is.

    Example:
        >>> LastValue(horizon=3)(torch.tensor([[[1.0], [2.0]]])).flatten().tolist()
        [2.0, 2.0, 2.0]
    """

    def __init__(self, horizon: int) -> None:
        super().__init__()
        _positive("LastValue", horizon=horizon)
        self.horizon = horizon

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1:].expand(-1, self.horizon, -1)


@final
class RidgeLinear(nn.Module):
    r"""ŷ = Wᵀ(x, 1) in each channel, W = (E[aaᵀ] + λI)⁻¹ E[ayᵀ] with a = (x, 1), the bias free.

    The expectations are sums in float64 over every training window, so the fit is exact. The
    ridge λ is the one with the least error on validation windows.

    Arguments:
        look_back, horizon: Steps of past and future.
        channels: One W for each of so many channels; None for one W that all channels share.
        relative: Take x and y relative to the last value of x, which is added to ŷ.

    Example:
        >>> rows = (0.9 ** torch.arange(60, dtype=torch.float32))[:, None]
        >>> train, validation = Windows(rows[:40], 2, 1), Windows(rows[38:], 2, 1)
        >>> model = RidgeLinear(2, 1).fit(train, validation, ridges=[1e-12])
        >>> x, y = validation.batch(torch.arange(5))
        >>> torch.allclose(model(x), y, atol=1e-4)
        True
    """

    weight: Tensor  #: (channels or 1, look_back + 1, horizon)
    ridge: Tensor  #: (channels or 1,), the chosen λ of each

    def __init__(
        self, look_back: int, horizon: int, channels: int | None = None, relative: bool = False
    ) -> None:
        super().__init__()
        maps = 1 if channels is None else channels
        _positive("RidgeLinear", look_back=look_back, horizon=horizon, channels=maps)
        self.look_back, self.horizon, self.channels = look_back, horizon, channels
        self.relative = relative
        # Not for an optimiser: fit() solves for it.
        self.weight = nn.Parameter(torch.zeros(maps, look_back + 1, horizon), requires_grad=False)
        self.register_buffer("ridge", torch.zeros(maps))

    def forward(self, x: Tensor) -> Tensor:
        _check("RidgeLinear", x, self.look_back, self.channels)
        a, base = self._features(x)
        weight = self.weight.expand(x.shape[2], -1, -1)
        return torch.einsum("nlc,clh->nhc", a, weight) + base

    @torch.no_grad()
    def fit(
        self, train: Windows, validation: Windows, ridges: Sequence[float] = RIDGES
    ) -> RidgeLinear:
        """Solve for W on ``train`` with the λ of ``ridges`` that is best on ``validation``."""
        if not ridges or min(ridges) <= 0:
            raise ValueError(f"RidgeLinear: expected ridges above 0, got {tuple(ridges)}.")
        aa, ay, _ = self._moments(train)
        free = torch.ones(self.look_back + 1, dtype=torch.float64)
        free[-1] = 0  # the bias costs nothing
        weights = torch.stack([torch.linalg.solve(aa + r * free.diag(), ay) for r in ridges])
        aa, ay, yy = self._moments(validation)
        errors = yy + (weights * (aa @ weights - 2 * ay)).sum((-2, -1))  # E‖y − Wᵀa‖²
        best = errors.argmin(0)
        self.weight.copy_(weights[best, torch.arange(len(best))])
        self.ridge.copy_(torch.tensor(ridges, dtype=torch.float64)[best])
        return self

    def _features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(x, 1) of shape (n, look_back + 1, channels), and what is added to forecasts."""
        base = x[:, -1:] if self.relative else torch.zeros_like(x[:, -1:])
        return torch.cat([x - base, torch.ones_like(base)], 1), base

    def _moments(self, windows: Windows) -> tuple[Tensor, Tensor, Tensor]:
        """E[aaᵀ] (maps, look_back + 1, look_back + 1), E[ayᵀ] and E‖y‖², in float64."""
        if windows.horizon != self.horizon:
            raise ValueError(
                f"RidgeLinear: expected windows of horizon {self.horizon}, got {windows.horizon}."
            )
        maps, size, horizon = self.weight.shape
        aa = torch.zeros(maps, size, size, dtype=torch.float64)
        ay = torch.zeros(maps, size, horizon, dtype=torch.float64)
        yy = torch.zeros(maps, dtype=torch.float64)
        for x, y in _batches(windows, 512):
            _check("RidgeLinear", x, self.look_back, self.channels)
            a, base = self._features(x.double())
            a, y = (v.permute(2, 0, 1) for v in (a, y - base))  # (channels, n, steps)
            if self.channels is None:
                a, y = a.flatten(0, 1)[None], y.flatten(0, 1)[None]
            aa += a.mT @ a
            ay += a.mT @ y
            yy += y.square().sum((1, 2))
        count = len(windows) * (windows.shape[1] if self.channels is None else 1)
        return aa / count, ay / count, yy / count


@final
class DLinear(nn.Module):
    r"""ŷ = W₁ (x − m) + W₂ m + b, where m is the moving average of x; shared by all channels.

    Zeng et al., Are Transformers Effective for Time Series Forecasting?, 2023. They train with
    Adam at 1e-4, halved after each epoch, for at most ten epochs.

    Arguments:
        look_back, horizon: Steps of past and future.
        kernel: Steps in an average, odd; the ends of x are repeated.
    """

    def __init__(self, look_back: int, horizon: int, kernel: int = 25) -> None:
        super().__init__()
        _positive("DLinear", look_back=look_back, horizon=horizon, kernel=kernel)
        if kernel % 2 == 0:
            raise ValueError(f"DLinear: expected an odd kernel, got {kernel}.")
        self.look_back, self.kernel = look_back, kernel
        self.seasonal = nn.Linear(look_back, horizon)
        self.trend = nn.Linear(look_back, horizon)

    def forward(self, x: Tensor) -> Tensor:
        _check("DLinear", x, self.look_back)
        x = x.mT  # (n, channels, look_back)
        side = self.kernel // 2
        mean = F.avg_pool1d(F.pad(x, (side, side), mode="replicate"), self.kernel, stride=1)
        return (self.seasonal(x - mean) + self.trend(mean)).mT


@final
class PatchTST(nn.Module):
    r"""Patches of each channel as the words of a Transformer encoder, then one linear map.

    Each past is normalised by its own mean and deviation, which the forecast gets back. Its end is
    padded by repeating the last value ``stride`` times, patches of ``patch`` steps are cut every
    ``stride`` steps, embedded, given learned positions, encoded, flattened and mapped to ŷ. The
    defaults are the published ones for the weather data, where batches of 128 windows were trained
    with Adam at 1e-4. The authors' code also carries attention scores from layer to layer; their
    paper does not, nor do we.

    Nie et al., A Time Series is Worth 64 Words, 2023.

    Arguments:
        look_back, horizon: Steps of past and future.
        width, heads, hidden: Of the embedding, the attention and the layers between.
    """

    def __init__(
        self,
        look_back: int,
        horizon: int,
        patch: int = 16,
        stride: int = 8,
        width: int = 128,
        heads: int = 16,
        hidden: int = 256,
        layers: int = 3,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        _positive("PatchTST", look_back=look_back, horizon=horizon, stride=stride, layers=layers)
        if not 1 <= patch <= look_back:
            raise ValueError(
                f"PatchTST: expected a patch of 1 to look_back={look_back} steps, got {patch}."
            )
        if heads < 1 or width % heads:
            raise ValueError(
                f"PatchTST: expected a width that divides into the heads, got {width} and {heads}."
            )
        self.look_back, self.patch, self.stride = look_back, patch, stride
        patches = (look_back - patch) // stride + 2
        self.embed = nn.Linear(patch, width)
        self.position = nn.Parameter(torch.empty(patches, width).uniform_(-0.02, 0.02))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            _EncoderLayer(width, heads, hidden, dropout) for _ in range(layers)
        )
        self.head = nn.Linear(patches * width, horizon)

    def forward(self, x: Tensor) -> Tensor:
        _check("PatchTST", x, self.look_back)
        var, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
        std = (var + 1e-5).sqrt()
        h = F.pad(((x - mean) / std).mT, (0, self.stride), mode="replicate")
        h = h.unfold(2, self.patch, self.stride).flatten(0, 1)  # (n · channels, patches, patch)
        h = self.dropout(self.embed(h) + self.position)
        for layer in self.layers:
            h = layer(h)
        y = self.head(h.flatten(1)).unflatten(0, (len(x), -1))  # (n, channels, horizon)
        return y.mT * std + mean


@final
class _EncoderLayer(nn.Module):
    """Attention, then two linear maps with GELU; after each, the sum goes through batch norm."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.between = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor) -> Tensor:
        attended, _ = self.attention(h, h, h, need_weights=False)
        h = self.norms[0]((h + self.dropout(attended)).mT).mT
        return self.norms[1]((h + self.dropout(self.between(h))).mT).mT


def forecast_loss(model: nn.Module, batch: Any, draw: Draw) -> dict[str, Tensor]:
    """Mean of (ŷ − y)² over windows, steps and channels, for ``fit``."""
    return {"mse": F.mse_loss(model(batch.x), batch.y)}


def forecast_measure(model: nn.Module, batch: Any, draw: Draw) -> dict[str, Tensor]:
    """Mean of (ŷ − y)² and of |ŷ − y| for each window, for ``fit``'s validation."""
    error = (model(batch.x) - batch.y).flatten(1)
    return {"mse": error.square().mean(1), "mae": error.abs().mean(1)}


@torch.no_grad()
def forecast_errors(
    predict: Callable[[Tensor], Tensor], windows: Windows, batch: int = 512
) -> dict[str, Any]:
    r"""Errors on scaled data: every window, step and channel counted once, summed in float64.

    Arguments:
        predict: (n, look_back, channels) ↦ (n, horizon, channels). A module is set to evaluation.
        batch: Windows at a time; the last batch may be smaller.

    Returns:
        "mse" and "mae" as floats, and "mse_by_step" (horizon,).

    Example:
        >>> rows = torch.arange(9, dtype=torch.float32)[:, None]  # each step rises by one
        >>> errors = forecast_errors(LastValue(2), Windows(rows, 3, 2))
        >>> errors["mse"], errors["mae"], errors["mse_by_step"].tolist()
        (2.5, 1.5, [1.0, 4.0])
    """
    if isinstance(predict, nn.Module):
        predict.eval()
    squares = torch.zeros(windows.horizon, dtype=torch.float64)
    sizes = torch.zeros(windows.horizon, dtype=torch.float64)
    for x, y in _batches(windows, batch):
        forecast = predict(x)
        if forecast.shape != y.shape:
            raise ValueError(
                f"forecast_errors: expected forecasts of shape {tuple(y.shape)}, got "
                f"{tuple(forecast.shape)}."
            )
        error = (forecast - y).double()
        squares += error.square().sum((0, 2))
        sizes += error.abs().sum((0, 2))
    count = len(windows) * windows.shape[1]
    return {
        "mse": float(squares.mean() / count),
        "mae": float(sizes.mean() / count),
        "mse_by_step": squares / count,
    }


def _batches(windows: Windows, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for index in torch.arange(len(windows)).split(size):
        x, y = windows.batch(index)
        assert y is not None
        yield x, y


def _positive(where: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{where}: expected {name} of 1 or more, got {size}.")


def _check(where: str, x: Tensor, look_back: int, channels: int | None = None) -> None:
    if x.ndim != 3 or x.shape[1] != look_back or channels not in (None, x.shape[2]):
        expected = f"(n, {look_back}, {'channels' if channels is None else channels})"
        raise ValueError(f"{where}: expected pasts of shape {expected}, got {tuple(x.shape)}.")
