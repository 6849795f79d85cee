"""A decode whose logits do not change with the batch: a sequence alone, and the same sequence among others.

Linear layers are batch-invariant by ``hopper_gemm.patch(model, batch_invariant=True)``. Norms and attention of this
example are written in elementwise steps, which add in a fixed order: slow, and the same bits for any batch. What other
norms and attentions give is their own business.

    python examples/invariant_decode.py            # on a Hopper GPU
    python examples/invariant_decode.py --tiny     # anywhere, to see that it runs; without one by torch alone
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import progress
import torch
from decoder import TINY, Cache, Decoder, DecoderConfig
from side_by_side import Row, device_for, hopper, show

import hopper_gemm

SMALL = DecoderConfig(1024, 2816, 4, 16, 8, 32000)


def tree_sum(x: torch.Tensor, axis: int) -> torch.Tensor:
    """The sum along an axis by halves: additions of elements alone, in an order that its length fixes."""
    x = x.movedim(axis, -1)
    while (size := x.shape[-1]) > 1:
        half = size // 2
        pairs = x[..., :half] + x[..., half : 2 * half]
        x = torch.cat((pairs, x[..., 2 * half :]), dim=-1) if size % 2 else pairs
    return x[..., 0]


def fixed_norm(x: torch.Tensor, sides: tuple[int], weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """``torch.nn.functional.rms_norm`` with a sum of fixed order."""
    wide = x.float()
    mean = tree_sum(wide * wide, -1)[..., None] / sides[0]
    return (wide * torch.rsqrt(mean + epsilon)).to(x.dtype) * weight


def fixed_attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention of one token of each sequence over keys and values of fewer heads, with sums of fixed order."""
    group = q.shape[1] // keys.shape[1]
    keys, values = (one.float().repeat_interleave(group, dim=1) for one in (keys, values))
    scores = tree_sum(q.float() * keys, -1) * q.shape[-1] ** -0.5
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    mixed = tree_sum(weights[..., None] * values, 2) / tree_sum(weights, -1)[..., None]
    return mixed[:, :, None].to(q.dtype)


class FixedDecoder(Decoder):
    """A decoder of which only the linear layers could make a row depend on others."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        for layer in self.layers:
            layer.norm, layer.attend = fixed_norm, fixed_attention

    def forward(self, tokens: torch.Tensor, caches: list[Cache] | None = None) -> torch.Tensor:
        x = self.embedding(tokens)
        for number, layer in enumerate(self.layers):
            x = layer(x, caches[number] if caches else None)
        return self.head(fixed_norm(x, (self.config.hidden_size,), self.final, self.config.rms_norm_eps))


def decoded(model: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    """Logits (batch, length, vocabulary) of sequences, token by token."""
    caches = [Cache(model.config, len(tokens), tokens.shape[1], model.head.weight) for _ in model.layers]
    steps = []
    for at in range(tokens.shape[1]):
        steps.append(model(tokens[:, at : at + 1], caches))
        for cache in caches:
            cache.used += 1
    return torch.cat(steps, dim=1)


@torch.no_grad()
def main(arguments: Sequence[str] | None = None) -> list[Row]:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--tiny", action="store_true", help="a small model, on the CPU where there is no GPU")
    asked.add_argument("--out", type=Path, help="file to which the tables are appended, a line of JSON each")
    given = asked.parse_args(arguments)
    config, device = TINY if given.tiny else SMALL, device_for(given.tiny)
    batches, length = ((1, 2, 5), 6) if given.tiny else ((1, 7, 64, 200), 32)
    torch.manual_seed(0)
    model = FixedDecoder(config).to(device, torch.bfloat16)
    tokens = torch.randint(config.vocab_size, (max(batches), length), device=device)
    rows: list[Row] = []
    for name in ("torch", "ours") if hopper() else ("torch",):  # elsewhere no product is batch-invariant
        done = hopper_gemm.patch(model, batch_invariant=True) if name == "ours" else None
        alone = decoded(model, tokens[:1])[0]
        for batch in batches[1:]:
            among = decoded(model, tokens[:batch])[0]
            changed = int((among != alone).sum())
            apart = float((among.float() - alone.float()).abs().max())
            rows.append({"products": name, "batch": batch, "logits changed": changed, "largest difference": apart})
            progress.step(f"{name}, among {batch}")
        if done is not None:
            print(done)
            done.undo()
    without = "" if hopper() else "; ours need a Hopper GPU"
    show(f"{alone.numel()} logits of one sequence on {device}: among others against alone{without}", rows, given.out)
    return rows


if __name__ == "__main__":
    main()
