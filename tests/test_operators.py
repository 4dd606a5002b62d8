import copy
import math

import pytest
import torch

from catalogue import OPERATORS, mixing_plus, positive
from laws import close
from linearizer.operators import (
    DENSE_LIMIT,
    Convolution,
    Dense,
    Diagonal,
    Identity,
    LowRank,
    MixingConvolution,
    Operator,
    Projector,
    ScaledIdentityPlusLowRank,
    mixing,
)

randn = torch.randn
D = 12_288


def big(rank=16):
    return ScaledIdentityPlusLowRank(0.7, randn(D, rank) / D**0.5, randn(D, rank) / D**0.5)


# -- structure is kept ---------------------------------------------------------------------


def test_structured_results_have_structured_types():
    S, L, c = big(2), LowRank(randn(D, 2), randn(D, 2)), Identity(D)
    d, k = Diagonal(randn(D).abs() + 1), Convolution(randn(3, 3, 3), (3, 64, 64))
    m = MixingConvolution(mixing_plus(3, 3, 0.05), (3, 64, 64))
    wide = MixingConvolution(randn(2, 3, 2, 2), (3, 64, 64))
    kinds = {
        ScaledIdentityPlusLowRank: [
            S @ S,
            S + S,
            S + L,
            c + L,
            S.T,
            S.inverse(),
            S**3,
            S**-2,
            S.exp(),
            S.pinv(),
            c * 3.0,
            S - c,
            L.exp(),
            S.compress(),
        ],
        LowRank: [L @ S, S @ L, L @ L, L + L, L @ d, k @ L, L.T, L.pinv(), L**3, L @ k],
        Diagonal: [d @ d, d + d, d + c, d.exp(), d.inverse(), d**0.5, c * 2.0 @ d, d.pinv()],
        Convolution: [k @ k, k + k, k + c, k.exp(), k.pinv(), k**2, k.T, c @ k, (c * 2.0) @ k],
        MixingConvolution: [
            *(m @ m, m @ k, k @ m, wide @ m, wide @ k, wide.T @ wide, c @ m, m @ (c * 2.0)),
            *(m + m, m - k, k + m, m + c, c * 2.0 - m, m.exp() + m, m * 2.0),
            *(m**3, m**-2, m**0.5, m.exp(), m.inverse(), m.pinv(), wide.pinv(), wide.T),
        ],
        Identity: [c @ c, c**5, c.T, c.inverse(), S**0],
        Projector: [Projector(randn(D)) @ Projector(randn(D)), Projector(randn(D)).complement()],
    }
    for kind, results in kinds.items():
        for A in results:
            assert type(A) is kind, A


def test_ranks_stay_small():
    A = big(4)
    assert (A**1000).U.shape[1] == 4
    assert A.inverse().U.shape[1] == 4 and A.exp().U.shape[1] == 4
    product = A @ A @ A
    assert product.U.shape[1] == 12 and product.compress().U.shape[1] == 4
    z = randn(3, D)
    close(product.compress()(z), product(z))
    small = ScaledIdentityPlusLowRank(1.0, randn(6, 4), randn(6, 4))
    assert (small @ small @ small).U.shape == (6, 6)


def test_nothing_of_size_d_by_d_is_allocated():
    """The largest tensor that any step makes has d × 64 entries or so, never d × d."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in torch.utils._pytree.tree_leaves(out):
                if isinstance(t, torch.Tensor):
                    largest = max(largest, t.untyped_storage().size() // t.element_size())
            return out

    A = big(16)
    with Watch():
        A @ A
        A.inverse()
        A.svd(16)
        A.pinv()
        A.exp()
        A.eig(4)
        A.rank()
        A.compress()
    assert D * 16 < largest <= D * 128


def test_top_singular_values_at_full_size_agree_with_the_factors():
    """Columns chosen orthonormal make the singular values known."""
    U, V = (torch.linalg.qr(randn(D, 3))[0] for _ in range(2))
    A = ScaledIdentityPlusLowRank(0.0, U * torch.tensor([5.0, 4.0, 3.0]), V)
    close(A.svd(3).S, torch.tensor([5.0, 4.0, 3.0]))
    B = ScaledIdentityPlusLowRank(2.0, U, torch.zeros(D, 3))
    top = B.svd(5)
    close(top.S, torch.full((5,), 2.0))
    close(top.V.mT @ top.V, torch.eye(5))


def test_above_the_limit_is_an_error_that_says_what_to_do():
    A, d, k = big(2), Diagonal(randn(D)), Convolution(randn(3, 3, 3), (3, 64, 64), "zero")
    for act in (
        A.dense,
        A.svd,
        A.eig,
        d.svd,
        d.dense,
        k.svd,
        k.pinv,
        k.inverse,
        k.exp,
        k.eig,
        k.rank,
        lambda: A @ d,
        lambda: d + A,
        lambda: k @ k,
        lambda: A + k,
        lambda: k**2,
        lambda: k**0.5,
    ):
        with pytest.raises(ValueError, match=f"above the limit of {DENSE_LIMIT:,} entries"):
            act()
    with pytest.raises(ValueError, match=r"Ask for the leading ones: \.svd\(k\)"):
        A.svd()


def test_the_limit_can_be_lifted():
    A = LowRank(randn(5000, 1), randn(5000, 1))
    with pytest.raises(ValueError, match="limit=None"):
        A.dense()
    assert A.dense(limit=None).shape == (5000, 5000)


# -- answers -------------------------------------------------------------------------------


def test_pinv_with_a_tolerance_drops_what_is_below_it():
    s = torch.tensor([1.0, 1e-3, 1e-6])
    U, V = (torch.linalg.qr(randn(5, 3))[0] for _ in range(2))
    for A in (Dense((U * s) @ V.mT), LowRank(U * s, V), ScaledIdentityPlusLowRank(0.0, U * s, V)):
        for rtol, kept in ((None, 3), (1e-4, 2), (1e-2, 1)):
            assert A.rank(rtol) == kept
            expected = (V[:, :kept] / s[:kept]) @ U[:, :kept].mT
            close(A.pinv(rtol).dense(), expected, 1e-8)
    d = Diagonal(s)
    close(d.pinv(1e-2).diagonal, torch.tensor([1.0, 0.0, 0.0]))
    assert d.rank(1e-4) == 2
    with pytest.raises(ValueError, match="rtol ≥ 0"):
        d.pinv(-1.0)


@pytest.mark.parametrize(
    "A",
    [
        Dense(torch.zeros(3, 2).double()),
        Diagonal(torch.zeros(3).double()),
        LowRank(torch.zeros(3, 1).double(), torch.zeros(2, 1).double()),
        ScaledIdentityPlusLowRank(0.0, torch.zeros(3, 1).double(), torch.zeros(3, 1).double()),
        Convolution(torch.zeros(1, 2, 2).double(), (1, 3, 3)),
        MixingConvolution(torch.zeros(2, 1, 2, 2).double(), (1, 3, 2)),
        Projector(-torch.ones(3).double()),
    ],
    ids=lambda A: type(A).__name__,
)
def test_the_pseudo_inverse_of_zero_is_zero(A):
    assert A.pinv().shape == A.shape[::-1]
    assert A.pinv().dense().abs().max() == 0 and A.rank() == 0


def test_svd_signs_are_reproducible():
    M = randn(6, 4)
    one, two = Dense(M).svd(), Dense(M + 1e-14 * randn(6, 4)).svd()
    close(one.U, two.U, 1e-8)
    close(one.V, two.V, 1e-8)
    peaks = one.V.gather(0, one.V.abs().argmax(0, keepdim=True))
    assert (peaks > 0).all()
    low = LowRank(M, torch.eye(4)).svd()
    close(low.V, one.V, 1e-8)


def test_projector_is_exactly_zero_one_and_passes_gradients_straight_through():
    logits = torch.nn.Parameter(randn(8))
    P = Projector(logits)
    assert set(P.diagonal.tolist()) <= {0.0, 1.0}
    z = randn(4, 8)
    P(z).sum().backward()
    slope = torch.sigmoid(logits) * (1 - torch.sigmoid(logits))
    close(logits.grad, z.sum(0) * slope.detach())
    assert P.logits is logits


def test_projector_lattice():
    a, b = Projector(torch.tensor([1.0, 1, -1, -1])), Projector(torch.tensor([1.0, -1, 1, -1]))
    assert a.meet(b).mask.tolist() == [True, False, False, False]
    assert a.join(b).mask.tolist() == [True, True, True, False]
    assert a.complement().mask.tolist() == [False, False, True, True]
    edge = Projector(torch.zeros(2))
    assert edge.rank() == 0 and edge.complement().rank() == 2


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_convolution_agrees_with_torch():
    x = randn(3, 2, 5, 6)
    for size in ((3, 3), (4, 4), (2, 3)):
        kernel = randn(2, *size)
        expected = torch.nn.functional.conv2d(x, kernel[:, None], padding="same", groups=2)
        close(Convolution(kernel, (2, 5, 6), "zero")(x.flatten(1)), expected.flatten(1))
        left, top = (size[1] - 1) // 2, (size[0] - 1) // 2
        wrapped = torch.nn.functional.pad(
            x, (left, size[1] - 1 - left, top, size[0] - 1 - top), mode="circular"
        )
        expected = torch.nn.functional.conv2d(wrapped, kernel[:, None], groups=2)
        close(Convolution(kernel, (2, 5, 6))(x.flatten(1)), expected.flatten(1))


def test_convolution_at_photo_size_needs_no_matrix():
    A = Convolution(randn(3, 4, 4), (3, 256, 256))
    z = randn(2, 3 * 256 * 256)
    close((A.pinv() @ A)(z), z, 1e-6)
    top = A.svd(4)
    close(A(top.V.mT), (top.U * top.S).mT)
    assert A.rank() == 3 * 256 * 256


def test_mixing_convolution_agrees_with_torch_both_ways(monkeypatch):
    """Directly and through Fourier space, with one kernel and with one for each sample."""
    x = randn(3, 2, 5, 6)
    for size, origin in (((3, 3), None), ((4, 4), None), ((2, 3), (1, 0)), ((5, 6), (0, 0))):
        for kernel in (randn(4, 2, *size), randn(3, 4, 2, *size)):
            A = MixingConvolution(kernel, (2, 5, 6), origin)
            top, left = A.origin
            wrapped = torch.nn.functional.pad(
                x, (left, size[1] - 1 - left, top, size[0] - 1 - top), mode="circular"
            )
            expected = torch.stack(
                [
                    torch.nn.functional.conv2d(image, own)
                    for image, own in zip(wrapped, kernel.expand(3, 4, 2, *size), strict=True)
                ]
            ).flatten(1)
            for taps in (64, 0):
                monkeypatch.setattr(mixing, "DIRECT_TAPS", taps)
                close(A(x.flatten(1)), expected)
                many = x.flatten(1)[:, None].expand(3, 7, 60)
                close(A(many), expected[:, None].expand(3, 7, -1))


def test_mixing_convolution_of_one_channel_is_the_depthwise_one():
    kernel = randn(1, 3, 3)
    A, B = MixingConvolution(kernel[None], (1, 4, 5)), Convolution(kernel, (1, 4, 5))
    for one, other in zip(A.svd(), B.svd(), strict=True):
        close(one, other, 1e-7)
    close(A.eig().values.abs(), B.eig().values.abs())
    assert A.rank() == B.rank()


def test_mixing_convolutions_combine_with_their_relatives():
    """Depthwise ones and multiples of the identity, one for each sample included."""
    m, I = MixingConvolution(randn(2, 2, 3, 2), (2, 5, 4)), Identity(40)
    wide = MixingConvolution(randn(3, 2, 2, 2), (2, 5, 4), (1, 1))
    per_sample = MixingConvolution(randn(7, 2, 2, 2, 3), (2, 5, 4))
    for k in (
        Convolution(randn(2, 4, 3), (2, 5, 4)),
        Convolution(randn(2, 6, 3), (2, 5, 4)),
        Convolution(randn(7, 2, 2, 2), (2, 5, 4), origin=(0, 1)),
        Convolution(randn(2, 3, 3), (2, 5, 4)).exp(0.1),
        I,
        I * -2.0,
        I * randn(7),
        m.inverse(),
        per_sample.pinv(),
    ):
        for A, B in ((m, k), (k, m), (k, per_sample), (wide, k), (k, wide.T)):
            assert type(A @ B) is MixingConvolution
            close((A @ B).dense(), A.dense() @ B.dense())
            if A.shape == B.shape:
                assert type(A + B) is MixingConvolution
                close((A + B).dense(), A.dense() + B.dense())
                kh, kw = (A + B).kernel.shape[-2:]
                assert kh <= 5 and kw <= 4
    elsewhere = MixingConvolution(randn(2, 2, 2, 2), (2, 4, 5))  # as many pixels, another image
    for k in (elsewhere, Convolution(randn(2, 3, 3), (2, 5, 4), "zero")):
        assert type(m @ k) is Dense and type(m + k) is Dense


def test_mixing_convolution_at_photo_size_needs_no_matrix():
    A = MixingConvolution(randn(3, 3, 4, 4), (3, 128, 128))
    z = randn(2, 3 * 128 * 128)
    close((A.pinv() @ A)(z), z, 1e-6)
    B = MixingConvolution(mixing_plus(4, 3, 0.02), (3, 128, 128))
    close((B**0.5)((B**0.5)(z)), B(z))
    top = A.svd(4)
    close(A(top.V.mT), (top.U * top.S).mT)
    values, vectors = A.eig(4)
    close(torch.complex(A(vectors.real.mT), A(vectors.imag.mT)).mT, vectors * values)
    assert A.rank() == 3 * 128 * 128
    for act in (A.dense, A.svd, A.eig):
        with pytest.raises(ValueError, match="above the limit"):
            act()


def test_blocks_are_judged_by_the_largest_singular_value_of_all():
    """A frequency whose whole block is small counts as zero, as in the dense matrix."""
    kernel = torch.eye(2)[..., None, None] * torch.tensor([[1.0, -1.0 + 1e-7]])
    A = MixingConvolution(kernel, (2, 1, 4))
    for rtol in (None, 1e-4):
        assert A.rank(rtol) == Dense(A.dense()).rank(rtol) == (8 if rtol is None else 6)
        close(A.pinv(rtol).dense(), Dense(A.dense()).pinv(rtol).dense(), 1e-7)
    close(A.inverse().dense() @ A.dense(), torch.eye(8), 1e-7)
    kernel[..., 1] = torch.eye(2)[..., None] * (2.0**-52 - 1.0)
    with pytest.raises(ValueError, match="singular"):
        MixingConvolution(kernel, (2, 1, 4)).inverse()


def test_singular_vectors_of_a_mixing_convolution_are_reproducible():
    kernel = randn(3, 2, 3, 3)
    one = MixingConvolution(kernel, (2, 5, 4)).svd()
    two = MixingConvolution(kernel + 1e-14 * randn(3, 2, 3, 3), (2, 5, 4)).svd()
    close(one.U, two.U, 1e-8)
    close(one.V, two.V, 1e-8)


def test_a_kernel_serves_all_sizes():
    for A, image in (
        (Convolution(torch.nn.Parameter(randn(2, 3, 4)), (2, 8, 8)), (2, 5, 4)),
        (Convolution(randn(2, 4, 4), (2, 8, 8), "zero"), (2, 9, 4)),
        (Convolution(randn(1, 3, 2, 2), (3, 8, 8), origin=(1, 0)), (3, 2, 11)),
        (MixingConvolution(torch.nn.Parameter(randn(3, 2, 4, 3)), (2, 8, 8)), (2, 4, 30)),
        (MixingConvolution(randn(3, 2, 1, 1), (2, 1, 1)), (2, 4, 3)),
    ):
        B = A.resize(image)
        assert type(B) is type(A) and B.kernel is A.kernel and B.image == image
        assert (B.origin, B.padding) == (A.origin, A.padding)
        assert B.resize(A.image).shape == A.shape
        with pytest.raises(ValueError, match=r"resize: expected an image|got a kernel"):
            A.resize((A.image[0], 8, 0))
        with pytest.raises(ValueError, match="got a kernel"):
            A.resize((5, 8, 8))
    for A in (
        Convolution(randn(2, 3, 3), (2, 8, 8)),
        MixingConvolution(randn(2, 2, 3, 3), (2, 8, 8)),
    ):
        for power in (A**2, (A**2).T):
            assert power.resize((2, 8, 8)).shape == A.shape
            with pytest.raises(ValueError, match="Resize the small kernels first"):
                power.resize((2, 9, 9))


def test_fractional_powers_interpolate():
    A = Dense(positive(4))
    close((A**0.25 @ A**0.75).dense(), A.dense(), 1e-8)
    close((A**-0.5 @ A**0.5).dense(), torch.eye(4), 1e-8)
    k = Convolution(torch.tensor([[[0.0, 0.8, 0.2]]]), (1, 1, 8))
    close((k**0.5 @ k**0.5).dense(), k.dense())


@pytest.mark.parametrize(
    "A",
    [
        Diagonal(torch.tensor([-1.0, 2.0]).double()),
        Dense(torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double()),  # no basis of eigenvectors
        Dense(-torch.eye(3).double()),
        Convolution(-torch.ones(1, 1, 1).double(), (1, 2, 2)),
        MixingConvolution(-torch.eye(2).double()[..., None, None], (2, 2, 2)),
        ScaledIdentityPlusLowRank(-1.0, torch.ones(5, 1).double(), torch.ones(5, 1).double()),
    ],
    ids=lambda A: type(A).__name__,
)
def test_no_real_root_is_an_error(A):
    with pytest.raises(ValueError, match="no real principal power"):
        A**0.5


# -- gradients -----------------------------------------------------------------------------

SMALL = {
    "dense": lambda a: Dense(a.reshape(3, 4)),
    "diagonal": lambda a: Diagonal(a),
    "low rank": lambda a: LowRank(a[:6].reshape(3, 2), a[6:].reshape(3, 2)),
    "scaled identity + low rank": lambda a: ScaledIdentityPlusLowRank(
        1 + a[0].square(), a[:5, None], a[5:10, None]
    ),
    "convolution": lambda a: Convolution(a.reshape(1, 3, 4), (1, 4, 4)),
    "convolution, zero-padded": lambda a: Convolution(a.reshape(1, 3, 4), (1, 4, 4), "zero"),
    "mixing convolution": lambda a: MixingConvolution(a.reshape(2, 2, 3, 1), (2, 2, 2)),
    "mixing convolution, tall": lambda a: MixingConvolution(a.reshape(3, 2, 1, 2), (2, 2, 2)),
}


@pytest.mark.parametrize("name", SMALL)
def test_gradients_of_the_algebra(name):
    start, make = randn(12), SMALL[name]

    def results(a):
        A = make(a)
        z = torch.linspace(-1, 1, 2 * A.shape[1]).reshape(2, -1)
        out = [A(z), (A.T @ A)(z), (A * 2.0 + A)(z), A.svd().S]
        if A.rank() == min(A.shape):  # the pseudo-inverse jumps where the rank changes
            out.append((A.pinv() @ A @ A.pinv()).dense())
        if A.shape[0] == A.shape[1]:
            out += [(A**3)(z), A.exp(0.3)(z)]
        return tuple(out)

    assert torch.autograd.gradcheck(results, start.requires_grad_(), atol=1e-6)


@pytest.mark.parametrize(
    "name", ["diagonal", "scaled identity + low rank", "convolution", "mixing convolution"]
)
def test_gradients_of_the_inverse(name):
    a = (randn(12).abs() + 0.5).requires_grad_()
    make = SMALL[name]
    assert torch.autograd.gradcheck(lambda a: make(a).inverse().dense(), a, atol=1e-6)


def test_gradients_of_the_singular_vectors_of_a_mixing_convolution():
    """Of waves from distinct values of a block, though opposite frequencies share them."""
    a = randn(3, 2, 1, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: MixingConvolution(a, (2, 1, 4)).svd(5), a, atol=1e-6)
    assert torch.autograd.gradcheck(
        lambda a: MixingConvolution(a[:2], (2, 1, 4)).eig(5).values.abs(), a, atol=1e-6
    )


def test_parameters_are_learned_and_tensors_are_kept():
    p = torch.nn.Parameter(randn(3, 4))
    assert dict(Dense(p).named_parameters()).keys() == {"matrix"}
    assert dict(Dense(randn(3, 4)).named_buffers()).keys() == {"matrix"}
    wide = LowRank(torch.nn.Parameter(randn(2, 5)), torch.nn.Parameter(randn(3, 5)))
    assert len(list(wide.parameters())) == 2
    close(wide.pinv().dense(), torch.linalg.pinv(wide.dense()), 1e-8)
    A = Dense(p).float()
    assert A.dtype == torch.float32 and A.T.dtype == torch.float32
    assert (Identity(3).float() * 2.0).dtype == torch.float32


# -- one operator for each sample ----------------------------------------------------------

BATCHED = [name for name, make in OPERATORS.items() if make().batch]


@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_of_operators_is_each_of_them(name):
    A = OPERATORS[name]()
    z = randn(A.batch, A.shape[1])
    single = A.dense()
    for i in range(A.batch):
        close(A(z)[i], single[i] @ z[i])
        close(A.pinv().dense()[i], Dense(single[i]).pinv().dense(), 1e-8)
    c = torch.arange(1.0, A.batch + 1)
    close((A * c).dense(), single * c[:, None, None])
    if A.shape[0] == A.shape[1]:
        times = torch.linspace(0, 1, A.batch)
        close(A.exp(times).dense(), torch.linalg.matrix_exp(single * times[:, None, None]))
    with pytest.raises(ValueError, match=f"expected a batch of {A.batch}"):
        A(z[:2])
    with pytest.raises(ValueError, match="one for each of"):
        A * c[:3]


# -- bad input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Dense([[1.0]]), TypeError, "matrix to be a real floating tensor, got list"),
        (lambda: Dense(torch.ones(2, 2, dtype=torch.int64)), TypeError, "got torch.int64"),
        (lambda: Dense(randn(3)), ValueError, r"2 axes .*got shape \(3,\)"),
        (lambda: Diagonal(randn(2, 2, 2)), ValueError, "1 axes"),
        (lambda: LowRank(randn(3, 2), randn(3, 1)), ValueError, "of one rank"),
        (lambda: LowRank(randn(3, 2), randn(3, 2).float()), ValueError, "of one rank, dtype"),
        (lambda: ScaledIdentityPlusLowRank(1.0, randn(3, 1), randn(4, 1)), ValueError, "square"),
        (lambda: Convolution(randn(2, 3, 3), (3, 4, 4)), ValueError, "depthwise"),
        (lambda: Convolution(randn(2, 3, 3), (2, 4, 4), "reflect"), ValueError, "'reflect'"),
        (lambda: Convolution(randn(2, 3, 3), (2, 4, 4), origin=(3, 0)), ValueError, "outside"),
        (lambda: MixingConvolution(randn(2, 3, 3), (3, 4, 4)), ValueError, "4 axes"),
        (lambda: MixingConvolution(randn(3, 2, 3, 3), (3, 4, 4)), ValueError, "take Convolution"),
        (lambda: MixingConvolution(randn(3, 2, 3, 3), (2, 4)), ValueError, r"for \(2, 4\)"),
        (
            lambda: MixingConvolution(randn(2, 2, 3, 3), (2, 4, 4), (0, 3)),
            ValueError,
            "outside the 3×3",
        ),
        (lambda: MixingConvolution(randn(3, 2, 1, 1), (2, 2, 2)) ** 2, ValueError, "got 12 × 8"),
        (lambda: MixingConvolution(randn(3, 2, 1, 1), (2, 2, 2)).exp(), ValueError, "square"),
        (lambda: MixingConvolution(randn(3, 2, 1, 1), (2, 2, 2)).eig(), ValueError, "square"),
        (lambda: MixingConvolution(randn(3, 2, 1, 1), (2, 2, 2)).inverse(), ValueError, "square"),
        (
            lambda: MixingConvolution(torch.full((1, 1, 1, 1), math.nan), (1, 2, 2)).svd(),
            ValueError,
            "NaN",
        ),
        (lambda: Dense(randn(3, 2)) @ Dense(randn(3, 2)), ValueError, "inner sizes must agree"),
        (lambda: Dense(randn(3, 2)) + Dense(randn(2, 3)), ValueError, "must agree"),
        (lambda: Dense(randn(3, 3)) @ Identity(3).float(), ValueError, r"B is torch.float32"),
        (lambda: Dense(randn(5, 2, 2)) @ Dense(randn(4, 2, 2)), ValueError, "a batch of 5"),
        (lambda: Dense(randn(3, 2)) ** 2, ValueError, "needs a square operator, got 3 × 2"),
        (lambda: Dense(randn(3, 2)).exp(), ValueError, "square"),
        (lambda: Dense(randn(3, 2)).eig(), ValueError, "square"),
        (lambda: Dense(randn(3, 2)).inverse(), ValueError, "square"),
        (lambda: Diagonal(torch.tensor([1.0, 0.0])).inverse(), ValueError, r"Use pinv\(rtol\)"),
        (lambda: Dense(torch.ones(2, 2)) ** -1, ValueError, "singular"),
        (lambda: LowRank(randn(4, 2), randn(4, 2)).inverse(), ValueError, "singular"),
        (lambda: Dense(randn(3, 3)).svd(0), ValueError, "k ≥ 1"),
        (lambda: Dense(torch.full((2, 2), math.nan)).svd(), ValueError, "NaN"),
        (lambda: Dense(torch.full((2, 2), math.nan)).pinv(), ValueError, "NaN"),
        (lambda: Dense(torch.full((2, 2), math.inf)).eig(), ValueError, "infinite"),
        (lambda: Diagonal(torch.full((2,), math.nan)).inverse(), ValueError, "NaN"),
        (lambda: Diagonal(torch.full((2,), math.nan)).rank(), ValueError, "NaN"),
        (lambda: Convolution(torch.full((1, 1, 1), math.nan), (1, 2, 2)).pinv(), ValueError, "NaN"),
        (lambda: Dense(randn(3, 3))(randn(3)), ValueError, r"single vector is z\[None\]"),
        (lambda: Dense(randn(3, 3))(randn(2, 4)), ValueError, r"\(batch, 3\), got \(2, 4\)"),
        (lambda: Dense(randn(3, 3))(randn(2, 3).float()), ValueError, "got torch.float32"),
        (lambda: Dense(randn(3, 3))(randn(2, 3, device="meta")), ValueError, "on meta"),
        (lambda: Dense(randn(3, 3)) * randn(2, 2), ValueError, "a number"),
        (lambda: Dense(randn(3, 3)) @ randn(3, 3), TypeError, r"Call A\(z\)"),
        (lambda: Dense(randn(3, 3)) * "two", TypeError, "operand|multiply"),
    ],
)
def test_bad_input_gets_a_sentence(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_an_empty_batch_gives_an_empty_batch():
    for name, make in OPERATORS.items():
        A = make()
        if A.batch is None:
            assert A(randn(0, A.shape[1])).shape == (0, A.shape[0]), name


def test_the_contract_is_small():
    """A user's operator with shape, T and forward has the whole algebra."""

    class Shift(Operator):
        def __init__(self, by=1):
            super().__init__()
            self.by = by
            self.register_buffer("like", torch.empty(0))

        @property
        def shape(self):
            return 4, 4

        @property
        def T(self):
            return Shift(-self.by)

        def forward(self, z):
            return z.roll(self.by, -1)

    A = Shift()
    close((A**4).dense(), torch.eye(4))
    close((A @ A.T).dense(), torch.eye(4))
    close(A.pinv().dense(), A.T.dense())
    assert A.rank() == 4
    close((A + Identity(4)).dense(), A.dense() + torch.eye(4))


@pytest.mark.parametrize("start", ["identity", "repeated", "distinct", "complex pair"])
def test_gradients_of_fractional_powers(start):
    """Finite and right, at repeated eigenvalues too."""
    Q = torch.linalg.qr(randn(4, 4))[0]
    M = {
        "identity": torch.eye(4),
        "repeated": Q @ torch.diag(torch.tensor([1.0, 1.0, 2.0, 2.0])) @ Q.mT,
        "distinct": positive(4),
        "complex pair": torch.block_diag(torch.tensor([[1.0, -2.0], [2.0, 1.0]]), torch.eye(2) * 3),
    }[start]
    for p in (0.5, -0.3, 1.7):
        assert torch.autograd.gradcheck(lambda a, p=p: (Dense(a) ** p).dense(), M.requires_grad_())
    blocks = M.detach()[..., None, None].requires_grad_()  # the same matrix at every frequency
    assert torch.autograd.gradcheck(
        lambda a: (MixingConvolution(a, (4, 2, 3)) ** 0.5).kernel, blocks, atol=1e-6
    )
    U = randn(6, 2).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda U: (ScaledIdentityPlusLowRank(2.0, U, U) ** 0.5).dense(), U, atol=1e-6
    )


def test_autocast_leaves_operators_alone():
    A, z = Dense(randn(3, 4)).float(), randn(2, 4).float()
    expected = A(z)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(A(z), expected)


# -- gradients where factors are dependent or values repeat ---------------------------------

DEGENERATE = {
    "identity, dense": lambda a: Dense(torch.eye(3) + a[:9].reshape(3, 3)),
    "αI + UUᵀ": lambda a: (lambda U: ScaledIdentityPlusLowRank(2.0, U, U))(
        torch.eye(5)[:, :2] + a[:10].reshape(5, 2)
    ),
    "αI + 0Vᵀ": lambda a: ScaledIdentityPlusLowRank(1.5, a[:5, None], torch.ones(5, 1)),
    "a square": lambda a: (lambda A: A @ A)(
        ScaledIdentityPlusLowRank(1.0, torch.eye(5)[:, :1] + a[:5, None], torch.ones(5, 1))
    ),
    "low rank": lambda a: LowRank(torch.eye(4)[:, :2] + a[:8].reshape(4, 2), torch.ones(4, 2)),
    "low rank, rank 2": lambda a: LowRank(
        torch.eye(4)[:, :2] + a[:8].reshape(4, 2), torch.eye(5)[:, 1:3] + 0.3
    ),
    "identity, mixing convolution": lambda a: MixingConvolution(
        torch.eye(2)[..., None, None] * torch.tensor([1.0, 0.0, 0.0]) + a.reshape(2, 2, 1, 3),
        (2, 2, 3),
        (0, 0),
    ),
    "mixing convolution, rank one": lambda a: MixingConvolution(
        (1 + a[:4].reshape(2, 1, 1, 2)) * (1 + a[4:6].reshape(1, 2, 1, 1)), (2, 2, 3)
    ),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_gradients_of_values_and_pseudo_inverse_at_degenerate_points(name):
    """Against finite differences along a direction that keeps the rank."""
    make = DEGENERATE[name]
    direction, w = torch.linspace(0.3, 1.0, 12), None

    def value(t):
        A = make(t * direction)
        nonlocal w
        if w is None:
            w = torch.linspace(-1, 1, A.shape[0] * A.shape[1]).reshape(A.shape[1], A.shape[0])
        return (A.pinv().dense() * w).sum() + A.svd().S.square().sum()

    t = torch.zeros((), requires_grad=True)
    value(t).backward()
    h = 1e-6
    with torch.no_grad():
        slope = (value(torch.tensor(h)) - value(torch.tensor(-h))) / (2 * h)
    assert t.grad.item() == pytest.approx(slope.item(), rel=1e-5, abs=1e-7)


def test_gradients_of_eigenvalues_need_independent_factors_or_all_of_them():
    U = randn(6, 2).requires_grad_()
    with pytest.raises(ValueError, match="columns of .U V. are dependent"):
        ScaledIdentityPlusLowRank(1.0, U, U).eig()
    for n, V in ((6, randn(6, 2)), (3, None)):
        W = randn(n, 2).requires_grad_()
        assert torch.autograd.gradcheck(
            lambda W, V=V: (
                ScaledIdentityPlusLowRank(1.0, W, W if V is None else V).eig().values.real.sum()
            ),
            W,
        )


def test_power_of_a_jordan_block():
    A = Dense(torch.tensor([[2.0, 1.0], [0.0, 2.0]]))
    root = (A**0.5).dense()
    close(root, torch.tensor([[2**0.5, 2**-1.5], [0.0, 2**0.5]]))


def test_fractional_powers_judge_each_sample_by_its_own_size():
    d = torch.diag(torch.tensor([2.0, 3.0, 4.0]))
    B = torch.stack([d * 1e-20, d])
    close((Dense(B) ** 0.5).dense()[0], (Dense(B[0]) ** 0.5).dense())
    k = torch.ones(2, 1, 1, 1) * torch.tensor([1e-20, 1.0]).reshape(2, 1, 1, 1)
    root = Convolution(k, (1, 2, 2)) ** 0.5
    close(root.dense()[0], 1e-10 * torch.eye(4))


def test_no_root_in_float32_where_there_is_none_in_float64():
    """A symmetric kernel has real multipliers, a negative one among them."""
    kernel = torch.tensor([[[0.0, 1.0, 0.0], [1.0, 2.5, 1.0], [0.0, 1.0, 0.0]]])
    for dtype in (torch.float64, torch.float32):
        with pytest.raises(ValueError, match="no real principal power"):
            Convolution(kernel.to(dtype), (1, 5, 5)) ** 0.5


def test_one_alpha_for_each_sample_and_one_pair_of_factors():
    alpha = torch.rand(5) + 3
    for A in (Identity(4) * alpha, ScaledIdentityPlusLowRank(alpha, randn(4, 1), randn(4, 1))):
        U, S, V = A.svd()
        close((U * S.unsqueeze(-2)) @ V.mT, A.dense())
        values, vectors = A.eig()
        close(A.dense().to(values.dtype) @ vectors, vectors * values.unsqueeze(-2))


def test_compress_takes_rank_zero():
    for A in (LowRank(torch.zeros(6, 2), randn(6, 2)), Identity(4) * 2.0):
        once = A.compress()
        close(once.compress().dense(), A.dense())
    with pytest.raises(ValueError, match="no_grad"):
        LowRank(torch.nn.Parameter(randn(4, 2)), randn(4, 2)).compress()


@pytest.mark.parametrize("alpha", [1e-12, 1e-8, 0.0])
def test_a_small_alpha_costs_no_digits(alpha):
    A = ScaledIdentityPlusLowRank(alpha, randn(4, 4), torch.eye(4))
    for B in (A.inverse(), A.pinv()):
        close(A.dense() @ B.dense(), torch.eye(4))


def test_exp_does_not_overflow_on_the_way():
    ones = torch.ones(4, 1)
    A = ScaledIdentityPlusLowRank(-800.0, ones, 199 * ones)
    close(A.exp()(torch.ones(1, 4)), math.exp(-4.0) * torch.ones(1, 4))


def test_a_batch_of_scalars_counts_towards_the_limit():
    with pytest.raises(ValueError, match="for each of 20 samples, above the limit"):
        Convolution(randn(1, 3, 3), (1, 32, 32), "zero").exp(torch.linspace(0, 0.1, 20))
    with pytest.raises(ValueError, match="above the limit"):
        Dense(randn(1024, 1024)) * torch.ones(20)


def test_factors_must_fit_each_other():
    for make in (
        lambda: LowRank(randn(3, 5, 1), randn(4, 5, 1)),
        lambda: ScaledIdentityPlusLowRank(torch.ones(3), randn(4, 5, 1), randn(5, 1)),
        lambda: ScaledIdentityPlusLowRank(torch.tensor(1.0).float(), randn(5, 1), randn(5, 1)),
    ):
        with pytest.raises(ValueError, match="one batch|one alpha|float32"):
            make()


@pytest.mark.parametrize("name", OPERATORS)
def test_float32_keeps_its_digits(name):
    """The same answers as float64 to the precision that is left, or the same refusal."""
    A64 = OPERATORS[name]()
    A, M = copy.deepcopy(A64).float(), A64.dense()
    close(A.dense().double(), M, 1e-5)
    assert torch.equal(torch.as_tensor(A.rank(1e-4)), torch.as_tensor(A64.rank(1e-4)))
    close(A.pinv(1e-4).dense().double(), A64.pinv(1e-4).dense(), 1e-2)
    U, S, V = A.svd()
    close(((U * S.unsqueeze(-2)) @ V.mT).double(), M, 1e-4, floor=1e-3)
    if A.shape[0] == A.shape[1]:
        close(A.exp(0.1).dense().double(), A64.exp(0.1).dense(), 1e-4)
        try:
            root = A**0.5
        except ValueError:
            return
        close((root @ root).dense().double(), M, 1e-2, floor=1e-3)
