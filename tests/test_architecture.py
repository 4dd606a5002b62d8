"""Imports run in one direction, and importing the package is light."""

import ast
import subprocess
import sys
from pathlib import Path

import linearizer

PACKAGE = Path(linearizer.__file__).parent
ORDER = [
    "nets",
    "perceptual",
    "teachers",
    "operators",
    "bijections",
    "spaces",
    "families",
    "solvers",
    "certificate",
    "linearizer",
    "pictures",
    "report",
    "settings",
    "draws",
    "apps",
    "data",
    "networks",
    "sources",
    "export",
    "parts",
    "checkpoint",
    "metrics",
    "boosting",
    "disentanglement",
    "listing",
    "hub",
    "processes",
    "progress",
    "optimizers",
    "training",
    "runs",
    "distilling",
    "sampling",
    "projecting",
    "reading",
    "stylizing",
    "forecasting",
    "simulating",
    "baselines",
    "evaluation",
    "results",
    "reporting",
    "quickstart",
    "reproduce",
    "web",
    "cli",
]


def imports(path: Path) -> set[str]:
    """Top-level parts of the package that a file imports from another part."""
    here = path.relative_to(PACKAGE).with_suffix("").parts
    found = set()
    tree = ast.parse(path.read_text())
    typing_only = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("linearizer") for alias in node.names), path
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = here[: len(here) - node.level]
                parts = (*base, *(node.module or "").split("."))
                parts = tuple(p for p in parts if p)
                names = [parts[0]] if parts else [a.name for a in node.names]
            elif (node.module or "").startswith("linearizer."):
                names = [node.module.split(".")[1]]
            else:
                continue
            found.update(n for n in names if not n.startswith("__"))
    return found - {here[0]}


def test_imports_run_down_the_list():
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if part == "__init__":
            continue
        assert part in ORDER, f"{path.name} is not in the list of parts"
        for other in imports(path):
            allowed = other in ORDER[: ORDER.index(part)]
            assert allowed, f"{path.name} imports {other}"


def test_import_pulls_torch_and_nothing_heavier():
    code = (
        "import sys, torch; before = set(sys.modules); import linearizer; "
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = set(out.stdout.split()) - sys.stdlib_module_names
    assert new == {"linearizer"}, new


def test_the_version_is_one():
    from importlib.metadata import version

    assert version("linearizer") == linearizer.__version__
