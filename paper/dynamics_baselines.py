r"""What dynamics are compared with: a neural ODE, and the linear methods of PyDMD and deeptime.

Each is fitted to trajectories and then says where states are at other times. The packages are
extras (``pip install "linearizer[dynamics]"``); what is absent raises ImportError.
"""

from __future__ import annotations

import abc
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linearizer.data import Trajectories
from linearizer.nets import MLP
from linearizer.training.draws import Draw

__all__ = [
    "EDMD",
    "ExactDMD",
    "HankelDMD",
    "Motion",
    "NeuralODE",
    "neural_ode_loss",
]


class NeuralODE(nn.Module):
    r"""ẋ = net(x), solved by torchdiffeq from one output time to the next.

    Arguments:
        dim: Numbers in a state.
        hidden: Width of the network's two hidden layers.
        mean, scale: Of the data; the network sees (x − mean)/scale.
        unit: A time that the rates are measured in.
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self, dim: int, hidden: int, mean: Tensor, scale: Tensor, unit: float = 1.0
    ) -> None:
        super().__init__()
        import torchdiffeq

        self.solve = torchdiffeq.odeint
        self.net = MLP(dim, dim, hidden)
        self.unit = unit
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)

    def rate(self, t: Tensor, x: Tensor) -> Tensor:
        """ẋ in units of the data and of ``unit``."""
        return self.net((x - self.mean) / self.scale) * self.scale

    def after(self, x: Tensor, dt: Tensor, steps: int) -> Tensor:
        """States after dt (n,), each in the same number of RK4 steps; for training."""
        h = dt[:, None] / self.unit

        def scaled(s: Tensor, x: Tensor) -> Tensor:
            return h * self.rate(s, x)

        s = torch.linspace(0, 1, steps + 1, dtype=x.dtype, device=x.device)
        return self.solve(scaled, x, s, method="rk4")[-1]

    def simulate(self, x0: Tensor, times: Tensor, rtol: float = 1e-5, atol: float = 1e-6) -> Tensor:
        """States (n, m, dim) at rising times (m,) from x0 at 0, by adaptive steps (dopri5)."""
        t = times.to(x0) / self.unit
        from_zero = bool(t[0] != 0)
        t = torch.cat([t.new_zeros(1), t]) if from_zero else t
        states = self.solve(self.rate, x0, t, method="dopri5", rtol=rtol, atol=atol)
        return (states[1:] if from_zero else states).transpose(0, 1)


def neural_ode_loss(model: NeuralODE, batch: Any, draw: Draw) -> dict[str, Tensor]:
    """Squared error of the state after Δt over the variance of the data, as the dynamics' own."""
    steps = 20
    got = model.after(batch.x, batch.dt, steps)
    return {"data": ((got - batch.y) / model.scale).square().mean()}


class Motion(abc.ABC):
    """Fitted to trajectories of even steps; tells states at any times after a start."""

    def __init__(self, moves: Trajectories) -> None:
        self.dt = moves.dt
        self.x = moves.x.flatten(2).numpy()  # (n, steps, d)

    @abc.abstractmethod
    def simulate(self, past: Tensor, times: Tensor) -> Tensor:
        """States (n, m, d) at times (m,) after the last of the ``past`` (n, history, d)."""


def _powers(values: np.ndarray, times: Tensor, dt: float) -> np.ndarray:
    """λ^(t/dt), (m, k): what has decayed to nothing stays there."""
    safe = np.where(values == 0, 1e-300, values).astype(complex)
    return np.exp(np.log(safe)[None] * (times.double().numpy() / dt)[:, None])


class ExactDMD(Motion):
    """PyDMD's exact DMD of all snapshot pairs of the training trajectories, with a constant."""

    delays = 1

    def __init__(self, moves: Trajectories) -> None:
        from pydmd import DMD

        super().__init__(moves)
        self.mean = self.x.mean((0, 1))
        past = self._delayed(self.x - self.mean)
        before, after = (s.reshape(-1, s.shape[-1]).T for s in (past[:, :-1], past[:, 1:]))
        self.dmd = DMD(svd_rank=-1, exact=True, opt=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.dmd.fit(before, after)
        self.modes, self.values = self.dmd.modes, self.dmd.eigs

    def _delayed(self, x: np.ndarray) -> np.ndarray:
        """(n, steps, d) → (n, steps − delays + 1, delays·d), the newest state last."""
        count = x.shape[1] - self.delays + 1
        return np.concatenate([x[:, i : i + count] for i in range(self.delays)], 2)

    def simulate(self, past: Tensor, times: Tensor) -> Tensor:
        x = past.double().numpy()[:, -self.delays :] - self.mean
        start = self._delayed(x)[:, -1]  # (n, delays·d)
        amplitudes = np.linalg.lstsq(self.modes, start.T.astype(complex), rcond=None)[0]  # (k, n)
        power = _powers(self.values, times, self.dt)
        d = self.mean.shape[0]
        newest = self.modes[-d:]  # (d, k)
        states = np.einsum("dk,mk,kn->nmd", newest, power, amplitudes).real
        return torch.from_numpy(states + self.mean)


class HankelDMD(ExactDMD):
    """The same on delayed states: the last ten rows are one snapshot."""

    delays = 10


class EDMD(Motion):
    """deeptime's EDMD on monomials of the scaled state; the state is read off linearly."""

    def __init__(self, moves: Trajectories, degree: int) -> None:
        from deeptime import decomposition
        from deeptime.basis import Monomials

        super().__init__(moves)
        self.degree = degree
        flat = self.x.reshape(-1, self.x.shape[-1])
        self.scale = np.abs(flat).max(0)
        y = self.x / self.scale
        before, after = (s.reshape(-1, s.shape[-1]) for s in (y[:, :-1], y[:, 1:]))
        self.basis = Monomials(p=degree, d=y.shape[-1])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = decomposition.EDMD(self.basis).fit((before, after)).fetch_model()
        self.K = np.asarray(model.koopman_matrix)  # features after = features before @ K
        psi = self.basis(before)
        self.read = np.linalg.lstsq(psi, before, rcond=None)[0]

    def simulate(self, past: Tensor, times: Tensor) -> Tensor:
        x = past.double().numpy()[:, -1] / self.scale
        values, vectors = np.linalg.eig(self.K)
        left = self.basis(x) @ vectors  # (n, k)
        right = np.linalg.solve(vectors, self.read.astype(complex))  # (k, d)
        power = _powers(values, times, self.dt)
        with np.errstate(all="ignore"):
            states = np.einsum("nk,mk,kd->nmd", left, power, right).real * self.scale
        return torch.from_numpy(states)
