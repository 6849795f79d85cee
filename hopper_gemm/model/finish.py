"""The finish of a product: what the epilogue does to the fp32 accumulators before the one rounding.

A finish is data, apart from the kernel's parameters: any config that the rules allow takes any finish, and a plain
product has none. Everything that an activation needs stands in :data:`ACTIVATIONS`: its arithmetic on the GPU, and the
functions of torch that compute it and its gradient elsewhere. A further activation is one more entry there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import e as EULER
from math import log2, pi
from typing import TYPE_CHECKING, Any, Literal

from hopper_gemm.model.problem import shown

if TYPE_CHECKING:
    from hopper_gemm.model.kernel import Kernel


@dataclass(frozen=True)
class Activation:
    """A function of one number, applied to each element."""

    # the function in fp32: of a number, of the functions of which it is made (exp2, reciprocal, absolute and positive,
    # which is 0 for a negative number), and of the name of the output's type, to which the result is rounded afterwards
    value: Callable[[Any, Any, str], Any]
    function: str  # its name in torch.ops.aten
    gradient: str  # name of its gradient there, called as gradient(incoming, argument, **constants)
    options: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of the function
    constants: Mapping[str, Any] = field(default_factory=dict)


def _times_sigmoid(z: Any, exponent: Any, math: Any) -> Any:
    """z / (1 + 2^exponent). Not by tanh, which takes one function of the special unit instead of two: the GPU's is off
    by up to 2^-11, so that of 1 + tanh no digit is left where z is -6."""
    return z * math.reciprocal(math.exp2(exponent) + 1.0)


TAIL = {
    "bf16": (-2.3325135e-4, 4.869774e-3, -4.459901e-2, -0.4696811, -1.1462607, -1.000359),
    "fp16": (
        *(-1.8348143e-6, 6.159836e-5, -9.3052536e-4, 8.507893e-3, -5.3960074e-2),
        *(-0.45846438, -1.1512511, -0.9999953),
    ),
    "fp32": (
        *(-8.442906e-9, 3.0120463e-7, -4.5311504e-6, 3.5649315e-5, -1.2466336e-4, -3.6091896e-4),
        *(7.453405e-3, -5.284556e-2, -0.45905843, -1.1511292, -0.99999934),
    ),
}
"""Coefficients, highest power first, of polynomials in u for log2 of the normal distribution's tail beyond u, by type
of the output. Minimax: the tail is off by 2^-12, 2^-18 and 2^-21 of itself for u up to 5.5, 6 and 6.5, an eighth of
half a unit of bf16, a sixty-fourth of half a unit of fp16. Farther out the leading coefficients, negative all, let it
vanish: gelu is off by less than 1e-10 there."""


def _gelu(z: Any, math: Any, out: str) -> Any:
    """z * P(normal < z), by the tail beyond abs(z): no difference of nearly equal numbers. Of an infinity NaN.

    The relative error is that of :data:`TAIL`, and in fp32 the rounding of the exponent: 4e-6 where z is -6, of the
    order of what the rounding of z itself makes of it."""
    size, (first, second, *others) = math.absolute(z), TAIL[out]
    exponent = size * first + second
    for coefficient in others:
        exponent = exponent * size + coefficient
    return math.positive(z) - size * math.exp2(exponent)


def _gelu_tanh(z: Any, math: Any, out: str) -> Any:
    """0.5 * z * (1 + tanh(y)) = z * sigmoid(2 * y), y = sqrt(2 / pi) * (z + 0.044715 * z^3)."""
    scale = -log2(EULER) * (8 / pi) ** 0.5
    return _times_sigmoid(z, z * (z * z * (0.044715 * scale) + scale), math)


def _silu(z: Any, math: Any, out: str) -> Any:
    """z * sigmoid(z)."""
    return _times_sigmoid(z, z * -log2(EULER), math)


ActivationName = Literal["gelu", "gelu_tanh", "silu", "relu"]

ACTIVATIONS: dict[str, Activation] = {
    "gelu": Activation(_gelu, "gelu", "gelu_backward"),
    "gelu_tanh": Activation(_gelu_tanh, "gelu", "gelu_backward", {"approximate": "tanh"}, {"approximate": "tanh"}),
    "silu": Activation(_silu, "silu", "silu_backward"),
    "relu": Activation(lambda z, math, out: math.positive(z), "relu", "threshold_backward", {}, {"threshold": 0}),
}

SCALES = ("", "tensor", "row", "blocks")  # of FP8 operands


@dataclass(frozen=True)
class Epilogue:
    """The steps of a finish, in their order; a step that is absent costs nothing.

    Args:
        scale: multiply the product by a number of the launch.
        bias: add a vector, one element a column of C.
        activation: of :data:`ACTIVATIONS`, or empty.
        residual: add a matrix of C's shape and type.
        scales: multiply each element by scales of FP8 operands: ``"tensor"``, one of each operand; ``"row"``, one of
            each row of A and of each column of B; ``"blocks"``, one of each 1x128 of A and of each 128x128 of B, where
            sums are promoted each 128 of k; or empty.
        gated: the product's columns are two halves, gate and up; C = activation(gate) * up has half the columns.

    Raises:
        ValueError: an activation or scales that are not known.

    Example:
        >>> str(Epilogue(bias=True, activation="gelu"))
        'bias+gelu'
    """

    scale: bool = False
    bias: bool = False
    activation: str = ""
    residual: bool = False
    gated: bool = False
    scales: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.activation, str) or (self.activation and self.activation not in ACTIVATIONS):
            names = ", ".join(ACTIVATIONS)
            raise ValueError(f"activation must be None or one of {names} but got {shown(self.activation)}")
        if self.scales not in SCALES:
            raise ValueError(f"scales must be one of {', '.join(map(repr, SCALES))} but got {shown(self.scales)}")
        for name in ("scale", "bias", "residual", "gated"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False but got {shown(getattr(self, name))}; give a bool")

    @property
    def scaled_alone(self) -> bool:
        """True if an activation follows a scale, and nothing is read. The compiler then begins with many elements at
        once, more than there are registers; see :class:`hopper_gemm.kernel.consumer.Mainloop`."""
        return self.scale and bool(self.activation) and not (self.bias or self.residual)

    @staticmethod
    def of(*, scale: bool, bias: bool, activation: str | None, residual: bool) -> Epilogue | None:
        """The finish with these steps; None without any."""
        finish = Epilogue(scale, bias, activation or "", residual)
        return finish if str(finish) else None

    def __str__(self) -> str:
        activation = f"{self.activation}*up" if self.gated else self.activation
        scales = f"scales by {self.scales}" if self.scales else ""
        steps = (scales, "scale" * self.scale, "bias" * self.bias, activation, "residual" * self.residual)
        return "+".join(step for step in steps if step)


# wgmma k-blocks by which one consumer ends a tile before the other, at most: where loads limit a launch, the second
# would end its last tile late by more than it gains
ORDERED_BLOCKS = 12


def ordered_stages(kernel: Kernel) -> int:
    """The last stages of a tile that the first of two consumers multiplies before the second, so that one finishes
    while the other multiplies; 0 where consumers do not share tiles by twos, or add up parts of them."""
    if kernel.readers != 2 or kernel.ctas_per_sm > 1 or kernel.split_k > 1 or kernel.staging == "ring":
        return 0
    return min(kernel.stages - kernel.stagger, -(-ORDERED_BLOCKS // kernel.k_depth))
