"""A compiled kernel in this process, ready to launch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopper_gemm.build.cubin import CubinReport, read_cubin
from hopper_gemm.build.store import KernelId, KernelStore, default_store
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.problem import GemmProblem

if TYPE_CHECKING:
    import torch


UNBOUNDED = 2**30
"""Clusters of a launch that is not persistent: the kernel takes as many as there are tiles."""


class IllegalConfigError(ValueError):
    """The config cannot run the problem; the message gives every reason."""


@dataclass(frozen=True)
class LoadedKernel:
    """A launchable kernel.

    Args:
        config: the resolved config, launch-time fields included.
        report: what the compiler made of it.
        launcher: the compiled host function.
        clusters: clusters that can be resident at once on this GPU.
    """

    config: GemmConfig
    report: CubinReport
    launcher: Any
    clusters: int

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        """Launch on torch's current stream; nothing is checked and nothing is waited for.

        Args:
            a: (m, k), k contiguous.
            b: (n, k), k contiguous: the transpose of the right operand.
            out: (m, n), n contiguous; written whole.
        """
        config = self.config
        clusters = self.clusters if config.persistent else UNBOUNDED
        self.launcher(a, b, out, clusters, config.raster == "m", config.swizzle, config.serpentine)


def compile_into(store: KernelStore, kernel: KernelId) -> CubinReport:
    """The kernel's report, compiling it into the store where it is not there yet."""
    report = store.report(kernel)
    if report is None:
        from hopper_gemm.build.compiler import compile_kernel

        compiled = compile_kernel(kernel.config, kernel.dtype)
        report = read_cubin(compiled.cubin)
        store.put(kernel, compiled.object_file, report)
    return report


def load(config: GemmConfig, problem: GemmProblem, store: Path | None = None) -> LoadedKernel:
    """A kernel for a config and a problem, from the store or compiled now (about a second).

    Args:
        config: any legal config; ``"auto"`` and ``"max"`` are resolved.
        problem: only its type and layouts matter to the binary; its sizes are checked.
        store: the folder of compiled kernels, by default in the user's cache folder.

    Returns:
        The kernel, loaded for the current device.

    Raises:
        IllegalConfigError: some rule refuses the config or the problem.
    """
    found = reasons(config, problem)
    if found:
        raise IllegalConfigError("; ".join(map(str, found)))
    config = resolve(config)
    kernels = KernelStore(store or default_store())
    kernel = KernelId.of(config, problem)
    report = compile_into(kernels, kernel)
    return LoadedKernel(config, report, _launcher(kernels.object_file(kernel)), _sm_count() // config.cluster_size)


@cache
def _launcher(object_file: Path) -> Any:
    from cutlass import cute

    from hopper_gemm.build.compiler import FUNCTION

    return cute.runtime.load_module(str(object_file), enable_tvm_ffi=True)[FUNCTION]


@cache
def _sm_count() -> int:
    import torch

    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
