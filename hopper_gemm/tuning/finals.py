"""The best of a sweep once more: the best of many is otherwise its luckiest sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hopper_gemm.measure.racing import even
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.tuned import FILE as TUNED
from hopper_gemm.tables.tuned import TunedEntry, write_tuned
from hopper_gemm.tuning.backend import Answer, Backend
from hopper_gemm.tuning.folder import Answers, SweepFolder
from hopper_gemm.tuning.measuring import TWIN
from hopper_gemm.tuning.plan import Progress, Watcher
from hopper_gemm.tuning.pooling import joint, ratio_of
from hopper_gemm.tuning.space import Point
from hopper_gemm.tuning.spec import SweepSpec


def measure_finals(
    spec: SweepSpec,
    folder: SweepFolder,
    legal: Sequence[Point],
    backend: Backend,
    about: dict[str, Any],
    names: Mapping[GemmProblem, str],
    watch: Watcher,
) -> None:
    """Measure the finals that have no row yet, record them, and put the winners into the tuned table.

    Args:
        spec: of the sweep; says how many finals each study has.
        folder: with the sweep's rows.
        legal: points of the sweep.
        backend: what measures.
        about: provenance; gets what is even under ``"even"``.
        names: of cuBLAS's kernels.
        watch: told after each final.
    """
    if not spec.final.best:
        return
    chosen = _chosen(spec, folder.trials(), legal)
    finals = folder.finals()
    todo = [point for point in chosen if point not in finals]
    for i, (point, found) in enumerate(_by_study(backend, todo), 1):
        if found.status == "illegal":  # a replay knows only the finals that were recorded
            continue
        answer = replace(found, figures={"cublas_kernel": names.get(point.problem, ""), **found.figures})
        earlier = [other for known, other in finals.items() if known.study == point.study]
        if all(other.figures.get("speedup", 0.0) <= answer.figures.get("speedup", 0.0) for other in earlier):
            _tune(spec, folder, point, answer, about)
        folder.record(point, answer, about, "final")
        finals[point] = answer
        watch(Progress(point, answer, "final", i, len(todo), answer.figures.get("speedup")))
    about["even"] = _even(spec, chosen, finals, about["noise"])


def _chosen(spec: SweepSpec, known: Answers, legal: Sequence[Point]) -> list[Point]:
    """The best of each study, or those that serve all problems best; twins of others left out."""
    if spec.across != "each":
        return _best_for_all(spec, known, legal)
    ran: dict[str, list[tuple[Point, Answer]]] = {point.study: [] for point in legal}
    able = set(legal)
    for point, answer in known.items():
        if point in able and answer.status == "ok" and not answer.reason.startswith(TWIN):
            ran[point.study].append((point, answer))
    return [
        answers[i][0]
        for answers in ran.values()
        for i in spec.looked_for.best([answer.figures for _, answer in answers], spec.final.best)
    ]


def _best_for_all(spec: SweepSpec, known: Answers, legal: Sequence[Point]) -> list[Point]:
    """The configs that serve all problems best, on each of these."""
    problems = {point.problem for point in legal}
    by_config: dict[str, dict[GemmConfig, list[Point]]] = {}
    for point in legal:
        if point in known:
            by_config.setdefault(point.of_all, {}).setdefault(point.config, []).append(point)
    chosen = []
    for configs in by_config.values():
        whole = [points for points in configs.values() if len(points) == len(problems)]
        judged = [joint([known[point] for point in points], spec.across).figures for points in whole]
        chosen += [point for i in spec.looked_for.best(judged, spec.final.best) for point in whole[i]]
    return chosen


def _by_study(backend: Backend, points: list[Point]) -> Iterator[tuple[Point, Answer]]:
    """The answers of each study's finals, one study after the other."""
    for study in dict.fromkeys(point.study for point in points):
        yield from backend.finals([point for point in points if point.study == study])


def _even(spec: SweepSpec, chosen: list[Point], finals: Answers, noise: Mapping[str, float]) -> dict[str, list[str]]:
    """Where no final is the best beyond the noise: the configs that share the first place."""
    found = {}
    for place in dict.fromkeys(point.place for point in chosen):
        ran = [point for point in chosen if point.place == place and point in finals]
        ran = [point for point in ran if finals[point].status == "ok"]
        first = even([ratio_of(finals[point]) for point in ran], noise.get(place, 0.0))
        if len(first) > 1 and spec.looked_for.names == ("speedup",):
            found[place] = [str(ran[i].config) for i in first]
    return found


def _tune(spec: SweepSpec, folder: SweepFolder, point: Point, answer: Answer, about: dict[str, Any]) -> None:
    """Put a measured final into the tuned table beside the study's folder, if it ran on data like a user's."""
    if about["source"] != "measured" or answer.status != "ok" or point.data != "normal":
        return
    if spec.across != "each":  # it serves all problems well, and each of them not as well as its own would
        return
    if "speedup" not in spec.looked_for.names:
        return
    names = ("speedup", "speedup_low", "speedup_high", "registers", "wgmma", "instructions", "code")
    entry = TunedEntry(
        problem=point.problem,
        regime=point.regime,
        config=point.config,
        noise=about["noise"].get(point.place, 0.0),
        study=spec.name,
        gpu=about["gpu"]["name"],
        **{name: answer.figures[name] for name in names},
    )
    write_tuned(folder.path.parent / TUNED, [entry])
