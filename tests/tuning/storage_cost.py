"""What a trial costs in each storage: ``python -m tests.tuning.storage_cost`` adds a run to docs/storage-cost.csv.

Workers claim points of one sweep and tell answers, with nothing measured in between and the rows left out: what is left
is what the storage takes. PostgreSQL is a server on loopback with its defaults, so that each commit waits for the disk.
"""

from __future__ import annotations

import csv
import multiprocessing
import os
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from hopper_gemm.tuning.queue import PointQueue
from hopper_gemm.tuning.space import points
from hopper_gemm.tuning.spec import SweepSpec, read_spec
from hopper_gemm.tuning.storage import open_fleet, open_storage, patiently
from tests.conftest import ROOT
from tests.tuning import databases
from tests.tuning.fakes import FakeBackend

FORK = multiprocessing.get_context("fork")
SECONDS = 8.0
COSTS = ROOT / "docs/storage-cost.csv"
"""The runs that docs/scale.md tells of, the last one in its table."""

HEADINGS = ("date", "cores", "storage", "workers", "trials", "seconds")


def queue_of(spec: SweepSpec, storage: str, fleet) -> PointQueue:
    legal = [point for point in points(spec) if not point.refused]

    def opened():
        with fleet.alone("tables"):
            return open_storage(storage)

    return PointQueue(
        patiently(opened), spec.name, legal, [], legal, 0, spec.looked_for, None, SECONDS, fleet, carry=True
    )


def work(spec: SweepSpec, storage: str, begin, done) -> None:
    fleet = open_fleet(storage)
    queue = queue_of(spec, storage, fleet)
    backend = FakeBackend()
    begin.wait()
    queue._ends = time.monotonic() + SECONDS
    count = 0
    for asked in queue:
        queue.tell(asked, backend.measure(asked.point))
        count += 1
    done.put(count)
    fleet.close()


def rate(spec: SweepSpec, storage: str, workers: int) -> int:
    """Trials in all, within :data:`SECONDS`."""
    begin, done = FORK.Barrier(workers), FORK.SimpleQueue()
    processes = [FORK.Process(target=work, args=(spec, storage, begin, done)) for _ in range(workers)]
    for process in processes:
        process.start()
    total = sum(done.get() for _ in processes)
    for process in processes:
        process.join()
    return total


def main(path: Path, counts: tuple[int, ...] = (1, 4, 8)) -> None:
    """Add a run to the file: a line for each storage and number of workers."""
    spec = read_spec(ROOT / "sweeps/space.toml")
    server = None if databases.missing() else databases.Server()
    fresh = not path.exists()
    with tempfile.TemporaryDirectory() as folder, path.open("a", newline="") as file:
        rows = csv.writer(file)
        if fresh:
            rows.writerow(HEADINGS)
        for kind in ("journal", "sqlite", "postgres"):
            for workers in counts:
                name = f"{kind}-{workers}"
                if kind == "postgres" and server is None:
                    print(f"{kind}: {databases.missing()}")
                    break
                at = Path(folder) / name
                storage = {"journal": f"{at}.journal", "sqlite": f"sqlite:///{at}.db"}.get(kind)
                trials = rate(spec, storage or server.url(name), workers)
                rows.writerow([date.today(), os.cpu_count(), kind, workers, trials, SECONDS])
                file.flush()
                print(f"{kind}, {workers} workers: {trials / SECONDS:.0f} trials a second")
    if server is not None:
        server.remove()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else COSTS)
