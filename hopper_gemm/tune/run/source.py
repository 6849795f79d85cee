"""The source of a sweep's figures: GPUs of this host, workers of other hosts, or a recorded study."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from hopper_gemm.model.tuned import local_root, results_root, slug
from hopper_gemm.tune.measure.device import GpuId, NoHopperError
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.run.executors.local import Executor, Local
from hopper_gemm.tune.run.task import Event, Job, Joined, Rig, Task
from hopper_gemm.tune.study.files import shown
from hopper_gemm.tune.study.folder import StudyFolder, identity_of
from hopper_gemm.tune.study.reader import Study, read_study, recorded_folders
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.study.spec import Spec

BACKENDS = ("auto", "cuda", "replay")
WORKER = "record"


class NotRecordedError(ResultsError):
    """There is neither a GPU nor a recorded study."""


@dataclass(frozen=True)
class Source:
    """GPUs of this host, an address for workers of other hosts, or a recorded study."""

    gpus: tuple[GpuId, ...] = ()  # GPUs of this host; none in a replay, or where workers of other hosts are to join
    recorded: Study | None = None  # study to replay; None where GPUs measure
    missing: str = ""  # why there is no GPU, if the backend looked for GPUs
    cluster: str = ""  # address where workers of other hosts join, HOST or HOST:PORT; empty without them

    @property
    def word(self) -> str:
        """Name of the source in rows and provenance."""
        return "measured" if self.recorded is None else "replayed"

    @property
    def provenance(self) -> dict[str, Any]:
        """Provenance keys of the source; the GPU's name is empty where workers are still to join."""
        if self.recorded is not None:
            return replay_provenance(self.recorded)
        return {"gpu": {"name": self.gpus[0].name if self.gpus else ""}, "kernel": kernel_digest()}

    def folder(self, spec: Spec) -> Path:
        """Return the default folder of a sweep. Replays of other questions or other recorded studies stand beside each
        other: ``name``, ``name-2``, ..."""
        if self.recorded is None:
            return local_root() / (slug(self.gpus[0].name) if self.gpus else "cluster") / spec.name
        wanted = identity_of({**self.provenance, "spec_digest": spec.digest, "source": self.word})
        root = local_root() / "replay"
        for number in count(1):
            path = root / (spec.name if number == 1 else f"{spec.name}-{number}")
            try:
                StudyFolder(path).refuse_another(wanted)
                return path
            except ResultsError:
                continue
        raise AssertionError

    def opening(self, verb: str, what: str, folder: Path) -> str:
        """Return the line that says what will be measured, where, and into which folder: ``Measuring ...``."""
        if self.recorded is not None:
            return (
                f"Replaying {what} from recorded measurements of an {self.recorded.provenance['gpu']['name']} "
                f"({shown(self.recorded.path)}); nothing is measured here{f': {self.missing}' if self.missing else ''}"
            )
        name = self.gpus[0].name if self.gpus else "the workers that join"
        where = name if len(self.gpus) < 2 else f"{len(self.gpus)} GPUs ({name})"
        return f"{verb} {what} on {where} into {shown(folder)}"

    def executor(self, job: Job, say: Callable[[str], None] = lambda text: None) -> Executor:
        """Start the workers; with a cluster, ``say`` gets the command by which hosts join."""
        if self.recorded is not None:
            return Replay(self.recorded)
        if self.cluster:
            from hopper_gemm.tune.run.executors.cluster import Cluster

            cluster = Cluster(job, self.cluster)
            say(f"other hosts join by: {cluster.command}")
            return cluster
        return Local(job, [gpu.index for gpu in self.gpus])


def choose(record: Callable[[str], Path], backend: str, gpus: Sequence[int], cluster: str = "") -> Source:
    """Find the GPUs, or else the study in the folder that ``record`` returns for the reason why there is no GPU.

    Raises:
        NoHopperError: ``backend`` is ``"cuda"`` and a GPU is missing.
        NotRecordedError: there is neither a GPU nor a recorded study.
        ValueError: the GPUs are of several kinds, the backend is none of :data:`BACKENDS`, or a cluster should replay.
    """
    if cluster and backend == "replay":
        raise ValueError("--cluster measures on other hosts but --backend is replay; leave one of them out")
    if cluster:
        return Source(cluster=cluster)
    present, missing = find(gpus, backend)
    return Source(present) if present else Source(recorded=read_study(record(missing)), missing=missing)


def find(gpus: Sequence[int], backend: str) -> tuple[tuple[GpuId, ...], str]:
    """Return the GPUs to measure on; or none, and the reason. It raises as :func:`choose` does."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)} but got {backend!r}")
    if backend == "replay":
        return (), ""
    try:
        ids = tuple(Rig().find(index) for index in gpus)
    except NoHopperError as error:
        if backend == "cuda" or tuple(gpus) != (0,):  # GPUs that the user names are required
            raise NoHopperError(f"{error}, or use --backend replay") from None
        return (), str(error).split(";")[0]
    kinds = sorted({gpu.name for gpu in ids})
    if len(kinds) > 1:
        raise ValueError(f"--gpus must be of one kind but got {' and '.join(kinds)}; name those of one kind")
    return ids, ""


def recorded_study(name: str, missing: str) -> Path:
    """Return the folder of a recorded study. A NotRecordedError says that none has this name, and why there is no GPU
    (``missing``)."""
    folders = recorded_folders(name)
    if not folders:
        why = f"{missing}, and " if missing else ""
        fix = "name one with --from, or measure it on a Hopper GPU"
        raise NotRecordedError(f"{why}no recorded study {name} lies under {results_root()}; {fix}")
    return folders[0]


class Replay:
    """One worker that returns the rows of a recorded study, and rows without a status for points that were not
    recorded."""

    def __init__(self, study: Study) -> None:
        self._rows = {row.key: row for row in study.rows}
        self._events: list[tuple[str, Event]] = [(WORKER, Joined(dict(study.provenance["gpu"])))]

    @property
    def awaited(self) -> str:
        return WORKER

    def poll(self, seconds: float) -> Sequence[tuple[str, Event]]:
        events, self._events = self._events, []
        return events

    def send(self, worker: str, number: int, task: Task) -> None:
        for point in task.points:
            unrecorded = task.row(point, "", "")
            self._events.append((WORKER, self._rows.get(unrecorded.key, unrecorded)))

    def close(self) -> None:
        """Do nothing: a replay holds no resources."""


def replay_provenance(study: Study) -> dict[str, Any]:
    """Return the keys that a replay's provenance takes from the recorded study, and the digest of its rows."""
    carried = ("gpu", "versions", "protocols", "kernel", "noise", "boards")
    provenance = {name: study.provenance[name] for name in carried if name in study.provenance}
    digest = hashlib.sha256("\n".join(sorted(row.line() for row in study.rows)).encode()).hexdigest()[:16]
    return {**provenance, "replayed_from": shown(study.path), "record": digest}
