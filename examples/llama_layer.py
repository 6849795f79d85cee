"""A Llama-3-8B layer, prefill and decode, eager and in a CUDA graph, three ways: by torch; patched, which changes its
products alone; and fused, with what follows a product in the launch that multiplies.

    python examples/llama_layer.py            # on a Hopper GPU
    python examples/llama_layer.py --picked   # as if no problem had been tuned
    python examples/llama_layer.py --compile  # beside torch.compile, a minute for each number of tokens
    python examples/llama_layer.py --compile --fusions --tokens 1 16 128    # what each fusion is worth there
    python examples/llama_layer.py --tiny     # anywhere, to see that it runs
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import progress
import torch
from decoder import LLAMA_3_8B, TINY, Cache, DecoderConfig, Layer
from side_by_side import UNCOMPARED, Row, captured, device_for, hopper, keep, milliseconds, recorded, show
from torch.nn import functional

import hopper_gemm
from hopper_gemm import Epilogue, GemmProblem
from hopper_gemm.serve.kernels import pick_for

PREFILL, DECODE, CONTEXT = (1, 3, 23, 100, 257, 777, 1500, 3333, 8191), (1, 16, 64, 257), 1024
"""Tokens of one sequence; sequences of one token each, and the tokens that each has behind it."""

COMPILED = (1, 128, 1024, 8192)
"""Tokens of one sequence beside torch.compile, which measures its choices anew for each of them."""


class Case(NamedTuple):
    """Sequences of some length each, with as many tokens behind them in a cache."""

    phase: str
    batch: int
    length: int
    behind: int

    @property
    def tokens(self) -> int:
        return self.batch * self.length


ADDED, GATED = Epilogue(residual=True), Epilogue(activation="silu", gated=True)


class FusedLayer(Layer):
    """A layer whose residuals are added by the products before them, and whose gate and up are one launch."""

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        x = hopper_gemm.linear(self.mixed(x, cache), self.out.weight, residual=x)
        hidden = hopper_gemm.swiglu(self.normed(x, self.between), self.gate_up.weight)
        return hopper_gemm.linear(hidden, self.down.weight, residual=x)


class Gated(Layer):
    """A layer whose gate and up are one launch, and nothing else is fused."""

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        x = x + self.out(self.mixed(x, cache))
        return x + self.down(hopper_gemm.swiglu(self.normed(x, self.between), self.gate_up.weight))


class Added(Layer):
    """A layer whose residuals are added by the products before them, and nothing else is fused."""

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        x = hopper_gemm.linear(self.mixed(x, cache), self.out.weight, residual=x)
        gate, up = self.gate_up(self.normed(x, self.between)).chunk(2, dim=-1)
        return hopper_gemm.linear(functional.silu(gate) * up, self.down.weight, residual=x)


class Unchanged(Layer):
    """A layer whose forward is a function of its own: torch.compile keeps what it compiled by the function."""

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        return super().forward(x, cache)


class Chosen(torch.nn.Module):
    """A layer of one size that torch.compile compiles, at the first call, our products among Inductor's choices."""

    def __init__(self, layer: Layer, **how: Any) -> None:
        super().__init__()
        self.layer = copy.deepcopy(layer)
        self.layer.__class__ = Unchanged
        self.compiled, self.is_compiled = torch.compile(self.layer, **how), False

    def forward(self, x: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        if not self.is_compiled and hopper():
            hopper_gemm.inductor.enable()
        try:
            return self.compiled(x, cache)
        finally:
            if not self.is_compiled and hopper():
                hopper_gemm.inductor.disable()
            self.is_compiled = True


def products(layer: Layer, tokens: int) -> Iterator[tuple[GemmProblem, Epilogue | None]]:
    """The products of a fused layer, each with what follows it in its launch."""
    pairs = (layer.qkv, None), (layer.out, ADDED), (layer.gate_up, GATED), (layer.down, ADDED)
    return ((GemmProblem(tokens, *module.weight.shape), finish) for module, finish in pairs)


def compile_ahead(layer: Layer, tokens: Sequence[int]) -> None:
    """Compile the kernels of the patched and of the fused layer, on all cores."""
    fused = [one for count in tokens for one in products(layer, count)]
    done = hopper_gemm.prebuild([*fused, *((problem, None) for problem, _ in fused)], gpu=torch.cuda.get_device_name())
    print(f"{done.compiled} of {done.kernels} kernels compiled{done.failed or ''}")


def picked(layer: Layer, tokens: int) -> str:
    """How many of the products of a fused layer run a kernel that the model picked; the others were tuned."""
    how = [pick_for(problem, 0, finish).how for problem, finish in products(layer, tokens)]
    return f"{how.count('model')} of {len(how)}"


def work(layer: Layer, config: DecoderConfig, case: Case) -> Callable[[], torch.Tensor]:
    """One pass of a layer over random activations, with a cache where there are tokens before."""
    torch.manual_seed(1)
    like = next(layer.parameters())
    x = torch.randn(case.batch, case.length, config.hidden_size, device=like.device, dtype=like.dtype)
    cache = None
    if case.behind:
        cache = Cache(config, case.batch, case.behind + case.length, like)
        cache.used = case.behind
        torch.nn.init.normal_(cache.keys)
        torch.nn.init.normal_(cache.values)
    return lambda: layer(x, cache)


def compiled(theirs: Layer, patched: Layer, fused: FusedLayer, fusions: bool = False) -> dict[str, Any]:
    """The layer of torch by torch.compile, also with our products among Inductor's choices, the fused one as it is, and
    the patched and the fused one with torch.compile for all but the products; on demand also layers with one of the
    fusions."""
    torch.compiler.reset()
    # without a Hopper GPU nothing is timed, so that tracing is enough; Inductor would take minutes
    how: dict[str, str] = {"mode": "max-autotune-no-cudagraphs"} if hopper() else {"backend": "eager"}
    ways: dict[str, Layer] = {"patched": patched}
    for name, kind in (("gate fused", Gated), ("residuals fused", Added)) if fusions else ():
        ways[name] = copy.deepcopy(patched)
        ways[name].__class__ = kind
    ways["fused"] = fused
    made = {f"{name}, compiled": torch.compile(way, dynamic=False, **how) for name, way in ways.items()}
    chosen = Chosen(theirs, dynamic=False, **how)
    return {"compiled": torch.compile(theirs, dynamic=False, **how), "chosen": chosen, "fused": fused, **made}


def timed(ways: dict[str, Callable[[], torch.Tensor]], device: str) -> Row:
    """Time of the first way, and the speedups of the others over it, eager and on a GPU in a CUDA graph; none where no
    Hopper GPU is."""
    (base, *others), row = ways, Row()
    expected = ways[base]().float()
    apart = (ways[name]().float() - expected for name in others)
    row["relative difference"] = max(float(each.norm() / expected.norm()) for each in apart)
    if not hopper():
        return row
    graphs = {"graph": {name: captured(way) for name, way in ways.items()}} if device == "cuda" else {}
    for mode, some in {"eager": ways, **graphs}.items():
        taken = milliseconds(some, device)
        row |= {f"{base} {mode} ms": taken[base]} | {f"{name} {mode}": taken[base] / taken[name] for name in others}
    return row


def parser() -> argparse.ArgumentParser:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--tiny", action="store_true", help="a small layer, on the CPU where there is no GPU")
    asked.add_argument("--picked", action="store_true", help="look into no tuned table: the model picks every kernel")
    asked.add_argument("--warmup", action="store_true", help="time a few picks of each problem first")
    asked.add_argument("--compile", action="store_true", help="beside torch.compile(mode='max-autotune-no-cudagraphs')")
    asked.add_argument("--fusions", action="store_true", help="with --compile, layers with one fusion each as well")
    asked.add_argument("--tokens", type=int, nargs="+", help="prefill of these numbers of tokens instead, no decode")
    asked.add_argument("--seconds", type=float, default=float("inf"), help="begin no further case after this time")
    asked.add_argument("--out", type=Path, help="file to which the table so far is appended after each case")
    asked.add_argument("--resume", action="store_true", help="leave out the cases that the file has")
    return asked


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> list[Row]:
    given, began = parser().parse_args(arguments), time.monotonic()
    config, device = TINY if given.tiny else LLAMA_3_8B, device_for(given.tiny)
    prefill, decode, context = ((8, 12), (1, 3), 16) if given.tiny else (PREFILL, DECODE, CONTEXT)
    if given.tokens or given.compile:
        prefill, decode = tuple(given.tokens or (prefill if given.tiny else COMPILED)), ()
    cases = [Case("prefill", 1, tokens, 0) for tokens in prefill] + [Case("decode", one, 1, context) for one in decode]
    torch.manual_seed(0)
    theirs = Layer(config).to(device, torch.bfloat16)
    patched, fused = copy.deepcopy(theirs), copy.deepcopy(theirs)
    fused.__class__ = FusedLayer
    if given.picked:
        hopper_gemm.use_table(None, alone=True)
    if given.warmup:
        hopper_gemm.warmup(theirs, tokens=(*prefill, *decode))
    if device == "cuda":
        compile_ahead(theirs, (*prefill, *decode))
    print(hopper_gemm.patch(patched))
    hopper_gemm.patch(fused)
    over = f"over torch{'.compile' * given.compile}{', all picked' * given.picked}" if hopper() else UNCOMPARED
    title = f"A layer of {config.hidden_size} channels on {device}, {over}"
    rows = recorded(title, given.out) if given.resume else []
    known = {(row["phase"], row["tokens"]) for row in rows}
    for case in cases:
        if (case.phase, case.tokens) in known or time.monotonic() - began > given.seconds:
            continue
        plain: dict[str, Any] = {"torch": theirs, "patched": patched, "fused": fused}
        layers = compiled(theirs, patched, fused, given.fusions) if given.compile else plain
        ways = {name: work(layer, config, case) for name, layer in layers.items()}
        about = {"phase": case.phase, "tokens": case.tokens, "picked": picked(theirs, case.tokens)}
        rows.append({**about, **timed(ways, device)})
        keep(title, rows, given.out)
        progress.step(f"{case.phase} of {case.tokens} tokens")
    show(title, rows)
    return rows


if __name__ == "__main__":
    with hopper_gemm.while_compiling("wait"):
        main()
