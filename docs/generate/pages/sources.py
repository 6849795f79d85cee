"""Claims of the project's source texts, in a form to lay beside recorded rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import pandas as pd

from docs.generate.pages.wording import wrapped
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.tuned import results_root
from hopper_gemm.tune.parameters import FIELDS
from hopper_gemm.tune.study.reader import Study, read_provenance, read_study, recorded_folders
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.tables.pivot import EXCEEDS, GROUP

PIPELINING = """\
| M tile \\ K depth | 2 | 4 | 6 | 8 | 10 | 12 | 14 | 16 |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| 64 | 0.48x (18) | 0.52x (9) | 0.44x (6) | 0.54x (4) | 0.43x (3) | 0.54x (3) | 0.34x (2) | 0.42x (2) |
| 128 | 0.68x (13) | 0.73x (6) | 0.64x (4) | 0.68x (3) | 0.42x (2) | 0.44x (2) | 0.39x (1) | 0.46x (1) |
| 192 | 0.75x (10) | 0.88x (5) | 0.70x (3) | 0.55x (2) | 0.47x (2) | 0.51x (1) | 0.46x (1) | 0.55x (1) |
| 256 | 0.86x (8) | 0.98x (4) | 0.48x (2) | 0.60x (2) | 0.49x (1) | 0.56x (1) | 0.51x (1) | 0.58x (1) |
| 320 | 0.12x (7) | 0.13x (3) | 0.12x (2) | 0.12x (1) | 0.11x (1) | 0.12x (1) | 0.12x (1) | exceeds smem |"""
"""The table of the post "Pipelining": speedup over cuBLAS (stages), tile_n = 128. The post discusses an H100 and bf16;
of the table it states neither problem size, cluster, regime, clocks, cuBLAS version, nor consumers and stagger of a
row."""

CELL = ["tile_m", "k_depth"]


def published() -> pd.DataFrame:
    """The cells of :data:`PIPELINING` that have a figure: ``speedup`` and ``stages`` by tile_m and k_depth."""
    head, _, *lines = [[word.strip() for word in line.strip("|").split("|")] for line in PIPELINING.splitlines()]
    found = [
        (int(line[0]), int(depth), float(cell.split("x")[0]), int(cell.split("(")[1][:-1]))
        for line in lines
        for depth, cell in zip(head[1:], line[1:], strict=True)
        if cell != EXCEEDS
    ]
    return pd.DataFrame(found, columns=[*CELL, "speedup", "stages"]).set_index(CELL)


def beside(rows: pd.DataFrame) -> pd.DataFrame:
    """Every published cell beside ours.

    Args:
        rows: of one problem, regime and stagger, with the columns tile_m, k_depth and speedup; a cell once.

    Returns:
        By cell, the best of theirs first: ``theirs`` and ``ours``.
    """
    ours = rows.dropna(subset=["speedup"]).astype(dict.fromkeys(CELL, int)).set_index(CELL)["speedup"].astype(float)
    found = pd.DataFrame({"theirs": published()["speedup"]}).join(ours.rename("ours"), how="inner")
    return found.sort_values("theirs", ascending=False, kind="stable")


def pairs_by(rows: pd.DataFrame, name: str, first: object, second: object, follow: Sequence[str] = ()) -> pd.DataFrame:
    """Rows that differ in one parameter alone, and what it changes.

    Args:
        rows: of any studies, as :func:`hopper_gemm.tune.study.reader.frame_of` gives them; only those that ran count.
        name: of the parameter.
        first, second: two of its values.
        follow: parameters that may follow from it, where ``"auto"`` and ``"max"`` were resolved.

    Returns:
        The rows with the second value that have a partner in the same study, with ``ratio``: their speedup over that
        of the first, and ``board_first``, the board of the first.
    """
    keys = ["study", *GROUP, *(field for field in FIELDS if field not in (name, *follow))]
    ok = rows[rows["status"] == "ok"]
    found = [ok[ok[name] == value].drop_duplicates(keys) for value in (first, second)]
    both = found[1].merge(found[0][[*keys, "speedup", "board"]], on=keys, suffixes=("", "_first"))
    return both.assign(ratio=both["speedup"] / both["speedup_first"])


read = cache(read_study)
"""A results folder as :func:`read_study` reads it, read once: most generated parts share their studies."""


def recorded(name: str) -> Study:
    """A recorded study by its name, archived or not.

    Raises:
        ResultsError: there is none.
    """
    folders = recorded_folders(name)
    if not folders:
        raise ResultsError(f"no recorded study {name} lies under {results_root()}; the index of results names them")
    return read(folders[0])


def before(name: str) -> Study:
    """The measurement before :func:`recorded`'s of a study that was measured twice, the later of several.

    Raises:
        ResultsError: there is one alone.
    """
    archived = [folder for folder in recorded_folders(name) if "archive" in folder.relative_to(results_root()).parts]
    if not archived:
        raise ResultsError(f"{name} was measured once; name a study that has an archived measurement too")
    return read(archived[-1])


def origin(studies: Sequence[Study]) -> str:
    """Return in words on which boards, in how many processes of a problem and on which days comparisons or maps were
    measured."""
    rows = [row for study in studies for row in study.stage("compare", "map") if row.ok]
    boards: dict[GemmProblem, set[str]] = defaultdict(set)
    runs: dict[tuple[GemmProblem, str], set[tuple[str, int]]] = defaultdict(set)
    for row in rows:
        boards[row.point.problem].add(row.board)
        runs[row.point.problem, row.point.against].add((row.board, row.process))
    count, gpus = len({row.board for row in rows}), " and ".join(sorted({short_name(row.gpu) for row in rows}))
    of_each = _to(map(len, boards.values()))
    each = "each problem on all of them" if of_each == str(count) else f"each problem on {of_each} of them"
    processes = _to(map(len, runs.values()))
    days = sorted({study.provenance["created"][:10] for study in studies})
    return (
        f"on {count} {gpus} board{'s' * (count > 1)}{f', {each},' * (count > 1)} in {processes} fresh "
        f"process{'es' * (processes != '1')} ({' and '.join(days)})"
    )


def _to(numbers: Iterable[int]) -> str:
    counts = list(numbers)
    least, most = min(counts), max(counts)
    return str(least) if least == most else f"{least} to {most}"


def short_name(gpu: str) -> str:
    """Return the name of a kind of GPU, ``NVIDIA H100``, without its memory."""
    return " ".join(gpu.split()[:2])


def shares_of_gpus() -> str:
    """Return the rows of all recorded studies, and how many of them are of each kind of GPU."""
    counts = Counter(short_name(row.gpu) for folder in recorded_folders() for row in read(folder).rows)
    parts = ", ".join(f"{count / counts.total():.0%} on {name}s" for name, count in counts.most_common())
    return f"Of {counts.total():,} rows of recorded studies: {parts}."


VERSIONS = {
    "torch": ("versions", "torch"),
    "cuBLAS": ("versions", "nvidia-cublas"),
    "the CuTe DSL": ("versions", "nvidia-cutlass-dsl"),
    "CUDA": ("gpu", "cuda"),
    "driver": ("gpu", "driver"),
}
"""Software whose version is published, by name, with its keys in provenance."""


@cache
def versions() -> dict[str, Counter[str]]:
    """Return by name of :data:`VERSIONS` how many recorded studies name which version."""
    told = [read_provenance(folder) for folder in recorded_folders()]
    return {
        name: Counter(version for about in told if (version := about.get(part, {}).get(key)))
        for name, (part, key) in VERSIONS.items()
    }


def versions_measured() -> str:
    """Return a sentence on the versions with which the rows were measured."""
    parts = [f"{name} {' and '.join(counts)}" for name, counts in versions().items()]
    named, folders = min(counts.total() for counts in versions().values()), len(recorded_folders())
    return wrapped(
        f"The rows were measured with {', '.join(parts[:-1])} and {parts[-1]}, by the provenance of {named} of "
        f"{folders} recorded studies; the rest does not name them all."
    )


def clocks(names: Iterable[str]) -> str:
    """Return a sentence on the clocks at which our launches ran in some studies."""
    rows = [row for name in names for row in recorded(name).stage("compare") if row.ok]
    mhz = [float(row.figures["sm_mhz"]) for row in rows]
    most = max(recorded(name).provenance["gpu"]["sm_mhz_max"] for name in names)
    return wrapped(
        f"In the suite on H100s the mean clock of our launches was {min(mhz):,.0f} to {max(mhz):,.0f} MHz, of {most:,} "
        "MHz at most, by problem and board."
    )


def changed_commits() -> str:
    """Return a sentence on the studies whose commit is marked as changed."""
    told = [str(read_provenance(folder).get("commit")) for folder in recorded_folders()]
    changed = sum(one.endswith("-dirty") for one in told)
    return f"The commit of {changed} of {len(told)} recorded studies ends in `-dirty`."


def spans(moments: pd.DataFrame, stagger: int) -> pd.DataFrame:
    """Spans of each role of a traced CTA: loads, math, waits and stores, with their start and end.

    Args:
        moments: of one launch: role, stage, moment and clocks, as ``hopper-gemm trace`` writes them.
        stagger: of its config.

    Returns:
        role, stage, what, start and end, in clocks. Of the producer ``waits`` for an empty slot, ``issues`` and
        ``load``, which ends at the latest when the first consumer has the stage; of a consumer ``waits`` for a full
        slot, ``queued``, wgmma issued behind an earlier group, and ``math``, from the first wgmma issued, or from the
        end of the group before, to the end of the wait for the group, and ``stores``, of stage -1: its tile. Two
        consumers share the tensor cores, so their ``math`` overlaps.
    """
    found: list[tuple[str, int, str, float, float]] = []
    at = moments.pivot_table(index=["role", "stage"], columns="moment", values="clocks", aggfunc="first")
    stages = at[at.index.get_level_values("stage") >= 0]
    arrived = stages.drop("producer", level="role", errors="ignore")["had"].groupby(level="stage").min()
    for role, steps in stages.groupby(level="role"):
        steps = steps.droplevel("role").sort_index()
        found += [(role, k, "waits", one["asked"], one["had"]) for k, one in steps.iterrows()]
        if role == "producer":
            found += [(role, k, "issues", one["had"], one["issued"]) for k, one in steps.iterrows()]
            found += [(role, k, "load", one["issued"], arrived[k]) for k, one in steps.iterrows() if k in arrived]
            continue
        last = at.loc[(role, -1), "fed"] if (role, -1) in at.index else np.nan
        ends = steps["released"].shift(-stagger).fillna(last)
        for k, one in steps.iterrows():
            begins = max(one["had"], ends.get(k - 1, -np.inf))
            found += [(role, k, "queued", one["had"], begins), (role, k, "math", begins, ends[k])]
        if (role, -1) in at.index and "stored" in at:
            found.append((role, -1, "stores", last, at.loc[(role, -1), "stored"]))
    columns = ["role", "stage", "what", "start", "end"]
    return pd.DataFrame(found, columns=columns).dropna().query("end >= start").reset_index(drop=True)


def share(spans: pd.DataFrame, what: str, since: float, until: float) -> float:
    """Share of a stretch of time in which at least one span of a kind is under way."""
    part = spans[spans["what"] == what].sort_values("start")
    covered, reached = 0.0, since
    for start, end in part[["start", "end"]].clip(since, until).itertuples(index=False):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered / (until - since)
