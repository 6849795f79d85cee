"""What a trial costs in each storage: ``python -m tests.tuning.storage_cost`` prints the table of docs/scale.md.

Workers claim points of one sweep and tell answers, with nothing measured in between and the rows left out: what is left
is what the storage takes. PostgreSQL is a server on loopback with its defaults, so that each commit waits for the disk.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
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


def rate(spec: SweepSpec, storage: str, workers: int) -> tuple[int, float]:
    """Trials in all, and how many a second."""
    begin, done = FORK.Barrier(workers), FORK.SimpleQueue()
    processes = [FORK.Process(target=work, args=(spec, storage, begin, done)) for _ in range(workers)]
    for process in processes:
        process.start()
    total = sum(done.get() for _ in processes)
    for process in processes:
        process.join()
    return total, total / SECONDS


def main(counts: tuple[int, ...] = (1, 4, 8)) -> None:
    spec = read_spec(ROOT / "sweeps/space.toml")
    server = None if databases.missing() else databases.Server()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("journal", "sqlite", "postgres"):
            for workers in counts:
                name = f"{kind}-{workers}"
                if kind == "postgres" and server is None:
                    print(f"{kind}: {databases.missing()}")
                    break
                path = Path(folder) / name
                storage = {"journal": f"{path}.journal", "sqlite": f"sqlite:///{path}.db"}.get(kind)
                total, each = rate(spec, storage or server.url(name), workers)
                print(f"| {kind} | {workers} | {total} | {each:.0f} | {1e3 / each:.1f} |")
                sys.stdout.flush()
    if server is not None:
        server.remove()


if __name__ == "__main__":
    main()
