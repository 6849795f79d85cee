"""A small transformer trained for 200 steps on the bytes of hopper_gemm's sources, by torch and patched, from the same
weights and batches: two loss curves, and the time of a step.

    python examples/train.py            # on a Hopper GPU
    python examples/train.py --tiny     # anywhere, to see that it runs
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import progress
import torch
from decoder import TINY, Decoder, DecoderConfig
from side_by_side import UNCOMPARED, Row, device_for, hopper, milliseconds, show
from torch.nn import functional

import hopper_gemm

SMALL = DecoderConfig(1024, 2816, 8, 16, 16, 256, tie_word_embeddings=True)


def text() -> torch.Tensor:
    """The bytes of the package's sources."""
    files = sorted(Path(hopper_gemm.__file__).parent.rglob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).long()


def stepper(model: Decoder, batches: torch.Tensor, device: str) -> Callable[[int], float]:
    """A function that trains a model on the batch of a number and returns the loss; weights are fp32, products bf16."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def step(number: int) -> float:
        tokens = batches[number]
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def main(arguments: Sequence[str] | None = None) -> list[Row]:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--tiny", action="store_true", help="a small model, on the CPU where there is no GPU")
    asked.add_argument("--steps", type=int, help="of the training; 200, or 20 with --tiny")
    asked.add_argument("--out", type=Path, help="file to which the tables are appended, a line of JSON each")
    given = asked.parse_args(arguments)
    given.steps = given.steps or (20 if given.tiny else 200)
    device = device_for(given.tiny)
    config = DecoderConfig.of({**vars(TINY), "vocab_size": 256}) if given.tiny else SMALL
    batch, length = (4, 32) if given.tiny else (16, 512)
    torch.manual_seed(0)
    data = text()
    starts = torch.randint(len(data) - length - 1, (given.steps + 1, batch))
    batches = torch.stack([torch.stack([data[at : at + length + 1] for at in row]) for row in starts]).to(device)
    theirs = Decoder(config).to(device)
    ours = copy.deepcopy(theirs)
    print(hopper_gemm.patch(ours))
    steps = {"torch": stepper(theirs, batches, device), "ours": stepper(ours, batches, device)}
    rows = []
    for number in range(given.steps):
        losses = {name: step(number) for name, step in steps.items()}
        if number % max(1, given.steps // 10) == 0 or number == given.steps - 1:
            rows.append({"step": number, **losses, "difference": losses["ours"] - losses["torch"]})
            progress.step(f"step {number} of {given.steps}")
    show("Loss, nats a byte", rows, given.out)
    if not hopper():
        print(f"\n{UNCOMPARED}")
        return rows
    timed = {name: lambda step=step: step(given.steps) for name, step in steps.items()}
    taken = milliseconds(timed, device, rounds=3 if given.tiny else 20)
    show(
        f"A step of {batch * length} bytes on {device}",
        [{**taken, "speedup": taken["torch"] / taken["ours"]}],
        given.out,
    )
    return rows


if __name__ == "__main__":
    with hopper_gemm.while_compiling("wait"):
        main()
