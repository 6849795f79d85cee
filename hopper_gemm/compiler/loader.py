"""A compiled kernel in this process, ready to launch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopper_gemm.compiler.cubin import CubinReport, read_cubin
from hopper_gemm.compiler.residency import resident_clusters
from hopper_gemm.compiler.store import KernelId, KernelStore, default_store
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import tiles_across, work_items

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
        workspaces: for sums, one for each stream on which it was launched, where launches take turns, and each number
            of tiles that it must hold.
    """

    config: GemmConfig
    report: CubinReport
    launcher: Any
    clusters: int
    workspaces: dict[tuple[int, int], tuple[torch.Tensor, ...]] = field(default_factory=dict, compare=False, repr=False)

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, readings: torch.Tensor | None = None
    ) -> None:
        """Launch on torch's current stream; nothing is checked and nothing is waited for.

        Args:
            a: (m, k), contiguous as the problem's layouts say.
            b: (n, k), likewise: the transpose of the right operand.
            out: (m, n), n contiguous; written whole.
            readings: where a metered kernel writes, and only that: contiguous int32 of the shape
                (:meth:`ctas`, roles, fields), zero; see :mod:`hopper_gemm.kernel.meter`.
        """
        config = self.config
        more = self._workspace(out) if config.has_workspace else () if readings is None else (readings,)
        self.launcher(a, b, out, self._clusters, config.raster == "m", config.swizzle, config.serpentine, *more)

    def _workspace(self, out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Sums and flags for a launch on the current stream: in stream-K a tile for each resident CTA, where k is
        divided one for each part of each tile of the output. With pace a flag more, on which producers meet."""
        import torch

        config = self.config
        assert isinstance(config.consumers, int)
        tiles = self.clusters if config.stream_k else tiles_across(config, out.shape[0], out.shape[1])
        key = torch.cuda.current_stream(out.device).cuda_stream, tiles
        found = self.workspaces.get(key)
        if found is None:  # kept for good: a captured graph may write to it
            ctas = tiles * config.cluster_size if config.leaves_sums else 0
            each = config.tile_m * config.tile_n * config.work_items
            sums = torch.empty(max(1, ctas * each), dtype=torch.float32, device=out.device)
            flags = torch.zeros(ctas * config.consumers + (config.pace > 0), dtype=torch.int32, device=out.device)
            found = self.workspaces[key] = sums, flags
        return found

    def ctas(self, problem: GemmProblem) -> int:
        """CTAs of a launch."""
        return self.config.cluster_size * min(self._clusters, work_items(self.config, problem))

    @property
    def _clusters(self) -> int:
        return self.clusters if self.config.persistent else UNBOUNDED


def compile_into(store: KernelStore, kernel: KernelId) -> CubinReport:
    """The kernel's report, compiling it into the store where it is not there yet."""
    report = store.report(kernel)
    if report is None:
        from hopper_gemm.compiler.compile import compile_kernel

        compiled = compile_kernel(kernel.config, kernel.dtype, kernel.layouts, kernel.metered)
        report = read_cubin(compiled.cubin)
        store.put(kernel, compiled.object_file, report)
    return report


def load(config: GemmConfig, problem: GemmProblem, store: Path | None = None, metered: bool = False) -> LoadedKernel:
    """A kernel for a config and a problem, from the store or compiled now (about a second).

    Args:
        config: any legal config; ``"auto"`` and ``"max"`` are resolved.
        problem: only its type and layouts matter to the binary; its sizes are checked.
        store: the folder of compiled kernels, by default in the user's cache folder.
        metered: whether its roles count their waits; its call then takes readings too.

    Returns:
        The kernel, loaded for the current device.

    Raises:
        IllegalConfigError: some rule refuses the config or the problem.
    """
    found = reasons(config, problem)
    if found:
        raise IllegalConfigError("; ".join(map(str, found)))
    if metered and config.has_workspace:
        raise IllegalConfigError("a kernel with a workspace has no meter; meter the config without one")
    config = resolve(config)
    clusters = resident_clusters(config.cluster_size) * config.ctas_per_sm
    if config.work_items > clusters:
        raise IllegalConfigError(
            f"split_k: {config.split_k} parts must be under way at once and this GPU holds {clusters} clusters of "
            f"{config.cluster_size}; lower split_k"
        )
    kernels = KernelStore(store or default_store())
    kernel = KernelId.of(config, problem, metered)
    report = compile_into(kernels, kernel)
    return LoadedKernel(config, report, _launcher(kernels.object_file(kernel)), clusters)


@cache
def _launcher(object_file: Path) -> Any:
    from cutlass import cute

    from hopper_gemm.compiler.compile import FUNCTION

    return cute.runtime.load_module(str(object_file), enable_tvm_ffi=True)[FUNCTION]
