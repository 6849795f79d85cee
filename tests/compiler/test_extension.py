"""The extension of torch is kept for one torch and one Python, found again, and never made within a call."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import sysconfig

import pytest

from hopper_gemm.compiler import extension as module
from hopper_gemm.compiler.extension import built_extension, extension_name, extension_of, load_extension
from hopper_gemm.compiler.store import FOLDER
from hopper_gemm.model.sealed import with_sum
from hopper_gemm.serve import EXTENSION
from tests.conftest import ROOT


@pytest.fixture
def empty(monkeypatch, tmp_path):
    """An empty cache and an empty folder of the package."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "FOLDER", tmp_path / "package")
    return tmp_path


def test_a_name_stands_for_one_source_torch_and_python(monkeypatch, tmp_path):
    name = extension_name(EXTENSION)
    assert name is not None
    assert extension_name(EXTENSION) == name
    other = tmp_path / EXTENSION.name
    other.write_text(EXTENSION.read_text() + "\n")
    assert extension_name(other) != name
    with monkeypatch.context() as patch:
        patch.setattr(module, "_folder", lambda package: tmp_path)
        (tmp_path / "version.py").write_text("__version__ = '9'\n")
        assert extension_name(EXTENSION) != name
    monkeypatch.setattr(module, "version", lambda package: "9")
    assert extension_name(EXTENSION) != name


def test_without_torch_there_is_none(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda package: None)
    assert extension_name(EXTENSION) is None
    assert extension_of(EXTENSION, build=True) is None
    assert built_extension(EXTENSION) is None


def test_it_is_made_where_that_is_asked_and_kept_for_its_user_alone(empty, monkeypatch):
    made = []
    monkeypatch.setattr(module, "built_extension", lambda source: made.append(source) or with_sum(b"made"))
    assert extension_of(EXTENSION) is None
    assert not made, "looking for it makes nothing"
    library = extension_of(EXTENSION, build=True)
    assert library is not None
    assert library.is_relative_to(empty)
    assert extension_of(EXTENSION) == extension_of(EXTENSION, build=True) == library
    assert made == [EXTENSION]
    library.chmod(library.stat().st_mode | stat.S_IWOTH)
    assert extension_of(EXTENSION) is None, "others may write to it"


def test_its_file_is_its_users_alone_under_any_umask(empty, monkeypatch):
    """A file that the group may write, as under a umask of 002, would be refused by every later process."""
    monkeypatch.setattr(module, "built_extension", lambda source: with_sum(b"made"))
    before = os.umask(0o002)
    try:
        library = extension_of(EXTENSION, build=True)
    finally:
        os.umask(before)
    assert library is not None
    assert stat.S_IMODE(library.stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", [lambda made: made[: len(made) // 2], lambda made: b"", lambda made: made + b"x"])
def test_a_damaged_library_counts_as_missing_and_is_made_again(empty, monkeypatch, damage):
    """A cut one would end every process that loads it with SIGBUS."""
    monkeypatch.setattr(module, "built_extension", lambda source: with_sum(b"made" * 1000))
    library = extension_of(EXTENSION, build=True)
    library.write_bytes(damage(library.read_bytes()))
    assert extension_of(EXTENSION) is None
    assert extension_of(EXTENSION, build=True) == extension_of(EXTENSION) == library
    brought = empty / "package" / library.name
    brought.parent.mkdir()
    brought.write_bytes(damage(library.read_bytes()))
    assert extension_of(EXTENSION) == library, "the package's own is damaged"


def test_the_packages_own_comes_first(empty, monkeypatch):
    monkeypatch.setattr(module, "built_extension", None)
    brought = empty / "package" / str(extension_name(EXTENSION))
    brought.parent.mkdir()
    brought.write_bytes(with_sum(b"brought"))
    assert extension_of(EXTENSION, build=True) == brought
    assert FOLDER.name, "a folder for each kind of host"


@pytest.mark.parametrize("lacks", ["a compiler", "the headers of Python", "what it needs of torch"])
def test_where_it_cannot_be_made_there_is_none(empty, monkeypatch, lacks):
    source = empty / "native.cpp"
    source.write_text("#include <Python.h>\nPyMODINIT_FUNC PyInit_native() { return nullptr; }\n")
    if lacks == "a compiler":
        monkeypatch.setattr(shutil, "which", lambda name: None)
    elif lacks == "the headers of Python":
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(empty))
    else:
        source.write_text("#include <torch/no_such_header.h>\n")
    assert extension_of(source, build=True) is None
    assert not list(empty.rglob("*.so"))


def test_what_cannot_be_loaded_is_none(tmp_path):
    library = tmp_path / "native-1.so"
    library.write_bytes(b"for another system")
    assert load_extension(library) is None


def test_a_process_uses_it_where_it_is_and_does_without_it_elsewhere(extension, tmp_path):
    """Its operators are registered as matmul is imported, on a GPU alone."""
    kept = tmp_path / "hopper-gemm/libraries"
    kept.mkdir(parents=True, mode=0o700)
    shown = (
        "from hopper_gemm.serve import launches; import hopper_gemm, torch; "
        "a = torch.ones(8, 8, dtype=torch.bfloat16); assert hopper_gemm.matmul(a, a)[0, 0] == 8; "
        "print(launches.LAUNCHES.native is not None, len(launches.IMPLEMENTED), "
        "torch._C._dispatch_has_kernel_for_dispatch_key('hopper_gemm::mm', 'CUDA'))"
    )

    def told():
        command = [sys.executable, "-c", shown]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={"XDG_CACHE_HOME": str(tmp_path)})
        assert run.stderr == ""
        return run.stdout.split()

    assert told() == ["False", "0", "True"]
    shutil.copy(extension.__file__, kept)
    assert told() == ["True", "4", "True"]
