import pytest
import torch

collect_ignore = ["distributed_case.py"]  # a script for torchrun


@pytest.fixture(autouse=True)
def double_precision():
    """float64 and a fixed seed, unless a test asks for another."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)
