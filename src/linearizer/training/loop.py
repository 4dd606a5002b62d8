r"""The one optimiser loop: every application trains through :func:`fit`.

A step depends on the weights, the seed and its number only (see ``draws``), so a run can be
stopped, killed, resumed and moved to another number of processes without changing its course.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from .checkpoint import (
    CONFIG,
    HUB_WEIGHTS,
    METRICS,
    WEIGHTS,
    atomic,
    fill,
    finite,
    name_full_disk,
    read_metrics,
    read_tensors,
    tensors_of,
    write_config,
    write_tensors,
    write_weights,
)
from .draws import Draw, Order, mix
from .optimizers import Optimizers
from .processes import Processes, free_memory, keep_memory, local, whole
from .progress import Display
from .settings import Settings
from .sources import Source, as_source

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["DivergedError", "Interrupted", "Result", "Source", "Training", "fit"]

STATE, BEST = (Path("state") / f"{name}.safetensors" for name in ("latest", "best"))

Terms = dict[str, Tensor]
Loss = Callable[[Any, Any, Draw], Terms | Tensor]
#: What a user may give: terms or one number, with or without a draw.
AnyLoss = Callable[..., Terms | Tensor]
#: (steps, steps done) ↦ what shows how far they are
Watch = Callable[[int, int], Display]


#: Validations without a better one before a training stops, unless told.
PATIENCE = 10


class Training(Settings):
    """How a model is trained."""

    steps: int = Field(1000, ge=1, description="optimiser steps in all")
    batch: int = Field(128, ge=1, le=2**24, description="samples in a step, over all processes")
    accumulate: int = Field(1, ge=1, description="parts of a batch that are run one by one")
    optimizer: Literal["adam", "muon"] = Field(
        "adam", description="adam, or muon for matrices and kernels and adam for other weights"
    )
    rate: float = Field(1e-3, gt=0, description="learning rate at its highest")
    final_rate: float = Field(0.0, ge=0, le=1, description="share of the rate left at the end")
    warmup: int = Field(50, ge=0, description="steps until the rate is reached")
    beta2: float = Field(
        0.999, gt=0, lt=1, description="memory of Adam for squared gradients; less for short runs"
    )
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay")
    clip: float = Field(1.0, ge=0, description="largest norm of the gradient; 0 for no limit")
    ema: float = Field(0.0, ge=0, lt=1, description="decay of the averaged weights; 0 for none")
    seed: int = Field(0, ge=0, lt=2**63, description="of weights, order of samples and noise")
    validate_every: int = Field(100, ge=0, description="steps between validations; 0 for none")
    keep: Literal["best", "last"] = Field(
        "best", description="weights to end with: of the best validation, or the last ones"
    )
    patience: int = Field(
        PATIENCE,
        ge=0,
        description="validations without a better one before stopping, where the best are kept; "
        "0 never stops",
    )
    checkpoint_every: int = Field(200, ge=1, description="steps between checkpoints")
    log_every: int = Field(10, ge=1, description="steps between lines of metrics.jsonl")
    tensorboard: bool = Field(
        find_spec("tensorboard") is not None,
        description="write TensorBoard events as well; by default where it is installed",
    )
    compile: bool = Field(False, description="torch.compile the loss")
    precision: Literal["float32", "bf16"] = Field(
        "float32", description="of the conditioners; couplings and core stay in float32"
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where to train")
    strategy: Literal["ddp", "fsdp"] = Field(
        "ddp", description="for several processes: copies of the model, or shards of it"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Training:
        if self.patience not in (0, PATIENCE) and not self.validate_every:
            raise ValueError("patience needs validations: set validate_every above 0")
        if self.optimizer == "muon" and self.strategy == "fsdp":
            raise ValueError("muon needs whole matrices, which fsdp shards: set strategy to ddp")
        return self


class DivergedError(ValueError):
    """The loss or its gradient is not finite."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM came; the checkpoint of the last step is written."""

    def __init__(self, result: Result, signal_number: int) -> None:
        super().__init__(f"training was stopped at step {result.step}")
        self.result = result
        self.signal_number = signal_number


class Result(NamedTuple):
    """How a run ended."""

    step: int
    stopped: str  #: "done", "early" (patience), or "interrupted"
    metrics: dict[str, float]  #: of the validation whose weights are kept
    losses: dict[str, float]  #: terms at the last logged step
    seconds: float  #: spent training, over all sessions of the run
    best_step: int | None = None  #: of the best validation, where its weights are kept
    model: Any = None  #: what was trained, where ``runs.execute`` built it
    yardstick: dict[str, Any] | None = None  #: what a plain linear method measures, with its name
    plain: bool = False  #: whether that method is what the run keeps


def fit(
    model: nn.Module,
    loss: AnyLoss,
    data: object,
    config: Training | None = None,
    run: str | Path | None = None,
    *,
    validation: object = None,
    measure: AnyLoss | None = None,
    metric: str | None = None,
    maximize: bool = False,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    preview: Callable[[nn.Module, Path], None] | None = None,
    progress: bool | str | Watch = True,
) -> Result:
    r"""Minimise the sum of the loss's terms by Adam; the model then holds the trained weights.

    Ctrl-C and SIGTERM end it after the step, with a checkpoint, by raising :class:`Interrupted`.

    Arguments:
        model: A module; its ``initialize(batch)``, where it has one, is called once before, with
            1024 samples or ``model.initialize_samples`` of them.
        loss: (model, batch) ↦ scalar, or (model, batch, draw) ↦ {"term": scalar}: means over the
            batch. Randomness that comes from ``draw`` does not depend on the number of processes.
        data: What to train on: tensors or arrays, a data set or DataLoader of torch, or any
            :class:`Source`.
        config: How; see :class:`Training`.
        run: Folder for weights, metrics and state; nothing is written without it.
        validation: Data for ``measure``.
        measure: As ``loss``, with one number for each sample instead of their mean.
        metric: The measure that tells how good the model is; the first one unless told. Training
            ends with the weights of its best validation (see ``Training.keep``).
        maximize: Whether more of it is better.
        settings: The whole resolved configuration, saved as config.json.
        resume: Go on from the folder's last checkpoint, if it has one.
        preview: (model, path) draws a picture at validations, into samples/.
        progress: Show a bar, or lines where stderr is no terminal; a text says what is trained.
            A function (steps, steps done) ↦ ``Display`` makes another one.
    """
    config = config or Training()
    _check(model, loss, measure, config)
    data = as_source(data)
    validation = None if validation is None else as_source(validation, "validation")
    loss, measure = _with_draw(loss), measure and _with_draw(measure)
    _check_validation(validation, measure, config)
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(Processes(config.device, config.strategy))
        parts = group.world * config.accumulate
        if config.batch % parts:
            raise ValueError(
                f"training: a batch of {config.batch} does not divide into {parts} equal parts "
                f"({group.world} processes × {config.accumulate} to accumulate). Choose a multiple."
            )
        loop = _Loop(model, loss, data, config, None if run is None else Path(run), group)
        loop.validation, loop.measure = validation, measure
        loop.metric, loop.maximize, loop.preview = metric, maximize, preview
        if loop.run is not None and group.first:
            stack.enter_context(_lock(loop.run))
        if group.device.type == "cpu" and keep_memory():
            stack.callback(free_memory)
        loop.begin(resume, settings or {})
        return loop.train(stack, progress)


def _check(model: object, loss: object, measure: object, config: object) -> None:
    """Refuse what cannot be trained or called."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"training: expected the model as a torch module, got {_kind(model)}. Make it a "
            "subclass of nn.Module, and give an object of it."
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(
            "training: expected a model with weights to train, got none with requires_grad. Give "
            "it parameters (nn.Parameter), or call requires_grad_() on it."
        )
    for name, function in (("loss", loss), ("measure", measure)):
        if not callable(function) and (function is not None or name == "loss"):
            raise TypeError(
                f"training: expected the {name} as a function of (model, batch), or of (model, "
                f"batch, draw), got {_kind(function)}."
            )
    if not isinstance(config, Training):
        raise TypeError(
            f"training: expected the settings as lz.Training, got {_kind(config)}. Write "
            "lz.Training(steps=1000), say."
        )


def _check_validation(validation: Source | None, measure: object, config: Training) -> None:
    """Refuse validation that could not be done."""
    if validation is not None and not len(validation):
        raise ValueError("training: expected validation data, got an empty set.")
    if validation is not None and measure is None:
        raise ValueError(
            "training: validation data need a measure, got none. Give one: as the loss, with one "
            "number for each sample."
        )
    if config.patience not in (0, PATIENCE) and (validation is None or measure is None):
        raise ValueError("training: patience needs validation data and a measure.")


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _with_draw(function: AnyLoss) -> Loss:
    """Return a loss or measure that takes a draw, also where the user's takes none."""
    if _takes_draw(function):
        return function
    try:
        takes = inspect.signature(function)
    except (TypeError, ValueError):  # no signature is known of it
        return lambda model, batch, draw: function(model, batch)
    for names in ((), ("draw",)):  # draw may be a keyword
        with contextlib.suppress(TypeError):
            takes.bind(None, None, **dict.fromkeys(names))
            return lambda model, batch, draw: function(model, batch, **dict.fromkeys(names, draw))
    raise TypeError(
        f"training: expected a loss or measure of (model, batch), or of (model, batch, draw), got "
        f"one of {takes}."
    )


def _as_terms(found: object, name: str) -> Terms:
    """Return what a loss or a measure gave as terms; one tensor has the name."""
    if isinstance(found, Tensor):
        return {name: found}
    terms = found if isinstance(found, Mapping) and found else {"": found}
    bad = [v for v in terms.values() if not isinstance(v, Tensor)]
    if not bad:
        return dict(terms)
    advice = " Leave .item() and float() out." if isinstance(bad[0], float) else ""
    raise TypeError(
        f"training: expected a tensor, or a dict of tensors by name, from the {name}, got "
        f"{type(found).__name__ if terms is not found else f'a dict with {_kind(bad[0])}'}.{advice}"
    )


def _takes_draw(function: AnyLoss) -> bool:
    """Whether it takes a third argument: ``draw``, one without a default, or ``*args``."""
    function = function.forward if isinstance(function, nn.Module) else function
    try:
        takes = list(inspect.signature(function).parameters.values())
    except ValueError:  # no signature is known of it
        return False
    places = [p for p in takes if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in takes):
        return True
    return len(places) > 2 and (
        places[2].name == "draw" or places[2].default is inspect.Parameter.empty
    )


class _Objective(nn.Module):
    """The module whose forward DDP, FSDP and compile see."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Any, draw: Draw, call: Loss | None = None) -> Any:
        return (call or self.loss)(self.model, batch, draw)


class _Loop:
    validation: Source | None
    measure: Loss | None
    metric: str | None
    maximize: bool
    preview: Callable[[nn.Module, Path], None] | None

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Source,
        config: Training,
        run: Path | None,
        group: Processes,
    ) -> None:
        self.model, self.data, self.config, self.run, self.group = model, data, config, run, group
        self.objective = _Objective(model, loss)
        self.order = Order(len(data), config.seed)
        self.step, self.seconds = 0, 0.0
        self.best: float | None = None
        self.best_step: int | None = None
        self.since_best = 0
        self.metrics: dict[str, float] = {}
        self.losses: dict[str, float] = {}
        self.best_weights: dict[str, Tensor] | None = None
        self.saved_step: int | None = None
        self.improved = False
        self.events: SummaryWriter | None = None

    # -- before ----------------------------------------------------------------------------

    def begin(self, resume: bool, settings: Mapping[str, Any]) -> None:
        group, config = self.group, self.config
        self.settings = dict(settings) or {"app": None, "model": None}
        self.settings.setdefault("training", config.model_dump(mode="json"))
        self.model.to(group.device)
        tensors: dict[str, Tensor] = {}
        about: dict[str, Any] | None = None
        if self.run is not None and group.first:
            found = (self.run / STATE).exists()
            if found and not resume:
                raise ValueError(
                    f"{self.run}: the folder holds a run already. Resume it, or choose another."
                )
            trained = [n for n in (WEIGHTS, HUB_WEIGHTS) if (self.run / n).exists()]
            if trained and not found:
                raise ValueError(
                    f"{self.run}: the folder has {trained[0]}, but no {STATE} to resume from, and "
                    "training would overwrite it. Choose another folder."
                )
            if found:
                tensors, about = read_tensors(self.run / STATE)
        about = group.share(about)
        own = "model/"
        if about is not None:
            weights = {k[len(own) :]: v for k, v in tensors.items() if k.startswith(own)}
            if group.first:
                fill(self.model, weights, f"{self.run}/{STATE}")
        elif hasattr(self.model, "initialize"):
            count = min(getattr(self.model, "initialize_samples", 1024), len(self.data))
            start = _to(self.data.batch(self.order.take(0, count)), group.device)
            self.model.initialize(start)  # type: ignore[operator]
        if self.run is not None and group.first:
            (self.run / "state").mkdir(parents=True, exist_ok=True)
            write_config(self.run, self.settings)
        unused = self._unused() if group.strategy == "ddp" else False
        if config.compile:
            self.objective.compile()
        self.wrapped = group.wrap(self.objective, unused)
        self.named = {
            name: p for name, p in self.model.named_parameters() if p.requires_grad
        }  # each once, sharded if they are
        self.optimizers = Optimizers(
            config.optimizer,
            self.named,
            config.rate,
            config.beta2,
            config.weight_decay,
            fused=group.strategy != "fsdp",
        )
        self.average = (
            {n: p.detach().clone() for n, p in self.named.items()} if config.ema else None
        )
        if about is not None:
            self._restore(tensors, about)
        self._trim()

    def _unused(self) -> bool:
        """Whether the loss leaves some parameter without a gradient, which DDP must know."""
        batch = _to(self.data.batch(self.order.take(0, 2)), self.group.device)
        kept = [b.clone() for b in self.model.buffers()]  # a loss may move statistics
        value = sum(_as_terms(self.objective(batch, Draw(0)), "loss").values())
        assert isinstance(value, Tensor)
        value.backward()
        unused = any(p.requires_grad and p.grad is None for p in self.model.parameters())
        self.model.zero_grad()
        for b, old in zip(self.model.buffers(), kept, strict=True):
            b.copy_(old)
        return unused

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        self.step, self.seconds = about["step"], about["seconds"]
        self.best, self.since_best = about["best"], about["since_best"]
        self.best_step = about.get("best_step")
        self.metrics, self.losses = about["metrics"], about["losses"]
        self.saved_step = self.step
        for name, p in self.named.items():
            if self.average is not None and name in about["averaged"]:
                self.group.give(self.average[name], tensors.get(f"average/{name}"))
            if name not in about["stepped"]:
                continue  # it had no gradient yet
            for key, value in self.optimizers.remember(p).items():
                self.group.give(value, tensors.get(f"optimizer/{key}/{name}"))

    def _trim(self) -> None:
        """Drop lines of metrics.jsonl after the checkpoint, and a half-written last one."""
        if self.run is None or not self.group.first:
            return
        path = self.run / METRICS
        kept = [r for r in read_metrics(path) if r["step"] <= self.step]
        with atomic(path) as part:
            part.write_text("".join(json.dumps(r) + "\n" for r in kept), encoding="utf-8")
        if self.config.tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise ValueError(
                    "train: the package tensorboard is not installed. Run pip install "
                    '"linearizer[tensorboard]", or add --no-tensorboard (tensorboard=False).'
                ) from None
            self.events = SummaryWriter(
                str(self.run / "tensorboard"), purge_step=self.step + 1 if self.step else None
            )
        self.lines = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed with the loop)

    # -- the loop --------------------------------------------------------------------------

    def train(self, stack: contextlib.ExitStack, progress: bool | str | Watch) -> Result:
        config, group = self.config, self.group
        interrupted = stack.enter_context(_interrupts())
        stack.callback(self._close)
        self.display: Display | None = None
        if progress and group.first:
            label = progress if isinstance(progress, str) else "training"
            watch = progress if callable(progress) else partial(Display, label=label)
            self.display = stack.enter_context(watch(config.steps, self.step))
        # A run that has stopped early stays so, unless patience is given anew.
        stopped = "early" if self._has_waited() else "done"
        parameters = list(self.named.values())
        self.model.train()
        # What is asked for after a step, besides the step itself: logging, validation, checkpoint.
        check_every = 1 if group.device.type == "cpu" else config.log_every
        if not self.step and self.best_step is None and self._keeps_best():  # or the start is best
            self._validate()
        begun = time.perf_counter() - self.seconds
        while self.step < config.steps and stopped == "done":
            rate = self._rate()
            terms = self._backward()
            norm = self._norm(parameters)
            step = self.step + 1
            log = step % config.log_every == 0 or step == config.steps
            check = log or step % check_every == 0 or step % config.checkpoint_every == 0
            if check and not math.isfinite(float(norm) + float(sum(terms.values()))):
                raise DivergedError(self._problem(step, terms))
            self.optimizers.step(rate)
            self._average(parameters, step)
            self.step, self.seconds = step, time.perf_counter() - begun
            if log:
                self._log(terms, norm, rate)
            if config.validate_every and (
                step % config.validate_every == 0 or step == config.steps
            ):
                self._validate()
                begun = time.perf_counter() - self.seconds  # validation is not training time
                if self._has_waited():
                    stopped = "early"
            stop = bool(interrupted) if group.world == 1 else log and group.any(bool(interrupted))
            if stop and stopped == "done" and step < config.steps:
                stopped = "interrupted"
                if not log:
                    self._log(terms, norm, rate)
            if stopped != "done" or step % config.checkpoint_every == 0 or step == config.steps:
                self._checkpoint()
                begun = time.perf_counter() - self.seconds
        self._finish()
        best = self.best_step if self._keeps_best() else None
        result = Result(self.step, stopped, self.metrics, self.losses, self.seconds, best)
        if stopped == "interrupted":
            raise Interrupted(result, interrupted[0] if interrupted else signal.SIGTERM)
        return result

    def _keeps_best(self) -> bool:
        """Whether the weights of the best validation are kept."""
        validated = self.config.validate_every and self.validation and self.measure
        return bool(validated) and self.config.keep == "best"

    def _has_waited(self) -> bool:
        """Whether there were as many validations without a better one as patience allows."""
        patience = self.config.patience
        return bool(patience) and self._keeps_best() and self.since_best >= patience

    def _rate(self) -> float:
        """Linear warm-up, then a cosine from the rate to its final share."""
        c, step = self.config, self.step
        warm = min(1.0, (step + 1) / c.warmup) if c.warmup else 1.0
        cosine = 0.5 + 0.5 * math.cos(math.pi * step / c.steps)
        return c.rate * warm * (c.final_rate + (1 - c.final_rate) * cosine)

    def _backward(self) -> Terms:
        """Gradients of one global batch; this process takes its slice, in parts."""
        config, group = self.config, self.group
        size = config.batch // (group.world * config.accumulate)
        seed = mix(config.seed, "step", self.step)
        # For randomness that is not drawn from `draw` (torch.manual_seed would take 0.2 ms).
        torch.default_generator.manual_seed(seed + group.rank)
        if group.device.type == "cuda":
            torch.cuda.manual_seed(seed + group.rank)
        total: Terms = {}
        for part in range(config.accumulate):
            start = (group.rank * config.accumulate + part) * size
            index = self.order.take(self.step * config.batch + start, size)
            batch = _to(self.data.batch(index), group.device)
            last = part == config.accumulate - 1
            with group.without_sync(self.wrapped, last):
                with self._precision():
                    found = self.wrapped(batch, Draw(seed, start, self.step / config.steps))
                terms = _as_terms(found, "loss")
                value = sum(terms.values())
                assert isinstance(value, Tensor), "a loss needs at least one term"
                if value.ndim:
                    raise ValueError(
                        "training: expected the loss as one number, a mean over the batch, got a "
                        f"tensor of shape {tuple(value.shape)}. Take its mean()."
                    )
                if not value.requires_grad or value.is_complex():
                    raise ValueError(
                        "training: expected a real loss that depends on the model's weights, got "
                        f"one that is {'complex' if value.is_complex() else 'constant in them'}. "
                        "Leave detach(), no_grad and .numpy() out of it."
                    )
                (value / config.accumulate if config.accumulate > 1 else value).backward()
            for name, term in terms.items():
                share = term.detach() / config.accumulate
                total[name] = total[name] + share if name in total else share
        return total

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.config.precision == "bf16":
            return torch.autocast(self.group.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def _norm(self, parameters: list[nn.Parameter]) -> Tensor:
        grads = [local(p.grad) for p in parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(grads)
        if self.group.strategy == "fsdp":  # each process has a part of every gradient
            norm = self.group.sum(norm.square()).sqrt()
        if self.config.clip:
            torch._foreach_mul_(grads, (self.config.clip / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def _problem(self, step: int, terms: Terms, other: str = "the gradient") -> str:
        bad = [name for name, value in terms.items() if not bool(torch.isfinite(value))]
        what = f"the loss ({', '.join(bad)})" if bad else other
        kept = ""
        if self.run is not None:
            kept = (
                f"The last good checkpoint, step {self.saved_step}, is kept in {self.run}. "
                if self.saved_step is not None
                else "No checkpoint had been written yet. "
            )
        return (
            f"training: {what} became NaN or infinite at step {step}. {kept}"
            f"Lower the rate (now {self.config.rate:g}) or clip (now {self.config.clip:g}), or "
            "look for such values in the data."
        )

    def _average(self, parameters: list[nn.Parameter], step: int) -> None:
        """Exponential moving average of the weights; its memory grows with the steps at first."""
        if self.average is not None:
            decay = min(self.config.ema, step / (step + 9))
            torch._foreach_lerp_(
                [local(a) for a in self.average.values()],
                [local(p.detach()) for p in parameters],
                1 - decay,
            )

    # -- now and then ----------------------------------------------------------------------

    def _log(self, terms: Terms, norm: Tensor, rate: float) -> None:
        losses = self.group.mean(terms)
        self.losses = {"loss": sum(losses.values()), **losses}
        if self.group.first:
            row = {**self.losses, "rate": rate, "norm": float(norm), "seconds": self.seconds}
            self._write({"step": self.step, **row}, row)
            if self.display is not None:
                self.display.update(self.step, self.losses)

    def _write(self, row: Mapping[str, Any], scalars: Mapping[str, float]) -> None:
        if self.run is None:
            return
        with name_full_disk(self.run / METRICS):
            self.lines.write(json.dumps(finite(row), allow_nan=False) + "\n")
            self.lines.flush()
        if self.events is not None:
            for name, value in scalars.items():
                self.events.add_scalar(name, value, self.step)

    @torch.no_grad()
    def _validate(self) -> None:
        """Means over the whole validation set, with the averaged weights."""
        if self.validation is None or self.measure is None:
            return
        group, n = self.group, len(self.validation)
        sums: dict[str, Tensor] = {}
        self.model.eval()
        with self._with_average():
            for first in range(0, n, self.config.batch):
                places = torch.arange(first, min(first + self.config.batch, n))
                mine = places.tensor_split(group.world)[group.rank]
                # Every process runs every batch, as FSDP needs; one that has no part counts none.
                batch = _to(self.validation.batch(mine if len(mine) else places[:1]), group.device)
                offset = int(mine[0]) - first if len(mine) else 0
                draw = Draw(mix(self.config.seed, "validation", first), offset)
                values = _as_terms(self.wrapped(batch, draw, self.measure), "value")
                for name, value in values.items():
                    if value.ndim != 1 or len(value) != max(len(mine), 1):
                        raise ValueError(
                            f"training: expected the measure {name!r} as one number for each of "
                            f"{max(len(mine), 1)} samples, got shape {tuple(value.shape)}."
                        )
                    part = value.double().sum() if len(mine) else value.new_zeros(()).double()
                    sums[name] = sums[name] + part if name in sums else part
            totals = group.sum(torch.stack(list(sums.values()))) / n
            measured = dict(zip(sums, totals.tolist(), strict=True))
            self._judge(measured)
            sharded = group.strategy == "fsdp"
            if self.preview is not None and self.run is not None and self.step and not sharded:
                if group.first:
                    folder = self.run / "samples"
                    folder.mkdir(exist_ok=True)
                    try:
                        self.preview(self.model, folder / f"step-{self.step:06d}.png")
                    except (ValueError, RuntimeError, OSError) as problem:
                        print(f"no picture at step {self.step}: {problem}", file=sys.stderr)
                group.wait()
        if self.improved and self._keeps_best():
            if self.saved_step is None:  # weights never stand without a state
                self._checkpoint()
            with self._with_average():
                self._write_weights()
        self.model.train()

    def _judge(self, measured: dict[str, float]) -> None:
        metric = self.metric or next(iter(measured))
        if metric not in measured:
            raise ValueError(
                f"training: there is no measure {metric!r}. Known: {', '.join(measured)}."
            )
        value = measured[metric] if self.maximize else -measured[metric]
        better = math.isfinite(value) and (self.best is None or value > self.best)
        self.since_best = 0 if better else self.since_best + 1
        if better or not self._keeps_best():
            self.metrics = measured
        self.improved = better
        if better:
            self.best, self.best_step = value, self.step
        if self.group.first:
            self._write(
                {"step": self.step, "validation": measured},
                {f"validation/{k}": v for k, v in measured.items()},
            )
            if self.display is not None:
                self.display.update(self.step, measured)

    @contextlib.contextmanager
    def _with_average(self) -> Iterator[None]:
        """The averaged weights in place of the current ones."""
        if self.average is None:
            yield
            return
        parts = [local(p.detach()) for p in self.named.values()]
        current = [p.clone() for p in parts]
        torch._foreach_copy_(parts, [local(a) for a in self.average.values()])
        try:
            yield
        finally:
            torch._foreach_copy_(parts, current)

    def _checkpoint(self) -> None:
        """State first, then weights: after a kill between the two both are whole."""
        if self.run is None:
            return
        self._require_finite()
        sharded = {f"model/{n}": t.detach() for n, t in tensors_of(self.model).items()}
        for name, p in self.named.items():
            for key, value in self.optimizers.state(p).items():
                sharded[f"optimizer/{key}/{name}"] = value
            if self.average is not None:
                sharded[f"average/{name}"] = self.average[name]
        tensors = self._gather(sharded)
        if self.group.first:
            about = {
                "step": self.step,
                "seconds": self.seconds,
                "best": self.best,
                "best_step": self.best_step,
                "since_best": self.since_best,
                "metrics": self.metrics,
                "losses": self.losses,
                "averaged": [] if self.average is None else list(self.average),
                "stepped": [n for n, p in self.named.items() if self.optimizers.state(p)],
            }
            write_tensors(self.run / STATE, tensors, about)
        self.saved_step = self.step
        if not self._keeps_best() or self.best is None:
            with self._with_average():
                self._write_weights()

    def _require_finite(self) -> None:
        """A step may overflow although its gradient was finite; such weights are not kept."""
        bad = not all(bool(local(p.detach()).isfinite().all()) for p in self.named.values())
        if self.group.any(bad) if self.group.world > 1 else bad:
            raise DivergedError(self._problem(self.step, {}, "the weights"))

    def _gather(self, sharded: dict[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors, on the first process only; the others help, one tensor at a time."""
        gathered = {}
        for name, value in sharded.items():
            tensor = whole(value)
            if self.group.first:
                gathered[name] = tensor.cpu()
        return gathered

    def _write_weights(self) -> None:
        self._require_finite()
        own = {n: t.detach() for n, t in tensors_of(self.model).items()}
        if self.run is None:
            self.best_weights = {n: whole(t).clone() for n, t in own.items()}
        else:
            tensors = self._gather(own)
            if self.group.first:
                write_weights(self.run, tensors, self.settings)
                if self._keeps_best() and self.best is not None:
                    write_tensors(self.run / BEST, tensors, {"step": self.step})
                else:
                    (self.run / BEST).unlink(missing_ok=True)

    def _finish(self) -> None:
        """Leave the model with the weights that the run folder has."""
        if self._keeps_best() and self.best is not None and self.group.strategy != "fsdp":
            weights = self.best_weights
            if self.run is not None:
                self.group.wait()
                weights = read_tensors(self.run / self._best_file())[0]
            if weights is not None:
                fill(self.model, weights, "training")
        elif self.average is not None:
            for p, a in zip(self.named.values(), self.average.values(), strict=True):
                local(p.detach()).copy_(local(a))
        self.group.wait()
        self.model.eval()

    def _best_file(self) -> Path:
        """The best weights as training left them; later stages change those of the run."""
        assert self.run is not None
        return BEST if (self.run / BEST).exists() else Path(WEIGHTS)

    def _close(self) -> None:
        if self.run is not None and self.group.first:
            with name_full_disk(self.run / METRICS):
                self.lines.close()
            if self.events is not None:
                self.events.close()


def _to(batch: Any, device: torch.device) -> Any:
    """A batch on a device; it may be nested, and may bring a network that judges it."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, Tensor | nn.Module):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: _to(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        moved = [_to(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)
    return batch


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Ctrl-C or SIGTERM asks for a stop after the step; a second Ctrl-C stops at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _lock(run: Path) -> Iterator[None]:
    """One process at a time may train into a folder; a killed one leaves no lock."""
    if run.exists() and not run.is_dir():
        raise ValueError(f"training: expected a folder for the run, but {run} is a file.")
    (run / "state").mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # no such lock on Windows
        yield
        return
    with open(run / "state" / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"{run}: another process is training into this folder. Wait for it, or choose "
                "another."
            ) from None
        for folder in (run, run / "state"):  # what a kill left half written
            for name in (CONFIG, WEIGHTS, METRICS, STATE.name, BEST.name):
                for left in folder.glob(f".{name}.*.part"):
                    left.unlink()
        yield
