"""A config on a problem, explained: can it run, what does it take, what would the chip allow. No GPU, no compiler."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.footprint import REGISTER_SPLITS, footprint, stage_bytes, stages_max
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import limit_seconds, smem_intensity, smem_reads_per_flop, waves


@dataclass(frozen=True)
class Explanation:
    """Everything that follows from a config and a problem. Figures that need whole shares are None without them.

    Args:
        problem, config: as asked, the config resolved.
        legal: whether it can run.
        reasons: why not, one line each.
        stages_max: stages that fit.
        stage_bytes: bytes of one stage.
        smem_bytes, smem_map: shared memory of a CTA, and its regions in order.
        accumulators: accumulator registers of one consumer thread.
        registers: registers per thread of producer and consumer.
        wgmma: the instruction's shape and how many of them one consumer issues for a stage.
        swizzle_bytes: span of the operands' swizzle.
        threads: of a CTA.
        tiles, waves, wave_efficiency: how the output falls on the SMs.
        flop_per_smem_byte: arithmetic intensity of the tile.
        smem_read_bytes_per_flop: what wgmma reads back.
        limit_us: the shortest time the chip allows.
        predicted_us: what the analytic model expects of a config that can run.
        paced_by: what it thinks sets the pace of a stage: math, load or ring.
    """

    problem: GemmProblem
    config: GemmConfig
    legal: bool
    reasons: tuple[str, ...]
    stages_max: int
    stage_bytes: int
    smem_bytes: int
    smem_map: dict[str, int]
    accumulators: int
    registers: dict[str, int] | None
    wgmma: str | None
    swizzle_bytes: int
    threads: int
    tiles: int
    waves: int
    wave_efficiency: float
    flop_per_smem_byte: float
    smem_read_bytes_per_flop: float | None
    limit_us: float
    predicted_us: float | None
    paced_by: str | None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For a person."""
        back = self.smem_read_bytes_per_flop
        reads = f", wgmma reads {back:.4f} B/FLOP back" if back else ""
        lines = [
            f"{self.config} on {self.problem} {self.problem.dtype}: {'legal' if self.legal else 'not legal'}",
            *(f"  refused     {reason}" for reason in self.reasons),
            f"  stages      up to {self.stages_max} of {self.stage_bytes} B, swizzle {self.swizzle_bytes} B",
            f"  smem        {self.smem_bytes} B = "
            + " + ".join(f"{name} {size}" for name, size in self.smem_map.items()),
            f"  registers   {self.accumulators} accumulators per consumer thread, {self.registers}, "
            f"{self.threads} threads",
            f"  wgmma       {self.wgmma} per consumer and stage",
            f"  waves       {self.tiles} tiles in {self.waves} waves, {self.wave_efficiency:.1%} of them useful",
            f"  intensity   {self.flop_per_smem_byte:.1f} FLOP per byte into shared memory{reads}",
            f"  limit       {self.limit_us:.1f} us",
        ]
        if self.predicted_us is not None:
            lines.append(f"  predicted   {self.predicted_us:.1f} us, paced by {self.paced_by}")
        return lines


def explain(config: GemmConfig, problem: GemmProblem, sms: int = hopper.SM_COUNT) -> Explanation:
    """Explain a config on a problem.

    Args:
        config: any config.
        problem: what is multiplied.
        sms: SMs of the GPU.
    """
    shares = footprint(config)
    resolved = shares.config
    found = reasons(config, problem)
    split = shares.registers if resolved.consumers in REGISTER_SPLITS else None
    whole = shares.share_n > 0 and shares.share_m >= hopper.WGMMA_M
    said = None if found else predict(resolved, problem, sms)
    falls = waves(resolved, problem, sms) if resolved.cluster_size <= sms else None
    return Explanation(
        problem=problem,
        config=resolved,
        legal=not found,
        reasons=tuple(map(str, found)),
        stages_max=stages_max(config),
        stage_bytes=stage_bytes(config),
        smem_bytes=shares.smem_bytes,
        smem_map=shares.smem_map,
        accumulators=shares.accumulators,
        registers=None if split is None else {"producer": split.producer, "consumer": split.consumer},
        wgmma=f"{shares.wgmma_per_stage} x m64n{shares.share_n}k16" if whole else None,
        swizzle_bytes=shares.swizzle_bytes,
        threads=shares.threads,
        tiles=falls.tiles if falls else 0,
        waves=falls.waves if falls else 0,
        wave_efficiency=falls.efficiency if falls else 0.0,
        flop_per_smem_byte=smem_intensity(resolved),
        smem_read_bytes_per_flop=smem_reads_per_flop(resolved) if whole else None,
        limit_us=limit_seconds(problem) * 1e6,
        predicted_us=said.seconds * 1e6 if said else None,
        paced_by=said.limit if said else None,
    )
