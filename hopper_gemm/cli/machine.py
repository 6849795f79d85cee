"""Facts about this machine that the project depends on, read without torch and without the DSL."""

from __future__ import annotations

import platform
import re
import runpy
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution, metadata, requires
from typing import Any, Literal

from hopper_gemm.model import hopper
from hopper_gemm.tune.study.provenance import version_of

PROJECT = "hopper-gemm"

Mark = Literal["ok", "note", "slow", "missing"]


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

    @property
    def has_hopper(self) -> bool:
        """Return True if a GPU can run the kernel."""
        return any(gpu.capability == hopper.COMPUTE_CAPABILITY for gpu in self.gpus)

    def with_hopper(self, mark: Mark) -> Mark:
        """Return the mark of a finding that matters only with a Hopper GPU: ``"note"`` without one."""
        return mark if self.has_hopper else "note"


def this_machine() -> Machine:
    """Return the facts of this machine; a missing fact raises nothing."""
    required, python = _requirements()
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        glibc=dict([platform.libc_ver()]).get("glibc", ""),
        torch_cuda=_torch_cuda(),
        installed={name: version_of(name) for text in required or () for name in re.findall(r"^[\w.-]+", text)},
        requirements=required,
        requires_python=python,
        **_driver(),
    )


def _requirements() -> tuple[tuple[str, ...] | None, str]:
    """Return the requirements of a base install and of the extra ``tune``, without markers, and that of Python."""
    try:
        split = (requirement.partition(";") for requirement in requires(PROJECT) or ())
        needed = (text.strip() for text, _, marker in split if "extra" not in marker or "tune" in marker)
        return tuple(needed), metadata(PROJECT)["Requires-Python"] or ""
    except PackageNotFoundError:
        return None, ""


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
