"""The picture of a comparison shows its cells: in the order of launch times, over each baseline and the faster."""

from __future__ import annotations

from hopper_gemm.tune.tables.comparison import cells
from hopper_gemm.tune.tables.forest import forest, series
from tests.tune.tables.making import row


def compared(m, us, against="cublas", **figures):
    return row(sizes=(m, 64, 64), stage="compare", against=against, time_us=us, **figures)


def test_problems_stand_by_launch_time_and_the_faster_baseline_counts():
    rows = [
        compared(128, 30.0, speedup=1.1),
        compared(128, 30.0, "cublaslt", speedup=1.05),
        compared(64, 10.0, speedup=1.02),
        compared(64, 10.0, "cublaslt", speedup=1.2),
    ]
    shown = series(cells(rows))
    faster = shown["the faster of torch.mm and cuBLASLt"]
    assert [record["speedup"] for record in faster.values()] == [1.02, 1.05]
    assert [record["speedup"] for record in shown["torch.mm"].values()] == [1.02, 1.1]
    assert [list(of) for of in shown.values()] == [["64x64x64", "128x64x64"]] * 2


def test_a_series_has_the_problems_that_its_baselines_ran():
    """Peers are shown where they ran; without a time of both libraries there is no faster of them."""
    crashed = row("crash", "it died", sizes=(128, 64, 64), stage="compare", against="triton")
    rows = [compared(64, 9.0), compared(128, 9.0), compared(64, 9.0, "triton"), crashed]
    assert {name: list(of) for name, of in series(cells(rows)).items()} == {
        "torch.mm": ["64x64x64", "128x64x64"],
        "triton": ["64x64x64"],
    }


def test_a_comparison_of_one_problem_gives_no_picture(tmp_path):
    forest(cells([compared(64, 9.0), compared(64, 9.0, "triton")]), tmp_path / "c.svg", "t")
    assert list(tmp_path.iterdir()) == []


def test_the_picture_has_every_problem_and_the_means(tmp_path):
    rows = [compared(m, float(m), speedup=s, speedup_low=s, speedup_high=s) for m, s in ((64, 0.5), (128, 2.0))]
    forest(cells(rows), tmp_path / "c.svg", "t")
    text = (tmp_path / "c.svg").read_text()
    assert [one for one in ("64x64x64", "128x64x64", "64.0 us", "128.0 us", "1.000x") if f">{one}<" not in text] == []


def test_a_launch_time_is_the_one_of_the_page(tmp_path):
    """The median over the baselines: the faster of two, which has a marker of its own, counts once."""
    rows = [compared(m, us, against) for m in (64, 128) for us, against in ((5.0, "cublas"), (6.0, "cublaslt"))]
    forest(cells(rows), tmp_path / "c.svg", "t")
    assert (tmp_path / "c.svg").read_text().count(">5.5 us<") == 2
