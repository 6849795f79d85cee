"""What is here, what is missing, what to do."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from hopper_gemm.compiler.store import default_store
from hopper_gemm.measure.counters.profiler import ProfilerError, find_profiler
from hopper_gemm.measure.device import NoHopperError, find_hopper
from hopper_gemm.model.lookup import own_paths, tables
from hopper_gemm.model.tuned import recorded_tables, results_root, slug
from hopper_gemm.study.files import shown

NEEDED = (
    *("nvidia-cutlass-dsl", "apache-tvm-ffi", "torch", "optuna", "pandas", "pyarrow", "numpy", "pydantic"),
    *("matplotlib", "nvidia-ml-py", "typer", "rich"),
)


@dataclass(frozen=True)
class Finding:
    """One thing looked at.

    Args:
        mark: ``"ok"``, ``"note"`` (works without it) or ``"missing"``.
        what: was looked at.
        found: there.
        fix: what to do, where something is to do.
    """

    mark: Literal["ok", "note", "missing"]
    what: str
    found: str
    fix: str = ""


def examine() -> list[Finding]:
    """Look at Python, packages, GPU, profiler, kernel store and recorded results."""
    python = Finding("ok", "Python", platform.python_version())
    return [python, *map(_package, NEEDED), _gpu(), _ncu(), _store(), _results(), *_tables()]


def _package(name: str) -> Finding:
    try:
        return Finding("ok", name, version(name))
    except PackageNotFoundError:
        return Finding("missing", name, "not installed", f"pip install {name}")


def _gpu() -> Finding:
    try:
        gpu = find_hopper()
    except NoHopperError as error:
        return Finding("note", "GPU", str(error))
    return Finding("ok", "GPU", f"{gpu.name} ({gpu.uuid})")


def _ncu() -> Finding:
    try:
        return Finding("ok", "ncu", str(find_profiler()))
    except ProfilerError as error:
        return Finding("note", "ncu", str(error))


def _store() -> Finding:
    store, fix = default_store(), "set XDG_CACHE_HOME to a folder that can be written"
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return Finding("missing", "kernel store", f"{store} cannot be made ({error.strerror})", fix)
    if not os.access(store, os.W_OK):
        return Finding("missing", "kernel store", f"{store} cannot be written", fix)
    return Finding("ok", "kernel store", f"{store}, {len(list(store.glob('*.o')))} kernels")


def _results() -> Finding:
    tables, what = recorded_tables(), "recorded results"
    if not tables:
        none = f"no tuned table under {results_root()}"
        return Finding("note", what, none, "run hopper-gemm sweep on a Hopper GPU")
    return Finding("ok", what, ", ".join(f"{slug} ({shown(path)})" for slug, path in tables.items()))


def kind_here() -> str | None:
    """The kind of the GPU here, as folders of results name it; None without a Hopper GPU."""
    try:
        return slug(find_hopper().name)
    except NoHopperError:
        return None


def _tables() -> list[Finding]:
    """The tuned tables that serve ``matmul`` here, in the order in which they are asked; then the damaged ones."""
    kind, what, damaged = kind_here(), "tuned tables", list[str]()
    found = tables(kind, damaged.append)
    told = [f"{shown(one.path)} ({len(one.serving)} entries)" for one in found if one.path and one.serving]
    own = "" if kind is None else f"to add your own to {shown(own_paths(kind)[0])}: hopper-gemm tune M N K"
    of = f"for {kind}" if kind else "no Hopper GPU here, so recorded entries of any"
    served = ", then ".join(told) or "none; the model chooses every config"
    return [
        Finding("ok" if told else "note", what, f"{of}: {served}", own),
        *(Finding("note", what, one) for one in damaged),
    ]
