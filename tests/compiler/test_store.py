"""The store: the right key, whole entries, and processes that may die."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch

from hopper_gemm.cli.stored import Usage, clear, usage
from hopper_gemm.compiler import compile as compile_module
from hopper_gemm.compiler import loader, trust
from hopper_gemm.compiler import store as store_module
from hopper_gemm.compiler.abi import ARGUMENTS
from hopper_gemm.compiler.compile import Compiled
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.loader import IllegalConfigError, LoadedKernel, compile_into, load
from hopper_gemm.compiler.pool import CompilePool
from hopper_gemm.compiler.store import LOCK, KernelId, KernelStore, StoreError, UnwritableError, bare_code
from hopper_gemm.lab.counters.waits import METER, launched_ctas
from hopper_gemm.lab.ladder.ladder_config import LadderConfig
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.parameters import config_of
from tests.conftest import ROOT

PROBLEM = GemmProblem(4096, 4096, 4096)
REPORT = CubinReport(168, 0, 0, 0, 8, 3, 2, 4, 500, "0" * 64)


def digest(config: GemmConfig, problem: GemmProblem = PROBLEM, observer: str = "") -> str:
    return KernelStore(ROOT).object_file(KernelId.of(config, problem, observer)).stem


def test_launch_time_values_and_sizes_share_one_binary():
    base = digest(GemmConfig())
    assert digest(LadderConfig(raster="n", swizzle=4, serpentine=False)) == base
    assert digest(GemmConfig(), GemmProblem(8192, 1024, 64)) == base
    assert digest(GemmConfig(stages=4, consumers=2, split="m")) == base


def test_whatever_shapes_the_code_changes_the_key(monkeypatch):
    base = digest(GemmConfig())
    changes = ({"stages": 3}, {"peek": False}, {"cluster_n": 2}, {"stagger": 0})
    others = [digest(config_of(change)) for change in changes]
    others.append(digest(GemmConfig(), observer=METER))
    others.append(digest(GemmConfig(), replace(PROBLEM, dtype="fp16")))
    monkeypatch.setattr("hopper_gemm.compiler.store.versions", lambda: {"torch": "0.0"})
    others.append(digest(GemmConfig()))
    monkeypatch.undo()
    monkeypatch.setattr("hopper_gemm.compiler.store.source_digest", lambda *classes: "other sources")
    others.append(digest(GemmConfig()))
    assert len({base, *others}) == 1 + len(others)


def test_every_module_that_shapes_the_code_is_a_source_of_its_key():
    """What a source imports of the package is a source too, or the store, which holds the list."""
    root = ROOT / "hopper_gemm"
    sources = {path for pattern in store_module.SOURCES for path in root.glob(pattern)}
    imported = set()
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hopper_gemm."):
                module = ROOT.joinpath(*node.module.split("."))
                names = [module.with_suffix(".py"), *(module / f"{alias.name}.py" for alias in node.names)]
                imported |= {path for path in names if path.is_file()}
    assert imported - sources == {root / "compiler/store.py"}


def test_study_parameters_at_their_defaults_leave_the_key_as_it_is():
    """The binary is the plain kernel's, so it is compiled once."""
    assert digest(LadderConfig()) == digest(GemmConfig())


@pytest.mark.parametrize(
    ("config", "problem", "ctas"),
    [
        (GemmConfig(tile_m=256, tile_n=128), GemmProblem(4096, 4096, 64), 132),
        (GemmConfig(tile_m=256, tile_n=128), GemmProblem(1024, 512, 64), 16),
        (LadderConfig(tile_m=256, tile_n=128, persistent=False), GemmProblem(4096, 4096, 64), 512),
        (GemmConfig(tile_m=256, tile_n=128, cluster_n=2), GemmProblem(257, 264, 64), 2 * 2 * 2),
        (GemmConfig(tile_m=128, split_k=8, reduction="workspace"), GemmProblem(8192, 512, 65536), 128),
        (GemmConfig(tile_m=128, split_k=8, reduction="workspace"), GemmProblem(1024, 256, 65536), 128),
        (GemmConfig(tile_m=128, split_k=6, reduction="workspace"), GemmProblem(8192, 512, 65536), 132),
    ],
    ids=str,
)
def test_a_launch_has_a_cta_for_each_tile_of_its_clusters_or_as_many_as_fit(config, problem, ctas):
    kernel = LoadedKernel(config, REPORT, None, 132 // config.cluster_size)
    assert launched_ctas(kernel, problem) == ctas


def test_a_launch_is_given_every_argument_and_none_for_those_that_it_lacks():
    calls = []
    kernel = LoadedKernel(GemmConfig(swizzle=4), REPORT, lambda *arguments: calls.append(arguments), 132)
    kernel("a", "b", "out")
    kernel("a", "b", "out", "bias", None, 0.5, readings="readings")
    kernel("a", "b", "out", scales=("of a", "of b"))
    kernel("a", "b", "out", ends="ends")
    order = ("a", "b", "out", 132, True, 4, True, 1, False, None, None)
    none = None, None
    assert calls == [
        (*order, *none, *none, *none, None),
        (*order, "bias", None, 0.5, "readings", *none, None),
        (*order, *none, *none, "of a", "of b", None),
        (*order, *none, *none, *none, "ends"),
    ]
    assert {len(given) for given in calls} == {len(ARGUMENTS)}


@pytest.mark.parametrize(
    "config",
    [
        LadderConfig(tile_m=128, stream_k=True, cluster_n=2, consumers=2),
        GemmConfig(tile_m=128, split_k=3, reduction="workspace", consumers=2),
    ],
    ids=str,
)
def test_a_kernel_that_meets_in_memory_is_given_a_workspace_of_the_size_it_needs(config, monkeypatch):
    asked, given = [], []

    def get(device, sums, words):
        asked.append((sums, words))
        return "sums", "words"

    monkeypatch.setattr(loader, "WORKSPACES", SimpleNamespace(get=get))
    kernel = LoadedKernel(config, REPORT, lambda *arguments: given.append(arguments[9:11]), 132 // config.cluster_size)
    for size in (512, 1000):
        out = torch.zeros(size, size)
        kernel(out, out, out)
    assert given == [("sums", "words")] * 2
    assert asked == [loader.workspace_size(config, size, size, kernel.clusters) for size in (512, 1000)]


def test_a_cluster_of_stream_k_leaves_sums_of_two_tiles_at_most_the_one_it_ends_and_the_one_it_begins():
    config = resolve(LadderConfig(tile_m=128, stream_k=True, cluster_n=2, consumers=2))
    sums, words = loader.workspace_size(config, 1000, 1000, 66)
    assert sums == 66 * 2 * (config.tile_m * config.tile_n * config.cluster_size)
    assert words == loader.FIXED_WORDS + 66 * config.cluster_size * config.consumers


@pytest.fixture
def entry(tmp_path):
    """A store with one whole entry, and its kernel."""
    store, kernel = KernelStore(tmp_path / "store"), KernelId.of(GemmConfig(), PROBLEM)
    store.put(kernel, b"a whole kernel", REPORT, b"a whole library")
    return store, kernel


def test_code_without_comments_and_docstrings_is_the_same_lines():
    source = '"""Doc."""\nx = 1  # why\n\n# alone\ndef f():\n    """Doc."""\n    return "# no comment"  # last\n'
    assert bare_code(source) == 'x = 1\ndef f():\n    return "# no comment"'


@pytest.mark.parametrize(("n", "scattered"), [(64, False), (63, True)])
def test_a_kernel_scatters_c_where_tma_cannot_reach_it_or_where_that_is_asked(n, scattered):
    problem = GemmProblem(64, n, 64)
    assert KernelId.of(GemmConfig(), problem).scattered == scattered
    for wanted in (False, True):
        assert KernelId.of(GemmConfig(), problem, scattered=wanted).scattered == wanted


def test_a_loaded_kernel_has_as_many_clusters_as_are_resident_on_all_ctas_of_an_sm(monkeypatch):
    monkeypatch.setattr(loader, "resident_clusters", lambda size: 132 // size)
    for ctas in (1, 2):
        config = resolve(GemmConfig(tile_m=64, tile_n=64, cluster_n=2, ctas_per_sm=ctas))
        assert LoadedKernel.of(config, REPORT, None).clusters == 66 * ctas


DAMAGE = {
    "report cut off": lambda report, object_file: report.write_text('{"registers": 1'),
    "a digit of the report changed": lambda report, object_file: report.write_text(
        report.read_text().replace("0", "1", 1)
    ),
    "report of another form": lambda report, object_file: report.write_text("[1, 2]"),
    "report of an earlier version": lambda report, object_file: report.write_text(json.dumps(asdict(REPORT))),
    "report is no text": lambda report, object_file: report.write_bytes(b"\xff\xfe"),
    "another shared library": lambda report, object_file: object_file.with_suffix(".so").write_bytes(b"another"),
    "report missing": lambda report, object_file: report.unlink(),
    "object missing": lambda report, object_file: object_file.unlink(),
    "object cut off": lambda report, object_file: object_file.write_bytes(b"a whole"),
    "object changed": lambda report, object_file: object_file.write_bytes(b"a whole kernex"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_counts_as_missing_and_is_healed_by_putting_it_again(entry, damage):
    store, kernel = entry
    object_file = store.object_file(kernel)
    DAMAGE[damage](object_file.with_suffix(".json"), object_file)
    assert store.report(kernel) is None
    store.put(kernel, b"compiled again", REPORT)
    assert store.report(kernel) == REPORT
    assert object_file.read_bytes() == b"compiled again"


def test_loading_compiles_a_damaged_entry_again(entry, monkeypatch):
    store, kernel = entry
    compiled = SimpleNamespace(object_file=b"compiled again", cubin=b"")
    monkeypatch.setattr("hopper_gemm.compiler.compile.compile_kernel", lambda *about: compiled)
    monkeypatch.setattr("hopper_gemm.compiler.loader.read_cubin", lambda cubin: REPORT)
    assert compile_into(store, kernel) == REPORT
    assert store.object_file(kernel).read_bytes() == b"a whole kernel", "nothing was compiled for a whole entry"
    store.object_file(kernel).write_bytes(b"damaged")
    assert compile_into(store, kernel) == REPORT
    assert store.object_file(kernel).read_bytes() == b"compiled again"


def test_a_whole_entry_stays_as_it_is(entry):
    """A process that has looked it up may be about to load it."""
    store, kernel = entry
    store.put(kernel, b"another object", replace(REPORT, registers=1))
    assert store.report(kernel) == REPORT
    assert store.object_file(kernel).read_bytes() == b"a whole kernel"


@pytest.mark.parametrize("with_report", [False, True], ids=["object", "object and report"])
def test_one_kernels_object_under_another_kernels_name_does_not_run(entry, with_report):
    store, kernel = entry
    other = KernelId.of(GemmConfig(stages=3), PROBLEM)
    store.put(other, b"another kernel", REPORT)
    files = [store.object_file(one) for one in (other, kernel)]
    files[1].write_bytes(files[0].read_bytes())
    if with_report:
        files[1].with_suffix(".json").write_bytes(files[0].with_suffix(".json").read_bytes())
    assert store.report(kernel) is None
    assert store.report(other) == REPORT


def given_away(path, monkeypatch):
    """Another user owns it."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


@pytest.mark.parametrize("part", ["folder", "report", "object"])
@pytest.mark.parametrize("how", ["owner", "group may write", "others may write"])
def test_what_somebody_else_owns_or_may_write_is_refused_with_the_fix(entry, monkeypatch, part, how):
    store, kernel = entry
    object_file = store.object_file(kernel)
    path = {"folder": store.root, "report": object_file.with_suffix(".json"), "object": object_file}[part]
    if how == "owner":
        given_away(path, monkeypatch)
        message = "must belong to this user but belongs to user"
    else:
        path.chmod(0o720 if how.startswith("group") else 0o702)
        message = f"chmod go-w {path}"
    refusals = [lambda: store.report(kernel), lambda: store.put(kernel, b"x", REPORT)]
    for refused in [*refusals, lambda: clear(store)] if part == "folder" else refusals:
        with pytest.raises(StoreError) as caught:
            refused()
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
    assert object_file.read_bytes() == b"a whole kernel"


@pytest.mark.parametrize("how", ["owner", "group may write", "others may write"])
def test_a_folder_above_in_which_others_can_exchange_the_store_is_refused_unless_it_is_sticky(
    tmp_path, monkeypatch, how
):
    """As /tmp is: there only its owner can rename a folder."""
    above, kernel = tmp_path / "above", KernelId.of(GemmConfig(), PROBLEM)
    store = KernelStore(above / "between" / "store")
    store.put(kernel, b"a whole kernel", REPORT)
    if how == "owner":
        given_away(above, monkeypatch)
    else:
        above.chmod(0o720 if how.startswith("group") else 0o702)
    for refused in (lambda: store.report(kernel), lambda: store.put(kernel, b"x", REPORT), lambda: clear(store)):
        with pytest.raises(StoreError, match=f"^{above} must .*; .*set XDG_CACHE_HOME to another folder$"):
            refused()
    if how != "owner":
        above.chmod(0o1777)
        assert store.report(kernel) == REPORT


def test_a_folder_that_was_exchanged_after_it_was_checked_is_not_read(entry, monkeypatch):
    """The object is read in the folder that was opened, whatever has its name by then."""
    store, kernel = entry
    read = trust.read_in

    def exchanged(handle, path):
        if path.suffix == ".o":
            store.root.rename(store.root.with_name("mine"))
            store.root.mkdir()
            store.object_file(kernel).write_bytes(b"a stranger's")
        return read(handle, path)

    monkeypatch.setattr(store_module, "read_in", exchanged)
    assert store.report(kernel) == REPORT


def test_folders_are_made_for_their_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        KernelStore(tmp_path / "cache" / "hopper-gemm" / "kernels").prepare()
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_dir()} == {0o700}


def test_a_link_in_place_of_a_file_is_not_followed(entry, tmp_path):
    store, kernel = entry
    object_file = store.object_file(kernel)
    object_file.rename(tmp_path / "elsewhere.o")
    object_file.symlink_to(tmp_path / "elsewhere.o")
    assert store.report(kernel) is None


def test_folder_and_files_are_for_their_owner_alone(entry):
    store, _ = entry
    assert store.root.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in store.root.iterdir()} == {0o600}


def test_content_is_on_disk_before_it_has_its_name_and_the_name_before_the_next(tmp_path, steps):
    """A machine that loses its power leaves a whole entry or none."""
    KernelStore(tmp_path).put(KernelId.of(GemmConfig(), PROBLEM), b"kernel", REPORT)
    made, report = tmp_path.glob("*.o"), tmp_path.glob("*.json")
    for path, written in zip([*made, *report], (steps[:3], steps[3:]), strict=True):
        assert written == [path.stat().st_size, path.name, "folder"]


def test_many_writers_leave_one_whole_entry_and_readers_meet_nothing_else(tmp_path):
    store, kernel = KernelStore(tmp_path), KernelId.of(GemmConfig(), PROBLEM)

    def write(number):
        mine = f"kernel of writer {number}".encode() * 1000
        store.put(kernel, mine, replace(REPORT, registers=number))
        report = store.report(kernel)
        return report.registers, store.object_file(kernel).read_bytes()

    with ThreadPoolExecutor(8) as together:
        seen = set(together.map(write, range(64)))
    ((number, content),) = seen
    assert content == f"kernel of writer {number}".encode() * 1000


def test_clearing_removes_every_entry_and_what_is_half_written_and_nothing_else(entry):
    store, kernel = entry
    file, foreign = store.object_file(kernel), store.root / "notes.json"
    half = file.with_name(f".{file.name}.7-9.part")
    half.write_bytes(b"half")
    foreign.write_text("mine")
    size = sum(path.stat().st_size for path in store.root.iterdir() if path not in (foreign, store.root / LOCK))
    assert usage(store) == clear(store) == Usage(1, size)
    assert set(store.root.iterdir()) == {foreign, store.root / LOCK}
    assert store.report(kernel) is None
    assert usage(store) == Usage(0, 0)


def test_a_store_that_was_never_made_is_empty_and_clearing_does_not_make_it(tmp_path):
    store = KernelStore(tmp_path / "none")
    assert usage(store) == clear(store) == Usage(0, 0)
    assert not store.root.exists()


def test_writers_beside_one_who_clears_leave_whole_entries_or_none(tmp_path):
    """No report ever stands without its object file."""
    store = KernelStore(tmp_path)
    kernels = [KernelId.of(GemmConfig(stages=stages), PROBLEM) for stages in (2, 3, 4)]

    def work(number):
        kernel = kernels[number % 3]
        return clear(store) if number % 4 == 0 else store.put(kernel, b"kernel", REPORT)

    with ThreadPoolExecutor(8) as together:
        list(together.map(work, range(96)))
    assert {path.stem for path in store.root.glob("*.json")} == {path.stem for path in store.root.glob("*.o")}
    assert all(path.suffix in (".json", ".o") or path.name == LOCK for path in store.root.iterdir())
    store.put(kernels[0], b"kernel", REPORT)
    assert store.report(kernels[0]) == REPORT


def test_a_kernel_cleared_between_look_up_and_loading_is_compiled_again(entry, monkeypatch):
    store, kernel = entry
    compiled = SimpleNamespace(object_file=b"compiled again", cubin=b"")
    monkeypatch.setattr("hopper_gemm.compiler.compile.compile_kernel", lambda *about: compiled)
    monkeypatch.setattr(loader, "read_cubin", lambda cubin: REPORT)
    monkeypatch.setattr(loader, "resident_clusters", lambda size: 132 // size)
    opened = []

    def launcher(object_file):
        if not opened:
            clear(store)
        opened.append(object_file)
        return object_file.read_bytes()

    monkeypatch.setattr(loader, "launcher_of", launcher)
    assert load(kernel.config, PROBLEM, store.root).launcher == b"compiled again"
    assert len(opened) == 2


def test_a_kernel_that_stands_whole_and_cannot_be_loaded_is_not_tried_twice(entry, monkeypatch):
    store, kernel = entry
    opened = []

    def launcher(object_file):
        opened.append(object_file)
        raise RuntimeError("no such symbol")

    monkeypatch.setattr(loader, "resident_clusters", lambda size: 132 // size)
    monkeypatch.setattr(loader, "launcher_of", launcher)
    with pytest.raises(RuntimeError, match="no such symbol"):
        load(kernel.config, PROBLEM, store.root)
    assert len(opened) == 1


def test_an_illegal_config_is_refused_before_any_compiler_is_asked(tmp_path):
    with pytest.raises(IllegalConfigError) as caught:
        load(GemmConfig(tile_m=100, swizzle=99), GemmProblem(8, 12, 12), tmp_path)
    assert all(rule in str(caught.value) for rule in ("tile_m:", "swizzle:"))
    assert list(tmp_path.iterdir()) == []


# A store that cannot be written ---------------------------------------------------------------


def full(monkeypatch, root):
    """No file of an entry can be written into a folder, as on a full disk."""
    write = store_module.replace_file

    def refuse(path, content, mode):
        if path.parent == root:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, content, mode)

    monkeypatch.setattr(store_module, "replace_file", refuse)


def read_only(monkeypatch, root):
    """No file can be made in a folder, also where the user may write everywhere."""
    opened = os.open

    def refuse(path, flags, *mode, **where):
        folder = os.readlink(f"/proc/self/fd/{where['dir_fd']}") if where else os.path.dirname(path)
        if flags & os.O_CREAT and folder == str(root):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, flags, *mode, **where)

    root.mkdir(mode=0o700)
    monkeypatch.setattr(os, "open", refuse)


def a_file(monkeypatch, root):
    root.write_text("")


def below_a_file(monkeypatch, root):
    root.parent.write_text("")


@pytest.mark.parametrize("damage", [full, read_only, a_file, below_a_file], ids=lambda one: one.__name__)
def test_a_kernel_that_no_store_can_keep_runs_all_the_same_with_one_warning(monkeypatch, tmp_path, damage):
    """And the store's own methods refuse in one line with the fix."""
    root, compiled = tmp_path / "above" / "store", []
    if damage is not below_a_file:
        root.parent.mkdir()
    damage(monkeypatch, root)
    loader._stand_in.cache_clear()
    monkeypatch.setattr(compile_module, "compile_kernel", lambda *asked: compiled.append(asked) or Compiled(b"o", b"c"))
    monkeypatch.setattr(loader, "read_cubin", lambda cubin: REPORT)
    monkeypatch.setattr(loader, "link", lambda object_file: None)
    monkeypatch.setattr(loader, "launcher_of", lambda path: path.read_bytes())
    monkeypatch.setattr(loader, "resident_clusters", lambda size: 1)
    configs = [GemmConfig(tile_m=64, tile_n=n) for n in (64, 128)]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert [load(config, PROBLEM, root).launcher for config in configs] == [b"o", b"o"]
        count = len(compiled)
        assert [load(config, PROBLEM, root).launcher for config in configs] == [b"o", b"o"]
    assert count == (4 if damage is full else 2)
    (line,) = [str(one.message) for one in told]
    assert re.fullmatch(rf"kernels are compiled again in each process: .*{root} gives .*; free it, or set XDG_.*", line)
    with pytest.raises(UnwritableError, match=f"{root} gives"):
        KernelStore(root).put(KernelId.of(configs[0], PROBLEM), b"o", REPORT)
    assert KernelStore(root).report(KernelId.of(configs[0], PROBLEM)) is None
    loader._stand_in.cache_clear()


@pytest.mark.compile
def test_a_second_pool_compiles_nothing(tmp_path):
    kernel = KernelId.of(GemmConfig(tile_m=64, tile_n=64), PROBLEM)
    first = CompilePool(tmp_path, 1)
    built = first.result(kernel)
    first.close()
    stamp = KernelStore(tmp_path).object_file(kernel).stat().st_mtime_ns
    second = CompilePool(tmp_path, 1)
    assert second.result(kernel) == built
    second.close()
    assert KernelStore(tmp_path).object_file(kernel).stat().st_mtime_ns == stamp


@pytest.mark.compile
def test_a_compiled_kernel_loads_as_a_function(tmp_path, monkeypatch):
    monkeypatch.setattr("hopper_gemm.compiler.loader.resident_clusters", lambda size: 132 // size)
    kernel = load(GemmConfig(tile_m=64, tile_n=64, cluster_n=2), PROBLEM, tmp_path)
    assert callable(kernel.launcher)
    assert kernel.clusters == 66
    assert kernel.report.spills is False
    with pytest.raises(TypeError, match=f"Expects {len(ARGUMENTS)} parameters"):  # those that a call passes
        kernel.launcher()
