"""Putting a sweep or a check together: which backend, which folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopper_gemm.measure.device import GpuId, NoHopperError, find_hopper, slug
from hopper_gemm.tables.ladder import Step, ladder
from hopper_gemm.tables.pivot import best_row, groups
from hopper_gemm.tables.places import local_root, results_root, shown
from hopper_gemm.tables.report import read_study
from hopper_gemm.tables.trials import PROVENANCE, ResultsError
from hopper_gemm.tables.tuned import read_tuned, recorded_tables
from hopper_gemm.tuning.backend import Backend
from hopper_gemm.tuning.check import Checked, check
from hopper_gemm.tuning.plan import Plan, Watcher
from hopper_gemm.tuning.replay import ReplayBackend
from hopper_gemm.tuning.spec import ProblemSection, SweepSpec, read_spec
from hopper_gemm.tuning.sweep import Sweep

BACKENDS = ("auto", "cuda", "replay")


class NotRecordedError(ResultsError):
    """There is neither a GPU nor a record."""


@dataclass
class SweepRun:
    """A sweep with its folder and its backend chosen.

    Args:
        sweep: in its folder.
        opening: the first line to tell the user: what will happen and where.
        gpu: to measure on, or None to replay.
        recorded: study to replay.
    """

    sweep: Sweep
    opening: str
    gpu: GpuId | None
    recorded: Path | None

    @staticmethod
    def prepare(
        spec_file: Path, *, backend: str, gpu: int, out: Path | None, recorded: Path | None, storage: str | None
    ) -> SweepRun:
        """Choose backend and folder.

        Raises:
            SpecError, ResultsError: the file or the folder is not what it should be.
            NoHopperError: ``backend`` is ``"cuda"`` and there is no such GPU.
        """
        check_backend(backend)
        spec = read_spec(spec_file)
        return SweepRun.of(spec, backend=backend, gpu=gpu, out=out, recorded=recorded, storage=storage)

    @staticmethod
    def of(
        spec: SweepSpec, *, backend: str, gpu: int, out: Path | None, recorded: Path | None, storage: str | None = None
    ) -> SweepRun:
        """The same for a question that is in no file."""
        check_backend(backend)
        found, missing = choose_gpu(backend, gpu)
        if found is not None:
            folder = out or local_root() / slug(found.name) / spec.name
            opening = f"Measuring {spec.name} on {found.name} into {shown(folder)}"
            return SweepRun(Sweep(spec, folder, storage), opening, found, None)
        source = recorded or _recorded(spec, missing)
        about = read_study(source).provenance
        folder = out or _renewed(local_root() / "replay" / spec.name)
        opening = (
            f"Replaying {spec.name} from recorded measurements of an {about['gpu']['name']} ({shown(source)}); "
            f"nothing is measured here{f': {missing}' if missing else ''}"
        )
        return SweepRun(Sweep(spec, folder, storage), opening, None, source)

    @staticmethod
    def plan(
        spec_file: Path, *, backend: str, gpu: int, out: Path | None, recorded: Path | None, storage: str | None
    ) -> Plan:
        """What there would be to do; of a sweep that is neither recorded nor can be measured here, all of it.

        Raises:
            SpecError, ResultsError, NoHopperError: as :meth:`prepare`.
        """
        try:
            run = SweepRun.prepare(spec_file, backend=backend, gpu=gpu, out=out, recorded=recorded, storage=storage)
        except NotRecordedError:
            spec = read_spec(spec_file)
            return Sweep(spec, out or local_root() / "planned" / spec.name, storage).plan()
        return run.sweep.plan()

    def execute(self, watch: Watcher, trials: int | None = None) -> None:
        """Run it; the backend's processes end with it, whatever happens."""
        backend = self._backend()
        try:
            self.sweep.run(backend, watch, trials)
        finally:
            backend.close()

    def summary(self) -> dict[str, Any]:
        """The best of each problem and regime, ready for JSON."""
        study = read_study(self.sweep.out)
        best = {}
        for group, part in groups(study.trials):
            row = best_row(part)
            if row is not None:
                names = (
                    "tile_m",
                    "tile_n",
                    "k_depth",
                    "stages",
                    "stagger",
                    "speedup",
                    "speedup_low",
                    "speedup_high",
                    "tflops",
                )
                best[group.label] = {
                    name: row[name].item() if hasattr(row[name], "item") else row[name] for name in names
                }
        counts = {status: int(count) for status, count in study.trials["status"].value_counts().items()}
        return {"out": str(self.sweep.out), "source": study.provenance["source"], "status": counts, "best": best}

    def ladder(self) -> list[Step]:
        """The rungs of a ladder and what became of them."""
        study = read_study(self.sweep.out)
        return ladder(study.trials, study.provenance["rungs"])

    def _backend(self) -> Backend:
        if self.gpu is None:
            assert self.recorded is not None
            return ReplayBackend(self.recorded)
        from hopper_gemm.tuning.cuda import CudaBackend

        return CudaBackend(self.sweep.spec, self.gpu.index)


def check_backend(backend: str) -> None:
    """Refuse a backend that nobody knows."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)} but got {backend!r}")


def check_recorded(recorded: Path | None, gpu: int, everything: bool) -> list[Checked]:
    """Check the recorded best configs on a GPU.

    Args:
        recorded: a tuned table, or None for the one recorded on this kind of GPU.
        gpu: index.
        everything: the steady regime too.

    Raises:
        NoHopperError: there is no such GPU.
        ResultsError: there is no tuned table for it.
    """
    found = find_hopper(gpu)
    if recorded is None:
        tables = recorded_tables()
        recorded = tables.get(slug(found.name))
        if recorded is None:
            raise ResultsError(
                f"no tuned table is recorded for {found.name}; "
                "run hopper-gemm sweep sweeps/seed-table.toml, or name one with --from"
            )
    entries = [entry for entry in read_tuned(recorded) if everything or entry.regime == "burst"]
    from hopper_gemm.tuning.cuda import CudaBackend

    problems = [
        ProblemSection(m=e.problem.m, n=e.problem.n, k=e.problem.k, dtype=e.problem.dtype, layouts=e.problem.layouts)
        for e in entries
    ]
    backend = CudaBackend(
        SweepSpec(name="check", problems=problems, space={}, regimes=["burst", "steady"]), found.index
    )
    try:
        return list(check(entries, backend))
    finally:
        backend.close()


def _renewed(folder: Path) -> Path:
    """The folder of a replay, without what an earlier replay left: it follows from the recorded study."""
    if (folder / PROVENANCE).is_file():
        shutil.rmtree(folder)
    return folder


def choose_gpu(backend: str, index: int) -> tuple[GpuId | None, str]:
    """The GPU to measure on, or None and why there is none."""
    if backend == "replay":
        return None, ""
    try:
        return find_hopper(index), ""
    except NoHopperError as error:
        if backend == "cuda":
            raise
        return None, str(error).split(";")[0]


def _recorded(spec: SweepSpec, missing: str) -> Path:
    """The recorded study of the same name."""
    found = sorted(
        path.parent for path in results_root().glob(f"*/{spec.name}/{PROVENANCE}") if path.parent.parent.name != "local"
    )
    if not found:
        why = f"{missing}, and " if missing else ""
        raise NotRecordedError(f"{why}no recorded study {spec.name} lies under {results_root()}; name one with --from")
    return found[0]
