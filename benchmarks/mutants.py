"""Plant faults, one at a time, and see whether the tests find them.

    python -m benchmarks.mutants TREE --out FILE [--seed SEED --count N] [--first N] [--last N] [--dry]

TREE is a clone that may be changed. Without a seed the faults are those of benchmarks/mutants.toml, each with the tests
that should find it; with one, ``count`` faults are drawn over all packages: a comparison with its neighbour, a constant
off by one, a dropped operand of ``and``, ``or``, ``+`` or ``-``, a negated condition. Drawn faults are judged by the
tests of their package. Tests that import the module run first; the others run where those pass or take too long. A
fault that makes the tests hang counts as caught. The recorded digest of the sources does not judge, since any change
breaks it. Each fault is a line of JSON in FILE as it comes; those that FILE has are not planted again, so that a run
goes on where it stopped. Nothing here needs a GPU, and faults in what only a GPU runs survive: ``kernel`` is judged by
the models of its protocols and by the compiled code.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import signal
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch  # noqa: F401  # once, before the forks

LISTED = Path(__file__).with_suffix(".toml")
NARROW_SECONDS, WIDE_SECONDS = 300, 1500
WIDE = "not gpu and not results"
NARROW = f"{WIDE} and not compile"
TIMEOUT = "time limit"
DIGESTS = ("tests/docs/test_todays_code.py", "tests/test_digests.py")
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is"}
OPERATORS = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
}
TESTS: dict[str, tuple[str, ...]] = {
    "model": ("tests/model",),
    "serve": ("tests/serve",),
    "compiler": ("tests/compiler",),
    "tune": ("tests/tune",),
    "kernel": ("tests/kernel", "tests/protocols", "tests/compiler"),
    "lab": ("tests/lab",),
    "cli": ("tests/test_cli.py", "tests/test_doctor.py", "tests/test_help.py", "tests/test_shorthand.py"),
}
"""Tests of each package; those that do not exist are left out."""


@dataclass(frozen=True)
class Fault:
    """A fault.

    Args:
        file: from the root of the tree.
        old, new: text, which stands once in the file, and what replaces it.
        tests: paths of the tests that judge it.
        line: of the text; 0 until it is planted.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    line: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the fault, independent of the line."""
        return self.file, self.old, self.new


def listed() -> list[Fault]:
    """The faults of the list."""
    faults = tomllib.loads(LISTED.read_text(encoding="utf-8"))["faults"]
    return [Fault(one["file"], one["old"], one["new"], tuple(one["tests"])) for one in faults]


def drawn(tree: Path, seed: int, count: int) -> list[Fault]:
    """Faults drawn evenly over all places where one can stand."""
    every = [
        fault
        for path in sorted((tree / "hopper_gemm").rglob("*.py"))
        for fault in faults_of(path.relative_to(tree), tree)
    ]
    return random.Random(seed).sample(every, min(count, len(every)))


def faults_of(file: Path, tree: Path) -> Iterator[Fault]:
    """All faults that can be planted in a file; in whole lines, which tell places apart."""
    text = (tree / file).read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    tests = tuple(path for path in TESTS.get(file.parts[1], ("tests",)) if (tree / path).exists())
    for node in ast.walk(ast.parse(text)):
        for start, end, new in replaced(node, text):
            first, last = start[0] - 1, end[0] - 1
            old = "".join(lines[first : last + 1])
            before, after = lines[first].encode()[: start[1]].decode(), lines[last].encode()[end[1] :].decode()
            if text.count(old) == 1:
                yield Fault(str(file), old, f"{before}{new}{after}", tests, start[0])


def replaced(node: ast.AST, text: str) -> Iterator[tuple[tuple[int, int], tuple[int, int], str]]:
    """Where a node begins and ends, and faulty texts of it."""

    def source(part: ast.expr) -> str:
        return f"({ast.get_source_segment(text, part)})"

    def span(part: ast.expr) -> tuple[tuple[int, int], tuple[int, int]]:
        return (part.lineno, part.col_offset), (part.end_lineno or part.lineno, part.end_col_offset or 0)

    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in OPERATORS:
        operator = COMPARISONS[OPERATORS[type(node.ops[0])]]
        yield *span(node), f"{source(node.left)} {operator} {source(node.comparators[0])}"
    elif isinstance(node, ast.Constant) and type(node.value) is int and node.value not in (0, 1):
        yield *span(node), str(node.value + 1)
    elif isinstance(node, ast.BoolOp):
        kept = f" {'and' if isinstance(node.op, ast.And) else 'or'} ".join(map(source, node.values[:-1]))
        yield *span(node), f"({kept})"
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield *span(node), source(node.left)
    elif isinstance(node, ast.If | ast.IfExp):
        yield *span(node.test), f"(not {source(node.test)})"


def importers(fault: Fault, tree: Path) -> list[str]:
    """Test files that import the faulty module; first those named after it."""
    folder, _, name = fault.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".").rpartition(".")
    module = re.compile(rf"\b{re.escape(folder)}(\.| import (.*\b)?){name}\b")
    files = {
        path
        for test in fault.tests
        for path in ([tree / test] if test.endswith(".py") else (tree / test).rglob("test_*"))
    }
    chosen = [path for path in files if path.suffix == ".py" and module.search(path.read_text(encoding="utf-8"))]
    return [
        str(path.relative_to(tree)) for path in sorted(chosen, key=lambda path: (path.stem != f"test_{name}", path))
    ]


def tested(tree: Path, arguments: Sequence[str], limit: int) -> tuple[int | None, str]:
    """Run pytest on a tree, with caches and tables of its own, in a fork of this process, which imported torch already.

    Return its exit code, None beyond the limit of seconds, and its output.
    """
    output = tree.parent / f"{tree.name}-output"
    run = get_context("fork").Process(target=_run, args=(tree, list(arguments), output))
    run.start()
    run.join(limit)
    ended = run.exitcode
    if ended is None:
        os.killpg(run.pid or 0, signal.SIGKILL)
        run.join()
    return ended, output.read_text(encoding="utf-8", errors="replace")


def _run(tree: Path, arguments: list[str], output: Path) -> None:
    os.setpgid(0, 0)
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.chdir(tree)
    own = {str(LISTED.parents[1]), ""}
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in own)]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("benchmarks", "hopper_gemm", "tests")]:
        del sys.modules[name]
    beside = tree.parent / f"{tree.name}-home"
    homes = {"PYTHONPATH": str(tree), "XDG_CACHE_HOME": str(beside / "cache"), "XDG_DATA_HOME": str(beside / "data")}
    os.environ.update(homes)
    options = [
        "-x",
        "-q",
        "-n",
        "0",
        "-o",
        "timeout=900",
        "--doctest-modules",
        *(f"--ignore={path}" for path in DIGESTS),
    ]
    code = pytest.main([*options, *arguments])
    sys.stdout.flush()
    os._exit(code)


def judge(fault: Fault, tree: Path) -> dict[str, object]:
    """Plant a fault, run its tests, take it out again."""
    path = tree / fault.file
    text = path.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        return {**asdict(fault), "status": "gone", "by": ""}
    line = text[: text.index(fault.old)].count("\n") + 1
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        narrow = importers(fault, tree)
        status, by = outcome(tree, [*narrow, fault.file], NARROW_SECONDS, NARROW) if narrow else ("survived", "")
        if status != "caught" or by == TIMEOUT:
            status, by = outcome(tree, [*fault.tests, fault.file], WIDE_SECONDS)  # its doctests too
    finally:
        path.write_text(text, encoding="utf-8")
    return {**asdict(fault), "line": line, "status": status, "by": by[:160]}


def outcome(tree: Path, tests: Sequence[str], limit: int, marks: str = WIDE) -> tuple[str, str]:
    """The verdict of the tests on a tree with a fault, and the test that fails."""
    code, output = tested(tree, ["-m", marks, *tests], limit)
    if code is None:
        return "caught", TIMEOUT
    said = next((line for line in output.splitlines() if line.startswith(("FAILED", "ERROR", "ImportError"))), "")
    if code in (4, 5):  # no such test, or none to run; or what all tests import breaks
        return ("caught" if said.startswith("ImportError") else "error"), said
    return ("caught" if code else "survived"), said


def main() -> None:
    """Plant what the arguments name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("tree", type=Path, help="a clone that may be changed")
    parser.add_argument("--out", type=Path, required=True, help="file to which a line of JSON each is appended")
    parser.add_argument("--seed", type=int, help="draw faults by this seed instead of the list")
    parser.add_argument("--count", type=int, default=100, help="faults that are drawn")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int)
    parser.add_argument("--dry", action="store_true", help="only say which faults can be planted")
    options = parser.parse_args()
    tree = options.tree.resolve()
    faults = listed() if options.seed is None else drawn(tree, options.seed, options.count)
    written = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    done = {(row["file"], row["old"], row["new"]) for row in map(json.loads, written)}
    code, output = tested(tree, ["--collect-only", "tests"], WIDE_SECONDS)
    if code:
        sys.exit(f"the tests of {tree} cannot be collected without a fault: {output.splitlines()[-1:]}")
    for number, fault in list(enumerate(faults))[options.first : options.last]:
        if options.dry:
            here = (tree / fault.file).exists() and (tree / fault.file).read_text(encoding="utf-8").count(
                fault.old
            ) == 1
            print(number, "can be planted" if here else "gone", fault.file, flush=True)
        elif fault.key not in done:
            row = judge(fault, tree)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"seed": options.seed, **row}) + "\n")
            print(number, row["status"], fault.file, row["line"], row["by"], flush=True)


if __name__ == "__main__":
    main()
