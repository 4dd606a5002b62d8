"""The studio's API under schemathesis: generated requests, right and wrong, of every operation.

A server is started on loopback in a process of its own. No answer may be a 5xx other than the
documented 503 and 504, and all must be of the documented status, type and schema. Bounded in
examples and in time. So that requests get past the first check, their schema offers names of quick
models and small images. Needs the extra ``fuzz``.

    python benchmarks/studio_fuzz.py [EXAMPLES] [SECONDS]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from subprocess import run
from typing import Any
from urllib.request import urlopen

from common import write
from studio_load import drawn, started

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,negative_data_rejection,unsupported_method"
)


#: Names that requests of a kind are offered.
MODELS = {
    "Project": "mnist-projector", "Stylize": "styles", "Dynamics": "pendulum",
    "Edit": "mnist-attributes", "/api/spectrum": "pendulum", "/api/certify": "pendulum",
}  # fmt: skip


def offered(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with names and images to choose from."""

    def choose(field: dict[str, Any], values: list[str]) -> None:
        optional = {"type": "null"} in field.get("anyOf", ())
        field.clear()
        field["enum"] = [*values, *([None] if optional else [])]

    for kind, body in schema["components"]["schemas"].items():
        fields = body.get("properties", {})
        if body.get("additionalProperties") is not False or "model" not in fields:
            continue
        choose(fields["model"], [MODELS.get(kind, "mnist-flow")])
        for name in {"image", "a", "b"} & fields.keys():
            choose(fields[name], [drawn(i) for i in range(3)])
    for path, methods in schema["paths"].items():
        for parameter in methods.get("get", {}).get("parameters", []):
            if parameter["name"] == "model":
                choose(parameter["schema"], [MODELS.get(path, "mnist-flow")])
    return schema


def main(examples: int = 100, seconds: int = 240) -> None:
    folder = Path(tempfile.mkdtemp())
    with started(folder / "runs") as (process, base):
        begun = time.perf_counter()
        with urlopen(f"{base}openapi.json") as answer:
            (folder / "schema.json").write_text(json.dumps(offered(json.load(answer))))
        tool = str(Path(sys.executable).with_name("schemathesis"))
        command = [
            tool, "run", str(folder / "schema.json"), "--url", base, "--checks", CHECKS,
            "--phases", "examples,coverage,fuzzing", "--max-examples", str(examples),
            "--max-time", str(seconds), "--seed", "0", "--no-shrink", "--workers", "1",
            "--request-timeout", "60", "--continue-on-failure",
            "--report", "ndjson,junit", "--report-dir", str(folder), "--no-color",
        ]  # fmt: skip
        done = run(command, capture_output=True, text=True, cwd=folder)
        took = time.perf_counter() - begun
        alive = process.poll() is None
    statuses = counted(next(folder.glob("*.ndjson")))
    failures = [
        f"{case.get('name')}: {(bad.get('message') or bad.text or '')[:300]}"
        for case in ET.parse(next(folder.glob("*.xml"))).iter("testcase")
        for bad in (*case.iter("failure"), *case.iter("error"))
        if not ("[503]" in (bad.text or "") or "[504]" in (bad.text or ""))
    ]
    total = Counter()
    for codes in statuses.values():
        total.update(codes)
    unforeseen = sum(
        n for code, n in total.items() if int(code) >= 500 and code not in ("503", "504")
    )
    write(
        "studio_fuzz",
        {
            "schemathesis": version("schemathesis"),
            "most_examples": examples,
            "seconds": round(took, 1),
            "load_average": [round(v, 1) for v in os.getloadavg()],
            "requests": sum(total.values()),
            "statuses": dict(sorted(total.items())),
            "by_operation": {k: dict(sorted(v.items())) for k, v in sorted(statuses.items())},
            "server_errors_other_than_503_and_504": unforeseen,
            "server_alive": alive,
            "failures": failures,
        },
    )  # fmt: skip
    print(done.stdout[-3000:])


def counted(path: Path) -> dict[str, Counter[str]]:
    """How often each operation answered with each status."""
    found: dict[str, Counter[str]] = {}

    def look(value: object, label: str) -> None:
        if isinstance(value, dict):
            label = str(value.get("label") or label)
            code = value.get("status_code")
            if isinstance(code, int) and "headers" in value:
                found.setdefault(label, Counter())[str(code)] += 1
                return
            for inner in value.values():
                look(inner, label)
        elif isinstance(value, list):
            for inner in value:
                look(inner, label)

    for line in path.read_text(encoding="utf-8").splitlines():
        look(json.loads(line), "")
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
