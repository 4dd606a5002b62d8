"""The algebra needs torch alone: nothing else is imported by it, at any time."""

import ast
import subprocess
import sys
from pathlib import Path

import linearizer

PACKAGE = Path(linearizer.__file__).parent
CORE = ("nets", "bijections", "spaces", "operators", "families", "solvers", "linearizer",
        "certificate")  # fmt: skip
#: Bijections of peers are wrapped where the peer is installed, and nowhere else.
OPTIONAL = {"zuko", "FrEIA", "normflows", "nflows"}


def core_files():
    for name in CORE:
        path = PACKAGE / name
        yield from path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]


def test_the_algebra_names_torch_alone_in_its_imports():
    seen = set()
    for path in core_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                seen |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                seen.add(node.module.split(".")[0])
    assert "torch" in seen
    assert seen - sys.stdlib_module_names - OPTIONAL == {"torch"}


ALONE = """
import builtins, importlib, os, sys

PACKAGE = {package!r}
allowed = sys.stdlib_module_names | {{"torch", "linearizer"}}
blocked, plain, by_name = [], builtins.__import__, importlib.import_module

def check(name, file):
    top = name.split(".")[0]
    if file and os.path.abspath(file).startswith(PACKAGE) and top not in allowed:
        blocked.append(name)
        raise ImportError(f"the algebra imports {{name}}")

def guarded(name, globals=None, locals=None, fromlist=(), level=0):
    if level == 0:
        check(name, (globals or {{}}).get("__file__"))
    return plain(name, globals, locals, fromlist, level)

def guarded_by_name(name, package=None):
    if not name.startswith("."):
        check(name, sys._getframe(1).f_globals.get("__file__"))
    return by_name(name, package)

builtins.__import__, importlib.import_module = guarded, guarded_by_name

import torch
for part in {core!r}:
    importlib.import_module("linearizer." + part)
from linearizer import bijections, families, linearizer as main, operators, solvers, spaces

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
X = spaces.Space(bijections.mlp(4, blocks=2, hidden=8))
Y = spaces.Space(bijections.glow((1, 4, 4), blocks=1))
f = main.Linearizer(X, operators.Dense(torch.randn(16, 4)), Y)
x = torch.randn(3, 4)
assert f(x).shape == (3, 1, 4, 4)
assert torch.allclose(f.pinv()(f(x)), x, atol=1e-6)
certificate = f.certify(x)
assert certificate.passed, str(certificate)
family = families.TimeLowRank(4, rank=2)
with torch.no_grad():
    B = solvers.collapse(family, steps=5)
    h = main.Linearizer(X, B, X)
    z = X.coordinates(x)
    assert torch.allclose(X.coordinates(h(x)), solvers.integrate(family, z, steps=5), atol=1e-6)

def fails(file):
    try:
        exec(compile("import numpy", file, "exec"), {{"__file__": file}})
    except ImportError:
        return True

assert not blocked, blocked
assert fails(os.path.join(PACKAGE, "nets.py")), "the guard sleeps"
third = {{m.split(".")[0] for m in sys.modules if "linearizer" in m}}
assert third == {{"linearizer"}}, third
print("alone")
"""


def test_the_algebra_runs_with_torch_alone():
    code = ALONE.format(package=str(PACKAGE), core=CORE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split()[-1:] == ["alone"], done.stderr
