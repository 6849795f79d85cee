"""The legal configs of a search as points with coordinates: samplers propose these and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.tune.parameters import DEFAULTS, FIELDS


class LegalSpace:
    """Legal configs, resolved and each once, with a number, a category of each parameter, and coordinates. Of the
    parameters that vary, those that tell the configs apart are kept: ``stages`` is dropped where it follows from the
    tile. With ``as_text`` Optuna sees numbers as categories too, not as integers in their range."""

    def __init__(self, configs: Sequence[GemmConfig], *, as_text: bool = False) -> None:
        if not configs:
            raise ValueError("a search needs at least one legal config but got none")
        self.configs = list(configs)
        self.number = {config: i for i, config in enumerate(self.configs)}
        self.names, self.categories, codes = _kept(self.configs)
        self._codes = codes
        self._code_of = {name: {str(v): i for i, v in enumerate(self.categories[name])} for name in self.names}
        self._as_number = {name: _numeric(self.categories[name]) and not as_text for name in self.names}
        self._by_code = {tuple(row): i for i, row in enumerate(codes.tolist())}
        self._scaled = [_coordinates(self.categories[name]) for name in self.names]
        parts = [scaled[codes[:, j]] for j, scaled in enumerate(self._scaled)]
        self.points = np.hstack(parts) if parts else np.zeros((len(self.configs), 1))
        """A row for each config: numbers on a logarithmic scale from 0 to 1, words as one column each."""
        self.groups = np.array([j for j, scaled in enumerate(self._scaled) for _ in range(scaled.shape[1])] or [0])
        """Number of the parameter behind each column of :attr:`points`."""

    def __len__(self) -> int:
        return len(self.configs)

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Numbers as integers between the least and the greatest, words as categories of text: a journal turns tuples
        into lists, and flags have no order."""
        return {
            name: IntDistribution(values[0], values[-1], log=values[0] > 0)
            if self._as_number[name]
            else CategoricalDistribution([str(value) for value in values])
            for name, values in self.categories.items()
        }

    def parameters(self, number: int) -> dict[str, str | int]:
        """Return a config as Optuna's parameters."""
        values = {name: self.categories[name][code] for name, code in zip(self.names, self._codes[number], strict=True)}
        return {name: value if self._as_number[name] else str(value) for name, value in values.items()}

    def like(self, config: GemmConfig) -> int | None:
        """Return the number of the config that equals another in every parameter of this space, or None: a config of an
        earlier study stands for the config that has the same parameters and any new ones."""
        return self.find({name: _value(config, name) for name in self.names})

    def find(self, parameters: Mapping[str, Any]) -> int | None:
        """Return the number of the config with exactly these parameters; None where the space has none."""
        codes = tuple(self._code_of[name].get(str(parameters.get(name))) for name in self.names)
        return self._by_code.get(codes)

    def nearest(self, parameters: Mapping[str, Any], free: np.ndarray) -> int:
        """Return the number of the config, of the free ones, that is closest to parameters that may be illegal or
        taken: a category of each parameter, or a number in its range."""
        values = {}
        for name in self.names:
            code = self._code_of[name].get(str(parameters[name]))
            values[name] = parameters[name] if code is None else self.categories[name][code]
        wanted = self._located(values)
        return int(free[np.abs(self.points[free] - wanted).sum(axis=1).argmin()])

    def coordinates(self, config: GemmConfig) -> np.ndarray:
        """Return the coordinates of any config in this space; a word without a category lies between all others."""
        return self._located({name: _value(config, name) for name in self.names})

    def _located(self, config: Mapping[str, Any]) -> np.ndarray:
        parts = []
        for name, scaled in zip(self.names, self._scaled, strict=True):
            values, value = self.categories[name], config[name]
            if value in values:
                parts.append(scaled[values.index(value)])
            elif scaled.shape[1] == 1 and _numeric([value, *values]):
                low, high = (np.log2(1 + edge) for edge in (values[0], values[-1]))
                parts.append(np.array([(np.log2(1 + value) - low) / (high - low)]))
            else:
                parts.append(np.full(scaled.shape[1], 0.5))
        return np.concatenate(parts) if parts else np.zeros(1)


def _kept(configs: list[GemmConfig]) -> tuple[tuple[str, ...], dict[str, list[Any]], np.ndarray]:
    """Return the parameters that tell configs apart, the values of each in order, and the codes of each config.
    ``classes`` numbers the configs by the parameters kept so far; a parameter that splits no class is dropped."""
    names, categories, columns = [], {}, []
    classes = np.zeros(len(configs), dtype=np.int64)
    for name in FIELDS:
        values = [_value(config, name) for config in configs]
        distinct = sorted(set(values), key=lambda value: (isinstance(value, str), value))
        if len(distinct) < 2:
            continue
        code = {value: i for i, value in enumerate(distinct)}
        column = np.array([code[value] for value in values], dtype=np.int64)
        finer = np.unique(classes * len(distinct) + column, return_inverse=True)[1]
        if finer.max() == classes.max():
            continue
        classes = finer
        names.append(name)
        categories[name] = distinct
        columns.append(column)
    codes = np.stack(columns, axis=1) if columns else np.zeros((len(configs), 0), dtype=np.int64)
    return tuple(names), categories, codes


def _value(config: GemmConfig, name: str) -> Any:
    """Return a parameter of a config: its default where the config's class lacks it."""
    return getattr(config, name, DEFAULTS[name])


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)


def _coordinates(values: list[Any]) -> np.ndarray:
    """Return a row for each value: numbers have one column by their logarithm, two words one, more words one each."""
    if _numeric(values):
        logs = np.log2(1 + np.array(values, dtype=float))
        return ((logs - logs[0]) / (logs[-1] - logs[0]))[:, None]
    if len(values) == 2:
        return np.array([[0.0], [1.0]])
    return np.eye(len(values)) / 2  # any two words are 1 apart
