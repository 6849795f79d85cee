"""Gradients of eager calls, recorded by ``torch.autograd.Function``: an operator that Python implements costs several
times a launch in the dispatcher. Operators remain for all that looks at them (:func:`recordable`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import new_class
from typing import Any

import torch

from hopper_gemm.serve.checks import DTYPES, PLAIN


def recordable(*tensors: torch.Tensor | None) -> bool:
    """Return True if a call with gradients needs no operator: plain tensors of a supported type, and nothing that
    looks at operators, such as torch.func's transforms, fake tensors, or selective checkpointing.
    """
    if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
        return False
    for one in tensors:  # quicker than a generator
        if one is not None and (type(one) not in PLAIN or one.dtype not in DTYPES or one.layout is not torch.strided):
            return False
    return True


def recording(
    name: str,
    run: Callable[..., torch.Tensor],
    save: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[..., tuple[Any, ...]],
) -> Callable[..., torch.Tensor]:
    """Return ``run`` with a gradient.

    Args:
        name: of the node in autograd's graph, as profilers show it.
        run: multiplies; it is called where no gradient is recorded.
        save: keeps what the gradient needs of a context, the arguments, and the result (here None).
        backward: takes the context and the result's gradient, and returns one gradient, or None, for each argument.
    """

    def forward(ctx: Any, *given: Any) -> torch.Tensor:
        save(ctx, given, None)
        out = run(*given)
        # a caller could not change a view in place
        return torch.ops.aten._unsafe_view(out, out.shape) if out._is_view() else out

    methods: dict[str, Any] = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    made: Any = new_class(name, (torch.autograd.Function,), exec_body=lambda body: body.update(methods))
    return made.apply
