"""Numbers of `linearizer reproduce` beside the committed ones, experiment by experiment.

python benchmarks/reproduced.py runs/reproduce     writes reproduced.json
"""

from __future__ import annotations

import sys
from pathlib import Path

from common import HERE, write

from linearizer.results import gathered, sections


def main(folder: Path) -> None:
    known = {c.what: c.ours for s in sections(gathered(HERE)) for c in s.claims}
    found = gathered(folder)
    rows = {}
    for section in sections(found):
        both = [(c.what, c.ours, known.get(c.what)) for c in section.claims]
        rows[section.name] = {what: {"reproduced": again, "committed": before}
                              for what, again, before in both}  # fmt: skip
    rows = {name: row for name, row in rows.items() if row and name in found["state"]["commands"]}
    minutes = {name: run["minutes"] for name, run in found["shipped"].items()}
    write("reproduced", {"done": found["state"]["done"], "training_minutes": minutes, "rows": rows})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
