"""Scores as functions of tensors: PSNR, FID, LPIPS, disentanglement."""

from __future__ import annotations

from .disentanglement import Scores, scores
from .images import digit_classifier, digit_features, frechet, psnr, roc_auc
from .perceptual import LPIPS, load_lpips

__all__ = [
    "LPIPS",
    "Scores",
    "digit_classifier",
    "digit_features",
    "frechet",
    "load_lpips",
    "psnr",
    "roc_auc",
    "scores",
]
