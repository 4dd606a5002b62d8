r"""The contract of an application: all that training, commands, reports and the studio ask of it.

To add an application (``docs/tutorials/6-your-own-application.md`` builds one):

1. Write a ``Config`` (:class:`Settings`) and a module whose methods return Linearizers.
2. Write ``loss(model, batch, draw)`` and ``measure(model, batch, draw)``.
3. Put both into an :class:`App`. That is enough to train, resume, load, certify, evaluate, report,
   export and open it in the studio.
4. Add commands, an evaluation or a page of its own where the general ones are not enough.
5. Name it in the entry-point group ``linearizer.apps`` of a package, or on the command line as
   ``FILE.py:APP``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from ..data.kinds import Data, Kind
from ..linearizer import Linearizer
from ..training.draws import Draw
from ..training.settings import Settings
from ..training.sources import Source

__all__ = ["App", "Run", "Say", "Stage", "Terms", "Yardstick"]

C = TypeVar("C", bound=Settings)
M = TypeVar("M", bound=nn.Module)
B = TypeVar("B")

Terms = dict[str, Tensor]
#: Prints one line for a person.
Say = Callable[[str], None]


class Yardstick(NamedTuple):
    """What a plain linear method reaches on the validation part, fitted in seconds."""

    name: str
    measures: dict[str, float]  #: the application's metric among them


@dataclass(frozen=True)
class Stage:
    """A further stage of training: one part of a model, on what the rest makes of the data."""

    name: str
    #: What is trained; a part of the model, so that the model has its weights afterwards.
    part: nn.Module
    #: (part, batch, draw) ↦ terms whose sum is minimised
    loss: Callable[[Any, Any, Draw], Terms]
    source: Source
    #: Training settings that differ from those of the first stage.
    training: Mapping[str, Any]


@dataclass(frozen=True)
class App(Generic[C, M, B]):
    """One application.

    Only the first group has no defaults; every function takes the model that ``build`` makes.
    """

    name: str
    #: What it does, in one line: for help, reports and the studio.
    summary: str
    #: Settings of the model; with the weights they rebuild it.
    Config: type[C]
    #: settings ↦ model; ``model.initialize(batch)``, where there is one, is called before training
    build: Callable[[C], M]
    #: (model, batch, draw) ↦ terms whose sum is minimised, each a mean over the batch
    loss: Callable[[M, B, Draw], Terms]
    #: (model, batch, draw) ↦ one number for each sample, averaged over the validation set
    measure: Callable[[M, B, Draw], Terms]
    #: Which measure tells how good a model is, and whether more is better.
    metric: str
    maximize: bool
    #: model ↦ the Linearizer that ``certify``, ``spectrum``, ``export`` and the studio take
    linearizer: Callable[[M], Linearizer]
    #: What kind of data it is trained on, and which where none are named.
    kind: Kind
    data: str

    #: The formula of its map, with a few words.
    formula: str = "f(x) = g_y⁻¹(A g_x(x))"
    #: data ↦ those settings of the model that the data decide
    facts: Callable[[Data], dict[str, Any]] = lambda data: {}
    #: The names of those settings.
    decided: tuple[str, ...] = ()
    #: data ↦ {"model": …, "training": …}, settings that suit few samples; those that were asked
    #: for stay
    adapt: Callable[[Data], Mapping[str, Mapping[str, Any]]] | None = None
    #: Training settings that differ from the general defaults.
    training: Mapping[str, Any] = field(default_factory=dict)
    #: Named sets of settings, {"name": {"data": …, "model": …, "training": …}}.
    presets: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    #: (model, data) sets what is known in closed form, once, before training
    start: Callable[[M, Data], None] | None = None
    #: Each (model, data) ↦ a stage of training after the first, or None where nothing is to do.
    stages: Sequence[Callable[[M, Data], Stage | None]] = ()
    #: (model, data) sets what is known in closed form, once, after training
    finish: Callable[[M, Data], None] | None = None

    #: Whether the metric tells which weights are best; else a run ends with the last ones.
    tells_best: Callable[[C], bool] = lambda config: True
    #: (model, data) ↦ what a plain linear method measures, or None where there is none
    yardstick: Callable[[M, Data], Yardstick | None] | None = None
    #: (model, data) ↦ the yardstick as a model, which a run keeps where training found no better
    plain: Callable[[M, Data], M | None] | None = None
    #: Settings of the model that are steps of further stages; ``--steps`` scales them as well.
    stage_steps: tuple[str, ...] = ()

    #: (model, data, path) writes a picture of what the model does
    preview: Callable[[M, Data, Path], None] | None = None
    #: (model, folder, k) writes what ``spectrum`` shows, instead of singular values
    spectrum: Callable[[M, Path, int], dict[str, Any]] | None = None
    #: (model, n, seed) ↦ samples of the data, where it can make any
    sample: Callable[[M, int, int], Tensor] | None = None
    #: (model, n, seed) ↦ points that the Linearizer starts from, where they are not data
    points: Callable[[M, int, int], Tensor] | None = None
    #: (run, folder, n, say) ↦ what can be measured without the data, as ``evaluate`` gives it
    evaluate_alone: Callable[[Run, Path, int | None, Say], dict[str, Any]] | None = None
    #: (run, data, folder, n, say) ↦ numbers; files that it writes into the folder are listed under
    #: "pictures", and n samples are taken at most. Without it, the means of ``measure``.
    evaluate: Callable[[Run, Data, Path, int | None, Say], dict[str, Any]] | None = None

    #: Its commands, a typer.Typer (see ``apps/command.py``).
    commands: Any = None
    #: Its page in the studio (see ``apps/page.py``); without one there is a general one.
    page: Any = None

    def make(self, config: C) -> M:
        """The model of these settings; it knows the application that it belongs to."""
        model = self.build(config)
        model.app_name = self.name  # type: ignore[assignment]
        if not hasattr(model, "config"):
            model.config = config  # type: ignore[assignment]
        return model


class Run(NamedTuple):
    """A trained model with its folder, its configuration and its application."""

    folder: Path
    config: dict[str, Any]
    app: App[Any, Any, Any]
    model: Any

    @property
    def data_name(self) -> str:
        """The name of the data that it was trained on, or nothing."""
        return str((self.config.get("data") or {}).get("name") or "")
