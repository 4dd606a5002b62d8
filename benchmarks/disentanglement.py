"""The table of docs/distill.md: `linearizer evaluate disentanglement`, all rows of the paper's.

    python benchmarks/disentanglement.py

LINEARIZER_DATA must have disentangling_vae. What runs/disentanglement holds already is neither
trained nor measured again; remove that folder to start afresh.
"""

from __future__ import annotations

from common import HERE, write

from linearizer.evaluation import disentanglement

OUT = HERE.parent / "runs" / "disentanglement"


def main() -> None:
    result = disentanglement(out=OUT, say=lambda text: print(text, flush=True))
    write("disentanglement", {k: v for k, v in result.items() if k not in ("files", "table")})


if __name__ == "__main__":
    main()
