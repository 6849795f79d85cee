"""Questions: one gives a run its tasks and takes the rows; most keep them in a results folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hopper_gemm.model.point import Point
from hopper_gemm.model.roofline import SXM, Chip
from hopper_gemm.tune.measure.protocol import Protocol
from hopper_gemm.tune.run.task import Task, ratio_of
from hopper_gemm.tune.statistics import noise_floor
from hopper_gemm.tune.study.folder import StudyFolder
from hopper_gemm.tune.study.row import Row, figures_of
from hopper_gemm.tune.study.space import place_of


class RefusedError(ValueError):
    """A worker cannot take part in a question; the message says why. The others go on."""


@dataclass
class Member:
    """A worker that has joined.

    Args:
        name: such as ``GPU 0``.
        gpu: fields of :class:`hopper_gemm.tune.measure.device.DeviceInfo`.
        missing: baselines that cannot be asked there, with the reason.
    """

    name: str
    gpu: dict[str, Any]
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def board(self) -> str:
        """UUID of its board."""
        return str(self.gpu.get("uuid", "unknown"))


class Question:
    """The base of all questions: gives tasks, takes rows. Optional steps do nothing here."""

    records_crashes = True
    """True if the row of a crash is recorded; then the point is not measured again."""

    def next(self, member: Member) -> Task | None:
        """A task for a worker; None where there is none for it now."""
        raise NotImplementedError

    def take(self, rows: Sequence[tuple[Member, Row]]) -> None:
        """Record rows, each of which comes once, with the worker that measured it."""
        raise NotImplementedError

    def renewed(self, task: Task, member: Member) -> Task:
        """A task that waits at a worker, as it would be given now."""
        return task

    def joined(self, member: Member) -> None:
        """A worker is ready.

        Raises:
            RefusedError: it cannot take part.
        """

    def room(self, workers: int) -> int:
        """Number of tasks that each of the workers may hold: one under way, and some that compile."""
        return 4

    def dropped(self, task: Task) -> None:
        """A task for one board gets no rows: the board is gone for good."""

    def left(self, worker: str) -> None:
        """A worker will not come back."""

    def tick(self) -> None:
        """Called twice a second, or more often."""

    def close(self) -> None:
        """The run has ended, however it did."""


class Recording(Question):
    """A question with a results folder. Made, it only looks; the first worker that joins opens the folder, and the
    others must have the same kind of GPU.

    Args:
        study: name of the study.
        out: the results folder.
        source: measured or replayed.
        say: takes a line for the user.

    Raises:
        ResultsError: the folder takes no more rows, or is damaged.
    """

    def __init__(self, study: str, out: Path, source: str, say: Callable[[str], None]) -> None:
        self.out, self.say = out, say
        self._study, self._source = study, source
        self._folder = StudyFolder(out)
        self._exit = ExitStack()
        self._opened = False
        self._controls: set[tuple[str, str]] = set()
        """Places and boards whose noise floor was measured, or is being measured."""
        self._noise: dict[tuple[str, str], float] = {}

    def _fresh(self, gpu: dict[str, Any]) -> dict[str, Any]:
        """Provenance of a folder that is begun on a GPU."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Take up what the folder holds."""
        raise NotImplementedError

    @property
    def _provenance(self) -> dict[str, Any]:
        """Provenance of the open folder."""
        assert self._folder.about is not None
        return self._folder.about

    def joined(self, member: Member) -> None:
        """Open the folder for the first worker; the others must have the same kind of GPU."""
        if not self._opened:
            self._exit.enter_context(self._folder.held(self._fresh(member.gpu)))
            self._opened = True
            if self._folder.remark:
                self.say(f"{self._folder.remark}; they are measured again")
            self._begin()
        name = self._provenance["gpu"]["name"]
        if member.gpu["name"] != name:
            raise RefusedError(f"{member.name} is an {member.gpu['name']}, not an {name}; it is left out")

    def _chip_for(self, member: Member) -> Chip:
        """The GPU that picks are for: the first worker's kind. Every board of the kind gets the same points; resident
        clusters are estimated, because boards of one kind may differ in them."""
        if "memory_rate" in member.gpu:
            return Chip(**{name: member.gpu[name] for name in ("sms", "l2_bytes", "memory_rate")})
        return SXM

    def close(self) -> None:
        """Let the folder go."""
        self._exit.close()

    def _note_board(self, member: Member, **also: Any) -> None:
        """Note on whose board rows are measured, and what else is to be noted."""
        self._folder.note(boards=list(dict.fromkeys([*self._provenance.get("boards", []), member.board])), **also)

    def _control(self, point: Point, member: Member, protocol: Protocol) -> Task | None:
        """The noise floor of a point's place on a board, once; a replay has what was recorded."""
        key = place_of(point), member.board
        if key in self._controls or self._source != "measured":
            return None
        self._controls.add(key)
        return Task((cublas_control(point),), protocol, "control", board=member.board)

    def _learn(self, row: Row) -> None:
        """Note what a row says of the noise floor."""
        if row.stage == "control":
            key = place_of(row.point), row.board
            self._controls.add(key)
            if row.ok:
                self._noise[key] = round(noise_floor(ratio_of(row.figures)), 6)

    def _complete(self, row: Row, **more: Any) -> Row:
        """A worker's row with its origin; of its figures, and of more that it may lack, those that its status may
        carry."""
        study, source, gpu = self._origin
        figures = figures_of(row.status, {**more, **row.figures})
        return replace(row, figures=figures, study=study, source=source, gpu=gpu)

    def _refused(self, point: Point, why: str, stage: str, process: int = 0) -> Row:
        """The row of a point that some rule refuses."""
        return Row(point, "illegal", why, {}, (), stage, process, *self._origin)

    @property
    def _origin(self) -> tuple[str, str, str]:
        """Study, source and GPU of a row."""
        return self._study, self._source, self._provenance["gpu"]["name"]


def cublas_control(point: Point) -> Point:
    """cuBLAS against itself under a point's conditions."""
    return replace(point, against="cublas", subject="cublas")
