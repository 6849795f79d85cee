"""Every parameter that a config of any kind has: the columns of a row, the axes of a space.

The kernel's own parameters are those of :class:`GemmConfig`; a package above the autotuner may add a kind of config
that has more (:mod:`hopper_gemm.tune.registry`). Of equal configs of two kinds the narrower stands for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from hopper_gemm.compiler.store import source_digest
from hopper_gemm.model.config import GemmConfig, parameters_of
from hopper_gemm.model.kernel import KINDS, Kernel, resolve
from hopper_gemm.tune.registry import load

load()

WIDEST: type[GemmConfig] = max(KINDS, key=lambda kind: len(fields(kind)))
"""The kind of config that has every parameter."""

PARAMETERS = parameters_of(WIDEST)  # type: ignore[arg-type]
"""Declaration of each parameter, the kernel's first."""

FIELDS = tuple(PARAMETERS)
"""Every parameter's name."""

DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(WIDEST)}
"""Values in rows that were recorded before there was the parameter, too."""


LAUNCH_FIELDS = tuple(name for name, parameter in PARAMETERS.items() if parameter.launch)
"""Parameters that are arguments of the launch: changing them recompiles nothing."""

HOST_FIELDS = tuple(name for name, parameter in PARAMETERS.items() if parameter.launch or parameter.host)
"""Parameters that may leave the machine code as it is."""


def config_of(values: Mapping[str, Any]) -> GemmConfig:
    """Return a config from values by name, of the narrowest kind that has them; see :meth:`GemmConfig.of`.

    Example:
        >>> type(config_of({"tile_m": 128, "skew": 0})).__name__, type(config_of({"skew": 2})).__name__
        ('GemmConfig', 'LadderConfig')
    """
    return WIDEST.of(values).narrowed()


def kernel_of(values: Mapping[str, Any]) -> Kernel:
    """Return the kernel of :func:`config_of` values: what a row or a rung names."""
    return resolve(config_of(values))


def kind_of(axes: Mapping[str, list[Any]]) -> type[GemmConfig]:
    """Return the narrowest kind of config that has all parameters of a grid, and all their values."""
    own = parameters_of(GemmConfig)
    wide = [name for name in axes if name in PARAMETERS and name not in own]
    wide += [name for name in axes if name in own and any(own[name].mistake(value) is not None for value in axes[name])]
    return WIDEST if wide else GemmConfig


def all_values(config: GemmConfig) -> dict[str, Any]:
    """Return every parameter of a config by name; those that its kind lacks at their defaults."""
    return {name: getattr(config, name) if hasattr(config, name) else DEFAULTS[name] for name in FIELDS}


@cache
def kernel_digest() -> str:
    """Return the digest of the sources of all kinds of kernel, which names the kernel in the provenance of rows."""
    return source_digest(*(builder for kind in KINDS if isinstance(builder := kind.builder, str)))
