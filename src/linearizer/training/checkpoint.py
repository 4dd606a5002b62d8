r"""The files of a run folder: ``config.json`` and tensors, each written whole or not at all.

No file holds code: a folder from a stranger is safe to open. Every tensor file carries a digest, so
that a flipped bit is found when it is read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from .. import __version__

if TYPE_CHECKING:  # torch is loaded where it is needed: listing runs is quick without it
    from torch import Tensor, nn

__all__ = [
    "atomic",
    "best_measures",
    "check_target",
    "fill",
    "find_yardstick",
    "finite",
    "make_parent",
    "model_settings",
    "name_full_disk",
    "open_file",
    "read_about",
    "read_config",
    "read_metrics",
    "read_tensors",
    "recover_config",
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
#: What a configuration, or the header of a tensor file, may measure in bytes, and nest.
JSON_BYTES, JSON_DEPTH = 2**24, 128
#: Dtypes of safetensors by the names that torch has for them.
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "BOOL": "bool",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip

M = TypeVar("M", bound="nn.Module")


# -- whole files ---------------------------------------------------------------------------


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe"}
    return kinds.get(stat.S_IFMT(mode), "a device or a socket")


def check_target(path: Path) -> Path:
    """Refuse to write where something else than a file lies: a folder, a link, a pipe, a device."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return path
    if not stat.S_ISREG(mode):
        raise ValueError(
            f"{path}: expected a file to write, but it is {_kind(mode)}. Choose another name."
        )
    return path


def make_parent(path: Path) -> Path:
    """Make the folder of a file that is to be written."""
    check_target(path).parent.mkdir(parents=True, exist_ok=True)
    return path


def open_file(path: Path, what: str = "file") -> BinaryIO:
    """Open a file to read; pipes and devices, which may never end, are refused."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise ValueError(f"{path}: expected a {what}, got {_kind(mode)}.")
    return os.fdopen(handle, "rb")


@contextmanager
def name_full_disk(path: Path) -> Iterator[None]:
    """Say which file a full disk leaves unwritten, and what is kept."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        states = (path.parent / "state" / "latest.safetensors", path.parent / "latest.safetensors")
        kept = next((f"The checkpoint {s} is kept. " for s in states if s.exists()), "")
        raise OSError(
            f"{path}: cannot be written ({problem.strerror}). {kept}Free some space, and go on."
        ) from None


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its name once it is written and on disk."""
    part = check_target(path).with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with name_full_disk(path):
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
    """What :func:`write_tensors` wrote; anything else is one clear sentence.

    The tensors are read into memory, so that the file may be replaced while they are in use.
    """
    with _open_tensors(path) as file:
        header, about = _read_header(path, file)
        tensors = _read_data(path, file, header)
    digest = about.pop("digest", None)
    if _digest(tensors, about) != digest:
        raise ValueError(
            f"{path}: the file is damaged (its contents do not match its digest). "
            "Copy it again, or resume the run from its last checkpoint."
        )
    return tensors, about


def read_about(path: Path) -> dict[str, Any]:
    """The facts in a file that :func:`write_tensors` wrote, without its tensors."""
    with _open_tensors(path) as file:
        return _read_header(path, file)[1]


def _open_tensors(path: Path) -> BinaryIO:
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file.")
    return open_file(path, "safetensors file")


def _read_header(path: Path, file: BinaryIO) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table of a safetensors file's tensors, and the facts beside them."""
    start = file.read(8)
    length, size = int.from_bytes(start, "little"), os.fstat(file.fileno()).st_size
    if len(start) < 8 or length > min(size - 8, JSON_BYTES):
        raise ValueError(f"{path}: {_why(file, 'its header is longer than it may be')}")
    header = _parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"{path}: {_why(file, 'its header is not JSON')}")
    metadata = header.pop("__metadata__", None)
    text = metadata.get("linearizer") if isinstance(metadata, dict) else None
    about = _parse_json(text) if isinstance(text, str) else None
    if not isinstance(about, dict) or type(about.get("format")) is not int:
        raise ValueError(
            f"{path}: a safetensors file, but not one that linearizer wrote. "
            "Fill a model of your own with its load_state_dict."
        )
    if about["format"] > FORMAT:
        raise ValueError(
            f"{path}: written in format {about['format']} by linearizer {about.get('linearizer')}; "
            f"this is {__version__}, which reads up to {FORMAT}. Upgrade linearizer."
        )
    return header, about


def _read_data(path: Path, file: BinaryIO, header: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a header, which must fill what is left of the file without gaps."""
    import torch

    start, end, tensors = file.tell(), 0, {}
    size = os.fstat(file.fileno()).st_size - start
    try:
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, stop = entry["data_offsets"]
            shape, dtype = entry["shape"], getattr(torch, _DTYPES[entry["dtype"]])
            if not all(type(n) is int and n >= 0 for n in (begin, stop, *shape)):
                raise ValueError("sizes")
            if begin != end or stop - begin != math.prod(shape) * dtype.itemsize or stop > size:
                raise ValueError("places")
            tensors[name] = torch.empty(shape, dtype=dtype)
            if stop > begin:
                data = tensors[name].reshape(-1).view(torch.uint8).numpy()
                if file.readinto(data.data) != stop - begin:  # type: ignore[attr-defined]
                    raise ValueError("the end")
            end = stop
        if end != size:
            raise ValueError("the end")
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError):
        raise ValueError(f"{path}: {_why(file, 'its tensors do not fill it')}") from None
    return tensors


def _parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, or None: strangers' files may nest without end."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if _is_deep(value) else value


def _is_deep(value: object) -> bool:
    """Return whether lists and tables nest too deep to be printed or compared."""
    level = [value]
    for _ in range(JSON_DEPTH):
        level = [v for each in level for v in _inner(each)]
    return bool(level)


def _inner(value: object) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


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


def _why(file: BinaryIO, problem: str) -> str:
    file.seek(0)
    start, size = file.read(16), os.fstat(file.fileno()).st_size
    if start[:2] == b"PK" or start[:1] == b"\x80":
        return (
            "expected safetensors, got a pickle or a zip (a torch.save file?), which may hold code "
            "and is not opened. Convert it where you trust it."
        )
    if size == 0:
        return "the file is empty."
    header = int.from_bytes(start[:8], "little")
    if start[8:9] == b"{" and header < 2**27:
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
    about = {"app": config["app"], "model": model_settings(config)}
    if config.get("parts") is not None:
        about["parts"] = hashlib.sha256(_compact(config["parts"]).encode()).hexdigest()
    return about


def model_settings(config: Mapping[str, Any]) -> Any:
    """Settings of the model of a run: of the plain linear one, where training found no better."""
    return config.get("plain") or config["model"]


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
    if not path.exists():
        raise FileNotFoundError(f"{run}: expected a run folder, but it has no {CONFIG}.")
    with open_file(path) as file:
        text = file.read(JSON_BYTES + 1)
    if len(text) > JSON_BYTES:
        raise ValueError(f"{path}: expected at most {JSON_BYTES:,} bytes, got more.")
    try:
        config = json.loads(text)
        if _is_deep(config):
            raise RecursionError(f"it nests more than {JSON_DEPTH} deep")
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{path}: expected JSON, but {problem}.") from None
    if not isinstance(config, dict) or type(config.get("format")) is not int:
        raise ValueError(f"{path}: expected the configuration of a run, got another JSON file.")
    kinds: dict[str, type] = {
        "app": str,
        "data": dict,
        "model": dict,
        "training": dict,
        "metric": dict,
        "plain": dict,
    }
    for key, kind in kinds.items():
        if not isinstance(config.setdefault(key, None), kind | None):
            raise ValueError(
                f"{path}: expected {key} as {'text' if kind is str else 'a table'}, got "
                f"{repr(config[key])[:80]}."
            )
    for key in ("parts", "history"):
        if not isinstance(config.get(key), list | None):
            raise ValueError(f"{path}: expected {key} as a list, got {str(config[key])[:80]}.")
    if config["format"] > FORMAT:
        raise ValueError(
            f"{path}: written in format {config['format']} by linearizer "
            f"{config.get('linearizer')}; this is {__version__}, which reads up to {FORMAT}. "
            "Upgrade linearizer."
        )
    return config


def recover_config(run: Path) -> None:
    """Give a configuration its name that a kill left whole, but not yet in place."""
    for part in [] if (run / CONFIG).exists() else sorted(run.glob(f".{CONFIG}.*.part")):
        if part.is_file() and part.stat().st_size and _parse_json(part.read_bytes()) is not None:
            with suppress(FileNotFoundError):  # another process of the run was faster
                os.replace(part, run / CONFIG)
            return


def read_metrics(path: Path, limit: int | None = None) -> list[dict[str, Any]]:
    """Rows of ``metrics.jsonl``, or of its last ``limit`` bytes; a line cut off is left out."""
    if not path.exists():
        return []
    with open_file(path) as file:
        if limit is not None and os.fstat(file.fileno()).st_size > limit:
            file.seek(-limit, os.SEEK_END)
        lines = file.read(-1 if limit is None else limit).decode(errors="replace").splitlines()
    return [row for row in map(_parse_json, lines) if _is_row(row)]


def _is_row(row: object) -> bool:
    """Return whether a line has a step, and numbers where there should be some."""
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        return False
    numbers = [row.get("seconds", 0.0), *_values(row.get("validation", {}))]
    kinds = all(isinstance(v, int | float | None) for v in numbers)
    # JSON has integers that no float holds.
    whole = [v for v in (*row.values(), *numbers) if isinstance(v, int)]
    return kinds and all(abs(v) <= sys.float_info.max for v in whole)


def _values(measured: object) -> list[Any]:
    return list(measured.values()) if isinstance(measured, dict) else ["no table"]


def finite(row: object) -> Any:
    """Numbers that JSON does not know become null."""
    if isinstance(row, Mapping):
        return {k: finite(v) for k, v in row.items()}
    return None if isinstance(row, float) and not math.isfinite(row) else row


def find_yardstick(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the plain linear yardstick of a run measured, and its name; empty without one."""
    found = [r["yardstick"] for r in rows if isinstance(r.get("yardstick"), dict)]
    return found[-1] if found else {}


def best_measures(config: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, float]:
    """What the weights of a run measured: the best validation, or the last where they are kept."""
    plain = [r for r in rows if r.get("plain")]
    if config.get("plain") and plain:
        return plain[-1].get("validation") or {}
    measured = [r["validation"] for r in rows if r.get("validation") and not r.get("plain")]
    key = config.get("metric") or {}
    name = key.get("name")
    training = config.get("training") or {}
    if training.get("keep", "best" if training.get("patience") else "last") == "best":
        scored = [m for m in measured if isinstance(m.get(name), int | float)]
        if scored:
            best = max if key.get("maximize") else min
            return best(scored, key=lambda m: m[name])
    return measured[-1] if measured else {}
