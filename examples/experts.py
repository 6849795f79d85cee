"""A layer of experts of Qwen3-30B-A3B's sizes, forward and backward, by torch's grouped_mm and by ours, on the same
weights, tokens and routing: gate and up of each expert with what follows them are one launch of ours.

    python examples/experts.py            # on a Hopper GPU
    python examples/experts.py --tiny     # anywhere, to see that it runs
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import progress
import torch
from side_by_side import UNCOMPARED, Row, device_for, hopper, milliseconds, show
from torch.nn import functional

import hopper_gemm


class Sizes(NamedTuple):
    """Channels of a token and of an expert, experts, and those to which a token goes."""

    hidden: int
    inner: int
    experts: int
    chosen: int


QWEN3_30B_A3B, TINY = Sizes(2048, 768, 128, 8), Sizes(64, 32, 8, 2)

TOKENS = (64, 1024, 4096, 16384)


def gated_by_torch(x: torch.Tensor, gate_up: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of the tokens of each expert."""
    gate, up = functional.grouped_mm(x, gate_up.mT, offs=offs).chunk(2, -1)
    return functional.silu(gate) * up


def gated_by_ours(x: torch.Tensor, gate_up: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """The same in one launch."""
    return hopper_gemm.grouped_swiglu(x, gate_up.mT, offs=offs)


class Experts(torch.nn.Module):
    """A router and experts, whose products are functions of rows in groups: gated, and plain."""

    def __init__(self, sizes: Sizes, gated: Callable[..., torch.Tensor], multiply: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        hidden, inner, experts, self.chosen = sizes
        self.gated, self.multiply = gated, multiply
        self.router = torch.nn.Linear(hidden, experts, bias=False)
        self.gate_up = torch.nn.Parameter(torch.randn(experts, 2 * inner, hidden) * hidden**-0.5)
        self.down = torch.nn.Parameter(torch.randn(experts, hidden, inner) * inner**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Send each token (row) to the experts that its router chooses, and add up what they give, weighted."""
        weights, experts = self.router(x).float().softmax(-1).topk(self.chosen)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        order = experts.flatten().argsort(stable=True)  # nothing of the routing is read on the host
        every, tokens = torch.arange(len(self.down), device=x.device), order // self.chosen
        offs = torch.searchsorted(experts.flatten()[order], every, right=True, out_int32=True)
        given = self.multiply(self.gated(x[tokens], self.gate_up, offs), self.down.mT, offs=offs)
        return torch.zeros_like(x).index_add(0, tokens, given * weights.flatten()[order, None])


def passes(layer: Experts, x: torch.Tensor, gradient: torch.Tensor) -> dict[str, Callable[[], object]]:
    """A pass forward, and one forward and backward."""

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return layer(x)

    def both() -> None:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        layer(x).backward(gradient)

    return {"forward": forward, "forward and backward": both}


def difference(ours: Any, theirs: Any) -> float:
    """Relative Frobenius norm of a difference of tensors."""
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--tiny", action="store_true", help="a small layer, on the CPU where there is no GPU")
    asked.add_argument("--tokens", type=int, nargs="+", help="of each table's rows")
    asked.add_argument("--out", type=Path, help="file to which the table is appended, a line of JSON")
    given = asked.parse_args(arguments)
    sizes, device = TINY if given.tiny else QWEN3_30B_A3B, device_for(given.tiny)
    torch.manual_seed(0)
    theirs = Experts(sizes, gated_by_torch, functional.grouped_mm).to(device, torch.bfloat16)
    ours = Experts(sizes, gated_by_ours, hopper_gemm.grouped_mm).to(device, torch.bfloat16)
    ours.load_state_dict(theirs.state_dict())
    rows = list[Row]()
    for count in given.tokens or ((8, 48) if given.tiny else TOKENS):
        x = torch.randn(count, sizes.hidden, device=device, dtype=torch.bfloat16, requires_grad=True)
        gradient = torch.randn_like(x)
        ways = {"torch": passes(theirs, x, gradient), "ours": passes(ours, x, gradient)}
        outputs, slopes = {}, {}
        for name, layer in (("torch", theirs), ("ours", ours)):
            outputs[name] = ways[name]["forward"]()
            ways[name]["forward and backward"]()
            slopes[name] = [x.grad, layer.gate_up.grad, layer.down.grad]
        both = zip(slopes["ours"], slopes["torch"], strict=True)
        apart = max(difference(outputs["ours"], outputs["torch"]), *(difference(*pair) for pair in both))
        for part in ways["torch"]:
            row: Row = {"tokens": count, "pass": part, "relative difference": apart}
            if hopper():
                taken = milliseconds({name: way[part] for name, way in ways.items()}, device)
                row |= {"torch ms": taken["torch"], "ours": taken["torch"] / taken["ours"]}
            rows.append(row)
        progress.step(f"{count} tokens")
    over = "over torch" if hopper() else UNCOMPARED
    show(
        f"{sizes.experts} experts of {sizes.hidden} x {sizes.inner}, {sizes.chosen} a token, on {device}, {over}",
        rows,
        given.out,
    )
    return rows


if __name__ == "__main__":
    main()
