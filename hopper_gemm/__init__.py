"""Fast matrix multiplication on NVIDIA Hopper GPUs, and knowing why it is fast.

>>> import torch, hopper_gemm               # doctest: +SKIP
>>> c = hopper_gemm.matmul(a, b)            # doctest: +SKIP
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.finish import Epilogue
from hopper_gemm.model.problem import GemmProblem

if TYPE_CHECKING:
    from hopper_gemm.model.lookup import use_table
    from hopper_gemm.serve import inductor
    from hopper_gemm.serve.background import compiling
    from hopper_gemm.serve.bmm import baddbmm, bmm
    from hopper_gemm.serve.fallback import fallback, while_compiling
    from hopper_gemm.serve.grouped_mm import grouped_mm, grouped_swiglu
    from hopper_gemm.serve.kernels import batch_invariant, chained, checked_offsets
    from hopper_gemm.serve.linear import linear, swiglu
    from hopper_gemm.serve.matmul import matmul
    from hopper_gemm.serve.patch import patch
    from hopper_gemm.serve.prebuild import prebuild
    from hopper_gemm.serve.scaled import scaled_mm
    from hopper_gemm.serve.scaled_grouped_mm import scaled_grouped_mm
    from hopper_gemm.tune.autotune import autotune
    from hopper_gemm.tune.measure.paired import bench
    from hopper_gemm.tune.warmup import warmup

__all__ = [
    "Epilogue",
    "GemmConfig",
    "GemmProblem",
    "autotune",
    "baddbmm",
    "batch_invariant",
    "bench",
    "bmm",
    "chained",
    "checked_offsets",
    "compiling",
    "fallback",
    "grouped_mm",
    "grouped_swiglu",
    "inductor",
    "linear",
    "matmul",
    "patch",
    "prebuild",
    "scaled_grouped_mm",
    "scaled_mm",
    "swiglu",
    "use_table",
    "warmup",
    "while_compiling",
]

_SERVED = {
    "model.lookup": ("use_table",),
    "serve.prebuild": ("prebuild",),
    "tune.warmup": ("warmup",),
    "serve.background": ("compiling",),
    "serve.bmm": ("baddbmm", "bmm"),
    "serve.fallback": ("fallback", "while_compiling"),
    "serve.grouped_mm": ("grouped_mm", "grouped_swiglu"),
    "serve.inductor": ("inductor",),
    "serve.kernels": ("batch_invariant", "chained", "checked_offsets"),
    "serve.linear": ("linear", "swiglu"),
    "serve.matmul": ("matmul",),
    "serve.patch": ("patch",),
    "serve.scaled": ("scaled_mm",),
    "serve.scaled_grouped_mm": ("scaled_grouped_mm",),
    "tune.autotune": ("autotune",),
    "tune.measure.paired": ("bench",),
}
"""Names by their module, which is imported at first use, since some bring torch and the DSL along."""


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("hopper-gemm")
    if name == "Finish":
        warnings.warn("hopper_gemm.Finish is hopper_gemm.Epilogue", DeprecationWarning, stacklevel=2)
        return Epilogue
    for path, names in _SERVED.items():
        if name not in names:
            continue
        try:
            module = import_module(f"hopper_gemm.{path}")
        except ModuleNotFoundError as error:
            if not path.startswith("tune"):
                raise
            raise ModuleNotFoundError(
                f"hopper_gemm.{name} needs {error.name}, which is missing; pip install 'hopper-gemm[tune]'"
            ) from error
        value = globals()[name] = getattr(module, name, module)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
