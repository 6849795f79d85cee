"""The spec of a study: what is measured, how, and against what. A sweep's file and the command line give its keys,
which are checked as a whole; sweep, compare, map and tune read it."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from hopper_gemm.model.config import current
from hopper_gemm.model.problem import DATA, GemmProblem, shown
from hopper_gemm.model.recipe import problem_from
from hopper_gemm.tune.measure.protocol import Burst, Count, Protocol, Seconds, Steady
from hopper_gemm.tune.parameters import PARAMETERS, WIDEST
from hopper_gemm.tune.statistics import Look
from hopper_gemm.tune.study.files import here_or_recorded, read_text
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.study.schema import NAMES, PAIRS

Size = Annotated[int, Field(ge=1, lt=2**31)]
"""Length of a problem's side; TMA counts coordinates in 32 bits."""

EARLIER = {"across": "each", "objective": ["speedup"]}
"""Keys of specs of earlier versions, each with the one value that was ever recorded."""

AGAINST = {
    "cublas": "torch.mm; of FP8 torch's scaled_mm of the same recipe",
    "cublaslt": "the fastest of cuBLASLt's heuristic lists, by our clock",
    "heuristics": "the fastest of one heuristic list of cuBLASLt, chosen with less care",
    "triton": "torch.compile's Triton templates, tuned by it",
    "quack": "quack-kernels, tuned by its autotuner",
}
"""Baselines in the order of a table's columns, with what each of them is."""


class SpecError(ValueError):
    """A spec or a list of problems has mistakes; the message has one line for each."""


def fields_of(name: str, value: Any) -> dict[str, Any]:
    """Return a choice of the space as fields of the config; ValueError for a pair, such as a cluster, that is not
    written as ``"2x1"``."""
    if name not in PAIRS:
        return {name: value}
    m, cross, n = str(value).partition("x")
    if not (cross and m.isdigit() and n.isdigit() and len(m) < 20 > len(n)):
        raise ValueError(f'{name} must be written like "2x1" but got {value!r}')
    return dict(zip(PAIRS[name], (int(m), int(n)), strict=True))


def present(name: str, value: Any) -> dict[str, Any]:
    """Return a choice as fields under their present names; a ValueError for an unknown name says which are like it."""
    known = {*PARAMETERS, *PAIRS, *(alias for one in PARAMETERS.values() for alias in one.aliases)}
    if name not in known and (near := get_close_matches(name, sorted(known))):
        raise ValueError(f"{name} is not a kernel parameter; did you mean {' or '.join(near)}?")
    return current(fields_of(name, value), WIDEST)


def _renamed(chosen: dict[str, Any]) -> dict[str, Any]:
    """Return choices under the present names and words of their parameters; every value is checked."""
    mistakes, now = [], {}
    for name, given in chosen.items():
        renamed = []
        for value in given if isinstance(given, list) else [given]:
            try:
                fields = present(name, value)
                WIDEST(**fields)
                renamed.append(value if name in PAIRS else next(iter(fields.values())))
            except ValueError as error:
                mistakes.append(str(error))
        if not renamed and isinstance(given, list) and not given:
            mistakes.append(f"{name} must have at least one value but got an empty list")
        title = name if name in PAIRS or not renamed else next(iter(fields))
        if title in now:
            mistakes.append(f"{name} is an earlier name of {title}, which is given too; leave one of them out")
        now[title] = renamed if isinstance(given, list) else next(iter(renamed), given)
    if mistakes:
        raise ValueError("\n".join(dict.fromkeys(mistakes)))
    return now


Grid = Annotated[dict[str, Any], AfterValidator(_renamed)]
"""For each parameter a value or a list of them; :data:`WIDEST` says which values there are."""


class Section(BaseModel):
    """A part of a file, in which an unknown key is a mistake."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ProblemSection(Section):
    """One problem: m, n, k, and optionally dtype, layouts and batch_invariant; of FP8 its scales, and promote."""

    m: Size  # rows of A and C
    n: Size  # columns of B and C
    k: Size  # columns of A, rows of B
    dtype: str = "bf16"  # of operands and output, or of operands, then output: bf16, fp16_fp32, e4m3_bf16 ...
    layouts: str = "kk"  # contiguous axis of A, then of B: kk, mk, kn or mn
    batch_invariant: bool = False  # the bits of a row may not depend on the other rows
    promote: int = 0  # of FP8, elements of k between promotions of the sums: 128, 256 or 512; 0: fast sums
    scales: str = ""  # of FP8: tensor, row or blocks

    @model_validator(mode="after")
    def _is_problem(self) -> ProblemSection:
        self.problem()
        return self

    def problem(self) -> GemmProblem:
        return problem_from(**self.model_dump(include=set(ProblemSection.model_fields)))


class SearchedProblem(ProblemSection):
    """A problem of a sweep, and what is measured of it alone."""

    space: Grid = {}  # other values for parameters, in the sweep's space and in those of its grids that name them
    warm_grids: Annotated[list[Grid], Field(alias="known")] = []  # grids beside the sweep's own
    keep: Count | None = None  # instead of the sweep's


class FinalSection(Section):
    """Finals, in which the best of each problem and regime is measured again: in fresh processes, so many pairs in
    each, with so many seconds of rest before each timing of a burst."""

    best: Annotated[int, Field(ge=0, le=1000)] = 1  # configs of each problem and regime; 0: no finals
    processes: Count = 3  # fresh ones, for each config
    burst_pairs: Count = 15  # in each process
    burst_rest: Seconds = 0.02  # seconds before each timing
    steady_pairs: Count = 2  # in each process

    @property
    def fresh(self) -> int:
        return self.processes if self.best else 0


class BudgetSection(Section):
    """The budget of a search; no limit where nothing stands. Several GPUs search several problems at a time."""

    trials: Count | None = None  # configs to measure of each problem and regime, those that have a row counted
    # of search, summed over all problems and regimes and shared evenly among them; finals left out
    seconds: Seconds | None = None


class RaceSection(Section):
    """A first look: so many pairs, and the others only where the config may still be the best. Before that, in the
    burst regime, a glance: one pair, and no more where the config is behind the best by more than ``far``."""

    burst_pairs: Count = 3  # of the first look
    steady_pairs: Count = 1  # of the first look
    far: Annotated[float, Field(gt=0, lt=1)] | None = None  # a fraction, as 0.1; without it there is no glance

    def looks(self, regime: str) -> tuple[Look, ...]:
        if regime == "steady":
            return (Look(self.steady_pairs),)
        return (*([] if self.far is None else [Look(1, self.far)]), Look(self.burst_pairs))


class TableSection(Section):
    """Columns of the results that span the published table, and its facets where the picture has any."""

    rows: str = "tile_m"  # what goes down
    cols: str = "k_depth"  # what goes across
    facet_rows: str | None = None  # what tells the picture's rows of tables apart
    facet_cols: str | None = None  # what tells its columns of tables apart

    @field_validator("rows", "cols", "facet_rows", "facet_cols")
    @classmethod
    def _is_column(cls, name: str | None) -> str | None:
        if name is not None and name not in NAMES and name not in PAIRS:
            raise ValueError(f"must be a column of the results but got {name!r}")
        return name


class RungSection(Section):
    """One rung of a ladder."""

    name: Annotated[str, Field(pattern=r"^[^|\n]{1,32}$")]  # unique in the ladder
    adds: Annotated[str, Field(min_length=1)]  # one sentence on what this rung adds
    start: Annotated[str | None, Field(alias="from")] = None  # the rung that it starts from; else the one before
    published: str = ""  # what the source material says of the step
    set: Grid = {}  # parameters with their new value; the others stay as they are in the rung it starts from


class MenuSection(Section):
    """Numbers of a problem's kernels that a map measures: those that the pick ranks best, and those that are drawn from
    the menu."""

    picks: Count = 8
    drawn: Annotated[int, Field(ge=0, le=10**6)] = 24


class Spec(Section):
    """The spec of a study. What is measured of each problem is a grid (``space``, ``grids``, ``known``), a ladder
    (``rungs``), the config that ``matmul`` runs (``config``), or kernels of the menu (``menu``). A sweep's file has a
    grid or a ladder."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]  # of the study and its folder
    question: str = ""  # what it asks, in a sentence or two
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0  # of the matrices, the sampler and the bootstrap
    # protocols, which have a table each, below; figures of two regimes, as of two contexts, are never mixed
    regimes: Annotated[list[Literal["burst", "steady"]], Field(min_length=1, max_length=2)] = ["burst"]
    # whether another kernel runs between any two launches (isolated) or none (chained)
    contexts: Annotated[list[Literal["isolated", "chained"]], Field(min_length=1, max_length=2)] = ["isolated"]
    problems: Annotated[list[SearchedProblem], Field(min_length=1)]  # what is multiplied
    # what the matrices hold while they are timed: normal, uniform or zeros; correctness is checked on normal data
    data: Annotated[list[str], Field(min_length=1)] = ["normal"]
    # for each parameter one value, or a list of them; the grid is their product. cluster = "1x2" sets both fields
    space: Grid = {}
    grids: list[Grid] = []  # further grids, such as one in which k is divided; their configs follow the space's
    # configs that were good on the problem or a similar one; a search tries the first of each grid before anything else
    warm_grids: Annotated[list[Grid], Field(alias="known")] = []
    # so many ways to compile the kernel stay in the space of each problem, the most promising by the model, with all
    # their ways to launch it, beside the known grids; without it all stay
    keep: Count | None = None
    # configs one by one, each a step from another; the first starts from the space, of single values, if any
    rungs: list[RungSection] = []
    lower_to_fit: list[Literal["stagger"]] = []  # parameters lowered to what the rules allow instead of being refused
    # points that a rule refuses get no row and are only counted; for grids of which most cannot exist
    skip_illegal: bool = False
    # how the space is walked: every point of it, or what a search proposes, which gives a row only to what it measures
    sampler: Literal["exhaustive", "random", "tpe", "gp", "prior"] = "exhaustive"
    # configs with which guided samplers begin: the model's, or earlier ones
    seeds: Annotated[int, Field(ge=0, le=10**6)] = 4
    warm_start: list[str] = []  # folders of the same kind of GPU, whose rows of the same problem the sampler gets
    ahead: Count = 4  # configs that a search proposes before the first is measured, so that they compile meanwhile
    budget: BudgetSection = BudgetSection()  # when to stop
    race: RaceSection | None = None  # a first look at each config; without it each gets all its pairs
    burst: Burst = Burst()  # how a burst is timed
    steady: Steady = Steady()  # how the steady regime is timed
    final: FinalSection = FinalSection()  # how the best is measured again
    table: TableSection = TableSection()  # what spans the published table
    # of a comparison. tuned: the best known config of the very problem, else matmul's pick; auto: matmul's pick for a
    # problem without an entry
    config: Literal["tuned", "auto"] | None = None
    menu: MenuSection | None = None  # of a map
    against: Annotated[list[str], Field(min_length=1)] = ["cublas"]  # of a comparison or a map: baselines, in order
    # of a comparison: fresh processes, one after the other, that measure everything. The first process of a problem
    # searches each baseline's candidates; later ones choose again among the finalists of that search
    processes: Count = 1

    @field_validator("data")
    @classmethod
    def _is_data(cls, data: list[str]) -> list[str]:
        if unknown := [f"must be among {', '.join(DATA)} but got {kind!r}" for kind in data if kind not in DATA]:
            raise ValueError("\n".join(unknown))
        return data

    @field_validator("against")
    @classmethod
    def _is_baseline(cls, against: list[str]) -> list[str]:
        if unknown := [name for name in against if name not in AGAINST]:
            raise ValueError(f"must be among {', '.join(AGAINST)} but got {unknown[0]!r}")
        return list(dict.fromkeys(against))

    @model_validator(mode="before")
    @classmethod
    def _without_earlier_keys(cls, raw: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in raw.items() if name not in EARLIER or value != EARLIER[name]}

    @property
    def digest(self) -> str:
        """Digest that distinguishes this question from another under the same name. How long to look for the answer is
        no part of it, nor is the prose. A key at its default is none either, so that a later version may add keys; but
        how things are measured is spelt out, whatever the defaults are."""
        prose: dict[str, Any] = {"question": True, "budget": True, "rungs": {"__all__": {"adds", "published"}}}
        question = self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=prose)
        question |= self.model_dump(mode="json", include={"burst", "steady", "final", "contexts"})
        return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """Return the keys of a sweep for provenance, those at their default too."""
        return self.model_dump(mode="json", by_alias=True, exclude={"config", "menu", "against", "processes"})

    @property
    def multiplied(self) -> list[GemmProblem]:
        return [section.problem() for section in self.problems]

    def protocol(self, regime: str, final: bool = False) -> Protocol:
        """Return the protocol by which a regime is timed, in the search or in the finals."""
        if regime == "steady":
            return replace(self.steady, pairs=self.final.steady_pairs) if final else self.steady
        last = self.final
        return replace(self.burst, pairs=last.burst_pairs, rest=last.burst_rest) if final else self.burst

    def each(self) -> list[Spec]:
        """Return the sweep of each problem alone, in its own space."""
        return [self._alone(section) for section in self.problems]

    def _alone(self, section: SearchedProblem) -> Spec:
        def own(grid: dict[str, Any]) -> dict[str, Any]:
            return {name: section.space.get(name, values) for name, values in grid.items()}

        changed = {
            "space": own(self.space),
            "grids": list(map(own, self.grids)),
            "warm_grids": section.warm_grids + self.warm_grids,
        }
        alone = SearchedProblem(**section.model_dump(include=set(ProblemSection.model_fields)))
        return self.model_copy(update={**changed, "keep": section.keep or self.keep, "problems": [alone]})

    @property
    def sampled(self) -> bool:
        """Return True if a sampler chooses what is measured, instead of every point in turn."""
        return self.sampler != "exhaustive"

    @property
    def skips(self) -> bool:
        """Return True if points that a rule refuses get no row."""
        return self.skip_illegal or self.sampled


KEYS = {
    "config": ("name", "question", "problems", "regimes", "contexts", "config", "against", "processes"),
    "menu": ("name", "question", "problems", "seed", "menu", "against"),
}
"""Keys of a spec whose problems have no space: of a comparison and of a map."""


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mistakes_between(raw: dict[str, Any]) -> Iterator[str]:
    """Yield the mistakes between keys of a spec; values of the wrong type are reported by pydantic."""
    for kind, keys in KEYS.items():
        if raw.get(kind) is not None:
            yield from (f"{key}: has no meaning beside {kind}; leave it out" for key in raw if key not in keys)
            for key in ("regimes", "contexts"):
                if len(_listed(raw.get(key))) > 1:
                    yield f"{key}: must be a single one beside {kind} but got {raw[key]!r}"
            return
    for key, usual in (("against", ["cublas"]), ("processes", 1)):
        if raw.get(key, usual) != usual:
            yield f"{key}: is a key of a comparison; a sweep is measured against cublas, leave it out"
    sampler = raw.get("sampler", "exhaustive")
    space, rungs = raw.get("space"), raw.get("rungs")
    named = {name for grid in (space, *_listed(raw.get("grids"))) if isinstance(grid, dict) for name in grid}
    for number, problem in enumerate(_listed(raw.get("problems"))):
        owned = {name for name in ("space", "known", "keep") if isinstance(problem, dict) and problem.get(name)}
        if owned and rungs:
            yield f"problems.{number}: {min(owned)} is for a problem with points of its own; leave it out"
        own = problem.get("space") if isinstance(problem, dict) else None
        for name in own if isinstance(own, dict) else ():
            if name not in named:
                yield f"problems.{number}.space: {name} must be a parameter of space or of a grid; name it there too"
    if not rungs:
        if space is None:
            yield "space is missing"
        return
    if sampler != "exhaustive":
        yield f"sampler: must be exhaustive beside rungs but got {sampler!r}; a ladder measures every rung"
    for name, values in space.items() if isinstance(space, dict) else ():
        if isinstance(values, list):
            yield f"space.{name}: must be one value beside rungs but got a list; vary it in a rung"
    for name in ("grids", "known", "keep"):
        if raw.get(name):
            yield f"{name}: stands beside a space, not beside rungs; leave it out"
    if raw.get("skip_illegal"):
        yield "skip_illegal: must be false beside rungs but got true; a ladder shows why a rung cannot run"
    earlier: list[str] = []
    for number, rung in enumerate(_listed(rungs)):
        name, start = (rung.get("name"), rung.get("from")) if isinstance(rung, dict) else (None, None)
        if start is not None and start not in earlier:
            choice = f"choose among {', '.join(earlier)}"
            choice = choice if earlier else "leave it out, nothing stands before this rung"
            yield f"rungs.{number}.from: must name an earlier rung but got {start!r}; {choice}"
        if name in earlier:
            yield f"rungs.{number}.name: must be unique but {name!r} is an earlier rung's too; rename one of them"
        earlier += [name] if isinstance(name, str) else []


def read_spec(path: Path) -> Spec:
    """Read a sweep's file. A SpecError has all mistakes at once, one line each."""
    raw = read_toml(path)
    if strange := [name for name in KEYS if name in raw]:
        raise SpecError(f"{path}: {strange[0]} is not a key of a sweep; remove it, or run compare or map")
    return checked(raw, str(path))


def command_spec(command: str, problems: Iterable[GemmProblem], **keys: Any) -> Spec:
    """Return the spec of a command line: problems, and other keys as in a file."""
    return checked({"problems": [problem.as_dict() for problem in problems], **keys}, command)


def read_toml(path: Path, like: str = "sweeps/seed-table.toml") -> dict[str, Any]:
    """Return the content of a TOML file; a SpecError says what is missing, with one that it is ``like``, or the place
    that is no TOML."""
    path = here_or_recorded(path)
    if not path.exists():
        raise SpecError(f"{path} does not exist; give one such as {like}")
    try:
        return tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from None
    except ResultsError as error:
        raise SpecError(str(error)) from None
    except ValueError as error:  # such as a number of more digits than Python reads
        raise SpecError(f"{path} cannot be read: {error}") from None


def checked(raw: dict[str, Any], where: str) -> Spec:
    """Return a spec from its keys as TOML gives them. A SpecError has all mistakes of one key and between keys, one
    line each, which begins with ``where``."""
    lines, spec = [], None
    try:
        spec = Spec(**raw)
    except ValidationError as error:
        lines = lines_of(error, "a sweep")
    except TypeError as error:
        lines = [str(error)]
    lines += _mistakes_between(raw)
    if spec is None or lines:
        raise SpecError("\n".join(f"{where}: {line}" for line in lines))
    return spec


def lines_of(error: ValidationError, what: str) -> list[str]:
    """Return pydantic's mistakes in a file that should hold ``what``, as lines of text."""
    lines: list[str] = []
    for mistake in error.errors():
        parts = map(str, mistake["loc"])
        where = ".".join(part for part in parts if not part.startswith(("list[", "bool", "int", "str")))
        text = mistake["msg"].removeprefix("Value error, ")
        if mistake["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            near = get_close_matches(where.rpartition(".")[2], _keys(), n=1)
            fix = f"did you mean {near[0]}?" if near else "remove it or correct its spelling"
            lines.append(f"{where} is not a key of {what}; {fix}")
        elif mistake["type"] == "missing":
            lines.append(f"{where} is missing")
        elif mistake["type"] == "too_short":
            lines.append(f"{where} must have one or more but has none")
        elif mistake["type"] == "value_error":
            lines += [f"{where}: {line}" for line in text.splitlines()]
        else:
            lines += [f"{where}: {line}, but got {shown(mistake['input'])}" for line in text.splitlines()]
    return lines


@cache
def _keys() -> list[str]:
    """The keys of a sweep's file and of all its tables."""
    schema = Spec.model_json_schema()
    return sorted({key for of in (schema, *schema["$defs"].values()) for key in of.get("properties", ())})
