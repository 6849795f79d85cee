"""Explanation of a config on a problem: legality, resources, the chip's limit. Needs no GPU and no compiler."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hopper_gemm.model import hopper
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.grouped import GroupedProblem
from hopper_gemm.model.kernel import REGISTER_SPLITS, resolve, stages_max
from hopper_gemm.model.legality import reasons
from hopper_gemm.model.predict import predict
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.recipe import problem_from, recipe_of
from hopper_gemm.model.roofline import SXM, Chip
from hopper_gemm.tune.limits import limit_seconds, smem_intensity, smem_reads_per_flop, waves


def explain(
    config: GemmConfig, problem: GemmProblem, chip: Chip = SXM, finish: Epilogue | None = None
) -> dict[str, Any]:
    """Return everything that follows from a config, legal or not, and a problem on a chip, by name, ready for JSON. Of
    groups tiles and times are those of groups of one size; a figure that needs whole wgmma shares, or a legal config,
    is None without them.

    * problem, epilogue, config, label: the problem, its finish as text, the config resolved, and its label;
    * legal, reasons: whether it can run, and why not, one line each;
    * padded, scattered: operands that a launch ahead of the kernel pads, by name; whether threads store C, whose
      rows TMA cannot reach. Both where the matrices are contiguous;
    * stages_max, stage_bytes, smem_bytes, smem_map: stages that fit, bytes of one; shared memory of a CTA, its regions;
    * accumulators, registers, threads: per consumer thread; per thread of producer and consumer; of a CTA;
    * wgmma: the instruction's shape and how many of them one consumer issues for a stage;
    * swizzle_bytes: span of the operands' swizzle;
    * sms, tiles, waves, wave_efficiency: of the GPU; output tiles, their waves over the SMs, the useful share of those;
    * flop_per_smem_byte, smem_read_bytes_per_flop: arithmetic intensity of the tile; what wgmma reads back;
    * memory_rate: bytes a second that a copy moves in the GPU's memory;
    * limit_us, predicted_us: of memory as a copy moves it, or of the tensor cores at the power cap, the longer, which
      reads alone or a burst may beat, without what a finish moves; what the model expects of a config that can run, in
      a burst;
    * paced_by: the resource that limits a stage by that model: math, load, l2 or ring.
    """
    kernel = resolve(config)
    refusals = reasons(config, problem, finish)
    split = kernel.registers if kernel.consumers in REGISTER_SPLITS else None
    whole = kernel.share_n > 0 and kernel.share_m >= hopper.WGMMA_M
    even = problem.even(kernel) if isinstance(problem, GroupedProblem) else problem
    prediction = None if refusals else predict(kernel, even, chip, finish=finish)
    occupancy = waves(kernel, even, chip) if kernel.cluster_size <= chip.sms else None
    return {
        "problem": asdict(problem),
        "epilogue": str(finish or ""),
        "config": kernel.as_dict(),
        "label": str(kernel),
        "legal": not refusals,
        "reasons": [str(reason) for reason in refusals],
        "padded": list(problem.padded),
        "scattered": "c" in problem.out_of_reach,
        "stages_max": stages_max(kernel),
        "stage_bytes": kernel.stage_bytes,
        "smem_bytes": kernel.smem_bytes,
        "smem_map": kernel.smem_map,
        "accumulators": kernel.accumulators,
        "registers": None if split is None else {"producer": split.producer, "consumer": split.consumer},
        "wgmma": f"{kernel.wgmma_per_stage} x m64n{kernel.share_n}k{16 << problem.is_fp8}" if whole else None,
        "swizzle_bytes": kernel.swizzle_bytes,
        "threads": kernel.threads,
        "sms": chip.sms,
        "tiles": occupancy.tiles if occupancy else 0,
        "waves": occupancy.waves if occupancy else 0,
        "wave_efficiency": occupancy.efficiency if occupancy else 0.0,
        "flop_per_smem_byte": smem_intensity(kernel),
        "smem_read_bytes_per_flop": smem_reads_per_flop(kernel) if whole else None,
        "memory_rate": chip.memory_rate,
        "limit_us": limit_seconds(problem, chip) * 1e6,
        "predicted_us": prediction.seconds * 1e6 if prediction else None,
        "paced_by": prediction.limit if prediction else None,
    }


def lines(facts: dict[str, Any]) -> list[str]:
    """Return the lines of text that show the result of :func:`explain`; of an illegal config, the reasons alone."""
    fields, back = facts["problem"], facts["smem_read_bytes_per_flop"]
    problem = GroupedProblem(**fields) if "groups" in fields else problem_from(**fields)
    what = str(problem), problem.dtype, recipe_of(problem), facts["epilogue"]
    title = " ".join(filter(None, [facts["label"], "on", *what]))
    if not facts["legal"]:
        return [f"{title}: not legal", *(f"  refused     {reason}" for reason in facts["reasons"])]
    regions = " + ".join(f"{name} {size}" for name, size in facts["smem_map"].items())
    reads = f", wgmma reads {back:.4f} B/FLOP back" if back else ""
    useful = f"{facts['wave_efficiency']:.1%} of them useful"
    split = facts["registers"] or {}
    registers = f"{split.get('producer')} for the producer and {split.get('consumer')} for the consumers"
    ways = [f"{' and '.join(map(str.upper, facts['padded']))} padded by a launch ahead"] if facts["padded"] else []
    ways += ["C stored by threads"] if facts["scattered"] else []
    return [
        f"{title}: legal",
        *([f"  unaligned   {', '.join(ways)}"] if ways else []),
        f"  stages      up to {facts['stages_max']} of {facts['stage_bytes']} B, swizzle {facts['swizzle_bytes']} B",
        f"  smem        {facts['smem_bytes']} B = {regions}",
        f"  registers   {facts['accumulators']} accumulators per consumer thread; {registers}, "
        f"{facts['threads']} threads",
        f"  wgmma       {facts['wgmma']} per consumer and stage",
        f"  waves       {facts['tiles']} tiles in {facts['waves']} waves of {facts['sms']} SMs, {useful}",
        f"  intensity   {facts['flop_per_smem_byte']:.1f} FLOP per byte into shared memory{reads}",
        f"  limit       {facts['limit_us']:.1f} us sustained: memory at {facts['memory_rate'] / 1e12:.2f} TB/s, "
        "as a copy, or tensor cores at the power cap; a burst may be shorter",
        f"  predicted   {facts['predicted_us']:.1f} us in a burst, by the model, paced by {facts['paced_by']}",
    ]
