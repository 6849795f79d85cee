"""Rows survive kills, tables take the published form, and bad folders are named."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from hopper_gemm.model.config import FIELDS, GemmConfig
from hopper_gemm.model.footprint import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.effects import effects
from hopper_gemm.tables.pivot import best_row, groups, pivot
from hopper_gemm.tables.publish import publish
from hopper_gemm.tables.report import read_study, render, report
from hopper_gemm.tables.schema import COLUMNS, FIGURES, NAMES, STATUSES
from hopper_gemm.tables.trials import PROVENANCE, TRIALS, AppendFile, ResultsError, read_trials, row_key
from tests.conftest import ROOT

FIGURE = dict.fromkeys(FIGURES, 1.0)


def row(status: str = "ok", reason: str = "", **fields):
    """A row of the schema."""
    config = resolve(
        GemmConfig(**{name: fields.pop(name) for name in list(fields) if name in GemmConfig.__dataclass_fields__})
    )
    base = {
        "study": "s",
        "m": 64,
        "n": 64,
        "k": 64,
        "dtype": "bf16",
        "layouts": "kk",
        "data": "normal",
        "regime": "burst",
        **config.as_dict(),
    }
    figures = {**FIGURE, "pairs": 15, "processes": 1} if status == "ok" else {}
    return {**base, **figures, "status": status, "reason": reason, "source": "measured", "gpu": "NVIDIA H200", **fields}


@pytest.fixture
def trials(tmp_path):
    """A file with one row of each kind."""
    file = AppendFile(tmp_path / TRIALS, NAMES)
    file.append([row(tile_m=256, k_depth=4, speedup=0.984), row(tile_m=256, k_depth=4, cluster_n=2, speedup=0.976)])
    file.append([row("illegal", "stages: exceeds smem: one stage of 229376 B does not fit", tile_m=320, k_depth=16)])
    file.append(
        [
            row("illegal", "registers: too many", tile_m=320, k_depth=4),
            row("wrong_result", "3 elements", tile_m=256, k_depth=16),
        ]
    )
    return tmp_path / TRIALS


def test_every_column_is_explained_and_named_once():
    assert len(set(NAMES)) == len(NAMES)
    assert all(column.doc for column in COLUMNS)


def test_a_row_read_back_has_the_key_it_was_written_with(trials):
    keys = {row_key(record) for record in read_trials(trials).to_dict("records")}
    assert row_key(row(tile_m=256, k_depth=4)) in keys
    assert row_key(row(tile_m=256, k_depth=4, serpentine=False)) not in keys
    assert len(keys) == 5


def test_kinds_survive_the_file(trials):
    frame = read_trials(trials)
    assert frame["stages"].tolist() == [4, 4, 0, 3, 1]
    assert frame["serpentine"].tolist() == [True] * 5
    assert frame["speedup"].isna().tolist() == [False, False, True, True, True]
    assert frame["reason"].iloc[0] == ""


def test_a_flag_may_be_refined_by_a_word_and_comes_back_as_it_was(tmp_path):
    """True, false and a word in one column; the table puts flags first."""
    path = tmp_path / TRIALS
    AppendFile(path, NAMES).append([{**row(), "peek": peek} for peek in ("producer", True, False)])
    frame = read_trials(path)
    assert frame["peek"].tolist() == ["producer", True, False]
    assert pivot(frame, rows="peek").index.tolist() == [False, True, "producer"]


def test_a_row_read_back_gives_the_config_that_was_written(trials):
    (first, *_) = read_trials(trials).to_dict("records")
    assert GemmConfig(**{name: first[name] for name in FIELDS}) == resolve(GemmConfig(tile_m=256, k_depth=4))


RECORDED = ROOT / "results/h200/options" / TRIALS


@pytest.mark.parametrize(
    ("name", "before"), [("serpentine", True), ("swizzle", 8), ("raster", "m"), ("data", "normal"), ("code", "")]
)
def test_a_file_older_than_a_column_holds_what_was_so_before(tmp_path, name, before):
    recorded = pd.read_csv(RECORDED, dtype=str, keep_default_na=False)
    recorded.drop(columns=name, errors="ignore").to_csv(tmp_path / TRIALS, index=False)
    found, whole = read_trials(tmp_path / TRIALS), read_trials(RECORDED)
    assert set(found[name]) == {before}
    assert found[name].dtype == whole[name].dtype
    pd.testing.assert_frame_equal(found.drop(columns=name), whole.drop(columns=name))


@pytest.mark.parametrize("name", ["speedup", "m", "stages", "status"])
def test_a_file_that_lacks_what_cannot_be_filled_in_is_refused(tmp_path, name):
    """Neither a figure nor a parameter that used to be resolved has a value that held before."""
    pd.read_csv(RECORDED, dtype=str, keep_default_na=False).drop(columns=name).to_csv(tmp_path / TRIALS, index=False)
    with pytest.raises(ResultsError, match=f"lacks the columns {name}; it is not a trials file"):
        read_trials(tmp_path / TRIALS)


def test_rows_are_not_appended_under_the_columns_of_another_version(trials):
    with pytest.raises(ResultsError, match=r"has the columns of another version; name another folder with --out"):
        AppendFile(trials, (*NAMES, "colour")).append([row()])


def test_a_torn_last_line_is_not_read_and_is_cut_off_before_the_next_row(trials):
    whole = trials.read_text()
    trials.write_text(whole + "s,64,64,64,bf16,kk,bur")
    assert len(read_trials(trials)) == 5
    AppendFile(trials, NAMES).append([row(tile_m=64, k_depth=2)])
    assert trials.read_text().startswith(whole)
    assert len(read_trials(trials)) == 6


def test_the_published_form(trials):
    """Speedup and stages; the fastest of several configs stands in the cell; a refusal says why."""
    table = pivot(read_trials(trials))
    assert table.loc[256].tolist() == ["0.98x (4)", "wrong result"]
    assert table.loc[320].tolist() == ["illegal", "exceeds smem"]
    assert table.columns.tolist() == [4, 16]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": "tilt"}, "'tilt' is not a column; choose among study, m, n"),
        ({"value": "reason"}, "'reason' holds no numbers; choose a figure such as speedup"),
    ],
)
def test_a_pivot_over_what_is_not_there_is_refused(trials, arguments, message):
    with pytest.raises(ResultsError) as caught:
        pivot(read_trials(trials), **arguments)
    assert message in str(caught.value)


def test_the_forms_hold_the_same_cells(trials):
    table = pivot(read_trials(trials))
    for form in ("md", "csv", "html"):
        text = render(table, form, "tile_m")
        assert all(cell in text for cell in ("0.98x (4)", "exceeds smem", "320"))
    with pytest.raises(ResultsError, match="format must be md, csv or html but got 'pdf'"):
        render(table, "pdf", "")


def test_the_best_row_is_the_fastest_that_ran(trials):
    assert best_row(read_trials(trials))["speedup"] == 0.984
    assert best_row(read_trials(trials).query("status != 'ok'")) is None


def test_rows_timed_on_other_data_are_a_group_of_their_own(tmp_path):
    path = tmp_path / TRIALS
    AppendFile(path, NAMES).append([row(), row(data="zeros"), row(peek=False)])
    found = groups(read_trials(path))
    assert [(group.title, len(part)) for group, part in found] == [
        ("64 x 64 x 64 bf16, burst", 2),
        ("64 x 64 x 64 bf16, burst, zeros", 1),
    ]
    assert all(group.of(read_trials(path)).equals(part) for group, part in found)


def test_effects_compare_like_with_like():
    """Speedups made as a product of two choices give back exactly the factors."""
    rows = [
        {"status": "ok", "cluster": f"1x{n}", "peek": peek, "speedup": cluster * probe}
        for n, cluster in ((1, 0.96), (2, 1.0))
        for peek, probe in ((False, 1.0), (True, 1.01))
    ]
    found = effects(pd.DataFrame(rows), ["cluster", "peek"]).set_index("parameter")
    assert found.loc["cluster", "effect"] == pytest.approx(1 / 0.96)
    assert found.loc["peek", ["effect", "least", "greatest"]].tolist() == pytest.approx([1.01] * 3)
    assert found["matches"].tolist() == [2, 2]


def test_effects_far_from_the_best_are_left_out():
    rows = [
        {"status": "ok", "stages": stages, "stagger": stagger, "speedup": speedup}
        for stages, stagger, speedup in ((2, 0, 0.5), (2, 1, 0.3), (4, 0, 1.0), (4, 1, 0.99))
    ]
    found = effects(pd.DataFrame(rows), ["stages", "stagger"]).set_index("value")
    assert found.loc["1 against 0", "effect"] == pytest.approx(0.99)
    assert found["matches"].tolist() == [2, 1]
    everything = effects(pd.DataFrame(rows), ["stagger"], near=0.0)
    assert everything["least"].tolist() == pytest.approx([0.3])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "is not a folder"),
        (lambda path: path.mkdir(), "trials.csv does not exist"),
        (lambda path: (path.mkdir(), (path / TRIALS).write_text("")), "is empty"),
        (lambda path: (path.mkdir(), (path / TRIALS).write_text("a,b\n1,2\n")), "lacks the columns study, m"),
    ],
)
def test_a_folder_that_is_no_study_is_named(tmp_path, make, message):
    folder = tmp_path / "results"
    make(folder)
    with pytest.raises(ResultsError) as caught:
        read_study(folder)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)


def test_an_unknown_status_is_refused(trials):
    trials.write_text(trials.read_text().replace("wrong_result", "weird_result"))
    with pytest.raises(ResultsError, match="unknown status 'weird_result'; known are " + ", ".join(STATUSES)):
        read_trials(trials)


def test_a_page_says_where_its_figures_come_from(trials):
    about = {
        "study": "s",
        "source": "replayed",
        "replayed_from": "results/h200/s",
        "seed": 0,
        "rows": "tile_m",
        "cols": "k_depth",
    }
    about |= {"gpu": {"name": "NVIDIA H200"}, "spec": {"space": {"tile_m": [256, 320]}}, "noise": {}}
    (trials.parent / PROVENANCE).write_text(json.dumps(about))
    publish(trials.parent)
    page = (trials.parent / "table.md").read_text()
    assert "Replayed from recorded measurements of an NVIDIA H200 (results/h200/s); nothing was measured here." in page
    assert f"{GemmProblem(64, 64, 64).m} x 64 x 64 bf16, burst" in page
    assert (trials.parent / "heatmap.png").read_bytes()[:4] == b"\x89PNG"


def test_a_best_that_is_not_alone_is_said_to_be_so(tmp_path):
    rows = [row(speedup=1.0), row(peek=False, speedup=0.999), row(peek="producer", speedup=0.9)]
    for one in rows:
        one |= {"speedup_low": one["speedup"] - 0.0004, "speedup_high": one["speedup"] + 0.0004}
    AppendFile(tmp_path / TRIALS, NAMES).append(rows)
    about = {"study": "s", "source": "replayed", "replayed_from": "x", "seed": 0, "rows": "tile_m", "cols": "k_depth"}
    about |= {"gpu": {"name": "NVIDIA H200"}, "spec": {"space": {}}, "noise": {"64x64x64 burst": 0.002}}
    (tmp_path / PROVENANCE).write_text(json.dumps(about))
    assert "1 of 2 others cannot be told from it." in report(read_study(tmp_path))
