"""A finished study's rows compressed to a tenth of their size.

While a study runs its rows are CSV, which grows row by row and survives a kill; the packed file is written once.
Readers take either.
"""

from __future__ import annotations

import lzma
from pathlib import Path

from hopper_gemm.tune.study.files import write_whole
from hopper_gemm.tune.study.reader import ROWS, packed, read_study
from hopper_gemm.tune.study.row import ResultsError


def pack(folder: Path) -> dict[str, tuple[int, int]]:
    """Compress the rows of a finished study, which takes no more rows then; return the bytes of its rows as CSV and
    packed, by the name of the packed file. Killed at any moment it loses nothing; the same call continues.

    Raises:
        ResultsError: the folder is no study, a damaged one, or is packed already; or its rows do not come back.
    """
    source, target = folder / ROWS, packed(folder)
    read_study(folder)
    if not source.is_file():
        raise ResultsError(f"{folder} is packed already; hopper-gemm table {folder} reads it as it is")
    plain = source.read_bytes()
    content = lzma.compress(plain, preset=9 | lzma.PRESET_EXTREME)
    if lzma.decompress(content) != plain:
        raise ResultsError(f"{source} does not come back from its compressed form and stays; report it with the file")
    write_whole(target, content)
    source.unlink()
    return {target.name: (len(plain), len(content))}
