"""The sums of a study or a tuned table, written anew: for files of an earlier version, or that a person corrected."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from hopper_gemm.model.sealed import parsed, sealed, sha256
from hopper_gemm.model.tuned import RESTORE, TunedTableError, entries_of, replace_file, table_lock
from hopper_gemm.tune.study.files import read_json, read_object, write_sealed
from hopper_gemm.tune.study.provenance import MOMENT, PROVENANCE, checked
from hopper_gemm.tune.study.reader import digest_of, has_rows, read_rows, whole_lines
from hopper_gemm.tune.study.row import ResultsError


def seal(path: Path, ended: bool = False) -> str:
    """Write the sum of a study's provenance, a tuned table, or another JSON file that carries a sum, by what it says
    now; say what was written.

    Rows carry sums of their own; what a finished study says of them must hold, but the order of its rows, which earlier
    versions did not note, is noted now. If ``ended``, the rows of a study that was stopped before its end are counted
    too, and noted as all that it has. ResultsError or TunedTableError if a file is damaged, or does not hold the rows
    with which its study was finished."""
    if path.is_file() and path.name != PROVENANCE:
        value = read_json(path)
        if isinstance(value, list) or (isinstance(value, dict) and "entries" in value):
            return f"{path}: {seal_tuned(path)} entries"
        write_sealed(path, read_object(path, checks=False))
        return str(path)
    folder = path.parent if path.is_file() else path
    file = folder / PROVENANCE
    provenance = checked(read_object(file, checks=False), file)
    rows, lines = (read_rows(folder), whole_lines(folder)[1]) if has_rows(folder) else ([], [])
    finished, digest = provenance.get("finished"), digest_of(lines)
    if finished is None and ended and rows:
        finished = {"rows": len(rows), "digest": digest, "counted": datetime.now(UTC).strftime(MOMENT)}
    if finished is not None:
        unordered = sha256("\n".join(sorted(lines)))
        if finished["rows"] != len(rows) or finished["digest"] not in (digest, unordered):
            raise ResultsError(f"{folder} does not hold the {finished['rows']} rows of the finished study; restore it")
        provenance["finished"] = {**finished, "digest": digest}
    write_sealed(file, provenance)
    return f"{folder}: {len(rows)} rows"


def seal_tuned(path: Path) -> int:
    """Write the sum of a tuned table anew, such as of one that an earlier version wrote or a person corrected; return
    the number of its entries. TunedTableError if it is no tuned table, an entry is invalid, or it cannot be written."""
    try:
        with table_lock(path):
            table = parsed(path.read_text(encoding="utf-8"))
            table = {"entries": table} if isinstance(table, list) else table
            count = len(entries_of(path, table))
            replace_file(path, sealed(table).encode())
    except TunedTableError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise TunedTableError(f"{path} cannot be read as JSON ({error}); {RESTORE}") from None
    return count
