"""A profiler without a GPU: an executable that takes Nsight Compute's arguments, plays the program it would watch, and
writes a log of the same form. What it does beside that is told by a file ``mood`` next to it.
"""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = """#!{python}
import json, subprocess, sys, time
from pathlib import Path

here = Path(__file__).parent
mood = (here / "mood").read_text().split() if (here / "mood").is_file() else []
with (here / "calls").open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")

def option(name):
    return sys.argv[sys.argv.index(name) + 1]

metrics = option("--metrics").split(",")
job = json.loads(Path(sys.argv[-1]).read_text())
log = Path(option("--log-file")).open("w")
if "forbidden" in mood:
    log.write("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance\\n")
    sys.exit(1)
if "stillborn" in mood:
    print("ModuleNotFoundError: No module named 'torch'")
    sys.exit(1)
journal = Path(job["journal"]).open("w")

def note(point, stage, reason=""):
    journal.write(json.dumps({{"point": point, "stage": stage, "reason": reason}}) + "\\n")
    journal.flush()

rows = []
for number, point in enumerate(job["points"]):
    note(number, "begun")
    subject = point["subject"]
    swizzle = subject["swizzle"] if isinstance(subject, dict) else 0
    if swizzle == 4 and "wrong" in mood:
        note(number, "failed", "WrongResultError: 7 of 64 elements were not written")
        continue
    note(number, "profiling")
    if swizzle == 4 and "hangs" in mood:
        child = subprocess.Popen(["sleep", "60"])
        (here / "pid").write_text(str(child.pid))
        time.sleep(60)
    if swizzle == 4 and "crashes" in mood:
        rows.append(("kernel_cutlass_kernel_hopper_gemm_HopperGemm", swizzle))
        break
    if "refuses" in mood and any("data_bank_reads" in metric for metric in metrics):
        log.write("==ERROR== Failed to access the following 1 metrics: l1tex__data_bank_reads.sum\\n")
        log.write('==ERROR== Failed to profile "kernel_cutlass" in process 7\\n')
        sys.exit(9)
    names = ["kernel_cutlass_kernel_hopper_gemm_HopperGemm"] if swizzle else ["nvjet_sm90_tst_256x128"]
    if not swizzle and "splits" in mood:
        names.append("void cublasLt::splitKreduce_kernel<32, 16, int>(float *)")
    rows += [(name, swizzle) for name in names]
    note(number, "counted")
known = {{"gpu__time_duration.sum": ("ns", "1,404,128"), "dram__bytes_read.sum": ("byte", "{dram}")}}
table = [["ID", "Kernel Name", *metrics], ["", "", *(known.get(metric, ("", ""))[0] for metric in metrics)]]
for number, (name, swizzle) in enumerate(rows):
    log.write(f'==PROF== Profiling "{{name[:20]}}" - {{number}}: 0%....50%....100% - 9 passes\\n')
    default = str(swizzle + 1)
    values = {{metric: "n/a" if "gmma" in metric else known.get(metric, ("", default))[1] for metric in metrics}}
    table.append([str(number), name, *values.values()])
for line in table if rows else []:
    log.write(",".join('"' + cell + '"' for cell in line) + "\\n")
log.write("==PROF== Disconnected from process 7\\n")
"""


def install(folder: Path, *mood: str) -> Path:
    """Put the profiler into a folder. Its moods: forbidden, stillborn, refuses, splits; at swizzle 4 wrong, hangs,
    crashes."""
    path = folder / "ncu"
    path.write_text(PROGRAM.format(python=sys.executable, dram="1,250,000,000"))
    path.chmod(0o755)
    (folder / "mood").write_text(" ".join(mood))
    return path


def calls(folder: Path) -> int:
    """How often it was asked to count."""
    path = folder / "calls"
    return len(path.read_text().splitlines()) if path.is_file() else 0
