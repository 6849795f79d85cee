"""A plug-in of vLLM: its unquantised linear layers, and its FP8 ones where that is asked, multiply by hopper_gemm.

Installed beside vLLM it is loaded by every process of a server. A layer is routed where :func:`hopper_gemm.patch` would
replace a ``torch.nn.Linear`` of its weight: by its entries in the tuned tables, else by the model's pick. With
``VLLM_BATCH_INVARIANT`` every layer is routed that can be, batch-invariant; the others stay vLLM's own batch-invariant
products. Options stand in vLLM's ``additional_config``::

    LLM(..., additional_config={"hopper_gemm": {"fp8": True, "anywhere": False}})

``fp8``: FP8 layers with scales by tensor, or by token and output channel, too. ``anywhere``: also without a Hopper GPU,
where torch multiplies; for tests. Experts, embeddings and the output layer stay vLLM's. It was run in an engine on a
CPU, never in a server with a GPU.
"""

from __future__ import annotations

from typing import Any

import torch

import hopper_gemm

DECIDED: list[tuple[tuple[int, ...], bool, str]] = []
"""Of each unquantised layer of this process: the shape of its weight, whether it is routed, and why."""


def register() -> None:
    """Route layers from now on. vLLM calls it in each process, more than once in some."""
    from vllm.model_executor.kernels import linear as kernels
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod as Method
    from vllm.platforms import PlatformEnum

    if hasattr(Method, "hopper_gemm"):
        return
    Method.hopper_gemm, process, apply = True, Method.process_weights_after_loading, Method.apply

    def process_weights_after_loading(self: Any, layer: torch.nn.Module) -> None:
        if not route(layer):
            process(self, layer)

    def apply_linear(self: Any, layer: torch.nn.Module, x: torch.Tensor, bias: Any = None) -> torch.Tensor:
        weight = getattr(layer, "hopper_gemm_weight", None)
        if weight is None:
            return apply(self, layer, x, bias)
        return hopper_gemm.linear(x, weight, bias, batch_invariant=layer.hopper_gemm_invariant)

    Method.process_weights_after_loading, Method.apply = process_weights_after_loading, apply_linear
    for platform in (PlatformEnum.CUDA, PlatformEnum.CPU):
        kernels._POSSIBLE_FP8_KERNELS[platform].insert(0, fp8_kernel())  # register_linear_kernel would add it last


def options() -> dict[str, Any]:
    """Those of the engine that is being made."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    return dict((config.additional_config or {}).get("hopper_gemm", {})) if config is not None else {}


def able(device: torch.device) -> bool:
    """Return True if layers on a device may be routed."""
    on_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
    return on_hopper or bool(options().get("anywhere"))


def route(layer: torch.nn.Module) -> bool:
    """Decide on a layer whose weight (n, k) is loaded. A routed one reads its weight, of vLLM's own class, as a plain
    tensor in the same memory."""
    import vllm.envs

    weight = layer.weight.data
    invariant = bool(vllm.envs.VLLM_BATCH_INVARIANT) and weight.is_cuda
    if weight.dim() != 2 or not able(weight.device):
        return False
    probe = torch.nn.Linear(1, 1, bias=False)
    probe.weight = torch.nn.Parameter(weight, requires_grad=False)
    try:
        (decided,) = hopper_gemm.patch(probe, batch_invariant=invariant).layers
        replaced, why = decided.replaced, decided.why
    except ValueError as error:  # batch-invariant, and it cannot be
        replaced, why = False, str(error)
    DECIDED.append((tuple(weight.shape), replaced, why))
    if replaced:
        layer.hopper_gemm_weight, layer.hopper_gemm_invariant = weight, invariant or None
    return replaced


def fp8_kernel() -> type:
    """The class of our kernel for FP8 layers, for vLLM's choice among such."""
    from torch.nn.functional import ScalingType
    from vllm.model_executor.kernels.linear import FP8ScaledMMLinearKernel

    class HopperFp8Kernel(FP8ScaledMMLinearKernel):
        """Scales of both operands by tensor, or by row of the activations and by output channel."""

        @classmethod
        def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
            import vllm.envs

            if not options().get("fp8") or vllm.envs.VLLM_BATCH_INVARIANT:
                return False, 'additional_config lacks {"hopper_gemm": {"fp8": true}}, or products are batch-invariant'
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            return (True, None) if able(device) else (False, "needs a Hopper GPU")

        @classmethod
        def can_implement(cls, config: Any) -> tuple[bool, str | None]:
            if any(size % 16 for size in config.weight_shape):
                return False, f"n and k must be multiples of 16 but are {config.weight_shape}"
            rows, channels = (key.scale.group_shape for key in (config.activation_quant_key, config.weight_quant_key))
            by_row = rows.is_per_token() and channels.is_per_channel()
            by_tensor = rows.is_per_tensor() and channels.is_per_tensor()
            return (True, None) if by_row or by_tensor else (False, "scales must be by tensor, or by token and channel")

        def apply_scaled_mm(
            self, *, A: Any, B: Any, out_dtype: Any, As: Any, Bs: Any, bias: Any, output_shape: Any
        ) -> torch.Tensor:
            by_row = self.config.weight_quant_key.scale.group_shape.is_per_channel()
            recipe = ScalingType.RowWise if by_row else ScalingType.TensorWise
            scales = (As.reshape(-1, 1), Bs.reshape(1, -1)) if by_row else (As.reshape(1), Bs.reshape(1))
            product = hopper_gemm.scaled_mm(
                A, B, scales[0], recipe, scales[1], recipe, bias=bias, output_dtype=out_dtype, use_fast_accum=True
            )
            return product.view(*output_shape)

    return HopperFp8Kernel
