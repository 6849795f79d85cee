"""A tuned list's page has a line for each problem: the winner, and where it came from."""

from __future__ import annotations

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.tune.study.reader import read_study
from hopper_gemm.tune.tables.pages.publish import publish
from hopper_gemm.tune.tables.pages.report import winners
from tests.tune.tables.making import row, write_study

SLOW, FAST = {"tile_m": 128, "k_depth": 4}, {"tile_m": 256, "k_depth": 4}
SPEC = {
    "name": "s",
    "sampler": "gp",
    "space": {"tile_m": [128, 256]},
    "problems": [{"m": 64, "n": 64, "k": 64, "known": [FAST]}, *({"m": m, "n": 64, "k": 64} for m in (128, 256, 512))],
}


def test_each_problem_has_its_winner_and_where_it_came_from(tmp_path):
    finals = [
        row(stage="final", process=p, pairs=((100.0, 100 * speedup),) * 2, **fields)
        for fields, speedup in ((SLOW, 1.02), (FAST, 1.04))
        for p in range(3)
    ]
    rows = [
        row(**SLOW, speedup=1.3),
        row(**FAST, speedup=1.1),
        row(sizes=(128, 64, 64), **SLOW),
        row("crash", "died", sizes=(256, 64, 64), **FAST),
    ]
    folder = write_study(tmp_path, *rows, *finals, spec=SPEC, even={"64x64x64 burst isolated": ["a", "b"]})
    first, second, third, fourth = winners(read_study(folder))
    fast, slow = str(resolve(GemmConfig(**FAST))), str(resolve(GemmConfig(**SLOW)))
    assert (first.config, round(first.speedup, 6), first.final, first.trials, first.even) == (fast, 1.04, True, 2, 2)
    assert (first.origin, second.origin) == ("known", "search")
    assert (second.config, second.final) == (slow, False)
    assert (third.config, fourth.config) == ("", "")
    publish(folder)
    page = (folder / "table.md").read_text()
    assert (
        f"| 64x64x64 burst isolated | `{fast}` (one of 2 that are even) | 1.040x [1.040, 1.040] | 2 | known |" in page
    )
    assert "| 256x64x64 burst isolated | nothing ran |  | 1 |  |" in page
    assert "| 512x64x64 burst isolated | not searched |  | 0 |  |" in page
    assert "1 of 4 have a winner" in page
    assert not list(folder.glob("*.svg"))
