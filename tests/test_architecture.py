"""Imports run down the layers, and importing the package is light."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import linearizer

PACKAGE = Path(linearizer.__file__).parent
#: From the bottom up. A file may import what lies below its layer, and its own layer if that has no
#: cycle; the first prefix that fits a file is its layer.
LAYERS = [
    ("algebra", ("nets", "operators", "bijections", "spaces", "families", "solvers", "linearizer",
                 "certificate")),
    ("training", ("training",)),
    ("metrics", ("metrics",)),
    ("data", ("data",)),
    ("contract", ("apps/base", "apps/registry", "apps/page", "apps/__init__")),
    ("runs", ("runs",)),
    ("shared by applications", ("apps/command", "apps/images", "apps/subspace", "apps/readout")),
    ("applications", ("apps",)),
    ("report", ("report",)),
    ("studio", ("studio",)),
    ("shell", ("cli", "quickstart")),
]  # fmt: skip
ALGEBRA = LAYERS[0][1]
#: Applications that are not called by their folder's name elsewhere in the package.
APPS = ("flow", "projector", "style", "forecast", "dynamics", "attributes", "distill")


def layer(module: str) -> int:
    for number, (_, prefixes) in enumerate(LAYERS):
        for prefix in prefixes:
            if module == prefix or module.startswith(prefix + "/"):
                return number
    raise AssertionError(f"{module} is in no layer")


def module_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


def imports(path: Path, source: str) -> set[str]:
    """Modules of the package that a file imports, inside functions and for typing as well."""
    here = path.relative_to(PACKAGE).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [a.name.split(".") for a in node.names if a.name.startswith("linearizer.")]
            found |= {"/".join(parts[1:]) for parts in names}
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level:
            base = (*here[: len(here) - node.level], *filter(None, (node.module or "").split(".")))
        elif (node.module or "").split(".")[0] == "linearizer":
            base = tuple(node.module.split(".")[1:])
        else:
            continue
        for alias in node.names:
            parts = (*base, alias.name)
            full = PACKAGE.joinpath(*parts)
            if full.with_suffix(".py").exists() or full.is_dir():
                found.add("/".join(parts))
            elif base:
                found.add("/".join(base))
    return {_file(name) for name in found}


def _file(name: str) -> str:
    return f"{name}/__init__" if (PACKAGE / name).is_dir() else name


def problems(sources: dict[str, str]) -> list[str]:
    """Imports that run up or go in a circle, over the files with these texts."""
    found = []
    edges = {m: imports(PACKAGE / f"{m}.py", text) - {m} for m, text in sources.items()}
    edges["certificate"].discard("linearizer")  # the type of what ``Linearizer.certify`` hands over
    for module, others in edges.items():
        if module == "__init__":
            continue
        for other in others - {"__init__"}:
            if layer(other) > layer(module):
                found.append(f"{module} imports {other}, which lies above it")
            one, two = module.split("/"), other.split("/")
            if (
                one[0] == two[0] == "apps"
                and len(one) > 2 < len(two)
                and one[1] != two[1] != "readout"
            ):
                found.append(f"{module} imports {other}, another application")
    return found + [f"a cycle: {' → '.join(c)}" for c in _cycles(edges)]


def _cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """One cycle for each way back; a package's own __init__ may name its modules."""
    found, state = [], {}

    def visit(module: str, path: list[str]) -> None:
        state[module] = "open"
        for other in sorted(edges.get(module, ())):
            if other.endswith("__init__"):
                continue
            if state.get(other) == "open":
                found.append([*path[path.index(other) :], other])
            elif other not in state:
                visit(other, [*path, other])
        state[module] = "done"

    for module in edges:
        if module not in state:
            visit(module, [module])
    return found


def texts() -> dict[str, str]:
    return {module_of(p): p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py")}


def test_imports_run_down_the_layers():
    assert problems(texts()) == []


def test_planted_imports_are_found():
    found = texts()
    planted = {
        "spaces": "from .training.loop import fit",
        "training/loop": "if TYPE_CHECKING:\n    from ..runs.store import load",
        "data/images": "def f():\n    from ..apps.flow.model import Flow",
        "apps/flow/model": "from ..style.model import Style",
        "apps/base": "import linearizer.studio.server",
        "training/draws": "from .loop import fit",
    }
    for module, line in planted.items():
        assert problems({**found, module: f"{found[module]}\n{line}\n"}), (module, line)


def test_the_top_level_is_small():
    entries = [p.name for p in PACKAGE.iterdir() if p.name not in ("__pycache__", "__init__.py")]
    assert len(entries) <= 19, sorted(entries)


def test_applications_are_named_in_their_rooms_alone():
    """No dict is keyed by the names of applications outside of ``apps``."""
    for module, text in texts().items():
        if module.startswith("apps/"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Dict):
                keys = {k.value for k in node.keys if isinstance(k, ast.Constant)}
                assert len(keys & set(APPS)) < 2, f"{module}:{node.lineno} is keyed by applications"


def test_shells_touch_no_tensor():
    for module in texts():
        if module.startswith("cli/"):
            tree = ast.parse((PACKAGE / f"{module}.py").read_text())
            names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
            assert "torch" not in names, f"{module} imports torch"


def test_import_pulls_torch_and_nothing_heavier():
    code = (
        "import sys, torch; before = set(sys.modules); import linearizer; "
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = set(out.stdout.split()) - sys.stdlib_module_names
    assert new == {"linearizer"}, new


def test_the_command_line_starts_without_torch():
    code = "import sys, linearizer.cli; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_what_is_imported_is_declared():
    text = (PACKAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    declared = {name.lower() for name in re.findall(r'"([\w-]+)(?:>=|")', text)}
    named = {"PIL": "pillow", "sklearn": "scikit-learn"}
    found = set()
    for text in texts().values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.split(".")[0])
    found = {named.get(name, name).lower() for name in found - sys.stdlib_module_names}
    assert found - declared == set()


def test_the_version_is_one():
    from importlib.metadata import version

    assert version("linearizer") == linearizer.__version__
