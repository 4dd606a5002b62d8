r"""The files of a run folder: ``config.json`` and tensors, each written whole or not at all.

No file holds code: a folder from a stranger is safe to open. Every tensor file carries a digest, so
that a flipped bit is found when it is read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .. import __version__

if TYPE_CHECKING:  # torch is loaded where it is needed: listing runs is quick without it
    from torch import Tensor, nn

__all__ = [
    "atomic",
    "best_measures",
    "fill",
    "finite",
    "read_config",
    "read_metrics",
    "read_tensors",
    "tensors_of",
    "weights_facts",
    "write_config",
    "write_tensors",
    "write_weights",
]

#: Version of the folder's layout; a reader refuses what is newer than it knows.
FORMAT = 1
CONFIG, WEIGHTS, METRICS = "config.json", "weights.safetensors", "metrics.jsonl"
HUB_WEIGHTS = "model.safetensors"  # what the Hugging Face Hub calls them

M = TypeVar("M", bound="nn.Module")


# -- whole files ---------------------------------------------------------------------------


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its name once it is written and on disk."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
        if os.name == "posix":  # the new name itself must reach the disk
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    finally:
        part.unlink(missing_ok=True)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Tensors and a few facts as one safetensors file with a digest of both."""
    from safetensors.torch import save as serialize

    plain: dict[str, Tensor] = {}
    stored: set[int] = set()
    for name, t in tensors.items():
        t = t.detach().cpu().contiguous()
        start = t.untyped_storage().data_ptr()
        plain[name] = t.clone() if start in stored else t  # safetensors refuses shared memory
        stored.add(start)
    facts = {"format": FORMAT, "linearizer": __version__, **about}
    facts["digest"] = _digest(plain, facts)
    with atomic(path) as part:
        # One entry: safetensors keeps no order among several, and equal runs give equal files.
        part.write_bytes(serialize(plain, {"linearizer": _compact(facts)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What :func:`write_tensors` wrote; anything else is one clear sentence."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file.")
    if not path.is_file():
        raise ValueError(f"{path}: expected a safetensors file, got a folder.")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            about = _parse_json(metadata.get("linearizer", ""))
            if not isinstance(about, dict) or not isinstance(about.get("format"), int):
                raise ValueError(
                    f"{path}: a safetensors file, but not one that linearizer wrote. "
                    "Fill a model of your own with its load_state_dict."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        digest = about.pop("digest", None)
    except SafetensorError as problem:
        raise ValueError(f"{path}: {_why(path, problem)}") from None
    if about["format"] > FORMAT:
        raise ValueError(
            f"{path}: written in format {about['format']} by linearizer {about.get('linearizer')}; "
            f"this is {__version__}, which reads up to {FORMAT}. Upgrade linearizer."
        )
    if _digest(tensors, about) != digest:
        raise ValueError(
            f"{path}: the file is damaged (its contents do not match its digest). "
            "Copy it again, or resume the run from its last checkpoint."
        )
    return tensors, about


def _parse_json(text: str) -> Any:
    """The value of a JSON text, or None: strangers' files may nest without end."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _compact(facts: object) -> str:
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    import torch

    total = hashlib.sha256(_compact(about).encode())
    for name in sorted(tensors):
        t = tensors[name]
        total.update(f"{name} {t.dtype} {tuple(t.shape)}".encode())
        if t.numel():
            total.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def _why(path: Path, problem: Exception) -> str:
    with open(path, "rb") as file:
        start = file.read(16)
    size = path.stat().st_size
    if start[:2] == b"PK" or start[:1] == b"\x80":
        return (
            "expected safetensors, got a pickle or a zip (a torch.save file?), which may hold code "
            "and is not opened. Convert it where you trust it."
        )
    if size == 0:
        return "the file is empty."
    header = int.from_bytes(start[:8], "little")
    if (start[8:9] == b"{" and header < 2**27) or "IncompleteBuffer" in str(problem):
        return f"the file is cut off or damaged ({size:,} bytes; {problem}). Copy it again."
    return f"expected a safetensors file, but it is not one ({problem})."


# -- models --------------------------------------------------------------------------------


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, each once: a Space used twice is stored once."""
    first: dict[int, str] = {}
    kept: dict[str, Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if first.setdefault(id(value), name) == name:
            kept[name] = value
    return kept


def fill(model: M, tensors: Mapping[str, Tensor], where: str) -> M:
    """Copy tensors into a model of the same architecture; anything missing or left is an error."""
    import torch

    own = tensors_of(model)
    missing, left = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or left:
        lack = f"lacks {_some(missing)}" if missing else ""
        more = f"has {_some(left)} besides" if left else ""
        raise ValueError(
            f"{where}: the weights are of another model than this one: the file "
            f"{' and '.join(filter(None, (lack, more)))}."
        )
    for name, value in own.items():
        if value.shape != tensors[name].shape:
            raise ValueError(
                f"{where}: the weights are of another model than this one: {name} has shape "
                f"{tuple(tensors[name].shape)}, expected {tuple(value.shape)}."
            )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(tensors[name])
    return model


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def write_weights(
    run: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], name: str = WEIGHTS
) -> None:
    """``weights.safetensors``, with the settings of the model that they belong to."""
    write_tensors(run / name, tensors, weights_facts(config))


def weights_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a weights file tells of the configuration that it belongs to."""
    about = {"app": config["app"], "model": config["model"]}
    if config.get("parts") is not None:
        about["parts"] = hashlib.sha256(_compact(config["parts"]).encode()).hexdigest()
    return about


def write_config(run: Path, config: Mapping[str, Any]) -> None:
    """Write the configuration of a run, with the versions of the format and of this package."""
    config = {"format": FORMAT, "linearizer": __version__, **config}
    parts = config.pop("parts", None)
    text = json.dumps(config, indent=2)
    if parts is not None:  # one on each line
        lines = ",\n    ".join(json.dumps(part) for part in parts)
        text = f'{text[:-2]},\n  "parts": [\n    {lines}\n  ]\n}}'
    with atomic(run / CONFIG) as part:
        part.write_text(text + "\n", encoding="utf-8")


def read_config(run: Path) -> dict[str, Any]:
    """``config.json`` of a run."""
    path = run / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"{run}: expected a run folder, but it has no {CONFIG}.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{path}: expected JSON, but {problem}.") from None
    if not isinstance(config, dict) or not isinstance(config.get("format"), int):
        raise ValueError(f"{path}: expected the configuration of a run, got another JSON file.")
    kinds: dict[str, type] = {
        "app": str,
        "data": dict,
        "model": dict,
        "training": dict,
        "metric": dict,
    }
    for key, kind in kinds.items():
        if not isinstance(config.setdefault(key, None), kind | None):
            raise ValueError(
                f"{path}: expected {key} as {'text' if kind is str else 'a table'}, got "
                f"{config[key]!r}."
            )
    if not isinstance(config.get("parts"), list | None):
        raise ValueError(f"{path}: expected parts as a list, got {str(config['parts'])[:80]}.")
    if config["format"] > FORMAT:
        raise ValueError(
            f"{path}: written in format {config['format']} by linearizer "
            f"{config.get('linearizer')}; this is {__version__}, which reads up to {FORMAT}. "
            "Upgrade linearizer."
        )
    return config


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Rows of ``metrics.jsonl``; a last line that a kill cut off is left out."""
    rows = []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            row = _parse_json(line)
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                continue
            numbers = [row.get("seconds", 0.0), *_values(row.get("validation", {}))]
            if all(isinstance(v, int | float | None) for v in numbers):
                rows.append(row)
    return rows


def _values(measured: object) -> list[Any]:
    return list(measured.values()) if isinstance(measured, dict) else ["no table"]


def finite(row: object) -> Any:
    """Numbers that JSON does not know become null."""
    if isinstance(row, Mapping):
        return {k: finite(v) for k, v in row.items()}
    return None if isinstance(row, float) and not math.isfinite(row) else row


def best_measures(config: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, float]:
    """What the weights of a run measured: the best validation, or the last where they are kept."""
    measured = [r["validation"] for r in rows if r.get("validation")]
    key = config.get("metric") or {}
    name = key.get("name")
    training = config.get("training") or {}
    if training.get("keep", "best" if training.get("patience") else "last") == "best":
        scored = [m for m in measured if isinstance(m.get(name), int | float)]
        if scored:
            best = max if key.get("maximize") else min
            return best(scored, key=lambda m: m[name])
    return measured[-1] if measured else {}
