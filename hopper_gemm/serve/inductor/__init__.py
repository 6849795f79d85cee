"""``hopper_gemm.inductor``: let torch.compile's Inductor use our kernel, in this process.

**Products** (:mod:`hopper_gemm.serve.inductor.products`). Inductor times our kernel beside its own choices and takes it
where it is faster by more than 2 %; its name in Inductor's log (``TORCH_LOGS="+inductor"``) is ``hopper_gemm_mm``, with
a bias ``hopper_gemm_addmm``. ``mm`` is offered from torch 2.9 on; ``addmm``, a linear layer with a bias, from torch
2.12 on. A bias of n elements, with no factor, is added in our epilogue, in fp32 before the one rounding.

**Activations** (:mod:`hopper_gemm.serve.inductor.folding`). gelu, gelu_tanh, silu or relu that follows our own operator
runs in the kernel's epilogue, where

* the graph holds ``torch.ops.hopper_gemm.mm`` or ``linear``, as :func:`hopper_gemm.matmul`, :func:`hopper_gemm.linear`
  and patched models trace to, on a Hopper GPU. A product that Inductor takes from us among its choices is not folded:
  it is chosen after the graph is fixed;
* nothing else reads the product, not even a backward pass: that of gelu and silu does, that of relu does not;
* n and k are multiples of 8, since the kernel finishes no others in one launch.

The values change: a product that is not folded is rounded before its activation. One that is folded gives the
activation its fp32 sums, and is rounded once.

Products of batches (``bmm``) are not offered. Shapes may be static or dynamic; Inductor times a dynamic size at its
hint, once. All of it stands on interfaces that torch does not document. Tested on a CPU: on a GPU nothing of it was
measured, and neither the bias nor an activation was run there.
"""

from __future__ import annotations

from hopper_gemm.serve.inductor import products


def enable() -> None:
    """Offer our products to Inductor and fold activations into our operators, from the next compilation on. Calling it
    again changes nothing.

    Raises:
        RuntimeError: this torch has no such interface.

    Example:
        >>> hopper_gemm.inductor.enable()                                        # doctest: +SKIP
        >>> layer = torch.compile(layer, mode="max-autotune-no-cudagraphs")      # doctest: +SKIP
    """
    products.offer()
    from hopper_gemm.serve.inductor import folding  # imports Inductor

    folding.start()


def disable() -> None:
    """Withdraw our products and stop folding; compiled graphs stay."""
    from hopper_gemm.serve.inductor import folding

    folding.stop()
    products.withdraw()
