"""Write locks/*.txt, the pins of constraints.txt with the hashes of their files (`make lock`).

``use.txt`` is what people install, ``dev.txt`` what the tests need besides. torch is in neither,
since each index has builds of its own; pip installs it after them, by its pin.
"""

import os
import re
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).parent
#: What each lock is for; a package is in the first that needs it.
LOCKS = {"use": "linearizer[studio,tensorboard]", "dev": "linearizer[dev]"}
UNLOCKED = {"linearizer", "torch"}
SYSTEMS = {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}
#: Where the project runs; a marker that holds on one of them counts.
MACHINES = [
    {"python_version": f"3.{minor}", "sys_platform": system, "platform_system": name}
    for minor in range(10, 15)
    for system, name in SYSTEMS.items()
]


def find_needed(root: str, machines: Iterable[dict[str, str]] = MACHINES) -> set[str]:
    """Names of the packages that a requirement needs, by the metadata of those installed."""
    machines = list(machines)
    todo, seen = [Requirement(root)], set()
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        for extra in ["", *wanted.extras]:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                lines = metadata.requires(name) or []
            except metadata.PackageNotFoundError:  # of another system, and without needs
                continue
            for line in map(Requirement, lines):
                held = [line.marker is None or line.marker.evaluate({**m, "extra": extra})
                        for m in machines]  # fmt: skip
                if any(held):
                    todo.append(line)
    return {name for name, _ in seen} - UNLOCKED


def read_pins() -> dict[str, list[Requirement]]:
    """The pins of constraints.txt by name, with one for each marker."""
    pins: dict[str, list[Requirement]] = {}
    for line in (FOLDER.parent / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            pins.setdefault(canonicalize_name(pin.name), []).append(pin)
    return pins


def find_hashes(pin: Requirement) -> list[str]:
    """SHA-256 of every file that the index lists for a pin, whatever machine it is for."""
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    with urllib.request.urlopen(f"{index}/{canonicalize_name(pin.name)}/", timeout=600) as page:
        files = re.findall(r'/([^/"#]+)#sha256=([0-9a-f]{64})"', page.read().decode())
    version = re.escape(str(pin.specifier).removeprefix("=="))
    return sorted({h for file, h in files if re.search(rf"-{version}(-|\.tar|\.zip)", file)})


def main() -> None:
    """Write the locks."""
    pins, done = read_pins(), set()
    for lock, root in LOCKS.items():
        names = sorted((find_needed(root) & set(pins)) - done)
        done |= set(names)
        chosen = [pin for name in names for pin in pins[name]]
        with ThreadPoolExecutor(8) as pool:
            hashes = list(pool.map(find_hashes, chosen))
        lines = [f"# Written by `make lock` from constraints.txt: what {root} needs."]
        for pin, found in zip(chosen, hashes, strict=True):
            if not found:
                raise SystemExit(f"make lock: the index has no file of {pin}. Pin another version.")
            lines.append(" \\\n".join([str(pin), *(f"    --hash=sha256:{h}" for h in found)]))
        (FOLDER / f"{lock}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
