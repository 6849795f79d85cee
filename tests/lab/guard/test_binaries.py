"""A recorded binary is launched as it was, or refused."""

from __future__ import annotations

import json
import re
from importlib.metadata import version

import pytest

from hopper_gemm.compiler import loader
from hopper_gemm.compiler.cubin import CubinReport
from hopper_gemm.compiler.store import KernelId, KernelStore
from hopper_gemm.lab.guard import binaries
from hopper_gemm.lab.guard.binaries import (
    EARLIER_ARGUMENTS,
    NAMES,
    RecordedBinaryError,
    record_binary,
    recorded_binaries,
    with_arguments,
)
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.sealed import sealed

PROBLEM = GemmProblem(4096, 4096, 4096)
CONFIG = GemmConfig(tile_m=64, tile_n=64, cluster_n=2, swizzle=4)
REPORT = CubinReport(168, 0, 0, 0, 8, 3, 2, 4, 500, "0" * 16)


@pytest.fixture
def kept(tmp_path):
    """A folder with one recorded binary, whose store is gone since."""
    store = tmp_path / "store"
    KernelStore(store).put(KernelId.of(CONFIG, PROBLEM), b"an object file", REPORT)
    record_binary(tmp_path / "recorded", CONFIG, PROBLEM, store)
    for path in store.iterdir():
        path.unlink()
    return tmp_path / "recorded"


def test_what_is_recorded_is_read_again_with_its_launch(kept):
    (binary,) = recorded_binaries(kept)
    assert (binary.problem, binary.config, binary.report) == (PROBLEM, resolve(CONFIG), REPORT)
    assert binary.object_file.read_bytes() == b"an object file"


def test_one_binary_that_serves_two_problems_is_kept_once(kept, tmp_path):
    KernelStore(tmp_path / "store").put(KernelId.of(CONFIG, PROBLEM), b"an object file", REPORT)
    record_binary(kept, CONFIG, GemmProblem(8192, 8192, 8192), tmp_path / "store")
    assert len(recorded_binaries(kept)) == 2
    assert len(list(kept.glob("*.o"))) == 1


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_another_object_file_than_was_recorded_is_not_loaded(kept, damage):
    (binary,) = recorded_binaries(kept)
    if damage == "changed":
        binary.object_file.write_bytes(b"another object file")
    else:
        binary.object_file.unlink()
    with pytest.raises(RecordedBinaryError, match=r"\.o is not the binary that was recorded; restore it from git"):
        binary.load()


TEXTS = ["", "[]", "{}", '{"problem": {"m": 1}}', "\x00", sealed({"problem": {"m": 1}}), sealed({"config": None})]


@pytest.mark.parametrize("text", TEXTS)
def test_a_damaged_record_is_named(kept, text):
    (path,) = kept.glob("*.json")
    path.write_text(text)
    with pytest.raises(RecordedBinaryError, match=f"{path.name} is no recorded binary"):
        recorded_binaries(kept)


@pytest.mark.parametrize("name", ["problem", "config", "report", "object", "arguments"])
@pytest.mark.parametrize("value", [None, [], "x"])
def test_a_record_with_a_value_of_another_kind_is_named_in_one_line(kept, name, value):
    (path,) = kept.glob("*.json")
    path.write_text(sealed({**json.loads(path.read_text()), name: value}))
    with pytest.raises(RecordedBinaryError, match=f"{path.name} is no recorded binary") as caught:
        recorded_binaries(kept)
    assert "\n" not in str(caught.value)


def test_a_record_that_was_changed_is_refused(kept):
    (path,) = kept.glob("*.json")
    path.write_text(path.read_text().replace('"registers": 168', '"registers": 160'))
    with pytest.raises(RecordedBinaryError, match="was changed since it was written; restore it"):
        recorded_binaries(kept)


@pytest.mark.compile
def test_a_recorded_kernel_loads_as_a_function(tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "resident_clusters", lambda size: 132 // size)
    binary = record_binary(tmp_path / "recorded", CONFIG, PROBLEM, tmp_path / "store")
    kernel = binary.load()
    assert callable(kernel.launcher)
    assert (kernel.clusters, kernel.config.swizzle) == (66, 4)


@pytest.mark.parametrize("names", [EARLIER_ARGUMENTS, NAMES])
def test_a_recorded_launcher_gets_the_arguments_that_it_takes_in_its_order(names):
    calls = []
    with_arguments(lambda *given: calls.append(given), names)(*NAMES)
    assert calls == [tuple(names)]


def test_a_record_that_does_not_name_its_arguments_is_of_the_earlier_ones(kept):
    (path,) = kept.glob("*.json")
    raw = json.loads(path.read_text())
    assert tuple(raw.pop("arguments")) == NAMES
    path.write_text(sealed(raw))
    (binary,) = recorded_binaries(kept)
    assert binary.arguments == EARLIER_ARGUMENTS


def test_a_binary_that_this_version_of_the_dsl_cannot_load_is_refused_with_the_version(kept, monkeypatch):
    def refuse(object_file):
        raise RuntimeError("missing symbol\nand much more")

    monkeypatch.setattr(binaries, "launcher_of", refuse)
    monkeypatch.setattr(loader, "resident_clusters", lambda size: 132 // size)
    (binary,) = recorded_binaries(kept)
    used = re.escape(
        f"cannot be loaded with nvidia-cutlass-dsl {version('nvidia-cutlass-dsl')} (RuntimeError); install"
    )
    with pytest.raises(RecordedBinaryError, match=used) as caught:
        binary.load()
    assert "\n" not in str(caught.value)
