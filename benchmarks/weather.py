"""The table of docs/forecast.md: every row of `linearizer evaluate weather`, at all four horizons.

    python benchmarks/weather.py [96] [192] [336] [720]

LINEARIZER_DATA must have weather. Rows that runs/weather holds already are not measured again;
remove that folder to start afresh. Plots go there as well.
"""

from __future__ import annotations

import sys

from common import HERE, write

from linearizer.evaluation import weather

OUT = HERE.parent / "runs" / "weather"


def main(*horizons: str) -> None:
    result = weather(",".join(horizons) or "96,192,336,720", out=OUT, say=print)
    for rows in result["rows"].values():
        for row in rows.values():
            by_step = row.pop("mse_by_step")
            row["mse_first_step"], row["mse_last_step"] = by_step[0], by_step[-1]
    write("weather", {k: v for k, v in result.items() if k != "files"})


if __name__ == "__main__":
    main(*sys.argv[1:])
