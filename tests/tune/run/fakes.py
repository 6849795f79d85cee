"""GPUs that are not there: a rig whose children answer from a formula. At module level, since it travels to them.

A measuring child writes a line for each point into a log, so that tests count what was measured, by whom; and it may
die, hang or fail at a point, as a file beside the log tells it.
"""

from __future__ import annotations

import json
import os
import signal
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.model.config import LAUNCH_FIELDS
from hopper_gemm.tune.measure.device import GpuId, NoHopperError, visible
from hopper_gemm.tune.measure.protocol import Outcome, Protocol
from hopper_gemm.tune.point import Point, Sample
from hopper_gemm.tune.run import task
from hopper_gemm.tune.run.task import Job, Request, Rig
from hopper_gemm.tune.statistics import Ratio

SPEC = """
name = "small"
regimes = ["burst"]
lower_to_fit = ["stagger"]
[[problems]]
m = 1024
n = 1024
k = 1024
[space]
tile_m = [64, 128, 320]
tile_n = 128
k_depth = [4, 16]
stages = "max"
stagger = 1
[final]
best = 2
"""

WIDE = """
name = "wide"
skip_illegal = true
[[problems]]
m = 4096
n = 4096
k = 4096
[space]
tile_m = [64, 128, 192, 256]
tile_n = [64, 96, 128, 160, 192, 256]
k_depth = [2, 4]
stagger = [0, 1]
cluster = ["1x1", "2x1"]
raster = ["m", "n"]
swizzle = [2, 4, 8]
[final]
best = 0
"""


class Ask(NamedTuple):
    """A point to be timed."""

    point: Point
    protocol: Protocol
    process: int = 0


def find(index: int) -> GpuId:
    """GPUs 0 to 63 are there, apart from those that the plan says are not."""
    if plan().get(f"gpu {index}") == "absent" or index > 63:
        raise NoHopperError(f"GPU {index} does not exist, there are 64; name another with --gpus")
    return GpuId(index, "NVIDIA H200", f"GPU-fake-{os.environ.get('FAKE_BOARDS', '')}{index}")


def find_visible(index: int) -> GpuId:
    """Three GPUs, of which CUDA_VISIBLE_DEVICES shows some."""
    uuids = ["GPU-a", "GPU-b", "GPU-c"]
    return GpuId(index, "NVIDIA H200", uuids[visible(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)[index]])


def plan() -> dict[str, Any]:
    """What is to go wrong; see :func:`measuring`."""
    path = Path(os.environ["FAKE_LOG"] + ".plan")
    return json.loads(path.read_text()) if path.is_file() else {}


def note(text: str) -> None:
    """A line of the log, whole."""
    with open(os.environ["FAKE_LOG"], "a") as file:
        file.write(text + "\n")


def speed_of(point: Any) -> float:
    """The speedup of a point: the larger the tile and the shallower its stages, the better."""
    if point.is_baseline:
        return 1.0
    config = point.config
    speed = config.tile_m / 320 / (1 + config.k_depth / 100) * (1 + config.tile_n / 2000)
    speed *= 1 + sum(0.001 * (i + 1) * hash_of(getattr(config, name)) for i, name in enumerate(LAUNCH_FIELDS))
    return speed * (1.25 if point.data == "zeros" else 1.0)


def hash_of(value: Any) -> float:
    """A number from 0 to 1 that is the same in every process."""
    return sum(map(ord, str(value))) % 7 / 7


def measuring(store: Any, seed: int) -> Any:
    """Answers from a formula. The plan: ``{"<config>": "die" | "hang" | "raise" | "wrong"}``, ``"seconds"`` of a point,
    ``"gpu N": "unusable"``, ``"hold"`` to answer no point as long as the plan says so."""
    uuid = os.environ["CUDA_VISIBLE_DEVICES"]
    told = plan()
    seconds = float(told.get("seconds", 0.0))

    def handle(request: Request) -> Any:
        step, about = request
        if step == "describe":
            if told.get(f"gpu {uuid.rpartition('-')[2]}") == "unusable":
                raise RuntimeError("CUDA error: out of memory")
            missing = {name: "not installed" for name in about["names"] if name == "triton"}
            return {
                "name": told.get("name", "NVIDIA H200"),
                "slug": "h200",
                "uuid": uuid,
                "sms": 132,
                "driver": "580",
            }, missing
        if step == "prepare":
            return note(f"prepare {os.getpid()} {uuid} {about['point']}")
        ask = Ask(about["point"], about["protocol"], about["process"])
        label = str(ask.point.subject)
        note(f"measure {os.getpid()} {uuid} {ask.point.against} {ask.process} {ask.point.problem} {label}")
        if about["finalists"]:
            note(f"among {os.getpid()} {' '.join(about['finalists'])}")
        while plan().get("hold"):
            time.sleep(0.05)
        trouble = plan().get(label, told.get("all", ""))
        if trouble == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if trouble == "hang":
            time.sleep(3600)
        if trouble == "raise":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if trouble == "wrong":
            return Outcome("wrong_result", "1 of 16 elements differ")
        time.sleep(seconds)
        return outcome(ask)

    return handle


def outcome(ask: Ask) -> Outcome:
    """What a bench would say."""
    return timed(ask, speed_of(ask.point))


US = 1e4
"""Time of the baseline: more than any problem of the tests takes at least."""


def timed(ask: Ask, speed: float) -> Outcome:
    """What a bench would say of a speedup."""
    pairs = ask.protocol.pairs
    samples = tuple(Sample(ask.process, US / speed * (1 + i / 10000), US, None) for i in range(pairs))
    middle = speed / (1 + pairs / 20000)
    ratio = Ratio(middle, middle * 0.999, middle * 1.001, pairs)
    figures = {
        "speedup": ratio.median,
        "speedup_low": ratio.low,
        "speedup_high": ratio.high,
        "pairs": ratio.pairs,
        "processes": 1,
        "time_us": US / speed,
        "baseline_us": US,
        "tflops": 700 * speed,
        "sm_mhz": 1600.0,
        "baseline_sm_mhz": 1600.0,
        "tensor_active": 90.0,
        "rel_err": 1.7e-3,
    }
    way = f"way {ask.process}"
    return Outcome("ok", "", figures, samples, way, (way,), {"pairs": 0.5})


def compiling(store: Path) -> Any:
    """Machine code is a digest of what is compiled; the plan may make one kernel's that of all, or spill it."""
    told = plan()

    def handle(kernel: Any) -> CubinReport:
        code = "one" if told.get("twins") else f"{zlib.crc32(str(kernel.config).encode()):08x}"
        time.sleep(float(told.get("compile_seconds", 0.0)))
        return report(code, 8 if str(kernel.config) in told.get("spills", ()) else 0)

    return handle


def report(code: str, spills: int = 0) -> CubinReport:
    """A compiler's figures."""
    import dataclasses

    known = {"code": code, "registers": 168, "wgmma": 8, "instructions": 500}
    zeros = {field.name: 0 for field in dataclasses.fields(CubinReport)}
    return CubinReport(**{**zeros, **known, "stack_bytes": spills, "local_loads": spills})


def naming() -> Any:
    """One kernel for every baseline."""

    def handle(asked: Any) -> str:
        note(f"name {os.getpid()} {asked[0].problem} {asked[0].against} {asked[1]}")
        return "nvjet"

    return handle


def measured(log: Path) -> Counter[str]:
    """Number of measurements of each config, by label; controls are ``cublas``."""
    lines = log.read_text().splitlines() if log.is_file() else []
    return Counter(line.split(" ", 6)[6] for line in lines if line.startswith("measure "))


def profile(points: Any, gpu: GpuId, store: Path) -> list[Any]:
    """What a profiler would count; the plan may let it fail."""
    note(f"profile {len(points)}")
    if plan().get("profile") == "refused":
        raise ValueError("this user may not read hardware counters; ask for it, see ERR_NVGPUCTRPERM")
    return [_counted(point, {"duration_us": 100.0, "dram_read_bytes": 1e6}, "nvjet") for point in points]


def meter(points: Any, gpu: GpuId, store: Path) -> list[Any]:
    """What our kernel would count of itself."""
    note(f"meter {len(points)}")
    bad = plan().get("unmetered", ())
    return [_counted(point, {} if str(point.subject) in bad else {"producer_wait_pct": 3.0}) for point in points]


def _counted(point: Any, figures: dict[str, float], kernel: str = "") -> Any:
    from hopper_gemm.lab.counters.counting import Counted

    return Counted(point, kernel, figures, "", "" if figures else "metered, it counted nothing")


RIG = Rig(find, measuring, naming, compiling)
COUNTERS = {"profile": task.LaunchCounter(profile), "meter": task.LaunchCounter(meter)}


def job(tmp_path: Path, **more: Any) -> Job:
    """A job whose kernels and logs lie in a temporary folder."""
    return Job("fake", store=tmp_path / "store", log=tmp_path / "children.log", rig=RIG, **more)


def descendants(log: str) -> dict[int, str]:
    """Processes that belong to a test, by what they are: all inherit its ``FAKE_LOG``."""
    found = {}
    mark = f"FAKE_LOG={log}".encode()
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) == os.getpid():
            continue
        try:
            if mark not in (path / "environ").read_bytes().split(b"\0"):
                continue
            state = (path / "stat").read_text().rpartition(") ")[2][0]
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if state != "Z":
            found[int(path.name)] = b" ".join(words).decode(errors="replace")
    return found
