"""Tables take the published form, like is compared with like, and processes are pooled."""

from __future__ import annotations

import pandas as pd
import pytest

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.tune.study.reader import frame_of, read_study
from hopper_gemm.tune.study.row import ResultsError
from hopper_gemm.tune.tables.pivot import best_row, config_of, effects, groups, pivot, rows_of
from tests.tune.tables.making import row, write_study


@pytest.fixture
def frame():
    """One row of each kind."""
    return frame_of(
        [
            row(tile_m=256, k_depth=4, speedup=0.984),
            row(tile_m=256, k_depth=4, cluster_n=2, speedup=0.976),
            row("illegal", "stages: exceeds smem: one stage of 229376 B does not fit", tile_m=320, k_depth=16),
            row("illegal", "registers: too many", tile_m=320, k_depth=4),
            row("wrong_result", "3 elements", tile_m=256, k_depth=16),
        ]
    )


def test_a_cell_holds_speedup_and_stages_of_its_fastest_config_or_why_there_is_none(frame):
    table = pivot(frame)
    assert table.loc[256].tolist() == ["0.98x (4)", "wrong result"]
    assert table.loc[320].tolist() == ["illegal", "exceeds smem"]
    assert table.columns.tolist() == [4, 16]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": "tilt"}, "'tilt' is not a column; choose among study, stage, m"),
        ({"cols": "tile_m"}, "rows and cols must be two columns but both are 'tile_m'; name another"),
        ({"value": "reason"}, "'reason' holds no numbers; choose a figure such as speedup"),
    ],
)
def test_a_pivot_over_what_is_not_there_is_refused_in_one_line(frame, arguments, message):
    with pytest.raises(ResultsError) as caught:
        pivot(frame, **arguments)
    assert message in str(caught.value)


def test_flags_come_before_the_words_that_refine_them():
    frame = frame_of([row(peek=peek) for peek in ("producer", True, False)])
    assert pivot(frame, rows="peek").index.tolist() == [False, True, "producer"]


def test_the_best_row_is_the_fastest_that_ran(frame):
    assert best_row(frame)["speedup"] == 0.984
    assert config_of(best_row(frame)) == resolve(GemmConfig(tile_m=256, k_depth=4))
    assert best_row(frame.query("status != 'ok'")) is None


def test_figures_of_other_data_contexts_or_baselines_are_groups_of_their_own():
    """Only rows that agree in all of them are ever compared; the groups of one problem stand side by side."""
    rows = [
        row(),
        row(sizes=(128, 64, 64)),
        row(data="zeros"),
        row(context="chained"),
        row(against="cublaslt"),
        row(peek=False),
    ]
    found = groups(frame_of(rows))
    assert [(group.title, len(part)) for group, part in found] == [
        ("64 x 64 x 64 bf16, burst, isolated", 2),
        ("64 x 64 x 64 bf16, burst, isolated, zeros", 1),
        ("64 x 64 x 64 bf16, burst, chained", 1),
        ("64 x 64 x 64 bf16, burst, isolated, cublaslt", 1),
        ("128 x 64 x 64 bf16, burst, isolated", 1),
    ]
    assert all(group.of(frame_of(rows)).equals(part) for group, part in found)
    assert [group.key for group, _ in found][:3] == [
        "64x64x64 burst isolated",
        "64x64x64 burst isolated zeros",
        "64x64x64 burst chained",
    ]


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


def test_configs_of_grids_that_differ_otherwise_are_not_matched():
    """A parameter that sets grids apart is no part of another's effect, though no grid varies it."""
    rows = [
        {"status": "ok", "tile_n": tile_n, "staging": staging, "speedup": tile * way}
        for staging, way in (("own", 1.0), ("ring", 0.95))
        for tile_n, tile in ((128, 1.0), (256, 1.02))
    ]
    found = effects(pd.DataFrame(rows), ["tile_n"])
    assert found[["effect", "least", "greatest"]].iloc[0].tolist() == pytest.approx([1.02] * 3)
    assert found["matches"].tolist() == [2]


def test_effects_far_from_the_best_are_left_out():
    rows = [
        {"status": "ok", "stages": stages, "stagger": stagger, "speedup": speedup}
        for stages, stagger, speedup in ((2, 0, 0.5), (2, 1, 0.3), (4, 0, 1.0), (4, 1, 0.99))
    ]
    found = effects(pd.DataFrame(rows), ["stages", "stagger"]).set_index("value")
    assert found.loc["1 against 0", "effect"] == pytest.approx(0.99)
    assert found["matches"].tolist() == [2, 1]
    assert effects(pd.DataFrame(rows), ["stagger"], near=0.0)["least"].tolist() == pytest.approx([0.3])


def test_rows_of_several_processes_stand_in_a_frame_as_one(tmp_path):
    finals = [row(stage="final", process=p, pairs=((100.0, 90.0 + p),), processes=1) for p in range(3)]
    frame = rows_of(read_study(write_study(tmp_path, *finals)), "final")
    assert frame[["processes", "pairs", "problem"]].to_numpy().tolist() == [[3, 3, "64x64x64"]]
    assert frame["speedup"].tolist() == [0.91]
