"""A public architecture from its config.json with random weights, patched: what is replaced, how far the logits are
from those of fp32, by torch and patched, and the time of prefill and decode.

    python examples/patched_model.py                        # Qwen2.5-1.5B's sizes, on a Hopper GPU
    python examples/patched_model.py --config config.json   # another model of the Llama family
    python examples/patched_model.py --tiny                 # anywhere, to see that it runs
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import progress
import torch
from decoder import QWEN_2_5_1_5B, TINY, Cache, Decoder, DecoderConfig
from side_by_side import UNCOMPARED, Row, captured, device_for, hopper, milliseconds, show

import hopper_gemm


def forwards(model: Decoder, config: DecoderConfig, prefill: int, decode: int) -> dict[str, Callable[[], torch.Tensor]]:
    """A pass over one sequence, and a step of several sequences with as many tokens behind them."""
    torch.manual_seed(1)
    like = model.head.weight
    prompt = torch.randint(config.vocab_size, (1, prefill), device=like.device)
    last = torch.randint(config.vocab_size, (decode, 1), device=like.device)
    caches = [Cache(config, decode, prefill + 1, like) for _ in model.layers]
    for cache in caches:
        cache.used = prefill
    return {f"prefill {prefill}": lambda: model(prompt), f"decode {decode}": lambda: model(last, caches)}


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative distance, in the norm of all elements."""
    return float((found.float() - exact).norm() / exact.norm())


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> list[Row]:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--config", type=Path, help="config.json of a model of the Llama family")
    asked.add_argument("--tiny", action="store_true", help="a small model, on the CPU where there is no GPU")
    asked.add_argument("--warmup", action="store_true", help="time a few picks of each problem first")
    asked.add_argument("--out", type=Path, help="file to which the tables are appended, a line of JSON each")
    given = asked.parse_args(arguments)
    config = TINY if given.tiny else QWEN_2_5_1_5B
    if given.config is not None:
        config = DecoderConfig.of(json.loads(given.config.read_text()))
    device, (prefill, decode) = device_for(given.tiny), (12, 3) if given.tiny else (1024, 64)
    torch.manual_seed(0)
    model = Decoder(config).to(device, torch.bfloat16)
    if given.warmup:
        hopper_gemm.warmup(model, tokens=(prefill, decode))
    exact = {
        phase: forward() for phase, forward in forwards(copy.deepcopy(model).float(), config, prefill, decode).items()
    }
    rows = []
    for phase, forward in forwards(model, config, prefill, decode).items():
        theirs = distance(forward(), exact[phase])
        plain = captured(forward) if hopper() else None
        done = hopper_gemm.patch(model)
        row: Row = {"phase": phase, "torch from fp32": theirs, "ours from fp32": distance(forward(), exact[phase])}
        if plain is not None:  # both graphs exist, each with the products that it captured
            taken = milliseconds({"torch": plain, "ours": captured(forward)}, device)
            row |= {"torch ms": taken["torch"], "speedup": taken["torch"] / taken["ours"]}
        rows.append(row)
        told = str(done)
        done.undo()
        progress.step(phase)
    print(told)
    show(f"Logits and time on {device}, {'CUDA graphs' if hopper() else UNCOMPARED}", rows, given.out)
    return rows


if __name__ == "__main__":
    with hopper_gemm.while_compiling("wait"):
        main()
