r"""Objects from a user's code, ``FILE.py:NAME`` or ``MODULE:NAME``; taking one runs the code."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["first_line", "require_file", "take"]


@contextlib.contextmanager
def take(source: str, name: str, what: str) -> Iterator[Any]:
    """Give what a file or module calls ``name``, while files beside it can be imported."""
    where = f"{source}:{name}"
    file = Path(source).expanduser().absolute() if source.endswith(".py") else None
    if file is not None:
        require_file(file, f"Python code that has {what}")
    with _beside(file):
        try:
            code = importlib.import_module(source) if file is None else _run(file)
        except (Exception, SystemExit) as error:
            missing = file is None and isinstance(error, ModuleNotFoundError)
            do = "Install it, or name its file as file.py:attribute" if missing else "Mend it"
            raise ValueError(
                f"{where}: the code does not run ({first_line(error)}). {do}."
            ) from error
        if not hasattr(code, name):
            near = difflib.get_close_matches(name, vars(code), 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{where}: there is no {name!r} in {source}.{hint}")
        yield getattr(code, name)


def _run(file: Path) -> ModuleType:
    name = f"linearizer_code_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes of the file look for it there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextlib.contextmanager
def _beside(file: Path | None) -> Iterator[None]:
    """Let files beside this one be imported, as when Python runs it."""
    if file is None:
        yield
        return
    folder = str(file.parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def require_file(path: Path, what: str) -> None:
    """Raise an error that says what was expected, unless there is such a file."""
    if not path.is_file():
        state = "it is a folder" if path.is_dir() else "there is no such file"
        raise ValueError(f"{path}: expected {what}, but {state}. Check the path.")


def first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).strip())
    line = (text.splitlines() or [""])[0].rstrip(".")[:200]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
