"""The table of problems that were tuned together: the winner of each, and its origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from hopper_gemm.tune.point import Point
from hopper_gemm.tune.study.reader import Study
from hopper_gemm.tune.study.space import begun_with, place_of
from hopper_gemm.tune.study.spec import checked
from hopper_gemm.tune.tables.pivot import best_row, config_of, groups, interval, markdown, plain, rows_of

HEADINGS = ("problem", "best config", "speedup over cuBLAS", "trials", "found")


@dataclass(frozen=True)
class Winner:
    """The best config of one problem, regime and context."""

    key: str  # problem, regime and context; place in the JSON
    trials: int  # rows of its search
    config: str = ""  # its label; empty where nothing ran
    speedup: float | None = None  # over cuBLAS, with its interval
    speedup_low: float | None = None
    speedup_high: float | None = None
    final: bool = False  # whether the speedup is of fresh processes, not of the search alone
    even: int = 0  # finals that share the first place within the noise; 0 where the winner is unique
    origin: str = ""  # "search", or "known": the search began with it; found in the JSON

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name for JSON, ``key`` as ``place`` and ``origin`` as ``found``."""
        return {{"key": "place", "origin": "found"}.get(name, name): value for name, value in vars(self).items()}

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of its line, in the order of :data:`HEADINGS`."""
        if not self.config:
            return self.key, "nothing ran" if self.trials else "not searched", "", str(self.trials), ""
        shared = f" (one of {self.even} that are even)" if self.even else ""
        stage = "" if self.final else " in the search"
        return self.key, f"`{self.config}`{shared}", interval(vars(self)) + stage, str(self.trials), self.origin


def is_list(provenance: Mapping[str, Any]) -> bool:
    """Return True if a study, by its provenance, searched several problems, each by itself."""
    spec = provenance["spec"]
    return spec.get("sampler", "exhaustive") != "exhaustive" and len(spec.get("problems", ())) > 1


def winners(study: Study) -> list[Winner]:
    """Return the winner of each problem, regime and context of a list, in the order of its spec."""
    finals, provenance = rows_of(study, "final"), study.provenance
    searched = {group.key: (group, part) for group, part in groups(rows_of(study, "sweep"))}
    best_of_each = []
    for alone in checked(provenance["spec"], str(study.path)).each():
        for regime, context in product(alone.regimes, alone.contexts):
            key = place_of(Point(alone.problems[0].problem(), "cublas", regime, context))
            winner = Winner(key, 0)
            if key in searched:
                group, part = searched[key]
                final = best_row(group.of(finals))
                winner = Winner(key, len(part), final=final is not None)
                if (best := best_row(part) if final is None else final) is not None:
                    config, figures = config_of(best), ("speedup", "speedup_low", "speedup_high")
                    winner = replace(
                        winner,
                        config=str(config),
                        even=len(group.noted(provenance, "even") or ()),
                        origin="known" if config in begun_with(alone) else "search",
                        **{name: plain(best[name]) for name in figures},
                    )
            best_of_each.append(winner)
    return best_of_each


def winners_table(listed: Sequence[Winner]) -> str:
    """Return the table in Markdown, and the number of winners that were measured again."""
    done = sum(winner.final for winner in listed)
    again = f"{done} of {len(listed)} have a winner that was measured again in fresh processes."
    return f"{markdown(HEADINGS, [winner.cells for winner in listed])}\n\n{again}"
