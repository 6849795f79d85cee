"""Questions: a question gives a run its tasks and takes its rows; most keep the rows in a results folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopper_gemm.model.roofline import SXM, Chip
from hopper_gemm.tune.measure.protocol import Protocol
from hopper_gemm.tune.point import Point
from hopper_gemm.tune.run.task import Joined, Task, ratio_of
from hopper_gemm.tune.statistics import noise_floor
from hopper_gemm.tune.study.folder import StudyFolder, identity_of
from hopper_gemm.tune.study.row import Row, figures_of
from hopper_gemm.tune.study.space import place_of


class RefusedError(ValueError):
    """A worker cannot take part in a question; the message says why. The other workers go on."""


class Question:
    """Base of all questions: gives tasks, takes rows. The optional steps of the base class do nothing."""

    records_crashes = True
    """True if the row of a crash is recorded; then the point is not measured again."""

    def next(self, member: Joined) -> Task | None:
        """Return a task for a worker; None if there is none for it now."""
        raise NotImplementedError

    def take(self, rows: Sequence[tuple[Joined, Row]]) -> None:
        """Record rows, each with the worker that measured it; no row comes twice."""
        raise NotImplementedError

    def renewed(self, task: Task, member: Joined) -> Task:
        """Return a task that waits at a worker, with what is known by now of other points."""
        return task

    def joined(self, member: Joined) -> None:
        """Take note of a worker that is ready; raise a RefusedError if it cannot take part."""

    def room(self, workers: int) -> int:
        """Return the number of tasks that each worker may hold: the task under way, and some that compile."""
        return 4

    def dropped(self, task: Task) -> None:
        """Take back a task for a board that is gone for good; it gets no rows."""

    def left(self, worker: str) -> None:
        """Take note of a worker that will not come back."""

    def tick(self) -> None:
        """Do periodic work; called twice a second or more often."""

    def close(self) -> None:
        """End the question, after the run's end or failure."""


class Recording(Question):
    """A question with a results folder. The constructor only reads the folder; the first worker that joins opens it,
    and the others must have the same kind of GPU. The provenance is that of a new folder; its ``gpu`` needs only the
    name until a worker joins."""

    def __init__(self, provenance: dict[str, Any], out: Path, say: Callable[[str], None]) -> None:
        self.out, self.say = out, say
        self._study, self._source = provenance["study"], provenance["source"]
        self._new_provenance = provenance
        self._folder = StudyFolder(out)
        self._folder.refuse_another(identity_of(provenance))
        self._exit = ExitStack()
        self._opened = False
        self._controls: set[tuple[str, str]] = set()
        """Cases (:func:`place_of`) and boards whose noise floor was measured, or is being measured."""
        self._noise: dict[tuple[str, str], float] = {}
        self.missing: dict[str, str] = {}  # baselines that cannot run here, with the reason

    @property
    def open(self) -> int:
        """Number of rows, or problems, that are still to be measured."""
        raise NotImplementedError

    def _fresh(self, gpu: dict[str, Any]) -> dict[str, Any]:
        """Return the provenance of a folder that is begun on a GPU."""
        return {**self._new_provenance, "gpu": gpu}

    def _begin(self) -> None:
        """Load the state of the run from the folder's rows."""
        raise NotImplementedError

    @property
    def _provenance(self) -> dict[str, Any]:
        assert self._folder.provenance is not None
        return self._folder.provenance

    def joined(self, member: Joined) -> None:
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

    def _chip_for(self, member: Joined) -> Chip:
        """Return the chip that configs are picked for: the first worker's kind of GPU. Every board of the kind gets the
        same points; resident clusters are estimated, because boards of one kind may differ in them."""
        if "memory_rate" in member.gpu:
            return Chip(**{name: member.gpu[name] for name in ("sms", "l2_bytes", "memory_rate")})
        return SXM

    def close(self) -> None:
        """Note whether everything was measured, and unlock the folder."""
        if self._opened and self._folder.rows:
            if self.open:
                self._folder.note(finished=None)
            else:
                self._folder.finish({}, {})
        self._exit.close()

    def _note_board(self, member: Joined, **fields: Any) -> None:
        self._folder.note(boards=list(dict.fromkeys([*self._provenance.get("boards", []), member.board])), **fields)

    def _control(self, point: Point, member: Joined, protocol: Protocol) -> Task | None:
        """Return the task that measures the noise floor of a point's case on a board; None if it was given out before,
        or in a replay."""
        key = place_of(point), member.board
        if key in self._controls or self._source != "measured":
            return None
        self._controls.add(key)
        control = replace(point, against="cublas").control
        return Task((control,), protocol, "control", board=member.board)

    def _learn(self, row: Row) -> None:
        """Take the noise floor from a row of stage ``control``."""
        if row.stage == "control":
            key = place_of(row.point), row.board
            self._controls.add(key)
            if row.ok:
                self._noise[key] = round(noise_floor(ratio_of(row.figures)), 6)

    def _complete(self, row: Row, **defaults: Any) -> Row:
        """Add study, source and GPU to a worker's row, and figures that it lacks; drop figures that its status may not
        carry."""
        study, source, gpu = self._origin
        figures = figures_of(row.status, {**defaults, **row.figures})
        return replace(row, figures=figures, study=study, source=source, gpu=gpu)

    def _refused(self, point: Point, reason: str, stage: str, process: int = 0) -> Row:
        return Row(point, "illegal", reason, {}, (), stage, process, *self._origin)

    @property
    def _origin(self) -> tuple[str, str, str]:
        return self._study, self._source, self._provenance["gpu"]["name"]
