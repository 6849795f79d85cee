"""A kernel that runs on the CPU, right or with a mistake."""

from __future__ import annotations

import torch

from tests.verify.judge import product


class Kernel:
    """``out = a @ b.T``, with one mistake."""

    def __init__(self, mistake: str = "") -> None:
        self.mistake, self.launches = mistake, 0

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        self.launches += 1
        result = product(a, b)
        if self.mistake == "flush":
            result = product(torch.where(a.abs() < 2.0**-14, 0.0, a), b)
        elif self.mistake == "saturate":
            result = result.nan_to_num(nan=float("nan"), posinf=1e4, neginf=-1e4)
        elif self.mistake == "drop NaN":
            result = result.nan_to_num(nan=0.0, posinf=float("inf"), neginf=float("-inf"))
        out.copy_(result)
        if self.mistake == "one off":
            out[-1, -1] += 2
        elif self.mistake == "unwritten":
            out[0, 0] = float("nan")
        elif self.mistake == "row lost":
            out[-1] = 0.0
        elif self.mistake == "outside" and out._base is not None:
            out._base[0, 0] = 1.0
        elif self.mistake == "operand":
            a[0, 0] += 1.0
        elif self.mistake == "third run" and self.launches == 3:
            out.view(torch.int16)[0, 0] ^= 1
