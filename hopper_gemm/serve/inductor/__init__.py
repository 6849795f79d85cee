"""``hopper_gemm.inductor``: let torch.compile's Inductor use our kernel, in this process.

Inductor times our products (:mod:`hopper_gemm.serve.inductor.products`) beside its own choices and takes them where
they are faster by more than 2 %; its log (``TORCH_LOGS="+inductor"``) calls them ``hopper_gemm_mm`` and, with a bias,
``hopper_gemm_addmm``. Shapes may be dynamic; Inductor times a dynamic size at its hint, once. ``bmm`` is not offered.

gelu, gelu_tanh, silu or relu that follows our own operator runs in the kernel's epilogue
(:mod:`hopper_gemm.serve.inductor.folding`), where nothing else reads the product, n and k are multiples of 8, and the
device is a Hopper GPU. The activation then gets the fp32 sums, rounded once, instead of the rounded product.

All of it stands on interfaces that torch does not document.
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
