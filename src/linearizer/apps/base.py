"""What an application hands to training, checkpoints, command line and studio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..draws import Draw
from ..linearizer import Linearizer
from ..settings import Settings

__all__ = ["App", "Refinement"]

Terms = dict[str, Tensor]


@dataclass(frozen=True)
class Refinement:
    """A second stage of training: one part of a model, on what the rest makes of the data."""

    #: What is trained; a part of the model, so that the model has its weights afterwards.
    part: nn.Module
    #: (part, batch, draw) ↦ terms whose sum is minimised
    loss: Callable[[Any, Any, Draw], Terms]
    #: With a length, and ``batch(index)``.
    source: Any
    #: Training settings that differ from those of the first stage.
    training: Mapping[str, Any]


@dataclass(frozen=True)
class App:
    """One application, as a record of functions."""

    name: str
    #: Settings of the model; with the weights they rebuild it.
    Config: type[Settings]
    #: settings ↦ model, with a method ``initialize(batch)``
    model: Callable[[Any], nn.Module]
    #: (model, batch, draw) ↦ terms whose sum is minimised, each a mean over the batch
    loss: Callable[[Any, Any, Draw], Terms]
    #: (model, batch, draw) ↦ one number for each sample, averaged over the validation set
    measure: Callable[[Any, Any, Draw], Terms]
    #: Which measure tells how good a model is, and whether more is better.
    metric: str
    maximize: bool
    #: model ↦ the Linearizer that ``certify``, ``spectrum`` and ``export`` take
    linearizer: Callable[[Any], Linearizer]
    #: data ↦ those settings of the model that the data decide
    facts: Callable[[Any], dict[str, Any]]
    #: The names of those settings.
    decided: tuple[str, ...]
    #: (model, data, path) writes a picture of what the model does
    preview: Callable[[Any, Any, Path], None] | None = None
    #: (model, data) sets what is known in closed form, once, before training
    start: Callable[[Any, Any], None] | None = None
    #: (model, data) ↦ the second stage, or None
    refine: Callable[[Any, Any], Refinement | None] | None = None
    #: (model, data) sets what is known in closed form, once, after training
    finish: Callable[[Any, Any], None] | None = None
    #: (model, folder, k) writes what ``spectrum`` shows, instead of singular values
    spectrum: Callable[[Any, Path, int], dict[str, Any]] | None = None
    #: The data set that is trained on where none is named, and which kind of source it is.
    data: str = "digits"
    source: str = "images"
    #: Training settings that differ from the general defaults.
    training: Mapping[str, Any] = field(default_factory=dict)
    #: Named sets of model and training settings, {"name": {"model": …, "training": …}}.
    presets: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
