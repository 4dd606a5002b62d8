"""Pictures: what is written into them fits."""

import pytest
import torch
from matplotlib.figure import Figure

from linearizer.runs.pictures import image_grid

LONG = "a name of many words that does not fit above or beside a small picture, " * 2


@pytest.mark.parametrize(
    ("rows", "columns", "title"),
    [((LONG,), (LONG, "b"), LONG), ((), (), LONG), (("x",), ("y", "0123456789" * 3), "short")],
)
def test_labels_and_titles_stay_inside_and_apart(tmp_path, monkeypatch, rows, columns, title):
    seen = {}

    def keep(figure, path, **options):
        seen.update(options, figure=figure)
        path.touch()

    monkeypatch.setattr(Figure, "savefig", keep)
    image_grid(tmp_path / "a.png", [torch.rand(2, 1, 4, 4)], rows, columns, title)
    figure = seen["figure"]
    assert seen["bbox_inches"] == "tight"  # the file has room for all of them
    texts = [*figure.texts, *figure.axes[0].texts]
    boxes = [text.get_window_extent() for text in texts]
    assert len(boxes) == 1 + len(rows) + len(columns)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
