r"""Typed settings: defaults → TOML file → flags, with one sentence for whatever does not fit."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, ValidationError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Settings", "did_you_mean", "read_toml", "resolve"]

S = TypeVar("S", bound="Settings")


class Settings(BaseModel):
    """A frozen group of settings; unknown names are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'Did you mean a? Known: a, b, c.'"""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"Did you mean {close[0]}? " if close else ""
    return f"{hint}Known: {', '.join(known)}." if known else "None are known."


def names_of(kind: type[Settings], name: str) -> list[str]:
    """Return the names of a setting, its field's last, as the others are newer and plainer."""
    alias = kind.model_fields[name].validation_alias
    others = alias.choices if isinstance(alias, AliasChoices) else []
    return [*(str(other) for other in others if other != name), name]


def resolve(kind: type[S], where: str, *layers: Mapping[str, Any]) -> S:
    """The settings of ``kind`` from layers of values, later ones first; ``where`` names errors."""
    values: dict[str, Any] = {}
    same = {other: name for name in kind.model_fields for other in names_of(kind, name)}
    for layer in layers:
        values.update({same.get(name, name): value for name, value in layer.items()})
    try:
        return kind.model_validate(values)
    except ValidationError as problem:
        raise ValueError(_sentence(kind, where, problem)) from None


def _sentence(kind: type[Settings], where: str, problem: ValidationError) -> str:
    first = problem.errors()[0]
    name = ".".join(str(part) for part in first["loc"]) or "settings"
    if first["type"] == "extra_forbidden":
        return f"{where}: there is no setting {name!r}. {did_you_mean(name, kind.model_fields)}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    got = "" if first["type"] == "missing" else f", got {first['input']!r}"
    field = kind.model_fields.get(str(first["loc"][0]) if first["loc"] else "")
    about = f" ({field.description})" if field is not None and field.description else ""
    return f"{where}: {name} {message}{got}{about}."


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a settings file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such settings file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ValueError(f"{path}: expected TOML, but {problem}.") from None
