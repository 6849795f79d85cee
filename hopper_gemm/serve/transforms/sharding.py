"""Placements of DTensors with which an operator multiplies the shards of each process alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

MODULE = "torch.distributed.tensor"
"""Module of DTensors. It takes seconds to load; programs that use DTensors have loaded it."""

STATIC = 2
"""Arguments of an operator from which on DTensor's cache of placements looks at values: all that are no operands."""


def placements(name: str, call: Any) -> list[tuple[Any, ...]]:
    """Placements of the output, a, b, bias and residual along an axis of a mesh: whole, or by rows, batches, columns
    or the depth, of which each process has a part of every sum."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    layer, last, whole = name in ("linear", "swiglu"), call.a.ndim - 1, Replicate()
    rows = range(last) if layer else range(last - 1, last)
    fit: list[tuple[Any, ...]] = [(whole,) * 5, *[(Shard(at), Shard(at), whole, whole, Shard(at)) for at in rows]]
    if name == "bmm":
        fit.append((Shard(0), Shard(0), Shard(0) if call.b.ndim == 3 else whole, whole, whole))
    if name != "swiglu":  # a block of whose rows is of the gate or of up, not of both
        depth, columns = (1, 0) if layer else (call.b.ndim - 2, call.b.ndim - 1)
        fit.append((Shard(last), whole, Shard(columns), Shard(0), Shard(last)))
        if not call.activation:
            fit.append((Partial(), Shard(last), Shard(depth), Partial(), Partial()))
    return fit


def register(operators: dict[str, Any], arguments: dict[str, tuple[str, ...]], call_of: Callable[..., Any]) -> None:
    """Register the placements of operators of these arguments, once torch has loaded its DTensors."""
    if MODULE not in sys.modules:
        return
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
    from torch.distributed.tensor.experimental import register_sharding

    schemas = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    columns = {"a": 1, "b": 2, "bias": 3, "residual": 4}  # of a row of placements; 0 is the output

    def sharding(name: str, *given: Any) -> list[tuple[list[Any], list[Any]]]:
        fields = list(zip(arguments[name], given, strict=False))
        numbers = [columns.get(field) if value is not None else None for field, value in fields]
        rows = placements(name, call_of(name, *given))
        return [([row[0]], [None if number is None else row[number] for number in numbers]) for row in rows]

    for name, operator in operators.items():
        if operator not in schemas:
            register_sharding(operator)(partial(sharding, name))
            # register_sharding has the cache look at integers alone, and not at an activation
            schemas[operator] = RuntimeSchemaInfo(STATIC, needs_pytree=True)
