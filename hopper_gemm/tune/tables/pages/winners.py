"""The table of problems that were tuned together: the winner of each, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from hopper_gemm.model.point import Point
from hopper_gemm.tune.study.reader import Study
from hopper_gemm.tune.study.space import begun_with, place_of
from hopper_gemm.tune.study.spec import checked
from hopper_gemm.tune.tables.pivot import best_row, config_of, groups, interval, markdown, plain, rows_of

HEADINGS = ("problem", "best config", "speedup over cuBLAS", "trials", "found")


@dataclass(frozen=True)
class Winner:
    """The best config of one problem, regime and context.

    Args:
        place: problem, regime and context.
        trials: rows of its search.
        config: its label; empty where nothing ran.
        speedup, speedup_low, speedup_high: over cuBLAS.
        final: whether the speedup is of fresh processes, not of the search alone.
        even: finals that share the first place within the noise; 0 where the winner is the only one.
        found: ``"search"``, or ``"known"``: the search began with it.
    """

    place: str
    trials: int
    config: str = ""
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    final: bool = False
    even: int = 0
    found: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """Its line, as :data:`HEADINGS` has it."""
        if not self.config:
            return self.place, "nothing ran" if self.trials else "not searched", "", str(self.trials), ""
        shared = f" (one of {self.even} that are even)" if self.even else ""
        stage = "" if self.final else " in the search"
        return self.place, f"`{self.config}`{shared}", interval(asdict(self)) + stage, str(self.trials), self.found


def is_list(about: Mapping[str, Any]) -> bool:
    """Return True if a study, by its provenance, searched several problems, each by itself."""
    spec = about["spec"]
    searched = spec.get("sampler", "exhaustive") != "exhaustive" and spec.get("across", "each") == "each"
    return searched and len(spec.get("problems", ())) > 1


def winners(study: Study) -> list[Winner]:
    """The winner of each problem, regime and context of a list, in the order of its spec."""
    rows, finals, about = rows_of(study, "sweep"), rows_of(study, "final"), study.provenance
    searched = {group.place: (group, part) for group, part in groups(rows)}
    found = []
    for alone in checked(about["spec"], str(study.path)).each():
        for regime, context in product(alone.regimes, alone.contexts):
            place = place_of(Point(alone.problems[0].problem(), "cublas", regime, context))
            if place not in searched:
                found.append(Winner(place, 0))
                continue
            group, part = searched[place]
            final = best_row(group.of(finals))
            best = best_row(part) if final is None else final
            if best is None:
                found.append(Winner(place, len(part)))
                continue
            figures = {name: plain(best[name]) for name in ("speedup", "speedup_low", "speedup_high")}
            config, even = config_of(best.to_dict()), group.noted(about, "even") or ()
            origin = "known" if config in begun_with(alone) else "search"
            about_it: dict[str, Any] = {"final": final is not None, "even": len(even), "found": origin}
            found.append(Winner(place, len(part), str(config), **figures, **about_it))
    return found


def winners_table(found: Sequence[Winner]) -> str:
    """The table in Markdown, and how many have a winner that was measured again."""
    done = sum(one.final for one in found)
    again = f"{done} of {len(found)} have a winner that was measured again in fresh processes."
    return f"{markdown(HEADINGS, [one.cells for one in found])}\n\n{again}"
