"""``hopper-gemm warmup``: times of a few picks on this GPU, kept for ``matmul``."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Annotated

import typer

import hopper_gemm.cli.options as options
from hopper_gemm.cli.app import CHECK_FAILED, command, fail, stderr


@command
def warmup(
    sizes: options.Sizes = None,
    shapes: options.Shapes = None,
    dtype: options.Dtype = "bf16",
    layouts: options.Layouts = "kk",
    candidates: Annotated[int, typer.Option(min=1, help="Picks to time of a problem that nobody tuned.")] = 4,
    batch_invariant: options.BatchInvariant = False,
    as_json: options.Json = False,
) -> None:
    """Time a few picks of untuned problems; keep the fastest for matmul.

    It takes a fraction of a second a problem once its kernels are compiled. What tune finds comes before it.
    """
    from hopper_gemm.tune.measure.device import NoHopperError, find_hopper
    from hopper_gemm.tune.study.shapes import problems_of

    try:
        find_hopper()
    except NoHopperError as error:
        fix = "a warm-up times launches on an H100 or H200; hopper-gemm prebuild needs no GPU"
        raise NoHopperError(f"{str(error).split(';')[0]}; {fix}") from None
    from hopper_gemm.serve.ahead.warmup import warmup as warm_up

    _, _, problems = problems_of(shapes, sizes or (), "burst")
    if sizes:
        problems = tuple(replace(problem, dtype=dtype, layouts=layouts) for problem in problems)
    done = warm_up(options.with_rule(problems, batch_invariant), candidates, say=stderr)
    if as_json:
        failed = [{"problem": asdict(problem), "reason": why} for problem, why in done.failed.items()]
        print(json.dumps({**asdict(replace(done, failed={})), "failed": failed}))
    else:
        print(done)
    if done.failed:
        fail(f"{len(done.failed)} problems have no candidate that could be compiled", CHECK_FAILED)
