"""Tuned tables: their order, whose entries serve, what several writers and a damaged file do."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import hopper_gemm
from hopper_gemm.model import lookup, tuned
from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.lookup import Table, find, pick, tables
from hopper_gemm.model.menu import binaries
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.model.roofline import Chip
from hopper_gemm.model.sealed import sealed
from hopper_gemm.model.tuned import (
    CHANGES,
    CLUSTER,
    FILE,
    TunedEntry,
    TunedTableError,
    local_root,
    read_tuned,
    slug,
    write_tuned,
)
from hopper_gemm.tune.study.seal import seal_tuned
from tests.conftest import ROOT

PROBLEM = GemmProblem(1024, 1024, 1024)
WIDTHS = {"named": 64, "own": 96, "cluster": 128, "recorded": 192}
"""tile_n of the entry of each table."""


def entry(tile_n: int = 128, **about) -> TunedEntry:
    config = resolve(GemmConfig(tile_m=128, tile_n=tile_n, pdl=about.pop("pdl", False)))
    known = {"problem": PROBLEM, "regime": "burst", "context": "isolated", "gpu": "NVIDIA H200", "study": f"s{tile_n}"}
    figures = {"speedup": 1.1, "speedup_low": 1.0, "speedup_high": 1.2, "noise": 0.001}
    code = {"registers": 168, "wgmma": 8, "instructions": 500, "code": f"{tile_n:08x}"}
    return TunedEntry(**{"config": config, **known, **figures, **code, **about})


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A file for each table; nobody has written any."""
    found = {
        "named": tmp_path / "mine.json",
        "own": tmp_path / "local" / "h200" / FILE,
        "cluster": tmp_path / "local" / CLUSTER / FILE,
        "recorded": tmp_path / "results" / "h200" / FILE,
    }
    for path in found.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(tuned, "results_root", lambda: tmp_path / "results")
    monkeypatch.setattr(tuned, "local_root", lambda: tmp_path / "local")
    monkeypatch.setattr(lookup, "_named", (None, False, False))
    return found


def served(kind="h200", **how) -> int | str:
    """The width of the entry that serves, or that the model chooses."""
    pick = find(tables(kind), PROBLEM, **how)
    return pick.how if pick.entry is None else pick.entry.config.tile_n


def test_the_named_table_comes_first_then_the_users_own_then_the_recorded_one_then_the_model(places):
    for name, path in places.items():
        write_tuned(path, [entry(WIDTHS[name])])
    hopper_gemm.use_table(places["named"])
    for name, path in places.items():
        assert served() == WIDTHS[name]
        if name == "named":
            hopper_gemm.use_table(None)
        else:
            path.unlink()
    assert served() == "model"


def test_a_table_named_alone_serves_what_it_has_and_the_model_picks_the_rest(places):
    """Without a table the model picks everything."""
    for name, path in places.items():
        write_tuned(path, [entry(WIDTHS[name])])
    other = replace(PROBLEM, m=64)
    write_tuned(places["recorded"], [entry(192, problem=other)])
    hopper_gemm.use_table(places["named"], alone=True)
    assert served() == WIDTHS["named"]
    assert find(tables("h200"), other).how == "model"
    hopper_gemm.use_table(None, alone=True)
    assert {served(kind) for kind in ("h200", None)} == {"model"}
    hopper_gemm.use_table(None)
    assert served() == WIDTHS["own"]


def test_a_slower_entry_of_an_earlier_table_serves_since_it_was_measured_on_the_users_board(places):
    write_tuned(places["own"], [entry(96, speedup=1.01)])
    write_tuned(places["recorded"], [entry(192, speedup=1.3)])
    assert served() == 96


@pytest.mark.parametrize("order", [1, -1])
def test_the_fastest_entry_of_the_asked_context_serves_then_of_the_asked_regime_whatever_their_order(order):
    places = [("isolated", "burst"), ("isolated", "steady"), ("chained", "burst"), ("chained", "steady")]
    entries = [
        entry(speedup=speedup, context=context, regime=regime)
        for faster, (context, regime) in enumerate(places)
        for speedup in (1.0 + faster, 1.5 + faster, 1.2 + faster)
    ]
    for best in (1.5, 2.5, 3.5, 4.5):
        assert pick(entries[::order], PROBLEM).entry.speedup == best
        entries = entries[3:]


def test_an_own_entry_of_another_context_does_not_hide_a_recorded_one_of_the_asked_context(places):
    write_tuned(places["own"], [entry(96, context="chained", pdl=True)])
    write_tuned(places["recorded"], [entry(192)])
    assert (served(), served(context="chained")) == (192, 96)
    places["recorded"].unlink()
    pick = find(tables("h200"), PROBLEM)
    assert (pick.how, pick.config) == ("other context", replace(entry(96).config, pdl=False))


def test_an_own_entry_of_another_regime_serves_before_a_recorded_one_of_the_asked_regime(places):
    write_tuned(places["own"], [entry(96, regime="steady")])
    write_tuned(places["recorded"], [entry(192)])
    pick = find(tables("h200"), PROBLEM)
    assert (pick.config.tile_n, pick.how, pick.table) == (96, "other regime", places["own"])


def test_entries_of_another_kind_of_gpu_serve_only_where_the_caller_accepts_them(places):
    for path in (places["named"], places["recorded"]):
        write_tuned(path, [entry(192)])
    assert served("h20") == "model"
    hopper_gemm.use_table(places["named"])
    assert served("h20") == "model"
    hopper_gemm.use_table(places["named"], other_gpus=True)
    assert served("h20") == 192
    assert find(tables("h20"), PROBLEM).how == "other GPU"
    write_tuned(places["named"], [entry(64, gpu="NVIDIA H20", speedup=1.01)])
    assert served("h20") == 64, "this kind's entry is preferred in that table"


@pytest.mark.parametrize(("here", "sister"), [("h100", "NVIDIA H200"), ("h200", "NVIDIA H100 80GB HBM3")])
def test_an_entry_of_the_other_hopper_sxm_serves_before_the_model_and_after_every_entry_of_this_gpu(
    places, here, sister
):
    """An entry of this GPU comes first, also one of the other context or of a warm-up."""
    write_tuned(places["recorded"], [entry(192, gpu=sister)])
    pick = find(tables(here), PROBLEM)
    assert (pick.how, pick.config.tile_n, pick.table) == ("other GPU", 192, places["recorded"])
    assert pick.tuned_on == f"{PROBLEM} burst isolated on {sister}"
    own = entry(96, gpu={"h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200"}[here])
    for worse in (replace(own, context="chained"), replace(own, study=tuned.WARMUP), replace(own, speedup=0.9)):
        (places["own"].parent.parent / here).mkdir(exist_ok=True)
        path = places["own"].parent.parent / here / FILE
        write_tuned(path, [worse])
        assert served(here) == 96
        path.unlink()


@pytest.mark.parametrize(
    ("new", "replaces"),
    [
        ({"study": "other", "speedup": 1.2}, True),
        ({"study": "other", "speedup": 1.0}, False),
        ({"speedup": 1.0}, True),  # of the same study
        ({"study": tuned.WARMUP, "speedup": 1.5}, False),
    ],
)
def test_a_faster_entry_or_one_of_the_same_study_replaces_an_entry_and_a_warm_up_none(places, new, replaces):
    write_tuned(places["own"], [entry(96, study="mine")])
    write_tuned(places["own"], [replace(entry(128, study="mine"), **new)])
    (kept,) = read_tuned(places["own"])
    assert kept.config.tile_n == (128 if replaces else 96)


def test_a_search_replaces_a_warm_up_even_if_it_is_slower(places):
    write_tuned(places["own"], [entry(96, study=tuned.WARMUP, speedup=1.5)])
    write_tuned(places["own"], [entry(128, study="mine", speedup=1.0)])
    assert [kept.config.tile_n for kept in read_tuned(places["own"])] == [128]


def test_an_entry_of_the_sister_does_not_serve_a_gpu_with_other_sms_nor_a_table_named_alone(places):
    """An H100 PCIe has 114 SMs; a caller who names a table alone gets the model's choice for what it lacks."""
    write_tuned(places["recorded"], [entry(192)])
    assert served("h100") == 192
    assert served("h100", chip=Chip(114)) == "model"
    write_tuned(places["named"], [entry(64, problem=replace(PROBLEM, m=64))])
    hopper_gemm.use_table(places["named"], alone=True)
    assert served("h100") == "model"


def test_where_no_entry_serves_the_model_picks_from_the_menu_alone():
    """A config that only some table knows would have to be compiled."""
    assert find([Table((entry(192),), kind="h100")], PROBLEM).config.compiled() in binaries()


def test_without_a_gpu_the_recorded_entries_of_any_kind_serve_and_own_ones_do_not(places):
    write_tuned(places["own"], [entry(96)])
    write_tuned(places["recorded"], [entry(192, gpu="NVIDIA H100 PCIe")])
    assert served(None) == 192


def test_an_entry_whose_config_the_rules_refuse_by_now_does_not_serve():
    refused = replace(entry(192), config=replace(entry(192).config, tile_m=100))
    assert find([Table((refused,)), Table((entry(96),))], PROBLEM).config.tile_n == 96
    assert find([Table((refused,))], PROBLEM).how == "model"


@pytest.mark.parametrize("name", ["problem", "config", "speedup", "gpu", "context"])
@pytest.mark.parametrize("value", [None, [], True, [[1]], "\x1b[2J"])
def test_an_entry_with_a_value_of_another_type_is_refused_in_one_line(tmp_path, name, value):
    path = tmp_path / FILE
    write_tuned(path, [entry()])
    (raw,) = json.loads(path.read_text())["entries"]
    path.write_text(sealed({"entries": [{**raw, name: value}]}))
    with pytest.raises(TunedTableError, match=r"entry 0: .*; restore the file, or remove it") as refused:
        read_tuned(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_not_finite_never_enters_a_table(tmp_path, value):
    path = tmp_path / FILE
    with pytest.raises(TunedTableError, match="entry 0: speedup must be finite"):
        write_tuned(path, [entry(speedup=float(value))])
    assert not path.exists()
    path.write_text(json.dumps({"entries": [], "speedup": float(value)}))
    with pytest.raises(TunedTableError, match=f"numbers must be finite but got {value}"):
        read_tuned(path)


def test_a_table_that_was_changed_is_refused_and_one_of_an_earlier_version_is_renewed(tmp_path):
    """A digit, an entry, the order of two: whatever changed, no pick follows from it."""
    path, number = tmp_path / FILE, 0
    write_tuned(path, [entry(), entry(64, context="chained")])
    whole = path.read_text()
    entries = json.loads(whole)["entries"]
    for number in range(0, len(whole), 7):
        path.write_text(whole[:number] + chr(ord(whole[number]) ^ 1) + whole[number + 1 :])
        with pytest.raises(TunedTableError, match=r"restore|cannot be read") as caught:
            read_tuned(path)
        assert "\n" not in str(caught.value)
    for kept in (entries[:1], entries[::-1], []):
        path.write_text(whole.partition(",")[0] + ',\n "entries": ' + json.dumps(kept, indent=1) + "\n}\n")
        with pytest.raises(TunedTableError, match="was changed since it was written; restore it"):
            read_tuned(path)
    path.write_text(json.dumps(entries))
    with pytest.raises(TunedTableError, match="carries no sum; restore it, or if it is right: hopper-gemm seal"):
        read_tuned(path)
    assert seal_tuned(path) == 2
    assert path.read_text() == whole


def test_no_name_of_a_gpu_leaves_the_folder_of_results():
    assert [slug(name) for name in ("NVIDIA H100 80GB HBM3", "../../x", "/abs", "..")] == [
        "h100",
        "x",
        "abs",
        "unknown",
    ]


def test_use_table_refuses_what_is_no_table_and_keeps_the_order_as_it_was(places):
    write_tuned(places["own"], [entry(96)])
    with pytest.raises(TunedTableError, match="does not exist"):
        hopper_gemm.use_table(places["named"])
    places["named"].write_text(sealed({"entry": []}))
    with pytest.raises(TunedTableError, match="must hold a list of entries but holds dict"):
        hopper_gemm.use_table(places["named"])
    assert served() == 96


def test_use_table_and_writing_a_table_tell_those_who_remember(places, monkeypatch):
    told = []
    monkeypatch.setattr(CHANGES, "watchers", [lambda: told.append(CHANGES.count)])
    before = CHANGES.count
    write_tuned(places["named"], [entry()])
    hopper_gemm.use_table(places["named"])
    hopper_gemm.use_table(None)
    assert told == [before + 1, before + 2, before + 3]


def test_a_table_keeps_one_entry_for_each_kind_of_gpu(tmp_path):
    for gpu in ("NVIDIA H200", "NVIDIA H100 PCIe", "NVIDIA H100 80GB HBM3"):
        write_tuned(tmp_path / FILE, [entry(gpu=gpu)])
    assert [one.gpu for one in read_tuned(tmp_path / FILE)] == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]


def test_several_processes_write_one_table_and_lose_no_entry_while_readers_see_it_whole(tmp_path):
    program = (
        "import sys; from dataclasses import replace; from pathlib import Path\n"
        "from tests.model.test_lookup import PROBLEM, entry; from hopper_gemm.model.tuned import CLUSTER, write_tuned\n"
        "for number in range(8):\n"
        "    problem = replace(PROBLEM, m=8 * (1 + number), n=8 * int(sys.argv[2]))\n"
        "    write_tuned(Path(sys.argv[1]), [entry(problem=problem)])\n"
    )
    path = tmp_path / FILE
    command = [sys.executable, "-c", program, str(path)]
    writers = [subprocess.Popen([*command, str(1 + number)], cwd=ROOT) for number in range(4)]
    while any(writer.poll() is None for writer in writers):
        if path.is_file():
            json.loads(path.read_text())
    assert [writer.returncode for writer in writers] == [0] * 4
    assert len(read_tuned(path)) == 4 * 8
    assert not list(tmp_path.glob("*.part"))


def test_a_table_that_cannot_be_written_is_told_in_one_line_and_stays(tmp_path, monkeypatch):
    write_tuned(tmp_path / FILE, [entry()])
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(TunedTableError, match="cannot be written \\(No space left on device\\); free the disk"):
        write_tuned(tmp_path / FILE, [entry(64, context="chained")])
    assert read_tuned(tmp_path / FILE) == [entry()]
    assert not list(tmp_path.glob(".*.part"))


@pytest.mark.parametrize(
    ("named", "expected"),
    [("/data", "/data/hopper-gemm"), ("data", "/home/me/.local/share/hopper-gemm"), ("", None)],
)
def test_beside_a_wheel_own_results_go_to_the_users_data_folder(monkeypatch, named, expected):
    """A relative XDG_DATA_HOME is ignored, as its specification says."""
    monkeypatch.setattr(tuned, "results_root", lambda: Path(tuned.__file__).parents[1] / "results")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    monkeypatch.setenv("XDG_DATA_HOME", named)
    assert local_root() == Path(expected or "/home/me/.local/share/hopper-gemm")


def test_in_a_checkout_own_results_lie_beside_the_recorded_ones():
    assert local_root() == ROOT / "results" / "local"


INVARIANT = replace(PROBLEM, batch_invariant=True)


def test_a_batch_invariant_problem_takes_the_plain_entry_that_reads_k_forward_or_can():
    forward, reverse = entry(96), entry(96, config=replace(entry(96).config, reverse_k=True))
    assert (pick([forward], INVARIANT).how, pick([forward], INVARIANT).config) == ("tuned", forward.config)
    found = pick([reverse], INVARIANT)
    assert (found.how, found.config, found.entry) == ("k forward", forward.config, reverse)
    cut = entry(config=resolve(GemmConfig(tile_m=128, tile_n=128, split_k=2)))
    assert pick([cut], INVARIANT).how == "model"


def test_an_entry_tuned_with_the_condition_serves_where_it_is_the_best_and_never_without(places):
    own = entry(64, problem=INVARIANT, speedup=1.3)
    write_tuned(places["own"], [own, entry(192, speedup=1.2)])
    assert len(read_tuned(places["own"])) == 2
    assert served() == 192
    assert find(tables("h200"), INVARIANT).entry == own


def test_a_problem_of_fp16_takes_the_entry_of_bf16_where_it_has_none_of_its_own_and_not_the_reverse(places):
    """wgmma takes the same time for both; an output of fp32 has entries of its own."""
    write_tuned(places["recorded"], [entry(192)])
    half = replace(PROBLEM, dtype="fp16")
    pick = find(tables("h200"), half)
    assert (pick.how, pick.config.tile_n) == ("other type", 192)
    assert find(tables("h200"), replace(PROBLEM, dtype="fp16_fp32")).how == "model"
    write_tuned(places["recorded"], [entry(96, problem=half, context="chained")])
    assert find(tables("h200"), half).config.tile_n == 96
    write_tuned(places["own"], [entry(64, problem=replace(PROBLEM, m=64, dtype="fp16"))])
    assert find(tables("h200"), replace(PROBLEM, m=64)).how == "model"


def test_a_table_of_before_the_condition_is_read_and_its_entries_stay_as_they_were(places):
    path = places["own"]
    write_tuned(path, [entry(96)])
    before = path.read_text()
    assert "batch_invariant" not in before
    write_tuned(path, [entry(64, problem=INVARIANT)])
    assert '"batch_invariant": true' in path.read_text()
    assert json.loads(before)["entries"][0] in json.loads(path.read_text())["entries"]
