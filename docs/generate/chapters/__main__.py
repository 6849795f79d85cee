"""``python -m docs.generate.chapters``: builds, checks and times the code of the chapters."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

import hopper_gemm.cli.options as options
from hopper_gemm.cli.app import CHECK_FAILED, command, entry, stderr
from hopper_gemm.tune.measure.device import NoHopperError
from hopper_gemm.tune.study.files import shown

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)


@partial(command, commands=app)
def chapters(
    numbers: Annotated[
        list[int] | None, typer.Argument(metavar="[N]...", help="Numbers of chapters. Default: all eight.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the code as files, to read or change, and stop.")
    ] = None,
    code: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Take the code from such files. Default: as printed.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append a line of JSON for each chapter; needs a GPU.")
    ] = None,
    gpus: options.Gpus = "0",
    as_json: options.Json = False,
) -> None:
    """Build the code of the chapters, check it, and time it.

    Every listing of docs/learn is put in the place of the functions that it shows and compiled. On a Hopper GPU its
    product is checked at 8192^3 and it is timed in bursts, in turns with torch.mm; without one it is built only. The
    exit code is 1 if a listing does not compile, or does not multiply.
    """
    from docs.generate.chapters.build import build
    from docs.generate.chapters.listing import read
    from docs.generate.chapters.listing import write as write_listings
    from docs.generate.chapters.table import FINE, built_rows, table
    from docs.generate.chapters.times import rows
    from docs.generate.pages.chapters import CHAPTERS
    from hopper_gemm.cli.running import name_tenants
    from hopper_gemm.tune.run.source import find

    chosen = sorted(set(numbers or range(1, len(CHAPTERS) + 1)))
    if not 1 <= chosen[0] <= chosen[-1] <= len(CHAPTERS):
        raise ValueError(f"chapters are numbered 1 to {len(CHAPTERS)} but got {' '.join(map(str, chosen))}")
    if write is not None:
        if code is not None or out is not None:
            raise ValueError("--write writes the code as printed and stops; leave out --code and --out")
        files = write_listings(chosen, write)
        print(json.dumps([str(file) for file in files]) if as_json else f"Written to {shown(write)}")
        return
    found, missing = find(options.gpus_of(gpus), "auto")
    if out is not None and not found:
        raise NoHopperError(f"{missing}; --out keeps times, which need an H100 or H200")
    listings, begun = read(chosen, code), time.monotonic()
    with TemporaryDirectory(prefix="hopper-gemm-") as scratch:
        built = build(listings, Path(scratch))
        stderr(f"chapters {', '.join(map(str, built))} built in {time.monotonic() - begun:.1f} s")
        if found:
            name_tenants(found[:1], stderr)
            told: list[dict[str, Any]] = []
            for row in rows(built, found[0]):
                told.append(row)
                stderr(f"chapter {row['chapter']}: {row['status']} {row['reason']}".rstrip())
                if out is not None:
                    with out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
        else:
            stderr(f"{missing}: built, not run")
            told = built_rows(built, {number: CHAPTERS[number - 1].rungs[-1] for number in built})
    print(json.dumps(told) if as_json else table(told))
    if any(row["status"] not in FINE for row in told):
        raise typer.Exit(CHECK_FAILED)


if __name__ == "__main__":
    entry(app, "python -m docs.generate.chapters")
