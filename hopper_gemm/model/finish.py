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
from typing import Any


@dataclass(frozen=True)
class Activation:
    """A function of one number, applied to each element.

    Args:
        value: the function in fp32, of a number and of the functions of which it is made: ``exp2``, ``reciprocal``,
            ``absolute`` and ``positive``, which is 0 for a negative number.
        function, options: the same as a name in ``torch.ops.aten``, with its keyword arguments.
        gradient, constants: name of its gradient there, called as ``gradient(incoming, argument, **constants)``.
    """

    value: Callable[[Any, Any], Any]
    function: str
    gradient: str
    options: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)


def _times_sigmoid(z: Any, argument: Any, math: Any) -> Any:
    """z * sigmoid(argument)."""
    return z * math.reciprocal(math.exp2(argument * -log2(EULER)) + 1.0)


TAIL = (
    *(0.04573285369037295, -0.2047509697546278, 0.27203906899134056, -0.03848104266420396),
    *(0.16068604796768157, 0.12862918475671636, 0.13614475596860826),
)
"""Coefficients, highest power first, of a polynomial without constant term in t = 1 / (1 + TAIL_SCALE * u): times
exp(-u * u / 2) it is the normal distribution's tail beyond u, with a relative error below 3e-7 for u up to 6.5."""

TAIL_SCALE = 0.34


def _gelu(z: Any, math: Any) -> Any:
    """z * P(normal < z), by the tail beyond abs(z): no difference of nearly equal numbers. Of an infinity NaN."""
    size = math.absolute(z)
    t = math.reciprocal(size * TAIL_SCALE + 1.0)
    tail = t * TAIL[0] + TAIL[1]
    for coefficient in TAIL[2:]:
        tail = tail * t + coefficient
    return math.positive(z) - size * (tail * t * math.exp2(z * z * (-log2(EULER) / 2)))


def _gelu_tanh(z: Any, math: Any) -> Any:
    """0.5 * z * (1 + tanh(y)) = z * sigmoid(2 * y), y = sqrt(2 / pi) * (z + 0.044715 * z^3)."""
    return _times_sigmoid(z, z * (z * z * (0.044715 * (8 / pi) ** 0.5) + (8 / pi) ** 0.5), math)


ACTIVATIONS: dict[str, Activation] = {
    "gelu": Activation(_gelu, "gelu", "gelu_backward"),
    "gelu_tanh": Activation(_gelu_tanh, "gelu", "gelu_backward", {"approximate": "tanh"}, {"approximate": "tanh"}),
    "silu": Activation(lambda z, math: _times_sigmoid(z, z, math), "silu", "silu_backward"),
    "relu": Activation(lambda z, math: math.positive(z), "relu", "threshold_backward", {}, {"threshold": 0}),
}
"""Activations by name."""


@dataclass(frozen=True)
class Finish:
    """The steps of a finish, in their order; a step that is absent costs nothing.

    Args:
        scale: multiply the product by a number of the launch.
        bias: add a vector, one element a column of C.
        activation: of :data:`ACTIVATIONS`, or empty.
        residual: add a matrix of C's shape and type.
        gated: the product's columns are two halves, gate and up; C = activation(gate) * up has half the columns.

    Raises:
        ValueError: an activation that is not known, or a gated finish with other steps or without an activation.

    Example:
        >>> str(Finish(bias=True, activation="gelu"))
        'bias+gelu'
    """

    scale: bool = False
    bias: bool = False
    activation: str = ""
    residual: bool = False
    gated: bool = False

    def __post_init__(self) -> None:
        if self.activation and self.activation not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise ValueError(f"activation must be None or one of {known} but got {self.activation!r}")
        if self.gated and (self.scale or self.bias or self.residual or not self.activation):
            raise ValueError(f"a gated finish must be an activation alone but is {self}; leave the other steps out")

    @staticmethod
    def of(*, scale: bool, bias: bool, activation: str | None, residual: bool) -> Finish | None:
        """The finish with these steps; None without any."""
        finish = Finish(scale, bias, activation or "", residual)
        return finish if str(finish) else None

    def __str__(self) -> str:
        activation = f"{self.activation}*up" if self.gated else self.activation
        steps = ("scale" * self.scale, "bias" * self.bias, activation, "residual" * self.residual)
        return "+".join(step for step in steps if step)
