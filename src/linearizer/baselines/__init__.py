r"""What the applications are compared with, in the same harness and on the same data."""

from .forecasts import (
    DLinear,
    LastValue,
    PatchTST,
    RidgeLinear,
    forecast_errors,
    forecast_loss,
    forecast_measure,
)
from .images import Autoencoder, ResNet18, autoencoder_loss, ign_loss, ign_noise, train_for

__all__ = [
    "Autoencoder",
    "DLinear",
    "LastValue",
    "PatchTST",
    "ResNet18",
    "RidgeLinear",
    "autoencoder_loss",
    "forecast_errors",
    "forecast_loss",
    "forecast_measure",
    "ign_loss",
    "ign_noise",
    "train_for",
]
