"""A study's page is one file that loads nothing, shows every row, and never runs a text of the study."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
import vl_convert

from docs.generate.pages.sources import read
from hopper_gemm.tune.study.reader import Study, read_study
from hopper_gemm.tune.tables.html.charts import charts
from hopper_gemm.tune.tables.html.document import VEGA_LITE, best_of, caveats, document
from hopper_gemm.tune.tables.html.records import records, roofline
from tests.command import run
from tests.conftest import ROOT
from tests.each import each
from tests.tune.tables.making import ABOUT, row, write_study

EVIL = "</script><img src=x onerror=alert(1)><!-- & \"quoted\" 'too'"
SWEPT = [row(tile_m=256, speedup=1.25), row(tile_m=128, speedup=0.5), row("illegal", "exceeds smem", tile_m=64)]
COMPARED = [row(stage="compare", sizes=(64, 64, k), against=one) for k in (64, 128) for one in ("cublas", "cublaslt")]


KINDS = {"sweep": SWEPT, "compare": COMPARED}


class Elements(HTMLParser):
    """Elements of a page with their attributes, and the text in each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.scripts += [""] * (tag == "script")

    def handle_data(self, data):
        if self.lasttag == "script" and self.scripts:
            self.scripts[-1] += data


def page(tmp_path, *rows, **about) -> Elements:
    return Elements(document(read_study(write_study(tmp_path / "s", *rows, **about))))


def data_of(found: Elements):
    return json.loads(found.scripts[0])


def test_a_page_loads_nothing(tmp_path):
    found = page(tmp_path, *SWEPT)
    links = [values.get(name) for _, values in found.found for name in ("src", "href") if name in values]
    assert links == ["data:,"]


@pytest.mark.parametrize("rows", KINDS.values(), ids=KINDS)
def test_every_row_of_a_study_is_on_its_page(tmp_path, rows):
    data = data_of(page(tmp_path, *rows))
    shown = [dict(zip(data["fields"], values, strict=True)) for values in data["rows"]]
    assert [(one["status"], one["speedup"]) for one in shown] == [
        (one.status, one.figures.get("speedup")) for one in rows
    ]
    assert set(data["columns"]) <= set(data["fields"])


def test_the_table_begins_with_the_speedup_of_a_problem_and_leaves_out_what_all_rows_share(tmp_path):
    swept, compared = (data_of(page(tmp_path / kind, *rows))["columns"] for kind, rows in KINDS.items())
    assert swept[:3] == ["problem", "speedup", "config"]
    assert {"against", "regime", "context", "stage"} & set(swept) == set()
    assert {"tile_m", "tflops", "status"} <= set(swept)
    assert "against" in compared


PICKED = [
    row(stage="map", sizes=(64, 64, k), tile_m=tile, how=how, speedup=speedup)
    for k in (64, 128)
    for tile, how, speedup in ((64, "pick 1", 0.9), (128, "drawn", 1.5))
]


def test_a_map_shows_of_each_problem_the_pick_and_the_best(tmp_path):
    study = Study(tmp_path, tuple(PICKED), ABOUT)
    (problems,) = (one for one in charts(study, records(study)) if one.title == "Problems")
    shown = [(one["problem"].split()[0], one["who"], one["speedup"]) for one in problems.spec["data"]["values"]]
    assert shown == [
        ("64x64x64", "the model's pick", 0.9),
        ("64x64x64", "the best measured", 1.5),
        ("64x64x128", "the model's pick", 0.9),
        ("64x64x128", "the best measured", 1.5),
    ]


def test_a_part_of_a_map_is_called_a_sample_and_its_picks_are_summed_up(tmp_path):
    study = Study(tmp_path, tuple(PICKED), ABOUT)
    assert "A part of a list: 2 of its problems, in an order that a seed shuffled: a sample of it." in caveats(study)
    assert best_of(study)[-1].startswith("all: problems 2, pick 0.900 [0.835, 0.970], least 0.900 ")


def test_no_point_of_a_roofline_lies_above_its_ceiling(tmp_path):
    study = Study(tmp_path, (row(speedup=1.0, tflops=900.0),), ABOUT)
    _, ceilings = roofline(study)
    assert max(one["tflops"] for one in ceilings) == 900.0
    assert "fastest burst: 900 TFLOP/s" in ceilings[-1]["ceiling"]
    _, usual = roofline(Study(tmp_path, (row(speedup=1.0, tflops=400.0),), ABOUT))
    assert "fastest burst: 840 TFLOP/s" in usual[-1]["ceiling"]


def test_a_study_has_a_roofline_exactly_where_something_ran(tmp_path):
    ran, failed = (write_study(tmp_path / name, *rows) for name, rows in (("a", SWEPT), ("b", SWEPT[2:])))
    for folder, drawn in ((ran, True), (failed, False)):
        study = read_study(folder)
        assert ("Roofline" in [chart.title for chart in charts(study, records(study))]) == drawn


def test_a_driver_and_a_cuda_that_nobody_noted_are_unknown(tmp_path):
    gpu = {"name": "NVIDIA H200", "uuid": "GPU-1"}
    study = read_study(write_study(tmp_path / "s", *SWEPT, gpu=gpu))
    assert re.search(r"driver, CUDA</\w+>\s*<\w+>unknown, unknown<", document(study))


@pytest.mark.results
def test_the_seed_table_tells_what_its_two_parameters_are_worth():
    """It is no search: nothing of importance was noted while it ran."""
    study = read_study(ROOT / "results/h200/seed-table")
    (importance,) = (one for one in charts(study, records(study)) if one.title == "Importance")
    shares = importance.spec["data"]["values"]
    assert {one["parameter"] for one in shares} == {"tile_m", "k_depth"}
    assert len({one["place"] for one in shares}) == 4


def test_a_study_without_rows_to_show_is_an_error_of_one_line(tmp_path):
    done = run("report", str(write_study(tmp_path, row(stage="counters"))))
    assert done.returncode == 2
    assert "has no rows of a sweep, a comparison or a map" in done.stderr


def test_the_best_so_far_never_falls_and_counts_only_what_ran(tmp_path):
    study = read_study(write_study(tmp_path, *SWEPT))
    assert [(one.get("trial"), one.get("best")) for one in records(study)] == [(1, 1.25), (2, 1.25), (None, None)]


def test_no_text_of_a_study_becomes_an_element_or_a_script(tmp_path):
    about = {"question": EVIL, "converted": EVIL, "missing": {EVIL: EVIL}, "versions": {EVIL: EVIL}}
    evil = [row("crash", EVIL), row(board=EVIL, peek=False)]
    found = page(tmp_path, *evil, **about)
    assert [tag for tag, _ in found.found if tag == "img"] == []
    assert [name for _, values in found.found for name in values if name.startswith("on")] == []
    assert len(found.scripts) == 3
    data = data_of(found)
    assert EVIL in data["rows"][0]
    script = (ROOT / "hopper_gemm/tune/tables/html/page.js").read_text()
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", script) == []


RECORDED = ("seed-table", "suite", "ladder", "short/tune", "map", "space")


@pytest.mark.results
@each("name", RECORDED, ids=str)
def test_every_chart_of_a_recorded_study_is_drawn(name):
    study = read(ROOT / "results/h200" / name)
    rows = records(study)
    found = charts(study, rows)
    kinds = {chart.title for chart in found}
    assert "Roofline" in kinds
    assert ("Forest plot" in kinds) == (name == "suite")
    for chart in found:
        whole = {"data": {"values": rows}, **chart.spec}
        whole["params"] = [{"name": "place", "value": rows[0]["place"]}, *chart.spec.get("params", [])]
        assert "<path" in vl_convert.vegalite_to_svg(whole, vl_version=VEGA_LITE)
        assert "datum.place === place" in json.dumps(chart.spec) or chart.title == "Roofline"


def test_the_command_writes_one_file_and_names_it(tmp_path):
    folder = write_study(tmp_path / "s", *SWEPT)
    done = run("report", str(folder), "--out", str(tmp_path / "page.html"), "--json")
    told = json.loads(done.stdout)
    assert told == {"file": str(tmp_path / "page.html"), "bytes": (tmp_path / "page.html").stat().st_size}
    assert 500_000 < told["bytes"] < 2_000_000
