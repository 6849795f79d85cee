"""The legal configs of a search as a set of points with coordinates: what samplers propose from, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.tune.parameters import DEFAULTS, FIELDS


class LegalSpace:
    """Legal configs, each with a number, a place among the choices, and coordinates.

    Of the parameters that vary those are kept that tell the configs apart: ``stages`` is none of them where it follows
    from the tile.

    Args:
        configs: legal, resolved, each once.
    """

    def __init__(self, configs: Sequence[GemmConfig]) -> None:
        if not configs:
            raise ValueError("a search needs at least one legal config but got none")
        self.configs = list(configs)
        self.number = {config: i for i, config in enumerate(self.configs)}
        self.names, self.categories, codes = _kept(self.configs)
        self._codes = codes
        self._places = {name: {str(v): i for i, v in enumerate(self.categories[name])} for name in self.names}
        self._by_code = {tuple(row): i for i, row in enumerate(codes.tolist())}
        self._scaled = [_coordinates(self.categories[name]) for name in self.names]
        parts = [scaled[codes[:, j]] for j, scaled in enumerate(self._scaled)]
        self.places = np.hstack(parts) if parts else np.zeros((len(self.configs), 1))
        """A row for each config: numbers on a logarithmic scale from 0 to 1, words as one column each."""
        self.groups = np.array([j for j, scaled in enumerate(self._scaled) for _ in range(scaled.shape[1])] or [0])
        """Number of the parameter behind each column of :attr:`places`."""

    def __len__(self) -> int:
        return len(self.configs)

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Categories of text (a journal turns tuples into lists, and flags have no order)."""
        return {name: CategoricalDistribution([str(value) for value in self.categories[name]]) for name in self.names}

    def parameters(self, number: int) -> dict[str, str]:
        """A config as Optuna's parameters."""
        return {
            name: str(self.categories[name][code]) for name, code in zip(self.names, self._codes[number], strict=True)
        }

    def like(self, config: GemmConfig) -> int | None:
        """The config that differs from another in nothing that tells configs of this space apart: where every config
        has a parameter that a study of before did not know, the one that it stands for."""
        return self.find({name: _value(config, name) for name in self.names})

    def find(self, parameters: Mapping[str, Any]) -> int | None:
        """The config with exactly these parameters, or None where the rules refuse it or it is not of this space."""
        try:
            return self._by_code.get(self._code(parameters))
        except (KeyError, ValueError):
            return None

    def nearest(self, parameters: Mapping[str, Any], free: np.ndarray) -> int:
        """The free config closest to parameters that may be illegal or taken.

        Args:
            parameters: one category of each name.
            free: numbers of configs.
        """
        code = self._code(parameters)
        wanted = np.concatenate([scaled[c] for scaled, c in zip(self._scaled, code, strict=True)])
        return int(free[np.abs(self.places[free] - wanted).sum(axis=1).argmin()])

    def coordinates(self, config: GemmConfig) -> np.ndarray:
        """Return the place of a config of any space in this one; a word that is not known here lies between all
        others."""
        parts = []
        for name, scaled in zip(self.names, self._scaled, strict=True):
            values, value = self.categories[name], _value(config, name)
            if value in values:
                parts.append(scaled[values.index(value)])
            elif scaled.shape[1] == 1 and _numeric([value, *values]):
                low, high = (np.log2(1 + edge) for edge in (values[0], values[-1]))
                parts.append(np.array([(np.log2(1 + value) - low) / (high - low)]))
            else:
                parts.append(np.full(scaled.shape[1], 0.5))
        return np.concatenate(parts) if parts else np.zeros(1)

    def _code(self, parameters: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(self._places[name][str(parameters[name])] for name in self.names)


def _kept(configs: list[GemmConfig]) -> tuple[tuple[str, ...], dict[str, list[Any]], np.ndarray]:
    """The parameters that tell configs apart, their values in order, and each config's number among them."""
    names, categories, columns = [], {}, []
    known = np.zeros(len(configs), dtype=np.int64)
    for name in FIELDS:
        values = [_value(config, name) for config in configs]
        distinct = _in_order(values)
        if len(distinct) < 2:
            continue
        code = {_key(value): i for i, value in enumerate(distinct)}
        column = np.array([code[_key(value)] for value in values], dtype=np.int64)
        finer = np.unique(known * len(distinct) + column, return_inverse=True)[1]
        if finer.max() == known.max():
            continue
        known = finer
        names.append(name)
        categories[name] = distinct
        columns.append(column)
    codes = np.stack(columns, axis=1) if columns else np.zeros((len(configs), 0), dtype=np.int64)
    return tuple(names), categories, codes


def _value(config: GemmConfig, name: str) -> Any:
    """A parameter of a config; its default where only the study varies it and the config is the kernel's own."""
    return getattr(config, name, DEFAULTS[name])


def _key(value: Any) -> tuple[str, Any]:
    """``True`` is not 1 here."""
    return type(value).__name__, value


def _in_order(values: list[Any]) -> list[Any]:
    distinct = {_key(value): value for value in values}
    return [distinct[key] for key in sorted(distinct, key=lambda key: (isinstance(key[1], str), key[1]))]


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _coordinates(values: list[Any]) -> np.ndarray:
    """A row for each value: numbers in one column by their logarithm, two words in one, more in a column each."""
    if _numeric(values):
        logs = np.log2(1 + np.array(values, dtype=float))
        return ((logs - logs[0]) / (logs[-1] - logs[0]))[:, None]
    if len(values) == 2:
        return np.array([[0.0], [1.0]])
    return np.eye(len(values)) / 2  # any two words are 1 apart
