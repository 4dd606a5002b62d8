import os
from pathlib import Path

import pytest
import torch

collect_ignore = ["training/distributed_case.py"]  # a script for torchrun

#: Seconds until a test gives up on a process or a page: many, since the machine may be busy, and
#: what hangs fails all the same.
PATIENCE = 600


@pytest.fixture(autouse=True)
def double_precision():
    """float64 and a fixed seed, unless a test asks for another."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(scope="session")
def data_root():
    """The real data and teacher networks, where they are."""
    folder = Path(os.environ.get("LINEARIZER_DATA") or Path(__file__).parents[2] / "shared/data")
    if not folder.is_dir():
        pytest.skip(f"there is no data folder {folder}: set LINEARIZER_DATA")
    return folder
