"""List what README and the site's pages claim to have measured, and measure anew what is not of today's machine code.

For each claim ``make headline`` prints whose machine code was measured, as far as its rows say, and the command that
measures it again (with ``--backend replay``, or by ``hopper-gemm table`` and the folder, its rows are shown without a
GPU); what README says comes first, with the figures of its table, and of that the figures of an earlier version. On a
Hopper GPU it then runs the commands of all claims that are not wholly this version's, one after the other, into
results/local/headline, and goes on where it stopped: a command that ended well is not run again until the kernel's
sources change, and the others go on in their own files. ``make headline ONLY="8192x8192x8192 at the power cap"`` lists
and measures one claim, of this version too, and each time anew, beside what was measured before. Recorded rows and
pages are left as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fresh import LAST_SEEDS
from docs.generate.pages import chapters
from docs.generate.pages.comparisons import (
    FP8_TUNED,
    MARKED,
    ON_H100S,
    ON_H200S,
    headline_lines,
    measured_kernels,
    todays_code,
)
from docs.generate.pages.reproduction import claims_of_readme
from docs.generate.pages.sources import recorded
from docs.generate.todays_code import CURRENT, EARLIER, UNKNOWN, mark
from hopper_gemm.model.tuned import local_root, results_root
from hopper_gemm.tune.measure.device import NoHopperError, find_hopper
from hopper_gemm.tune.parameters import kernel_digest
from hopper_gemm.tune.study.files import write_whole
from hopper_gemm.tune.study.reader import recorded_folders

ROOT = Path(__file__).parents[2]
README = "README.md"
OF_README = (
    *(ON_H100S[0], "suite-chained-on-h100", ON_H200S[0], "invariant", *FP8_TUNED, "short", "map-held-out"),
    *(*LAST_SEEDS, "steady-on-h100"),
)
"""Rows behind the lines of :func:`claims_of_readme`, in its order: those of README's table, and :data:`ELSEWHERE`."""

ELSEWHERE = {"short": "docs/suite.md", "map-held-out": "docs/menu.md"}

LAYER, EXAMPLES = "python examples/llama_layer.py", "measurements/examples.jsonl"
OTHERS = (
    (README, "a layer of Llama-3-8B", EXAMPLES, f"{LAYER} --resume --out OUT"),
    (README, "the same beside torch.compile", EXAMPLES, f"{LAYER} --compile --resume --out OUT"),
    (README, "a patched model", EXAMPLES, "python examples/patched_model.py --out OUT"),
    (
        "docs/models.md",
        "layers in one launch",
        "measurements/linear.jsonl",
        "python -m benchmarks.linear --compile --out OUT",
    ),
    ("docs/models.md", "a training", EXAMPLES, "python examples/train.py --out OUT"),
    ("docs/models.md", "a layer of experts", EXAMPLES, "python examples/experts.py --out OUT"),
    ("docs/models.md", "an invariant decode", EXAMPLES, "python examples/invariant_decode.py --out OUT"),
    ("docs/models.md", "FP8", "measurements/fp8.csv", "python -m benchmarks.fp8 --out OUT"),
    ("docs/menu.md", "deep and narrow problems", "measurements/deep.csv", "python -m benchmarks.deep --out OUT"),
    ("docs/menu.md", "gates", "measurements/gated.jsonl", "python -m benchmarks.gates time --out OUT"),
    (
        "docs/works-with.md",
        "CUTLASS Operators",
        "measurements/operators.csv",
        "python -m benchmarks.operators --out OUT",
    ),
    ("docs/models.md", "groups and batches", "measurements/groups.csv", "python -m benchmarks.groups --out OUT"),
    (
        "docs/models.md",
        "tuned groups",
        "measurements/groups-tuned.csv",
        "python -m benchmarks.groups --tune 10 --out OUT",
    ),
    (
        "docs/models.md",
        "experts of few tokens",
        "measurements/experts-few.csv",
        "python examples/experts.py --tokens 64 1024 --out OUT",
    ),
    ("docs/measuring.md", "the best configs", "h200/checks.jsonl", "hopper-gemm check"),
    (
        "docs/measuring.md",
        "the best configs of an H100",
        "measurements/check-h100.csv",
        "hopper-gemm check --from results/h100/best_configs.json",
    ),
    ("docs/menu.md", "first calls", "measurements/first-calls.csv", "python -m benchmarks.first > OUT"),
    (
        "docs/measuring.md",
        "graphs of two lengths",
        "measurements/graph-lengths.csv",
        "python -m benchmarks.graphs --out OUT",
    ),
    ("docs/measuring.md", "host time", "measurements/host-time.csv", "python -m benchmarks.host --out OUT"),
    ("docs/menu.md", "a layer by picks", "measurements/layer-picked.jsonl", f"{LAYER} --picked --resume --out OUT"),
    ("docs/menu.md", "the suite by picks", "suite-picks", "hopper-gemm map --shapes {} --drawn 0 --out OUT"),
    ("docs/menu.md", "the whole menu", "menu", "hopper-gemm map --shapes {} --drawn 128 --out OUT"),
    ("docs/suite.md", "random problems", "drawn-again", "hopper-gemm compare --shapes {} --against cublas --out OUT"),
    ("docs/suite.md", "the map", "map", "hopper-gemm map --out OUT"),
    (
        "docs/suite.md",
        "padded problems",
        "ragged",
        "python -m benchmarks.ragged sweeps/shapes/drawn.toml sweeps/shapes/ragged.toml --rounds 9 > OUT",
    ),
    (
        "docs/learn/hopper.md",
        "the chapters",
        "measurements/chapters.jsonl",
        "python -m docs.generate.chapters --out OUT",
    ),
    ("docs/verification.md", "verification", "verification", "python -m tests.verify"),
)
"""Other claims: page, what, rows, command; OUT is a path that each has for itself, {} the list of problems."""

SHAPES = {"suite-picks": "suite", "menu": "menu", "drawn-again": "drawn"}
"""Lists of problems in sweeps/shapes by the study that measured them."""

SWEEPS = {"": "docs/study.md", "steady": "docs/steady.md", "neighbours": "docs/neighbours.md"}
"""Folders of sweeps, with the page that says what their studies found."""


@dataclass(frozen=True)
class Claim:
    """Something measured that a page says.

    Args:
        page, what: where it stands, and what it is of.
        rows: study, or file below results, whose rows it is made from.
        command: command that measures it again, with the path that it writes.
        code: whose machine code was measured, in a few words.
        figure: what a line of README's table says, over torch.mm and over the faster baseline; else empty.
    """

    page: str
    what: str
    rows: str
    command: str
    code: str
    figure: str = ""

    @property
    def current(self) -> bool:
        """Return True if all of it is of today's machine code."""
        return self.code == CURRENT


def claims() -> list[Claim]:
    """Return every claim: README's first, then those of an earlier version, then what is not compared."""
    readme = zip(claims_of_readme(), OF_README, strict=True)
    listed = []
    for (what, command, *_), rows in readme:
        listed.append((ELSEWHERE.get(rows, README), what, rows, f"{command.replace(' --out FILE', '')} --out OUT"))
    listed += [(*other[:3], other[3].format(f"sweeps/shapes/{SHAPES.get(other[2])}.toml")) for other in OTHERS]
    for folder, page in SWEEPS.items():
        for path in sorted((ROOT / "sweeps" / folder).glob("*.toml")):
            if recorded_folders(path.stem):
                command = f"hopper-gemm sweep {path.relative_to(ROOT)} --out OUT"
                listed.append((page, path.stem, path.stem, command))
    figures = {rows: figure_of(*line[2:4]) for rows, line in headline_lines().items()}
    made = [
        Claim(page, what, rows, command.replace("OUT", out_of(what)), code_of(rows), figures.get(rows, ""))
        for page, what, rows, command in listed
    ]
    order = (EARLIER, UNKNOWN, CURRENT)  # a mark of several kinds stands behind the first
    rank = {code: 2 * at for at, code in enumerate(order)}
    return sorted(made, key=lambda claim: (claim.page != README, rank.get(claim.code, 1)))


def figure_of(over_torch: str, over_faster: str) -> str:
    """Return two figures of README's table, the second maybe empty, as text."""
    further = f"; {over_faster} over the faster of it and cuBLASLt" * bool(over_faster)
    return f"{over_torch} over torch{further}".replace("**", "")


def out_of(what: str) -> str:
    """Return the path below the repository to which a claim's command writes."""
    return str((local_root() / "headline" / re.sub(r"\W+", "-", what)).relative_to(results_root().parent))


def code_of(rows: str) -> str:
    """Return whose machine code was measured: by the digests of kernels, else by that of the kernel's sources."""
    if rows in (*MARKED, "invariant", "ragged"):
        return mark(list(todays_code().standings(measured_kernels(rows)).values()))
    if rows == f"measurements/{chapters.PRINTED.name}":
        return mark([todays_code().standing(one) for one in chapters.measured()])
    if (results_root() / rows).exists():
        return UNKNOWN  # no row has a digest
    return CURRENT if recorded(rows).provenance["kernel"] == kernel_digest() else UNKNOWN


def listing(found: Iterable[Claim]) -> str:
    """Return the claims as text, three lines each."""
    return "\n".join(
        f"{claim.page}: {claim.what}{f': {claim.figure}' * bool(claim.figure)}\n"
        f"  {claim.code}; rows: {claim.rows}\n  {claim.command}"
        for claim in found
    )


def named(found: Sequence[Claim], text: str) -> Claim:
    """Return the claim whose name has a text, or is it.

    Raises:
        ValueError: none or several have it, and none is it.
    """
    having = [claim for claim in found if text.lower() in claim.what.lower()]
    exact = [claim for claim in having if claim.what.lower() == text.lower()]
    if len(exact or having) != 1:
        among = "; ".join(claim.what for claim in having or found)
        raise ValueError(f"--only must be of one claim but {text!r} is of {len(having)}; name one of: {among}")
    return (exact or having)[0]


def anew(claim: Claim, done: Sequence[list[str]]) -> str:
    """Return the command of a claim with a path of its own, where none that ended well with today's sources wrote."""
    out = out_of(claim.what)
    paths = [out, *(f"{out}-{number}" for number in range(2, len(done) + 3))]
    commands = [claim.command.replace(out, path) for path in paths]
    return next((one for one in commands if [kernel_digest(), one] not in done), claim.command)


def measure(
    missing: Sequence[Claim],
    folder: Path,
    say: Callable[[str], None],
    run: Callable[[str], int],
    again: bool = False,
) -> list[Claim]:
    """Run the commands of claims that did not end well before with today's sources; return those that failed.

    Args:
        missing: the claims.
        folder: folder of what the commands write, and of the list of those that ended well.
        say: called with a line for each claim.
        run: runs a command and returns its exit status.
        again: also run those that ended well, with a new path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, failed = folder / "done.json", []
    done = json.loads(path.read_text()) if path.is_file() else []
    for number, claim in enumerate(missing, 1):
        command = anew(claim, done) if again else claim.command
        key = [kernel_digest(), command]
        if key in done and not again:
            say(f"{number} of {len(missing)} {claim.what}: measured before")
            continue
        say(f"{number} of {len(missing)} {claim.what}: {command}")
        if run(command) == 0:
            done.append(key)
            write_whole(path, json.dumps(done))
        else:
            say(f"  failed: {claim.what}")
            failed.append(claim)
    return failed


def run(command: str) -> int:
    """Run a command in the repository's root, with the programs of this Python's environment first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(command, shell=True, cwd=ROOT, env={**os.environ, "PATH": path}, check=False).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--list", action="store_true", help="only list, also on a GPU")
    asked.add_argument("--readme", action="store_true", help="only what README says")
    asked.add_argument("--only", metavar="TEXT", help="only the claim whose name has this text, whatever was measured")
    given = asked.parse_args(arguments)
    print("Reading recorded rows ...", file=sys.stderr, flush=True)
    found = [claim for claim in claims() if claim.page == README or not given.readme]
    if given.only is not None:
        try:
            found = [named(found, given.only)]
        except ValueError as error:
            asked.error(str(error))
    missing = [claim for claim in found if not claim.current]
    print(f"{listing(found)}\n{len(missing)} of {len(found)} claims are not wholly of this version's machine code.")
    try:
        gpu = find_hopper().name
    except NoHopperError as error:
        print(f"Nothing was measured: {error}")
        return 0
    if given.list:
        return 0
    print(f"Measuring them on an {gpu}:", flush=True)
    chosen, again = (missing, False) if given.only is None else (found, True)
    failed = measure(chosen, local_root() / "headline", print, run, again)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
