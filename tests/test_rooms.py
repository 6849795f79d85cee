"""Imports run downward only, in no circle; a name is borne once; who reads results needs no GPU."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter

import pytest

from hopper_gemm.compiler.store import bare_code
from tests.conftest import ROOT

PACKAGE = ROOT / "hopper_gemm"
MAY_IMPORT = {
    "model": set(),
    "kernel": {"model"},
    "compiler": {"kernel", "model"},
    "serve": {"compiler", "model"},
    "operators": {"compiler", "model", "serve"},
    "tune": {"compiler", "kernel", "model", "serve"},
    "tune.registry": set(),
    "tune.parameters": {"tune.registry", "compiler", "model"},
    "tune.point": {"model"},
    "tune.limits": {"model"},
    "tune.statistics": {"tune.point", "model"},
    "tune.measure": {
        *("tune.parameters", "tune.registry", "tune.statistics", "tune.point", "tune.limits"),
        *("compiler", "kernel", "model", "serve"),
    },
    "tune.study": {"tune.measure", "tune.parameters", "tune.statistics", "tune.point", "tune.limits", "model"},
    "tune.search": {"tune.study", "tune.parameters", "tune.point", "model"},
    "tune.run": {
        *("tune.search", "tune.study", "tune.measure", "tune.parameters", "tune.statistics", "tune.point"),
        *("compiler", "model"),
    },
    "tune.tables": {
        *(
            "tune.search",
            "tune.study",
            "tune.measure",
            "tune.parameters",
            "tune.statistics",
            "tune.point",
            "tune.limits",
        ),
        "model",
    },
    "tune.warmup": {"serve", "compiler", "model"},
    "tune.autotune": {
        *("tune.run", "tune.measure", "tune.study", "tune.statistics", "tune.point", "tune.warmup"),
        *("serve", "compiler", "model"),
    },
    "lab": {"tune", "compiler", "kernel", "model", "serve"},
    "cli": {"lab", "tune", "compiler", "model", "serve"},
    "__init__": {"model", "serve", "tune.autotune", "tune.measure", "tune.warmup"},
    "__main__": {"cli"},
}
"""Packages whose modules a package may import beside its own; a package stands for those inside it."""

HEAVY = {
    "model": {"torch", "cutlass", "pandas", "pydantic"},
    "kernel": {"torch", "optuna", "pandas"},
    "serve": {"optuna", "pandas"},
    "tune.parameters": {"torch", "cutlass", "optuna", "pandas", "pydantic"},
    "tune.study": {"torch", "cutlass", "optuna"},
    "tune.tables": {"torch", "cutlass", "optuna", "distributed"},
    "tune.search": {"torch", "cutlass", "pandas"},
    "tune.run": {"torch", "cutlass", "pandas", "optuna"},
    "tune.measure": {"optuna", "pandas"},
    "lab.ladder": {"torch", "optuna", "pandas"},
    "cli": {"torch", "cutlass", "optuna", "pandas"},
}
"""Libraries that a package must do without."""

TUNE = {"optuna", "pandas", "pydantic", "rich", "typer", "matplotlib", "PIL", "pynvml"}
"""What the extra ``tune`` brings; the ground floor does without."""

GROUND = ("model", "kernel", "compiler", "serve")

BESIDE = ("docs", "tests", "benchmarks", "notebooks", "examples")
"""Folders of this repository that use the package and are no part of it."""

EVIDENCE = {
    "docs/generate": {
        "hopper_gemm",
        "docs.generate",
        "tests.verify",
        "benchmarks.fresh",
        "benchmarks.leave_one_out",
        "benchmarks.samplers",
        "benchmarks.walks",
    },
    "tests/verify": {"hopper_gemm", "tests.verify", "tests.protocols"},
    "tests/protocols": {"hopper_gemm.kernel", "tests.protocols"},
}
"""What generates the docs and what proves the kernel, with what each may import of this repository."""

FILES = sorted(PACKAGE.rglob("*.py"))
PROOFS = {
    path: folder
    for folder in EVIDENCE
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not path.name.startswith("test_") and path.stem not in ("broken", "fakes", "kernels")
}
"""Files of the evidence, their tests aside, each with its folder."""


def imports(path):
    """Modules that a file imports anywhere in it, with the names taken from each."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def package_of(path) -> str:
    """The room of a file: a package, or of a storey the package or module in it."""
    first, *rest = path.relative_to(PACKAGE).with_suffix("").parts
    return f"{first}.{rest[0]}" if first in ("tune", "lab") and rest and rest[0] != "__init__" else first


def within(package, others) -> bool:
    """Whether a package is one of some others, or lies in one."""
    return any(package == one or package.startswith(f"{one}.") for one in others)


def allowed(package, by):
    """What ``by`` says of a package, or of the storey that it lies in."""
    return by.get(package, by.get(package.partition(".")[0], set()))


def name(path) -> str:
    return str(path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT))


def test_a_file_imports_only_from_the_packages_below_its_own():
    wrong = {}
    for path in FILES:
        package, known = package_of(path), [module for module, _ in imports(path)]
        may = {package} if package.startswith("tune.") else {package.partition(".")[0]}
        rooms = [module.partition(".")[2] for module in known if module.startswith("hopper_gemm.")]
        upward = [room for room in rooms if not within(room, may | allowed(package, MAY_IMPORT))]
        heavy = {module.split(".")[0] for module in known} & allowed(package, HEAVY)
        if upward or heavy:
            wrong[name(path)] = [*upward, *heavy]
    assert wrong == {}


def test_a_lower_storey_names_no_higher_one():
    """Not in a string either; a docstring may point upward."""
    higher = {"tune": ("hopper_gemm.lab", "hopper_gemm.cli")}
    ground = ("hopper_gemm.tune", *higher["tune"])
    texts = {path: bare_code(path.read_text()) for path in FILES}
    named = {
        name(path): word
        for path, text in texts.items()
        for word in higher.get(package_of(path).partition(".")[0], ground if within(package_of(path), GROUND) else ())
        if word in text
    }
    assert named == {}


def test_no_private_name_is_imported_from_another_module():
    private = {
        name(path): f"{module}.{what}"
        for path in (*FILES, *PROOFS)
        for module, what in imports(path)
        if within(module, (PACKAGE.name, *BESIDE)) and what.startswith("_") and what[1] != "_"
    }
    assert private == {}


def repeated(names) -> set[str]:
    """Names that stand more than once."""
    return {one for one, count in Counter(names).items() if count > 1}


def test_no_two_modules_and_no_two_classes_bear_the_same_name():
    modules = [path.stem for path in FILES if not path.stem.startswith("__")]
    classes = [
        node.name for path in FILES for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)
    ]
    assert repeated(modules) == set()
    assert repeated(classes) == set()


def test_the_package_imports_nothing_of_what_lies_beside_it():
    beside = {name(path): module for path in FILES for module, _ in imports(path) if within(module, BESIDE)}
    assert beside == {}


def test_what_generates_the_docs_and_what_proves_the_kernel_import_only_what_they_may():
    wrong = {
        str(path.relative_to(ROOT)): module
        for path, folder in PROOFS.items()
        for module, _ in imports(path)
        if within(module, (PACKAGE.name, *BESIDE)) and not within(module, EVIDENCE[folder])
    }
    assert wrong == {}


def modules_of(path):
    """Modules of the package that a file imports as it is loaded, or for its types alone."""
    body = ast.parse(path.read_text()).body
    body += [inner for node in body if isinstance(node, ast.If) for inner in node.body]
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hopper_gemm"):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_module_imports_itself_by_way_of_others():
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    graph = {
        one: {other for other in modules_of(path) if other in names and other != one} for one, path in names.items()
    }
    while leaves := {one for one, known in graph.items() if not known & graph.keys()}:
        for one in leaves:
            del graph[one]
    assert graph.keys() == set()


LAZY = {"torch", "cutlass", "optuna", "pandas"}
SERVING = {
    "optuna",
    "pandas",
    "pydantic",
    "matplotlib",
    "torch.distributed.tensor",
    "hopper_gemm.tune",
    "hopper_gemm.cli",
}
"""What a product does without; DTensor takes seconds to load."""


READING = """
from pathlib import Path
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.tables.pages.report import report
assert "exceeds smem" in report(read_study(Path("results/h200/seed-table")))
"""
"""On a laptop a study can be read and pivoted."""


@pytest.mark.parametrize(
    ("statement", "without"),
    [
        ("import hopper_gemm", {"torch", "cutlass", "optuna", "pandas", "numpy"}),
        ("from hopper_gemm.cli import app; app(['--help'], standalone_mode=False)", LAZY),
        ("from hopper_gemm.cli.doctor import examine; examine()", LAZY),
        ("import hopper_gemm.tune.tables.explain", LAZY),
        ("from hopper_gemm import matmul, chained; import hopper_gemm.serve.ops", SERVING),
        ("import hopper_gemm.tune.tables.pages.publish, docs.generate.pages.index", {"torch", "cutlass", "optuna"}),
        (READING, {"torch", "cutlass"}),
        ("import hopper_gemm.tune.study.space, hopper_gemm.tune.study.reader", {"torch", "cutlass", "optuna"}),
        ("import hopper_gemm.lab.ladder.ladder_config", {"torch", "cutlass", "optuna", "pandas", "numpy"}),
    ],
)
def test_what_is_imported_loads_no_more_than_it_needs(statement, without):
    shown = f"{statement}\nimport sys; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, cwd=ROOT, check=True)
    assert not without & set(done.stdout.splitlines()[-1].split())


def test_matrices_are_multiplied_without_what_only_tuning_needs():
    """The ground floor, the pick of a config, the look-up in the tuned table, and the warm-up, with the packages of
    the extras blocked."""
    blocked = "".join(f"sys.modules[{one!r}] = None; " for one in sorted(TUNE))
    call = "hopper_gemm.serve.kernels.default_config(hopper_gemm.GemmProblem(1024, 1024, 1024))"
    shown = (
        f"import sys; {blocked}import hopper_gemm, hopper_gemm.serve.matmul, hopper_gemm.serve.kernels; "
        f"hopper_gemm.warmup; print({call})"
    )
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout
