"""A results folder is damaged, then the same command: rows of an undisturbed run, or a refusal that names the place."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.study.row import ResultsError, Row
from hopper_gemm.tune.study.spec import Spec, checked, read_spec
from tests.tune.run import fakes
from tests.tune.run.instant import SEARCH, run_sweep

FILES = ("rows.csv", "provenance.json")


@dataclass(frozen=True)
class Case:
    """A damage to a file of an exhaustive or a searched study, and what the same command made of it: the same rows, or
    a refusal."""

    seed: int
    study: str
    file: str
    damage: str
    outcome: str
    told: str = ""


def _lines(text: bytes) -> list[bytes]:
    return text.splitlines(keepends=True)


def _some_lines(text: bytes, rng: random.Random) -> tuple[list[bytes], int, int]:
    lines = _lines(text)
    first = rng.randrange(len(lines))
    return lines, first, min(len(lines), first + rng.randint(1, 4))


def delete(text: bytes, rng: random.Random) -> bytes | None:
    """The whole file."""
    return None


def truncate(text: bytes, rng: random.Random) -> bytes:
    """At any byte."""
    return text[: rng.randrange(len(text))]


def truncate_line(text: bytes, rng: random.Random) -> bytes:
    """At the end of any line."""
    return b"".join(_lines(text)[: rng.randrange(len(_lines(text)))])


def delete_lines(text: bytes, rng: random.Random) -> bytes:
    """Some lines in a row."""
    lines, first, last = _some_lines(text, rng)
    return b"".join(lines[:first] + lines[last:])


def delete_bytes(text: bytes, rng: random.Random) -> bytes:
    """Some bytes in a row."""
    at = rng.randrange(len(text))
    return text[:at] + text[at + rng.randint(1, 40) :]


def double_lines(text: bytes, rng: random.Random) -> bytes:
    """Some lines in a row."""
    lines, first, last = _some_lines(text, rng)
    return b"".join(lines[:last] + lines[first:last] + lines[last:])


def double_file(text: bytes, rng: random.Random) -> bytes:
    """Twice the whole."""
    return text + text


def flip(text: bytes, rng: random.Random) -> bytes:
    """A bit."""
    at = rng.randrange(len(text))
    return text[:at] + bytes([text[at] ^ (1 << rng.randrange(8))]) + text[at + 1 :]


def digit(text: bytes, rng: random.Random) -> bytes:
    """One digit becomes another."""
    at = rng.choice([match.start() for match in re.finditer(rb"\d", text)])
    return text[:at] + str((int(text[at : at + 1]) + 1) % 10).encode() + text[at + 1 :]


def swap_lines(text: bytes, rng: random.Random) -> bytes:
    """Two lines trade places."""
    lines = _lines(text)
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return b"".join(lines)


def zeros(text: bytes, rng: random.Random) -> bytes:
    """A stretch of zero bytes, as a lost block leaves them."""
    at = rng.randrange(len(text))
    return text[:at] + bytes(min(200, len(text) - at)) + text[at + 200 :]


def garbage(text: bytes, rng: random.Random) -> bytes:
    """A line of anything."""
    lines, first, _ = _some_lines(text, rng)
    return b"".join([*lines[:first], rng.randbytes(30).replace(b"\n", b"") + b"\n", *lines[first:]])


DAMAGES: tuple[Callable[[bytes, random.Random], bytes | None], ...] = (
    *(delete, truncate, truncate_line, delete_lines, delete_bytes, double_lines),
    *(double_file, flip, digit, swap_lines, zeros, garbage),
)


class Ground:
    """Finished studies to be damaged, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.specs: dict[str, Spec] = {}
        self.whole: dict[str, Path] = {}
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        small = fakes.SPEC.replace("[64, 128, 320]", "[64, 128, 192, 320]")
        for name, text in (("exhaustive", small), ("searched", SEARCH.replace('"gp"', '"random"'))):
            path = folder / f"{name}.toml"
            path.write_text(text)
            self.specs[name] = read_spec(path)
            self.whole[name] = folder / "whole" / name
            run_sweep(self.specs[name], self.whole[name])

    def case(self, seed: int) -> Case:
        """Damage a study in one way, then run the same command.

        Raises:
            AssertionError: the rows are neither those of an undisturbed run nor refused with their place.
        """
        rng = random.Random(seed)
        name = ("exhaustive", "searched")[seed % 2]
        file = FILES[1] if seed % 4 == 3 else FILES[0]
        damage = DAMAGES[seed // 2 % len(DAMAGES)]
        spec, out = self.specs[name], self._folder / "damaged" / str(seed)
        shutil.copytree(self.whole[name], out)
        content = damage((out / file).read_bytes(), rng)
        (out / file).unlink()
        if content is not None:
            (out / file).write_bytes(content)
        before = {path.name: path.read_bytes() for path in out.iterdir()}
        try:
            run_sweep(spec, out)
        except ResultsError as error:
            told = str(error)
            assert str(out) in told, told
            assert "\n" not in told, told
            assert file not in told or file == FILES[1] or "line" in told or "rows" in told, told
            after = {path.name: path.read_bytes() for path in out.iterdir()}
            assert after == before, "a refusal changes nothing"
            return Case(seed, name, file, damage.__name__, "refused", told.replace(str(out), "FOLDER"))
        self._same(name, out, spec)
        return Case(seed, name, file, damage.__name__, "same rows")

    def _same(self, name: str, out: Path, spec: Spec) -> None:
        """The rows of an undisturbed run; of a search as many, which need not be the same configs."""
        whole, found = (read_study(folder) for folder in (self.whole[name], out))
        if name == "exhaustive":
            assert _rows(found.rows) == _rows(whole.rows)
            return
        for stage in ("sweep", "control"):
            assert len(found.stage(stage)) == len(whole.stage(stage))
        assert len(found.stage("final")) >= len(whole.stage("final")), "what came instead may be better"
        assert checked(found.provenance["spec"], "found").digest == spec.digest


def _rows(rows: tuple[Row, ...]) -> set[str]:
    return {row.line() for row in rows}
