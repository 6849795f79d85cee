"""Machine code that the package brings: found by the kernel's digest, whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from hopper_gemm.cli.stored import names_shipped
from hopper_gemm.compiler import loader, store
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.loader import compile_into, link, load
from hopper_gemm.compiler.store import KernelId, KernelStore, entry_digest, versions
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.problem import GemmProblem
from tests.compiler.test_shared import LOAD
from tests.conftest import ROOT, script

CONFIG, PROBLEM = GemmConfig(tile_m=64, tile_n=64), GemmProblem(512, 512, 512)
KERNEL = KernelId.of(CONFIG, PROBLEM)
OTHER = KernelId.of(CONFIG, GemmProblem(512, 512, 512, layouts="kn"))
REPORT = CubinReport(*[0] * 9, "code")
MACHINE_CODE = script(".ci/machine-code")

BROUGHT = """
import tvm_ffi
from hopper_gemm.compiler import store
from tests.compiler.test_shipped import KERNEL
def brought_by(package):
    load, refused = tvm_ffi.load_module, []
    def noted(path):
        try:
            return load(path)
        except RuntimeError:
            refused.append(path)
            raise
    tvm_ffi.load_module, store.FOLDER = noted, package
    launcher = launcher_in(store.shipped(KERNEL))
    assert not refused, "an error of the loader takes a second beside torch"
    return launcher
"""


def bring(folder, library: bytes) -> None:
    """Put a library into a package's folder, behind one of another layout."""
    folder.mkdir(exist_ok=True)
    MACHINE_CODE.bring([(OTHER, b"other", replace(REPORT, code="other")), (KERNEL, library, REPORT)])
    (folder / store.TESTED).write_text(json.dumps({name: [version, version] for name, version in versions().items()}))


@pytest.fixture
def brought(monkeypatch, tmp_path):
    """The package brings a kernel; the user's store is empty, and nothing may be compiled."""
    monkeypatch.setattr(store, "FOLDER", tmp_path / "package")
    monkeypatch.setattr(loader, "default_store", lambda: tmp_path / "store")
    monkeypatch.setattr(loader, "resident_clusters", lambda size: 132)
    bring(tmp_path / "package", b"library")
    loader.launcher_in.cache_clear()
    yield tmp_path / "package"
    loader.launcher_in.cache_clear()


def test_a_kernel_that_the_package_brings_is_loaded_and_not_compiled(brought, monkeypatch):
    monkeypatch.setattr(loader, "load_shared", lambda path, function: (path.read_bytes(), function))
    monkeypatch.setattr(loader, "compile_into", None)
    loaded = load(CONFIG, PROBLEM)
    assert (loaded.launcher, loaded.report) == ((b"library", "hopper_gemm"), REPORT)
    assert (store.shipped(OTHER).library(), store.shipped(OTHER).report.code) == (b"other", "other")
    assert store.pack_of(OTHER) == store.pack_of(KERNEL)
    assert names_shipped() == {entry_digest(one, {}) for one in (KERNEL, OTHER)}


def test_the_users_own_store_comes_first_and_a_named_one_alone(brought, monkeypatch, tmp_path):
    monkeypatch.setattr(loader, "launcher_of", lambda path: path)
    KernelStore(tmp_path / "store").put(KERNEL, b"object", REPORT)
    assert load(CONFIG, PROBLEM).launcher == KernelStore(tmp_path / "store").object_file(KERNEL)
    monkeypatch.setattr(loader, "compile_into", lambda store, kernel: REPORT)
    assert load(CONFIG, PROBLEM, tmp_path / "named").launcher == KernelStore(tmp_path / "named").object_file(KERNEL)


@pytest.mark.parametrize("failure", [RuntimeError("another processor"), OSError("no room for a temporary file")])
def test_what_cannot_be_loaded_here_is_compiled(brought, monkeypatch, tmp_path, failure):
    def compiled(store, kernel):
        store.put(kernel, b"object", REPORT)
        return REPORT

    def refused(path, function):
        raise failure

    monkeypatch.setattr(loader, "load_shared", refused)
    monkeypatch.setattr(loader, "launcher_of", lambda path: path)
    monkeypatch.setattr(loader, "compile_into", compiled)
    assert load(CONFIG, PROBLEM).launcher.parent == tmp_path / "store"


def test_a_kernel_that_its_configs_pack_lacks_is_absent(brought):
    assert store.shipped(KernelId.of(CONFIG, GemmProblem(512, 512, 512, "fp16"))) is None


@pytest.mark.parametrize("suffix", [".xz", ".json"])
@pytest.mark.parametrize("content", [b"[]", None], ids=["damaged", "missing"])
def test_a_damaged_or_missing_file_counts_as_absent(brought, suffix, content):
    file = store.pack_of(KERNEL).with_suffix(suffix)
    assert store.shipped(KERNEL) is not None
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    assert store.shipped(KERNEL) is None
    listed = content is not None and suffix == ".xz"
    assert names_shipped() == ({entry_digest(one, {}) for one in (KERNEL, OTHER)} if listed else set())


def test_a_pack_that_was_replaced_since_the_look_up_is_not_unpacked(brought):
    ready = store.shipped(KERNEL)
    MACHINE_CODE.bring([(KERNEL, b"another", REPORT)])
    with pytest.raises(RuntimeError, match="was replaced; start the process again"):
        ready.library()
    assert store.shipped(KERNEL).library() == b"another"


def test_a_python_without_lzma_compiles(brought, monkeypatch):
    monkeypatch.setattr(store, "find_spec", lambda name: None)
    assert store.shipped(KERNEL) is None


@pytest.mark.parametrize(
    ("dsl", "ffi", "there"),
    [
        ("4.8.0", "0.1.11", True),
        ("4.8.1", "0.1.15.post2", True),
        ("4.8.1", "0.1.12", True),
        ("4.7.9", "0.1.12", False),
        ("4.10.0", "0.1.12", False),
        ("4.8.1", "0.1.16", False),
        ("4.8.1rc1", "0.1.12", False),
    ],
)
def test_another_version_within_the_tested_range_uses_the_same_file_and_one_beyond_it_none(
    brought, monkeypatch, dsl, ffi, there
):
    ends = {store.DSL: ["4.8.0", "4.8.1"], "apache-tvm-ffi": ["0.1.11", "0.1.15.post2"]}
    (brought / store.TESTED).write_text(json.dumps(ends))
    monkeypatch.setattr(store, "versions", lambda: {store.DSL: dsl, "apache-tvm-ffi": ffi})
    assert (store.shipped(KERNEL) is not None) == there


@pytest.mark.parametrize("source", ["kernel/work.py", "compiler/abi.py", "compiler/compile.py", "model/kernel.py"])
def test_a_changed_source_of_machine_code_or_of_the_launch_leaves_the_file_unused(brought, monkeypatch, source):
    changed = []

    def bytes_of(path):
        content = read(path)
        if path.as_posix().endswith(f"hopper_gemm/{source}"):
            changed.append(path)
            content += b"\nCHANGED = 1\n"
        return content

    read = store.Path.read_bytes
    store.source_digest.cache_clear()
    assert store.shipped(KERNEL) is not None
    monkeypatch.setattr(store.Path, "read_bytes", bytes_of)
    store.source_digest.cache_clear()
    try:
        assert store.shipped(KERNEL) is None
        assert changed
    finally:
        store.source_digest.cache_clear()


def test_the_digest_of_the_sources_is_brought_too_and_a_damaged_one_is_computed(brought, monkeypatch, tmp_path):
    """A fresh process parses no source."""
    store.source_digest.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before, parse = set(brought.iterdir()), store.bare_code
    MACHINE_CODE.bring_digest()
    (file,) = set(brought.iterdir()) - before
    digest = file.read_text()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(store, "bare_code", None)
    store.source_digest.cache_clear()
    assert store.source_digest(KERNEL.config.builder, "") == digest
    file.write_text("0" * 15)
    monkeypatch.setattr(store, "bare_code", parse)
    store.source_digest.cache_clear()
    assert store.source_digest(KERNEL.config.builder, "") == digest


def test_without_a_range_of_versions_nothing_is_used(brought):
    (brought / store.TESTED).unlink()
    assert store.shipped(KERNEL) is None


@pytest.mark.compile
def test_a_portable_library_names_no_folder_and_is_loaded_from_its_pack_without_the_dsl(brought, tmp_path):
    own = KernelStore(tmp_path / "store")
    compile_into(own, KERNEL)
    portable = link(own.object_file(KERNEL).read_bytes(), portable=True)
    assert portable is not None
    assert b"site-packages" not in portable
    assert b"site-packages" in own.object_file(KERNEL).with_suffix(".so").read_bytes()
    bring(brought, portable)
    packed = LOAD.replace("import launcher_of", "import launcher_in").replace("launcher_of(Path(", "brought_by(Path(")
    command = [sys.executable, "-c", BROUGHT + packed, str(brought)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert told.stdout.strip() == "False True"
