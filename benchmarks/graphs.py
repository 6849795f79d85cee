"""Time short launches from graphs whose lengths follow the host's rough seconds, and from settled ones.

    python -m benchmarks.graphs --out FILE [--pairs N]

Studies capture graphs of as many launches as fill some milliseconds by the seconds of launches one by one, which for a
short kernel are the host's: a side that keeps the host longer gets shorter graphs. ``hopper_gemm.bench`` takes the
seconds from a graph instead (``Arm.settle``). Rows of the CSV file: the spacer, our kernel and torch.mm, isolated and
chained, with the launches of a timed graph and the median microseconds of a launch, spacer included, either way.
Nothing else may run on the GPU.
"""

from __future__ import annotations

import argparse
import csv
from itertools import product
from pathlib import Path
from statistics import median

from benchmarks import need_hopper
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.serve.kernels import kernel_for
from hopper_gemm.tune.measure.arms import Arm, Launch, cublas_launch, kernel_launch, seconds_per_launch, touch
from hopper_gemm.tune.measure.device import describe_current
from hopper_gemm.tune.measure.protocol import Burst
from hopper_gemm.tune.measure.timing import Timer
from hopper_gemm.tune.measure.workload import make_workload

PROBLEMS = ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (16, 1024, 1024), (2048, 2048, 2048))
"""m, n, k."""

COLUMNS = (
    *("m", "n", "k", "side", "context", "launches", "us", "launches_settled", "us_settled"),
    *("pairs", "gpu", "board"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="CSV file, written anew")
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args()
    need_hopper()
    device, protocol = describe_current(), Burst(rest=0.01, warm=0.002, timed=0.008, pairs=options.pairs)
    timer = Timer(device)
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for sizes in PROBLEMS:
            problem = GemmProblem(*sizes)
            work, spacer = make_workload(problem, device.l2_bytes), touch(device.sms)
            apart = seconds_per_launch(spacer, work.sets)
            sides: dict[str, Launch] = {"ours": kernel_launch(kernel_for(problem, 0)), "torch.mm": cublas_launch}
            kinds: dict[tuple[str, str], tuple[Launch, Launch | None]] = {("spacer", "isolated"): (spacer, None)}
            for (name, launch), between in product(sides.items(), (spacer, None)):
                kinds[name, "chained" if between is None else "isolated"] = launch, between
            arms: dict[tuple[str, str, bool], Arm] = {}
            for (name, context), (launch, between) in kinds.items():
                seconds = seconds_per_launch(launch, work.sets) + (apart if between else 0.0)
                for settled in (False, True):
                    arms[name, context, settled] = arm = Arm(launch, work.sets, seconds, between)
                    if settled:
                        arm.settle()
            lengths = {key: arm.launches(protocol.timed) for key, arm in arms.items()}
            us: dict[tuple[str, str, bool], list[float]] = {key: [] for key in arms}
            with timer.telemetry(protocol) as telemetry:
                for number in range(protocol.pairs):
                    for key in list(arms)[:: -1 if number % 2 else 1]:
                        us[key].append(timer.time(arms[key], protocol, telemetry).us[0])
            for name, context in kinds:
                either = [
                    (lengths[name, context, settled], median(us[name, context, settled])) for settled in (False, True)
                ]
                writer.writerow(
                    [*sizes, name, context, *either[0], *either[1], protocol.pairs, device.name, device.uuid]
                )
                file.flush()


if __name__ == "__main__":
    main()
