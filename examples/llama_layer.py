"""A Llama-3-8B layer, prefill and decode, by torch and patched, eager and in a CUDA graph.

python examples/llama_layer.py            # on a Hopper GPU
python examples/llama_layer.py --tiny     # anywhere, to see that it runs
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from decoder import LLAMA_3_8B, TINY, Cache, DecoderConfig, Layer
from side_by_side import Row, captured, milliseconds, show

import hopper_gemm

PREFILL, DECODE, CONTEXT = (1, 3, 23, 100, 257, 777, 1500, 3333, 8191), (1, 16, 64, 257), 1024
"""Tokens of one sequence; sequences of one token each, and the tokens that each has behind it."""


def work(layer: Layer, config: DecoderConfig, batch: int, length: int, context: int) -> Callable[[], torch.Tensor]:
    """One pass of a layer over random activations, with a cache where there are tokens before."""
    torch.manual_seed(1)
    like = layer.out.weight
    x = torch.randn(batch, length, config.hidden_size, device=like.device, dtype=like.dtype)
    cache = None
    if context:
        cache = Cache(config, batch, context + length, like)
        cache.used = context
        torch.nn.init.normal_(cache.keys)
        torch.nn.init.normal_(cache.values)
    return lambda: layer(x, cache)


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> list[Row]:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--tiny", action="store_true", help="a small layer, on the CPU where there is no GPU")
    asked.add_argument("--warmup", action="store_true", help="time a few picks of each problem first")
    asked.add_argument("--out", type=Path, help="file to which the tables are appended, a line of JSON each")
    given = asked.parse_args(arguments)
    config, device = TINY if given.tiny else LLAMA_3_8B, "cuda" if torch.cuda.is_available() else "cpu"
    prefill, decode, context = ((8, 12), (1, 3), 16) if given.tiny else (PREFILL, DECODE, CONTEXT)
    torch.manual_seed(0)
    theirs = Layer(config).to(device, torch.bfloat16)
    ours = copy.deepcopy(theirs)
    if given.warmup:
        hopper_gemm.warmup(ours, tokens=(*prefill, *decode))
    print(hopper_gemm.patch(ours))
    rows = []
    cases = [("prefill", 1, tokens, 0) for tokens in prefill] + [("decode", batch, 1, context) for batch in decode]
    for phase, batch, length, behind in cases:
        ways = {"torch": work(theirs, config, batch, length, behind), "ours": work(ours, config, batch, length, behind)}
        expected, found = (way().float() for way in ways.values())
        error = float((found - expected).norm() / expected.norm())
        row: Row = {"phase": phase, "tokens": batch * length, "relative difference": error}
        graphs = {"graph": {name: captured(way) for name, way in ways.items()}} if device == "cuda" else {}
        for mode, timed in {"eager": ways, **graphs}.items():
            taken = milliseconds(timed, device)
            row |= {f"torch {mode} ms": taken["torch"], f"{mode} speedup": taken["torch"] / taken["ours"]}
        rows.append(row)
    show(f"A layer of {config.hidden_size} channels on {device}, over torch", rows, given.out)
    return rows


if __name__ == "__main__":
    main()
