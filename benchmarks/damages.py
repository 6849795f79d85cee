"""Damage files that are read as evidence, as a choice or as code, and see what their readers do.

    python -m benchmarks.damages [--seed SEED] [--out FILE]

Of each kind as many cases as :data:`CASES` says, drawn by the seed: copies of recorded studies, of tuned tables, of the
rows of verification and of recorded binaries, and a kernel that is compiled here and an extension of torch. One damage
is done to one file of a copy, then the reader runs in a process of its own. It must refuse the copy in one line, read
what stood there before the damage, or, of a library, make it again. The counts are written to FILE; the exit code is 1
where a case ends otherwise. Needs no GPU.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hopper_gemm.compiler import extension
from hopper_gemm.compiler.loader import FUNCTION, compile_into, load_shared
from hopper_gemm.compiler.store import KernelId, KernelStore, bare_code
from hopper_gemm.lab.guard import binaries
from hopper_gemm.lab.guard.check import CODES, listed_binaries
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.sealed import sha256
from hopper_gemm.model.tuned import read_tuned, results_root
from hopper_gemm.serve import EXTENSION
from hopper_gemm.tune.study.provenance import MOMENT
from hopper_gemm.tune.study.reader import ROWS, packed, read_study, recorded_folders, whole_lines
from tests.tune.run.damage import DAMAGES
from tests.verify.rows import read_rows

OUT = results_root() / "verification" / "damages.csv"
CASES = {"studies": 500, "tuned tables": 500, "rows of verification": 300, "binaries": 150, "libraries": 100}
REFUSED, UNCHANGED, REPLACED = "refused in one line", "read as before", "made again"
GOOD = REFUSED, UNCHANGED, REPLACED
SMALL_BYTES = 2**16
"""Packed size of the recorded studies that are damaged: a case then takes a second at most."""

LIBRARY = KernelId.of(GemmConfig(tile_m=64, tile_n=64), GemmProblem(512, 512, 512))


class MadeAgainError(Exception):
    """A library counts as missing."""


@dataclass(frozen=True)
class Kind:
    """Recorded things of a kind, each of which is copied and damaged.

    Args:
        copies: folders, each copied for a case.
        read: returns what a copy says.
        files: patterns of the files that may be damaged.
    """

    copies: list[Path]
    read: Callable[[Path], Any]
    files: tuple[str, ...] = ("*",)


def half(text: bytes, rng: random.Random) -> bytes:
    """The first half."""
    return text[: len(text) // 2]


def empty(text: bytes, rng: random.Random) -> bytes:
    """Nothing."""
    return b""


def not_a_number(text: bytes, rng: random.Random) -> bytes:
    """A number becomes NaN."""
    return _replaced(rb"\b\d+\.\d+\b", text, b"NaN", rng)


def word(text: bytes, rng: random.Random) -> bytes:
    """A letter of a word changes, as of a status."""
    return _replaced(rb"(?<=[a-z])[a-z](?=[a-z])", text, b"1", rng)


def _replaced(pattern: bytes, text: bytes, new: bytes, rng: random.Random) -> bytes:
    spans = [match.span() for match in re.finditer(pattern, text)]
    start, end = rng.choice(spans) if spans else (0, 0)
    return text[:start] + new + text[end:]


EVERY_DAMAGE = (*DAMAGES, half, empty, not_a_number, word)


def kinds(folder: Path) -> dict[str, Kind]:
    """The kinds of recorded things by name.

    Args:
        folder: an empty one, for files that are made here.
    """
    root, studies = results_root(), []
    for number, study in enumerate(recorded_folders()):
        if packed(study).is_file() and packed(study).stat().st_size < SMALL_BYTES:
            studies.append(study)
            unpacked = folder / f"study-{number}"
            shutil.copytree(study, unpacked, ignore=shutil.ignore_patterns("*.xz"))
            (unpacked / ROWS).write_text("".join(f"{line}\n" for line in whole_lines(study)[1]), encoding="utf-8")
            studies.append(unpacked)
    table = root / "h200" / "best_configs.json"
    for name in ("tables", "guard", "verified"):
        (folder / name).mkdir()
    shutil.copy(table, folder / "tables")
    shutil.copy(table.with_name(CODES), folder / "guard")
    shutil.copytree(table.parent / binaries.FOLDER, folder / "guard" / binaries.FOLDER)
    for path in (root / "verification").glob("rows.json*"):
        shutil.copy(path, folder / "verified")
    compile_into(KernelStore(folder / "kernels"), LIBRARY)
    library = extension.extension_of(EXTENSION, build=True)
    assert library is not None, "the extension of torch cannot be made here"
    (folder / "extension").mkdir()
    shutil.copy(library, folder / "extension")
    return {
        "studies": Kind(studies, read_study, (f"{ROWS}*", "provenance.json")),
        "tuned tables": Kind([folder / "tables"], lambda copy: read_tuned(copy / table.name)),
        "rows of verification": Kind([folder / "verified"], read_rows),
        "binaries": Kind([folder / "guard"], read_guard, ("*.json", f"{binaries.FOLDER}/*")),
        "libraries": Kind([folder / "kernels", folder / "extension"], load_library, ("*.so", "*.json", "*.o")),
    }


def read_guard(copy: Path) -> Any:
    """The binaries in a folder, and what each would load."""
    binaries.launcher_of = lambda file: file.read_bytes()
    binaries.LoadedKernel = _Loaded  # type: ignore[assignment,misc]
    listed = listed_binaries(copy / "best_configs.json")
    return [(binary, binary.load().config) for binary in listed]


class _Loaded:
    """A loaded kernel without a GPU."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @staticmethod
    def of(config: Any, report: Any, launcher: Any) -> _Loaded:
        return _Loaded(config)


def load_library(copy: Path) -> Any:
    """Load the library in a folder as a call does; whether it counts as missing."""
    if list(copy.glob("native*")):
        os.environ["XDG_CACHE_HOME"] = str(copy / "none")
        extension.FOLDER = copy
        library = extension.extension_of(EXTENSION)
        if library is None:
            raise MadeAgainError
        return sorted(vars(extension.load_extension(library) or object()))
    report = KernelStore(copy).report(LIBRARY)
    if report is None:
        raise MadeAgainError
    return report, bool(load_shared(KernelStore(copy).shared_library(LIBRARY), FUNCTION))


def outcome(read: Callable[[Path], Any], copy: Path, whole: str = "") -> tuple[str, str]:
    """The outcome of reading a copy in a process of its own, and the message; ``whole`` was read before the damage."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            text = f"read\n{sha256(repr(read(copy)).replace(str(copy), ''))}"
        except MadeAgainError:
            text = f"{REPLACED}\n"
        except (ValueError, OSError) as error:  # the command line says these in one line, others in a traceback
            names_file = str(copy) in str(error) and "\n" not in str(error)
            text = f"{REFUSED if names_file else 'refused without its file'}\n{error}"
        except BaseException as error:
            text = f"traceback\n{type(error).__name__}: {error}"
        os.write(theirs, text.encode(errors="replace")[:4000])
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        result, _, message = pipe.read().decode(errors="replace").partition("\n")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}", ""
    if result == "read":
        return (UNCHANGED if message == whole else "other content"), message
    return result, message.replace(str(copy), "COPY")


def cases(kind: Kind, count: int, rng: random.Random, folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Damage copies: of each case the file, the damage, the outcome and the message."""
    before: dict[Path, str] = {}
    for number in range(count):
        source = rng.choice(kind.copies)
        copy = folder / "copy"
        shutil.copytree(source, copy)
        if source not in before:
            before[source] = outcome(kind.read, copy)[1]
        files = sorted({path for pattern in kind.files for path in copy.glob(pattern) if path.is_file()})
        damage = EVERY_DAMAGE[number % len(EVERY_DAMAGE)]
        path = rng.choice(files)
        whole = path.read_bytes()
        content: bytes | None = whole
        for _ in range(20):  # such as a line that trades its place with itself
            if content != whole:
                break
            with suppress(IndexError):  # such as a digit of a file without one
                content = damage(whole, rng)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        yield path.name, damage.__name__, *outcome(kind.read, copy, before[source])
        shutil.rmtree(copy)


def main() -> None:
    """Damage what the arguments name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    counts: Counter[tuple[str, str, str]] = Counter()
    with tempfile.TemporaryDirectory(prefix="hopper-gemm-damages-") as scratch:
        folder = Path(scratch)
        for name, kind in kinds(folder).items():
            rng = random.Random(f"{options.seed} {name}")
            for file, damage, result, message in cases(kind, CASES[name], rng, folder):
                counts[name, damage, result] += 1
                if result not in GOOD:
                    print(f"{name}: {file}: {damage}: {result}: {message[:300]}", flush=True)
            print(name, dict(sum((Counter({key[2]: n}) for key, n in counts.items() if key[0] == name), Counter())))
    sources = sorted((Path(extension.__file__).parents[1]).rglob("*.py"))
    digest = sha256("".join(bare_code(path.read_text(encoding="utf-8")) for path in sources))[:16]
    run = (options.seed, digest, datetime.now(UTC).strftime(MOMENT))
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("kind", "damage", "outcome", "cases", "seed", "sources", "date"))
        writer.writerows((*key, count, *run) for key, count in sorted(counts.items()))
    sys.exit(any(key[2] not in GOOD for key in counts))


if __name__ == "__main__":
    main()
