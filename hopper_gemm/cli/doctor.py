"""Compare this machine with what the project needs, and say what to do."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError

from hopper_gemm.cli.machine import PROJECT, Machine, Mark, this_machine
from hopper_gemm.cli.stored import counted, names_shipped, usage
from hopper_gemm.compiler.extension import COMPILERS, extension_name, extension_of
from hopper_gemm.compiler.store import KernelStore, default_store, entry_digest, numbers_of, tested_here
from hopper_gemm.lab.counters.profiler import ProfilerError, find_profiler
from hopper_gemm.model import hopper
from hopper_gemm.model.lookup import Table, tables
from hopper_gemm.model.roofline import SXM, Chip
from hopper_gemm.model.tuned import own_paths, recorded_tables, results_root, slug
from hopper_gemm.serve import EXTENSION
from hopper_gemm.serve.prebuild import WHOLE_MENU, menu_kernels
from hopper_gemm.tune.limits import CHIPS
from hopper_gemm.tune.measure.device import NoHopperError, find_hopper
from hopper_gemm.tune.study.files import shown

SYSTEM = "Linux x86_64"
GLIBC = "2.28"
"""manylinux_2_28: the tag of the DSL's and of torch's wheels."""
DRIVER, DRIVER_CUDA = "580", "13.0"
"""The first driver that runs CUDA 13, which the DSL's extra ``cu13`` compiles for."""

PREBUILD = "hopper-gemm prebuild M N K with your sizes"
"""Makes both the machine code of these sizes and the extension of torch."""

ASSUMED = "h100"
"""Kind of GPU that a command assumes where there is none and ``--gpu`` names none."""

NO_GPU = "run on a machine with an H100 or H200 to multiply or measure; explain, table and replays need no GPU"


@dataclass(frozen=True)
class MachineFinding:
    """Result of one check of the machine: what was checked, its value, the needed value, and the fix if any.

    ``mark`` is ``"ok"``, ``"note"`` (works without it), ``"slow"`` (works, but takes longer) or ``"missing"``.
    """

    mark: Mark
    what: str
    value: str
    fix: str = ""
    needed: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the finding for JSON, its value as ``found``."""
        return {"found" if name == "value" else name: text for name, text in vars(self).items()}

    def __str__(self) -> str:
        """Return the finding as one line of text."""
        needed, fix = f" (needed: {self.needed})" if self.needed else "", f"; {self.fix}" if self.fix else ""
        return f"{self.mark:7} {self.what}: {self.value}{needed}{fix}"


def examine(machine: Machine | None = None) -> list[MachineFinding]:
    """Check system, Python, packages, GPU, driver, profiler, store, machine code, extension and tables; by default of
    this machine."""
    facts = machine or this_machine()
    system, hardware = [*_system(facts), *_packages(facts)], [_gpu(facts), _driver(facts), *_torch(facts)]
    damaged: list[str] = []
    among = tables(kind_here(), damaged.append)
    made_ahead = [_store(), *_machine_code(facts, among), *_extension(facts)]
    return [*system, *hardware, _ncu(), *made_ahead, _results(), *_tables(among, damaged)]


def remedy(findings: Iterable[MachineFinding]) -> str:
    """Return in one line the commands that make fast what is slow; empty if nothing is."""
    fixes = dict.fromkeys(finding.fix for finding in findings if finding.mark == "slow")
    commands = [fix for fix in fixes if not any(fix in other for other in fixes if other != fix)]
    return f"What is slow is made fast by: {'; '.join(commands)}" if commands else ""


def _system(facts: Machine) -> list[MachineFinding]:
    linux = facts.system == SYSTEM
    untested = "" if linux else f"use a {SYSTEM} machine: the project was tested on no other"
    recent = bool(facts.glibc) and numbers_of(facts.glibc) >= numbers_of(GLIBC)
    old = "" if recent else f"use a Linux distribution with glibc {GLIBC} or later"
    return [
        MachineFinding("ok" if linux else "note", "system", facts.system, untested, SYSTEM),
        MachineFinding("ok" if recent else "missing", "glibc", facts.glibc or "another C library", old, f">={GLIBC}"),
    ]


def _packages(facts: Machine) -> list[MachineFinding]:
    """Compare Python and every package with what the project's own metadata requires."""
    if facts.requirements is None:
        return [MachineFinding("missing", PROJECT, "not installed", "pip install -e . in the checkout")]
    try:
        from packaging.requirements import Requirement
        from packaging.specifiers import SpecifierSet
    except ImportError:
        fix = "pip install packaging"
        return [MachineFinding("missing", "packaging", "not installed, so that no version can be compared", fix)]
    fits = SpecifierSet(facts.requires_python).contains(facts.python, prereleases=True)
    fix = "" if fits else f"make an environment of Python {facts.requires_python}"
    findings = [MachineFinding("ok" if fits else "missing", "Python", facts.python, fix, facts.requires_python)]
    for text in facts.requirements:
        requirement = Requirement(text)
        version = facts.installed.get(requirement.name)
        fits = version is not None and requirement.specifier.contains(version, prereleases=True)
        fix = "" if fits else f'pip install "{text}"'
        mark: Mark = "ok" if fits else "missing"
        needed = str(requirement.specifier)
        findings.append(MachineFinding(mark, requirement.name, version or "not installed", fix, needed))
    return findings


def _gpu(facts: Machine) -> MachineFinding:
    major, minor = hopper.COMPUTE_CAPABILITY
    names = ", ".join(f"{gpu.name} (sm_{gpu.capability[0]}{gpu.capability[1]})" for gpu in facts.gpus)
    names = names or f"no NVIDIA GPU{f' ({facts.no_gpu})' if facts.no_gpu else ''}"
    able = facts.has_hopper
    return MachineFinding("ok" if able else "note", "GPU", names, "" if able else NO_GPU, f"sm_{major}{minor} (Hopper)")


def _driver(facts: Machine) -> MachineFinding:
    """Check the driver; one that is too old matters only with a Hopper GPU."""
    needed = f">={DRIVER}, CUDA {DRIVER_CUDA}"
    if not facts.driver:
        fix = f"install NVIDIA driver {DRIVER} or later where there is a GPU"
        return MachineFinding("note", "driver", "none", fix, needed)
    version = f"{facts.driver}, CUDA {facts.driver_cuda}"
    if numbers_of(facts.driver_cuda) >= numbers_of(DRIVER_CUDA):
        return MachineFinding("ok", "driver", version, needed=needed)
    old, fix = f"{version}: too old for CUDA {DRIVER_CUDA}", f"update the NVIDIA driver to {DRIVER} or later"
    return MachineFinding(facts.with_hopper("missing"), "driver", old, fix, needed)


def _torch(facts: Machine) -> list[MachineFinding]:
    """Check the CUDA version of the torch build; no finding without torch, which is one of the packages."""
    what, cuda = "torch's CUDA", facts.torch_cuda
    limit = facts.driver_cuda.partition(".")[0]
    needed = f"a CUDA build, CUDA {limit} or earlier" if limit else "a CUDA build"
    if cuda == "":
        return []
    if cuda is None:
        fix = "on a machine with a Hopper GPU install a CUDA build: pip install --force-reinstall torch"
        return [MachineFinding(facts.with_hopper("missing"), what, "a CPU build, which cannot use a GPU", fix, needed)]
    if limit and numbers_of(cuda)[0] > int(limit):
        version = f"{cuda}, which driver {facts.driver} (CUDA {facts.driver_cuda}) cannot run"
        fix = f"update the NVIDIA driver, or install a build of torch for CUDA {limit}"
        return [MachineFinding(facts.with_hopper("missing"), what, version, fix, needed)]
    return [MachineFinding("ok", what, cuda, needed=needed)]


def _ncu() -> MachineFinding:
    try:
        return MachineFinding("ok", "ncu", str(find_profiler()))
    except ProfilerError as error:
        reason, _, fix = str(error).partition("; ")
        return MachineFinding("note", "ncu", reason, fix)


def _store() -> MachineFinding:
    store = KernelStore(default_store())
    try:
        store.prepare()
    except OSError as error:
        reason, _, fix = str(error).partition("; ")
        return MachineFinding("missing", "kernel store", reason, fix)
    return MachineFinding("ok", "kernel store", f"{store.root}, {counted(usage(store).kernels, 'kernel')}")


def _machine_code(facts: Machine, among: Sequence[Table]) -> list[MachineFinding]:
    """Count the kernels of the menu and of tables that a first call only loads, shipped or in the store; no finding
    without the DSL or TVM-FFI, by whose versions the store names them."""
    kernels = menu_kernels(WHOLE_MENU, among)
    names = names_shipped()
    brought = {kernel for kernel in kernels if entry_digest(kernel, {}) in names}
    store = KernelStore(default_store())
    try:
        unused = bool(brought) and not tested_here()
        ready = {kernel for kernel in kernels if store.object_file(kernel).exists()} | (set() if unused else brought)
    except PackageNotFoundError:
        return []
    value = f"{len(ready)} of {len(kernels)} kernels of menu and tables, {len(brought)} of them shipped"
    value += ", for other versions of the DSL and TVM-FFI than these" * unused
    if len(ready) == len(kernels):
        return [MachineFinding("ok", "machine code", value)]
    value += ": a first call may compile for a second"
    return [MachineFinding(facts.with_hopper("slow"), "machine code", value, PREBUILD)]


def _extension(facts: Machine) -> list[MachineFinding]:
    """Check the extension of torch, without which calls take longer on the host; no finding without torch."""
    if extension_name(EXTENSION) is None:
        return []
    what, library = "extension of torch", extension_of(EXTENSION)
    if library is not None:
        return [MachineFinding("ok", what, str(library))]
    able = any(map(shutil.which, COMPILERS))
    fix = PREBUILD if able else f"install a C++ compiler (g++) and the headers of Python, then {PREBUILD}"
    return [MachineFinding(facts.with_hopper("slow"), what, "not built: calls take longer on the host", fix)]


def _results() -> MachineFinding:
    tables, what = recorded_tables(), "recorded results"
    if not tables:
        none = f"no tuned table under {results_root()}"
        return MachineFinding("note", what, none, "run hopper-gemm sweep on a Hopper GPU")
    return MachineFinding("ok", what, ", ".join(f"{slug} ({shown(path)})" for slug, path in tables.items()))


def kind_here() -> str | None:
    """Return the kind of the local GPU as results folders name it; None without a Hopper GPU."""
    try:
        return slug(find_hopper().name)
    except NoHopperError:
        return None


def kind_of(gpu: str | None) -> str:
    """Return the kind of GPU that ``--gpu`` names; without it that of the local GPU, and without one an H100.

    Raises:
        ValueError: neither the local GPU nor one of :data:`hopper_gemm.tune.limits.CHIPS`.
    """
    local = kind_here()
    if gpu is None:
        return local or ASSUMED
    kind, allowed = slug(gpu), dict.fromkeys((*CHIPS, *([local] if local else [])))
    if kind not in allowed:
        names = ", ".join(allowed)
        raise ValueError(f"--gpu must be one of {names} but got {gpu!r}; on other architectures matmul runs torch.mm")
    return kind


def assumed(gpu: str | None) -> str:
    """Return in words that :func:`kind_of` assumes a kind of GPU; empty where ``--gpu`` names it or one is here."""
    return "" if gpu or kind_here() else f"{ASSUMED} is assumed: no Hopper GPU is here, and --gpu names none"


def chip_here(kind: str | None, sms: int | None = None) -> Chip:
    """Return the properties of a kind of GPU, with ``sms`` SMs if given: the driver's if the local GPU is of that kind,
    else those of :data:`hopper_gemm.tune.limits.CHIPS`; without a kind those of an H200."""
    if sms is not None:
        return replace(CHIPS.get(kind or "", SXM), sms=sms)
    if kind is None or kind != kind_here():
        return CHIPS.get(kind or "", SXM)
    from hopper_gemm.serve.kernels import chip_of  # imports torch

    return chip_of()


def _tables(among: Sequence[Table], damaged: Sequence[str]) -> list[MachineFinding]:
    """Report the tuned tables that serve ``matmul`` here, in the order of the lookup; then the damaged ones."""
    kind, what = kind_here(), "tuned tables"
    descriptions = [
        f"{shown(table.path)} ({len(table.serving)} entries{f', tuned on {table.kind}' if table.of_sister else ''})"
        for table in among
        if table.path and table.serving
    ]
    tune = "hopper-gemm tune M N K"
    own = "" if kind is None else f"to add your own to {shown(own_paths(kind)[0])}: {tune}"
    of = f"for {kind}" if kind else "no Hopper GPU here, so recorded entries of any"
    served = ", then ".join(descriptions) or "none; the model chooses every config"
    return [
        MachineFinding("ok", what, f"{of}: {served}", own)
        if descriptions
        else MachineFinding("slow" if kind else "note", what, f"{of}: {served}", tune),
        *(MachineFinding("note", what, reason) for reason in damaged),
    ]
