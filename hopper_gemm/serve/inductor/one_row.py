"""One row in a program that Inductor compiles with ``max-autotune``: it multiplies such a row in a reduction that it
fuses with what is around. A layer of Llama-3-8B of one token, whose products are ours, was 2 to 4 % behind that
(docs/models.md), so that our operators then decompose into torch's. In other modes Inductor calls cuBLAS for a row, and
our operators stay.

It stands on interfaces that torch does not document.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch._inductor import config, decomposition
from torch.fx.experimental.symbolic_shapes import statically_known_true

from hopper_gemm.serve.call import Call, output_of
from hopper_gemm.serve.fallback import POLICY
from hopper_gemm.serve.reference import finished

NAMES = ("mm", "linear", "swiglu")


@cache
def offer() -> None:
    """Let Inductor decompose our operators, from the next compilation on."""
    from hopper_gemm.serve.ops import BY_NAME, call_of

    def decomposed(name: str, *given: Any, **named: Any) -> Any:
        call = call_of(name, *given, **named)
        return by_inductor(call) if is_left(call) else NotImplemented

    decomposition.decompositions.update({BY_NAME[name]: partial(decomposed, name) for name in NAMES})
    decomposition.fast_random_decomps.cache_clear()


def is_left(call: Call) -> bool:
    """Return True for a call of one row that Inductor multiplies in a reduction; it asks the same of its own products.
    An output of another type stays ours: torch's product would be rounded before. So does what is batch-invariant, and
    all that may not fall back."""
    if not config.coordinate_descent_tuning or call.a.device.type != "cuda" or POLICY.fallback == "never":
        return False
    one_row = all(statically_known_true(size == 1) for size in call.a.shape[:-1])
    return one_row and not call.batch_invariant and output_of(call)[1] == call.a.dtype


def by_inductor(call: Call) -> torch.Tensor:
    """A call of one row by operators that Inductor decomposes and fuses."""
    if call.kind == "mm":
        return torch.mm(call.a, call.b)
    return finished(torch.nn.functional.linear(call.a, call.b), call)
