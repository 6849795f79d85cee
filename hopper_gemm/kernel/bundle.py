"""Several device values passed as one: as an argument of a launch, or through the loops of a role."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Self

import cutlass
from cutlass.base_dsl.utils.mlir_value_tree import extract_mlir_attributes
from cutlass.cutlass_dsl import extract_mlir_values, new_from_mlir_values
from cutlass.experimental.cuda.tensor_map import TensorMap


class Bundle:
    """Base of frozen dataclasses whose fields are device values or constants of the compilation. Constants, None among
    them, stay as they are; a :class:`TensorMap` becomes a constant of the grid, as a TMA descriptor must."""

    def __extract_mlir_values__(self) -> list[Any]:
        parts = {one.name: _values(getattr(self, one.name)) for one in fields(self)}  # type: ignore[arg-type]
        # extraction may emit instructions: it must not be repeated just to count
        object.__setattr__(self, "_widths", {name: len(values) for name, values in parts.items() if values})
        return [value for values in parts.values() for value in values]

    def __extract_mlir_attributes__(self) -> list[Any]:
        widths: dict[str, int] = self._widths  # type: ignore[attr-defined]
        return [one for name in widths for one in _attributes(getattr(self, name))]

    def __new_from_mlir_values__(self, values: list[Any]) -> Self:
        widths: dict[str, int] = self._widths  # type: ignore[attr-defined]
        changed, at = {}, 0
        for name, width in widths.items():
            value, own = getattr(self, name), values[at : at + width]
            raw = isinstance(value, TensorMap)
            changed[name] = replace(value, value=own[0]) if raw else new_from_mlir_values(value, own)
            at += width
        other = replace(self, **changed)  # type: ignore[type-var]
        object.__setattr__(other, "_widths", widths)
        return other


def _values(value: Any) -> list[Any]:
    return [value.value] if isinstance(value, TensorMap) else extract_mlir_values(value)


def _attributes(value: Any) -> list[Any]:
    return extract_mlir_attributes(cutlass.grid_constant if isinstance(value, TensorMap) else value)
