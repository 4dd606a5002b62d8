import contextlib
import io
import os
import sys
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

import pytest
import torch

from linearizer import cli

collect_ignore = ["training/distributed_case.py"]  # a script for torchrun

#: Seconds until a test gives up on a process or a page: many, since the machine may be busy, and
#: what hangs fails all the same.
PATIENCE = 600


def type_words(*words, cwd=".", env=None):
    """Run `linearizer WORDS` in this process, which need not load torch anew as another would."""
    argv = ["linearizer", *map(str, words)]
    out, err = io.StringIO(), io.StringIO()
    dtype, folder = torch.get_default_dtype(), os.getcwd()
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_default_dtype, dtype)
        stack.callback(os.chdir, folder)
        stack.enter_context(mock.patch.object(sys, "argv", argv))
        stack.enter_context(mock.patch.dict(os.environ, env or {}))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        torch.set_default_dtype(torch.float32)
        os.chdir(cwd)
        code = cli.run()
    return CompletedProcess(argv, code, out.getvalue(), err.getvalue())


@pytest.fixture(autouse=True)
def double_precision():
    """float64 and a fixed seed, unless a test asks for another."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)  # as fixtures of a whole file find it
    assert torch.is_grad_enabled(), "this test leaves gradients off for the next one"


@pytest.fixture(scope="session")
def data_root():
    """The real data and teacher networks, where they are."""
    folder = Path(os.environ.get("LINEARIZER_DATA") or Path(__file__).parents[2] / "shared/data")
    if not folder.is_dir():
        pytest.skip(f"there is no data folder {folder}: set LINEARIZER_DATA")
    return folder
