"""Facts about this machine that the project depends on, read without torch and without the DSL."""

from __future__ import annotations

import os
import platform
import runpy
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution, metadata, requires, version
from typing import Any

PROJECT = "hopper-gemm"


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver lists it: name and compute capability."""

    name: str
    capability: tuple[int, int]


@dataclass(frozen=True)
class Machine:
    """Facts, each empty where it could not be found out."""

    python: str
    system: str
    glibc: str = ""  # version of the C library; empty with another one
    gpus: tuple[Gpu, ...] = ()  # all that the driver lists
    no_gpu: str = ""
    driver: str = ""
    driver_cuda: str = ""  # the highest CUDA version that the driver runs, such as "13.0"
    torch_cuda: str | None = ""  # the CUDA version that torch was built for; None with a CPU build, empty without torch
    # versions of the packages that are required, None where one is missing
    installed: dict[str, str | None] = field(default_factory=dict)
    requirements: tuple[str, ...] | None = None  # of the project's own metadata; None where it is not installed
    requires_python: str = ""


def this_machine() -> Machine:
    """Return the facts of this machine; a missing fact raises nothing."""
    required, python = _requirements()
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        glibc=_glibc(),
        torch_cuda=_torch_cuda(),
        installed={name: _version(name) for name in map(package_of, required or ())},
        requirements=required,
        requires_python=python,
        **_driver(),
    )


def package_of(requirement: str) -> str:
    """Return the package's name, without extras and versions.

    >>> package_of("nvidia-cutlass-dsl[cu13]>=4.8")
    'nvidia-cutlass-dsl'
    """
    end = next((i for i, letter in enumerate(requirement) if not (letter.isalnum() or letter in "-_.")), None)
    return requirement[:end]


def _requirements() -> tuple[tuple[str, ...] | None, str]:
    try:
        required: Sequence[str] = requires(PROJECT) or ()
        return tuple(filter(None, map(_needed, required))), metadata(PROJECT)["Requires-Python"] or ""
    except PackageNotFoundError:
        return None, ""


def _needed(requirement: str) -> str:
    """Return a requirement of a base install or of the extra ``tune`` without its marker; else empty."""
    text, _, marker = requirement.partition(";")
    return text.strip() if "extra" not in marker or "tune" in marker else ""


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _glibc() -> str:
    with suppress(OSError, ValueError, AttributeError):  # another C library, or another system
        name, _, number = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return number if name == "glibc" else ""
    return ""


def _torch_cuda() -> str | None:
    """Read the version from a file of torch that only assigns: importing torch takes seconds."""
    try:
        return runpy.run_path(str(distribution("torch").locate_file("torch/version.py")))["cuda"]
    except Exception:  # torch is missing or broken
        return ""


def _driver() -> dict[str, Any]:
    """Return GPUs and driver as NVML lists them, or the reason why it lists none."""
    try:
        import pynvml

        pynvml.nvmlInit()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return {
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "driver_cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "gpus": tuple(
                Gpu(pynvml.nvmlDeviceGetName(handle), tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)))
                for handle in handles
            ),
        }
    except Exception as error:  # no pynvml, or any of NVML's errors
        return {"no_gpu": str(error)}
