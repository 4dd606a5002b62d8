"""The studio under load: 10,000 requests of a few clients on loopback, and the server's memory.

The server runs in a process of its own; four clients send a mixture of requests, each the next one
as soon as the last is answered. Latency is as the client sees it. On a machine that is busy with
other things, the processor time that the server takes for one request says more: it is measured
afterwards, one kind of request after the other.

    python benchmarks/studio_load.py [REQUESTS] [CLIENTS]
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from common import write
from PIL import Image, ImageDraw

#: What is asked, and how often in 1,000 requests.
MIXTURE = {
    "project": 450, "generate 1": 200, "models": 150, "page": 80, "dynamics": 40, "generate 16": 40,
    "model": 20, "refused": 10, "stylize 128": 5, "encode": 5,
}  # fmt: skip


@contextmanager
def started(runs: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A studio on a free port of loopback, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "linearizer.cli", "serve", "--port", "0", "--runs", str(runs)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[4]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def data_url(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def drawn(seed: int) -> str:
    """A stroke on black, as a pen leaves it."""
    rng = random.Random(seed)
    image = Image.new("L", (32, 32))
    points = [(rng.randint(6, 26), rng.randint(4, 28)) for _ in range(4)]
    ImageDraw.Draw(image).line(points, fill=255, width=3)
    return data_url(image)


def requests(count: int) -> list[tuple[str, str, str, dict[str, Any] | None]]:
    """(kind, method, path, body) in an order of a fixed seed, all kinds in every thousand."""
    rng = random.Random(0)
    noise = np.random.default_rng(0).integers(0, 255, (96, 128, 3), dtype=np.uint8)
    photo = data_url(Image.fromarray(noise))
    strokes = [drawn(i) for i in range(50)]

    def make(kind: str, i: int) -> tuple[str, str, str, dict[str, Any] | None]:
        if kind in ("models", "page", "model"):
            path = {"models": "/api/models", "page": "/", "model": "/api/model?model=mnist-flow"}
            return kind, "GET", path[kind], None
        body: dict[str, Any]
        if kind == "project":
            body = {"model": "mnist-projector", "image": strokes[i % 50], "rank": (None, 16)[i % 2]}
        elif kind.startswith("generate"):
            steps = (50, 100, 200)[i % 3]
            body = {"model": "mnist-flow", "seed": i, "n": int(kind.split()[1]), "steps": steps}
        elif kind == "dynamics":
            body = {
                "model": "pendulum",
                "start": [rng.uniform(-2, 2), 0.0],
                "t1": 5.0,
                "points": 50,
            }
        elif kind.startswith("stylize"):
            body = {"model": "styles", "image": photo, "mix": {"candy": rng.random()}, "size": 128}
        elif kind == "encode":
            body = {"model": "mnist-flow", "image": strokes[i % 50]}
        else:
            body = {"model": "../../etc", "n": 1}
        path = "/api/generate" if kind == "refused" else f"/api/{kind.split()[0]}"
        return kind, "POST", path, body

    found = []
    while len(found) < count:
        thousand = [kind for kind, n in MIXTURE.items() for _ in range(n)]
        rng.shuffle(thousand)
        found += [make(kind, len(found) + i) for i, kind in enumerate(thousand)]
    return found[:count]


def resident_mib(process: subprocess.Popen[str]) -> float:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return round(int(line.split()[1]) / 1024, 1)
    return float("nan")


def percentile(values: list[float], share: float) -> float:
    return round(float(np.quantile(values, share)) * 1e3, 2)


def send(
    connection: http.client.HTTPConnection, method: str, path: str, body: dict[str, Any] | None
) -> int:
    """The status of the answer, once all of it is there."""
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def processor_milliseconds(times: int = 40) -> dict[str, float]:
    """What one request of each kind takes of the server's processor time, models being open."""

    def spent(process: subprocess.Popen[str]) -> float:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    by_kind: dict[str, list[tuple[str, str, dict[str, Any] | None]]] = defaultdict(list)
    for kind, *rest in requests(10_000):
        by_kind[kind].append((rest[0], rest[1], rest[2]))
    found = {}
    with started(Path(tempfile.mkdtemp())) as (process, base):
        connection = http.client.HTTPConnection(
            base.removeprefix("http://").rstrip("/"), timeout=60
        )
        for kind, some in sorted(by_kind.items()):
            for request in some[:6]:
                send(connection, *request)
            begun = spent(process)
            for request in some[:times]:
                send(connection, *request)
            found[kind] = round((spent(process) - begun) / len(some[:times]) * 1e3, 1)
    return found


def start_seconds(times: int = 5) -> dict[str, float]:
    """Medians: until it listens, until it has answered with a sample, and of `import torch`."""
    listening, sampled, importing = [], [], []
    body = {"model": "mnist-flow", "n": 1, "seed": 0}
    for _ in range(times):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        importing.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        with started(Path(tempfile.mkdtemp())) as (_, base):
            listening.append(time.perf_counter() - begun)
            host = base.removeprefix("http://").rstrip("/")
            connection = http.client.HTTPConnection(host, timeout=60)
            assert send(connection, "POST", "/api/generate", body) == 200
            sampled.append(time.perf_counter() - begun)
    return {
        "listens": round(statistics.median(listening), 2),
        "first_sample": round(statistics.median(sampled), 2),
        "import_torch": round(statistics.median(importing), 2),
    }


def main(count: int = 10_000, clients: int = 4) -> None:
    asked = requests(count)
    taken = iter(range(count))
    lock = threading.Lock()
    took: dict[str, list[float]] = defaultdict(list)
    statuses: Counter[str] = Counter()
    broken: list[str] = []
    memory: list[float] = []
    with started(Path(tempfile.mkdtemp())) as (process, base):
        host = base.removeprefix("http://").rstrip("/")

        def client() -> None:
            connection = http.client.HTTPConnection(host, timeout=60)
            while True:
                with lock:
                    i = next(taken, None)
                    if i is None:
                        return
                kind, method, path, body = asked[i]
                begun = time.perf_counter()
                try:
                    status = send(connection, method, path, body)
                except (OSError, http.client.HTTPException) as problem:
                    connection.close()
                    status = 0
                    broken.append(f"{kind}: {problem!r}")
                spent = time.perf_counter() - begun
                with lock:
                    took[kind].append(spent)
                    wanted = 404 if kind == "refused" else 200
                    statuses[str(status)] += 1
                    if status != wanted:
                        broken.append(f"{kind}: {status}")
                    done = sum(map(len, took.values()))
                    if done % 1000 == 0:
                        memory.append(resident_mib(process))
                        print(f"{done} requests, {memory[-1]} MiB", flush=True)

        begun = time.perf_counter()
        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begun
    write(
        "studio_load",
        {
            "requests": count,
            "clients": clients,
            "seconds": round(seconds, 1),
            "requests_per_second": round(count / seconds, 1),
            "load_average": [round(v, 1) for v in os.getloadavg()],
            "statuses": dict(sorted(statuses.items())),
            "errors": len(broken),
            "first_errors": broken[:10],
            "milliseconds": {
                kind: {"count": len(v), "p50": percentile(v, 0.5), "p99": percentile(v, 0.99)}
                for kind, v in sorted(took.items())
            },
            "server_resident_mib_after_each_1000": memory,
            "server_processor_milliseconds": processor_milliseconds(),
            "start_seconds": start_seconds(),
        },
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
