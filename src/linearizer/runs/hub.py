r"""Hugging Face Hub layout: ``config.json``, ``model.safetensors`` and a model card.

hub = HubModel.from_run("runs/attributes-digits")
hub.save_pretrained("my-model")            # a folder; push_to_hub("me/my-model") uploads it
model = HubModel.from_pretrained("my-model").model
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from .. import __version__
from ..apps.registry import find_app
from ..training.checkpoint import (
    HUB_WEIGHTS,
    METRICS,
    best_measures,
    read_config,
    read_metrics,
    tensors_of,
    write_config,
    write_weights,
)
from .store import find, load

try:
    from huggingface_hub import ModelCard, ModelHubMixin
except ImportError:
    raise ValueError(
        'hub: the package huggingface_hub is not installed. Run pip install "linearizer[export]".'
    ) from None

__all__ = ["HubModel"]


class HubModel(ModelHubMixin, library_name="linearizer"):
    """A trained model in the clothes of the Hub.

    Arguments:
        model: A model of an app.
        run: Its resolved configuration.
        numbers: What its run measured, for the model card.
    """

    def __init__(self, model: nn.Module, run: dict[str, Any], numbers: dict[str, Any]) -> None:
        self.model = model
        self.run = {k: v for k, v in run.items() if k not in ("format", "linearizer")}
        self.numbers = numbers

    @classmethod
    def from_run(cls, run: str | Path) -> HubModel:
        folder = find(run)
        config, rows = read_config(folder), read_metrics(folder / METRICS)
        if config["app"] is None:
            raise ValueError(
                f"hub: expected a model of an app, but {run} was put together by hand. Upload its "
                "folder as it is: lz.load opens it."
            )
        numbers = {
            "steps": max((r["step"] for r in rows), default=None),
            "seconds": max((r["seconds"] for r in rows if "seconds" in r), default=None),
            "validation": best_measures(config, rows),
        }
        return cls(load(folder), config, numbers)

    def _save_pretrained(self, save_directory: Path) -> None:
        write_config(save_directory, {**self.run, "numbers": self.numbers})
        write_weights(save_directory, tensors_of(self.model), self.run, HUB_WEIGHTS)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> HubModel:
        folder = Path(model_id)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            keep = ("revision", "cache_dir", "force_download", "local_files_only", "token")
            folder = Path(
                snapshot_download(
                    model_id,
                    allow_patterns=["config.json", HUB_WEIGHTS],
                    **{k: options[k] for k in keep if k in options},
                )
            )
        config = read_config(folder)
        return cls(load(folder), config, config.pop("numbers", {}))

    def generate_model_card(self, *args: Any, **options: Any) -> ModelCard:
        return ModelCard(self.card())

    def card(self) -> str:
        """The model card, from the run's own numbers."""
        app, data = self.run["app"], (self.run.get("data") or {}).get("name")
        count = sum(p.numel() for p in self.model.parameters())
        lines = [
            "---",
            "library_name: linearizer",
            "tags:",
            "- linearizer",
            f"- {app}",
            "---",
            "",
            f"# {app} on {data}" if data else f"# {app}",
            "",
            f"{find_app(app).summary.capitalize()}. A Linearizer, f(x) = g_y⁻¹(A g_x(x)): exactly "
            "linear between the vector spaces that its networks g induce (*Who Said Neural "
            "Networks Aren't Linear?*, Berman, Hallak, Shocher).",
            "",
            "```python",
            "from linearizer.runs.hub import HubModel",
            "",
            'model = HubModel.from_pretrained("this repository, or its folder").model',
            "```",
            "",
            "| | |",
            "|---|---|",
            f"| parameters | {count:,} |",
        ]
        if self.numbers.get("steps"):
            lines.append(f"| steps | {self.numbers['steps']:,} |")
        if self.numbers.get("seconds"):
            lines.append(f"| training | {self.numbers['seconds']:.0f} s |")
        for name, value in (self.numbers.get("validation") or {}).items():
            lines.append(f"| {name} (validation) | {value:.4g} |")
        settings = {k: v for k, v in self.run.items() if k in ("data", "model", "training")}
        lines += [
            "",
            f"Written by linearizer {__version__}. Settings:",
            "",
            "```json",
            json.dumps(settings, indent=2),
            "```",
            "",
        ]
        return "\n".join(lines)
