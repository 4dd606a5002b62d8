"""Dynamics beside other methods: the linear ones, and the table of all."""

import pytest
import torch

from linearizer.data import Trajectories
from paper.dynamics import measure


def test_the_linear_methods_solve_a_linear_system():
    pytest.importorskip("pydmd", reason="needs the extra dynamics")
    pytest.importorskip("deeptime", reason="needs the extra dynamics")
    from paper.dynamics_baselines import EDMD, ExactDMD, HankelDMD

    t = 0.2 * torch.arange(30).repeat(12, 1)
    K = torch.tensor([[-0.1, -2.0], [2.0, -0.1]])
    half = torch.randn(6, 1, 2, 1)
    x0 = torch.cat([half, -half])  # a mean of 0, which DMD takes off
    x = (torch.linalg.matrix_exp(t[..., None, None] * K) @ x0)[..., 0]
    moves = Trajectories(t, x, 0.2, ("a", "b"))
    times = torch.tensor([0.0, 0.2, 0.33, 3.0])
    truth = (torch.linalg.matrix_exp(times[:, None, None] * K) @ x[:, 9, None, :, None])[..., 0]
    for method in (ExactDMD(moves), HankelDMD(moves), EDMD(moves, 1)):
        assert torch.allclose(method.simulate(x[:, :10], times), truth, atol=1e-6), method


def test_measure_writes_a_table_and_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = measure("pendulum", tmp_path / "table", baseline_minutes=1.0)
    assert set(result["skipped"]) == {"exact DMD", "Hankel DMD", "EDMD", "neural ODE"}
    assert "pydmd is not installed" in result["skipped"]["exact DMD"]
    assert set(result["error"]) == {"ours", "last value"}
    assert 0 < result["error"]["ours"]["1 horizon"] < result["error"]["last value"]["1 horizon"]
    assert result["group_law"]["sum, float64"] < 1e-9 and len(result["steps_never_seen"]) == 3
    assert result["rollout_seconds"]["ours"] > 0
    for name in ("dynamics.json", "error.png", "paths.png"):
        assert (tmp_path / "table" / name).stat().st_size > 500
