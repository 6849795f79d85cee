"""Nsight Compute as a process of its own: its path, its command line, its table, its complaints.

A launch is replayed until every metric has been counted, a few at a time. Three settings make the figures comparable
with the suite's: the clocks are not locked; the caches are flushed before each replay, so that every replay finds the
L2 cold (rotating buffers cannot do that: a replay repeats a launch on the same matrices); and only launches between
cudaProfilerStart and cudaProfilerStop are counted.
"""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

PATHS = ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu", "/usr/local/NVIDIA-Nsight-Compute*/ncu")
"""Paths where installers put a profiler that is not on PATH."""

REFUSALS = {
    "ERR_NVGPUCTRPERM": (
        "this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM); run as root, or load the driver "
        "with NVreg_RestrictProfilingToAdminUsers=0"
    ),
    "driver resource was unavailable": (
        "another tool holds the GPU's performance counters; stop it (DCGM, another profiler) and run again"
    ),
    "InterprocessLockFailed": "another profiler runs, or its lock file cannot be opened; end it, or remove the lock",
    "LibraryNotLoaded": "the profiler cannot reach the counters from here (LibraryNotLoaded); use another machine",
}
"""Complaints of the profiler that concern all of its work, each with the fix."""

_PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SCALED = re.compile(r"([numkKMGT]?)(?:seconds?|s|bytes?|[hH]z)")


class ProfilerError(ValueError):
    """The profiler cannot count here; the message says why and the fix."""


@dataclass(frozen=True)
class ProfiledLaunch:
    """One kernel that the profiler replayed."""

    kernel: str  # its name
    # by metric, in seconds, bytes, hertz, percent or plain numbers; what it could not count is not there
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ran:
    """A run of the profiler."""

    log: str  # what it wrote to its log file: its messages and the table
    console: str  # what the profiled program, and the profiler before it opened the log, wrote
    code: int | None  # exit code; None where the run was killed after the time allowed

    @property
    def text(self) -> str:
        """Everything that was said."""
        return self.log + "\n" + self.console


def find_profiler() -> Path:
    """Return the Nsight Compute on PATH, else the newest of this machine.

    Raises:
        ProfilerError: Nsight Compute is not installed.
    """
    on_path = shutil.which("ncu")
    if on_path:
        return Path(on_path)
    for pattern in PATHS:
        programs = [path for path in Path("/").glob(pattern.lstrip("/")) if os.access(path, os.X_OK)]
        if programs:
            return max(programs, key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))])
    raise ProfilerError(
        "counters need Nsight Compute but there is no ncu on PATH nor under /opt/nvidia/nsight-compute; install it "
        "(it comes with the CUDA toolkit) or put it on PATH"
    )


def command(ncu: Path, metrics: Sequence[str], log: Path, program: Sequence[str]) -> list[str]:
    """Return the command line that counts metrics, by their full names, over a program with its arguments, and logs
    messages and table in a file."""
    return [
        str(ncu),
        *("--target-processes", "all"),
        *("--profile-from-start", "off"),
        *("--replay-mode", "kernel"),
        *("--cache-control", "all"),
        *("--clock-control", "none"),
        *("--metrics", ",".join(metrics)),
        "--csv",
        *("--page", "raw"),
        *("--print-units", "base"),
        *("--log-file", str(log)),
        *program,
    ]


def run(arguments: Sequence[str], log: Path, environment: Mapping[str, str], timeout: float) -> Ran:
    """Run a :func:`command` of the profiler with variables added to this process's; at the time limit, or if this call
    is interrupted, kill it with all processes that it started. The locale is set to C, which fixes the format of
    numbers.

    Raises:
        ProfilerError: the program cannot be started.
    """
    console = log.with_name("console.txt")
    log.unlink(missing_ok=True)
    with console.open("wb") as file:
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C", **environment},
                start_new_session=True,
            )
        except OSError as error:
            raise ProfilerError(
                f"{arguments[0]} cannot be started ({error.strerror}); repair the installation"
            ) from None
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:  # kill the rest of the process group, whose id is that of the profiler, its first member
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Ran(_text(log), _text(console), code)


def read_launches(log: str) -> list[ProfiledLaunch]:
    """Return the launches of the text of a log, in order. It holds the raw page: a line for each launch below a line of
    units. Messages in between, and ``n/a``, ``nan`` and empty cells are skipped.

    Raises:
        ProfilerError: the table has another form.
    """
    launches: list[ProfiledLaunch] = []
    header: list[str] = []
    units: dict[str, str] = {}
    for cells in csv.reader(line for line in log.splitlines() if line.startswith('"')):
        if cells[0] == "ID":
            header, units = cells, {}
            continue
        if len(cells) != len(header):
            continue
        row = dict(zip(header, cells, strict=True))
        if not row["ID"]:
            units = row
            continue
        for needed, present in (("column Kernel Name", "Kernel Name" in row), ("line of units", bool(units))):
            if not present:
                raise ProfilerError(f"the profiler's table has no {needed}; use another version of Nsight Compute")
        launch = ProfiledLaunch(row["Kernel Name"])
        launches.append(launch)
        for name, text in row.items():
            number = _number(text) if "__" in name else None
            if number is not None:
                launch.values[name] = number * unit_factor(units[name])
    return launches


def refusal(text: str) -> str | None:
    """Return the fix of a complaint that concerns all of the profiler's work; None without such a complaint."""
    return next((fix for sign, fix in REFUSALS.items() if sign in text), None)


def complaint(ran: Ran) -> str | None:
    """Return the profiler's first error, other than that the program failed."""
    errors = re.findall(r"^==ERROR==\s*(.+)", ran.text, re.MULTILINE)
    return next((error.strip() for error in errors if "application returned an error" not in error), None)


def last_words(ran: Ran) -> str:
    """Return the line that most likely says what went wrong."""
    error = complaint(ran)
    if error is not None:
        return error
    lines = [line.strip() for line in ran.console.splitlines() if line.strip() and not line.startswith("==PROF==")]
    return lines[-1] if lines else f"no message, exit code {ran.code}"


def unit_factor(unit: str) -> float:
    """Return the factor to seconds, bytes or hertz: 1e-9 for ``ns``, 1e9 for ``cycle/nsecond``; 1 for any other unit.

    Example:
        >>> unit_factor("Kbyte"), unit_factor("%"), unit_factor("cycle/second")
        (1000.0, 1.0, 1.0)
    """
    above, _, below = unit.strip().partition("/")
    return _prefix(above) / _prefix(below)


def _prefix(unit: str) -> float:
    match = _SCALED.fullmatch(unit.strip())
    return _PREFIXES[match[1]] if match else 1.0


def _number(text: str) -> float | None:
    """Return a cell as a number, with commas between thousands; None if the metric was not counted."""
    try:
        number = float(text.strip().replace(",", ""))
    except ValueError:
        return None
    return number if isfinite(number) else None


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""
