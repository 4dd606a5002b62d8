"""Own data and own losses in ``lz.fit``."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import linearizer as lz
from linearizer.bijections import mlp
from linearizer.operators import Dense
from linearizer.training.sources import as_source

X = torch.linspace(-1, 1, 40, dtype=torch.float64).reshape(20, 2)
Y = 3 * X
INDEX = torch.tensor([7, 0, 7])


class Items(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i], Y[i]


class Frame:
    """As a data frame of pandas: columns are what [] gives."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, column):
        raise KeyError(column)

    def to_numpy(self):
        return self.values.numpy()


PAIRS = {
    "tensors": (X, Y),
    "list": [X, Y],
    "arrays": (X.numpy(), Y.numpy()),
    "TensorDataset": TensorDataset(X, Y),
    "map-style data set": Items(),
    "DataLoader": DataLoader(Items(), batch_size=3, shuffle=True),
    "list of samples": [(X[i], Y[i]) for i in range(20)],
    "backwards": (X.numpy()[::-1].copy()[::-1], Y.numpy()[::-1].copy()[::-1]),
    "data frames": (Frame(X), Frame(Y)),
}


@pytest.mark.parametrize("data", PAIRS.values(), ids=PAIRS)
def test_any_data_give_the_samples_that_are_asked_for(data):
    source = as_source(data)
    x, y = source.batch(INDEX)
    assert len(source) == 20
    assert torch.equal(x, X[INDEX]) and torch.equal(y, Y[INDEX])


def test_one_array_gives_batches_of_a_tensor():
    for data in (X, X.numpy(), TensorDataset(X), X.tolist(), Frame(X)):
        assert torch.equal(as_source(data).batch(INDEX), X[INDEX])


def test_a_source_stays_as_it_is():
    source = as_source((X, Y))
    assert as_source(source) is source


class Stream(IterableDataset):
    def __iter__(self):
        return iter(X)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataLoader(Stream()), r"data: the DataLoader has an iterable data set.*__getitem__"),
        ((X, Y[:3]), r"data: expected arrays \(n, …\) of one n, got \(20, 2\), \(3, 2\)\."),
        (np.float64(3.0), r"data: expected arrays \(n, …\) of one n, got \(\)\."),
        (["a", "b"], "data: expected tensors, arrays, .* got list of strings"),
        ([[1.0, 2.0], [3.0]], "data: expected arrays of numbers"),
        (X.to_sparse(), r"data: expected dense tensors, .* to_dense\(\)"),
        ("digits", "data: expected tensors, arrays, a data set .* got str"),
        ({"x": X}, "data: expected tensors, arrays, a data set .* got dict"),
        (iter([X]), "data: expected tensors, arrays, a data set .* got list_iterator"),
    ],
)
def test_anything_else_is_one_sentence(data, message):
    with pytest.raises((TypeError, ValueError), match=message):
        as_source(data)


def test_eight_lines_train_a_module_of_ones_own(tmp_path):
    space = lz.Space(mlp(2, blocks=1, hidden=8))
    f = lz.Linearizer(space, Dense(nn.Parameter(torch.eye(2))), space)

    def loss(f, batch):
        x, y = batch
        return (f(x) - y).square().mean()

    def error(f, batch):
        x, y = batch
        return (f(x) - y).square().mean(1)

    how = {"batch": 8, "validate_every": 10, "tensorboard": False, "rate": 1e-2}
    first = lz.fit(f, loss, (X, Y), lz.Training(steps=20, **how), tmp_path / "run", progress=False,
                   validation=(X, Y), measure=error)  # fmt: skip
    again = lz.fit(f, loss, (X, Y), lz.Training(steps=60, **how), tmp_path / "run", progress=False,
                   validation=(X, Y), measure=error, resume=True)  # fmt: skip
    assert (first.step, again.step) == (20, 60)
    assert again.losses["loss"] < first.losses["loss"]
    assert set(again.metrics) == {"value"}
    lz.save(f, tmp_path / "f")
    assert torch.equal(lz.load(tmp_path / "f")(X), f(X))


class Sized(IterableDataset):
    def __iter__(self):
        return iter(X)

    def __len__(self):
        return len(X)


class Library(Dataset):
    """A data set whose ``batch`` means something else, as Hugging Face's does."""

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i]

    def batch(self, batch_size):
        raise AssertionError


def test_samples_are_taken_by_number_and_nothing_else():
    assert torch.equal(as_source(Library()).batch(INDEX), X[INDEX])
    with pytest.raises(TypeError, match="iterable data set"):
        as_source(DataLoader(Sized()))
    with pytest.raises(TypeError, match="expected tensors, arrays"):
        as_source(Sized())
    with pytest.raises(TypeError, match="expected arrays of numbers"):
        as_source(np.array(["a", "b"]))


@pytest.mark.parametrize("samples", [[object()] * 9, [torch.zeros(i + 1) for i in range(9)]])
def test_samples_that_make_no_batch_are_one_sentence(samples):
    class Samples(Dataset):
        def __len__(self):
            return len(samples)

        def __getitem__(self, i):
            return samples[i]

    with pytest.raises(ValueError, match="^validation: the samples do not make a batch .* Give"):
        as_source(Samples(), "validation").batch(INDEX)


class Squares(nn.Module):
    def forward(self, net, batch):
        return (net(batch) - batch).square().mean()


@pytest.mark.parametrize(
    "loss",
    [
        Squares(),
        lambda net, x, weight=0.1: weight * Squares()(net, x),
        lambda *a: Squares()(*a[:2]),
    ],
    ids=["module", "default", "any"],
)
def test_a_loss_gets_what_it_asks_for(loss):
    result = lz.fit(nn.Linear(2, 2), loss, X, lz.Training(steps=2, batch=4), progress=False)
    assert result.step == 2


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda net, x: 3.0, "expected a tensor, or a dict of tensors by name, from the loss, got"),
        (
            lambda net, x: net(x),
            r"the loss as one number, .* got a tensor of shape \(4, 2\)",
        ),
    ],
)
def test_a_loss_of_another_kind_is_one_sentence(loss, message):
    with pytest.raises((TypeError, ValueError), match=message):
        lz.fit(nn.Linear(2, 2), loss, X, lz.Training(steps=2, batch=4), progress=False)


def test_a_measure_is_one_number_for_each_sample():
    with pytest.raises(ValueError, match=r"measure 'value' as one number for each of 8 samples"):
        lz.fit(nn.Linear(2, 2), Squares(), X, lz.Training(steps=2, batch=8, validate_every=1),
               progress=False, validation=X, measure=Squares())  # fmt: skip


def test_nested_batches_move_to_another_device():
    from linearizer.training.loop import _to

    moved = _to({"x": X, "more": (X, [X])}, torch.device("meta"))
    assert moved["x"].is_meta and moved["more"][1][0].is_meta
    assert _to(X, torch.device("meta")).shape == X.shape


def test_a_loss_may_draw_and_have_terms():
    net = nn.Linear(2, 2)

    def loss(net, batch, draw):
        return {"fit": (net(batch) - batch).square().mean(), "noise": 0 * draw.normal(batch).mean()}

    result = lz.fit(net, loss, X, lz.Training(steps=2, batch=4), progress=False)
    assert set(result.losses) == {"loss", "fit", "noise"}


LOSS = Squares()
MISTAKES = [
    ({"model": nn.ReLU()}, "model with weights to train, got none with requires_grad"),
    ({"model": nn.Linear}, "model as a torch module, got the class Linear"),
    ({"loss": "mse"}, r"the loss as a function of \(model, batch\).* got str"),
    ({"loss": lambda net: 0}, r"a loss or measure of \(model, batch\), .* got one of \(net\)"),
    ({"loss": lambda net, x, *, w: 0}, r"got one of \(net, x, \*, w\)"),
    ({"loss": lambda net, x: {}}, "from the loss, got dict"),
    ({"loss": lambda net, x: {"a": 1.0}}, r"got a dict with float\. Leave \.item"),
    ({"loss": lambda net, x: LOSS(net, x).detach()}, "constant in them. Leave detach"),
    ({"loss": lambda net, x: LOSS(net, x) * 1j}, "got one that is complex"),
    ({"config": {"steps": 2}}, "settings as lz.Training, got dict"),
    ({"validation": X}, "validation data need a measure, got none"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES)
def test_a_mistake_is_one_sentence(change, message):
    right = {"model": nn.Linear(2, 2), "loss": LOSS, "data": X}
    config = lz.Training(steps=2, batch=4)
    with pytest.raises((TypeError, ValueError), match=f"^training: .*{message}"):
        lz.fit(**{**right, "config": config, **change}, progress=False)


def test_draw_may_be_a_keyword():
    def loss(net, x, *, draw):
        return LOSS(net, x + 0.01 * draw.normal(x))

    assert lz.fit(nn.Linear(2, 2), loss, X, lz.Training(steps=2), progress=False).step == 2
