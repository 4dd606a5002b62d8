"""The tables of docs/attributes.md: `linearizer evaluate attributes` of the shipped classifiers.

    python benchmarks/attributes.py [celeba-attributes] [mnist-attributes]

Each replaces its part of attributes.json. LINEARIZER_DATA must have celeba and mnist. A ResNet-18
is trained for as long as each model was (minutes of one core, shipped.json) and kept in
runs/evaluated.
"""

from __future__ import annotations

import json
import sys

from common import HERE, write

from linearizer import evaluation

OUT = HERE.parent / "runs" / "evaluated"


def main(*names: str) -> None:
    for name in names or ("celeba-attributes", "mnist-attributes"):
        minutes = json.loads((HERE / "shipped.json").read_text())[name]["cpu_minutes"]
        row = evaluation.attributes(name, OUT / name, None, print, minutes)
        path = HERE / "attributes.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        before.pop("machine", None)
        write("attributes", {**before, name: {k: v for k, v in row.items() if k != "files"}})


if __name__ == "__main__":
    main(*sys.argv[1:])
