"""A sweep file is checked as a whole: every mistake in one line, all at once."""

from __future__ import annotations

import pytest

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.parameters import FIELDS
from hopper_gemm.tune.study.reader import read_provenance, recorded_folders
from hopper_gemm.tune.study.space import MOST, begun_with, count, place_of, points, rungs
from hopper_gemm.tune.study.spec import SpecError, checked, command_spec, read_spec
from tests.conftest import ROOT
from tests.each import each
from tests.tune.run.fakes import SPEC
from tests.tune.run.instant import LADDER


def spec_of(tmp_path, text=SPEC):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return path


SWEEPS = sorted(path for path in (ROOT / "sweeps").rglob("*.toml") if path.parent.name != "shapes")


@each("path", SWEEPS, ids=lambda path: path.stem)
def test_every_sweep_of_the_project_is_valid_and_named_as_its_file(path):
    assert read_spec(path).name == path.stem


@each("path", SWEEPS, ids=lambda path: path.stem)
def test_a_sweep_that_nothing_can_replay_says_so_in_its_first_lines(path):
    """It names the study to replay it from, or the command that records something else than rows."""
    if not recorded_folders(path.stem):
        opening = path.read_text().partition("name =")[0]
        assert "--from" in opening or "hopper-gemm trace" in opening


def test_the_seed_table_asks_the_published_grid_in_both_regimes():
    found = points(read_spec(ROOT / "sweeps/seed-table.toml"))
    assert len(found) == 40 * 2 * 2
    refused = [point for point, why in found.items() if why]
    assert len(refused) == 4
    assert {(point.config.tile_m, point.config.k_depth) for point in refused} == {(320, 16)}
    assert all(point.config.stagger == min(1, point.config.stages - 1) for point, why in found.items() if not why)


OWN = """
[[problems]]
m = 512
n = 512
k = 512
keep = 2
space = { tile_m = 128, k_depth = [2, 8] }
known = [{ tile_m = 64, tile_n = 64 }]
[space]"""
ASKED_APART = SPEC.replace("[space]", OWN)
"""A sweep with a problem that has values of its own."""


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (SPEC, 'name = "small"', 'name = "Not A Name"', "name: String should match pattern"),
        (
            SPEC,
            "tile_n = 128",
            "tile_z = 128",
            "space: tile_z is not a kernel parameter; did you mean tile_n or tile_m",
        ),
        (SPEC, "tile_n = 128", "tile_n = []", "space: tile_n must have at least one value but got an empty list"),
        (SPEC, "tile_n = 128", "tile_n = [128, 1.5]", "space: tile_n must be an integer from 1 to 1048576 but got 1.5"),
        (SPEC, "stagger = 1", 'cluster = "2by1"', "space: cluster must be written like \"2x1\" but got '2by1'"),
        (SPEC, "m = 1024", "m = 0", "problems.0.m: Input should be greater than or equal to 1, but got 0"),
        (
            SPEC,
            "[final]",
            '[table]\nfacet_rows = "colour"\n[final]',
            "table.facet_rows: must be a column of the results but got 'colour'",
        ),
        (SPEC, "[final]", "[finale]", "finale is not a key of a sweep; did you mean final?"),
        (SPEC, 'regimes = ["burst"]', 'regimes = ["warm"]', "regimes.0: Input should be 'burst' or 'steady', but"),
        (SPEC, 'regimes = ["burst"]', "regimes = [", "is not valid TOML"),
        (SPEC, 'name = "small"', "", "name is missing"),
        (
            SPEC,
            'name = "small"',
            'name = "small"\ndata = ["ones", "zeros"]',
            "data: must be among normal, uniform, zeros but got 'ones'",
        ),
        (LADDER, 'name = "same"', 'name = "tile"', "rungs.3.name: must be unique but 'tile' is an earlier rung's"),
        (
            LADDER,
            'from = "ring"',
            'from = "rign"',
            "rungs.5.from: must name an earlier rung but got 'rign'; choose among base, ring,",
        ),
        (
            LADDER,
            "tile_m = 64",
            "tile_m = [64, 128]",
            "space.tile_m: must be one value beside rungs but got a list; vary it in a",
        ),
        (LADDER, '"1x2"', '"1by2"', "rungs.5.set: cluster must be written like \"2x1\" but got '1by2'"),
        (
            LADDER,
            'name = "ladder"',
            'name = "ladder"\nskip_illegal = true',
            "skip_illegal: must be false beside rungs but got true; a ladder shows why",
        ),
        (ASKED_APART, "tile_m = 128", "split_k = 2", "problems.1.space: split_k must be a parameter of space"),
        (SPEC, SPEC[SPEC.index("[space]") :], "", "space is missing"),
    ],
)
def test_a_mistake_is_one_line_with_what_came_and_the_mend(tmp_path, text, old, new, message):
    path = spec_of(tmp_path, text.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert str(path) in lines[0]


def test_all_mistakes_of_a_space_are_told_at_once(tmp_path):
    text = SPEC.replace("tile_n = 128", "hue = 128").replace("[4, 16]", '[0, 4, "deep"]')
    with pytest.raises(SpecError) as caught:
        read_spec(spec_of(tmp_path, text))
    assert [line.split(": ", 1)[1] for line in str(caught.value).splitlines()] == [
        f"space: hue is not a kernel parameter; choose among {', '.join(FIELDS)}",
        "space: k_depth must be an integer from 1 to 1048576 but got 0",
        "space: k_depth must be an integer from 1 to 1048576 but got 'deep'",
    ]


@pytest.mark.parametrize("stages", ['[2, 4, "max"]', '["max", 2, 3, 4]'])
def test_stages_may_be_numbers_and_what_fits_and_a_config_named_twice_is_one(tmp_path, stages):
    """Three stages fit for 320 x 128 and k_depth 4: the fourth is refused with the number that fits."""
    text = SPEC.replace("[64, 128, 320]", "320").replace("[4, 16]", "4").replace('"max"', stages, 1)
    found = points(read_spec(spec_of(tmp_path, text)))
    assert {point.config.stages for point in found} == {2, 3, 4}
    assert len(found) == 3
    (refused,) = [why for why in found.values() if why]
    assert refused.startswith("stages: stages must be 1 to 3 here but got 4")


def test_a_config_may_be_refused_for_one_type_of_output_and_not_for_another(tmp_path):
    problem = SPEC[SPEC.index("[[problems]]") : SPEC.index("[space]")]
    text = SPEC.replace(problem, problem + problem.replace("m = 1024", 'dtype = "bf16_fp32"\nm = 1024'))
    ruled: dict[tuple[str, int], set[str]] = {}
    spec = read_spec(spec_of(tmp_path, text.replace("tile_n = 128", "tile_n = 128\nepi_n = [8, 16]")))
    for point, refused in points(spec).items():
        of = ruled.setdefault((point.problem.dtype, point.config.epi_n), set())
        of.update(why.split(":")[0] for why in refused.split("; "))
    assert len(ruled) == 4
    assert {key for key, rules in ruled.items() if "output" in rules} == {("bf16_fp32", 8)}


def test_a_problem_may_have_values_known_configs_and_a_number_kept_of_its_own(tmp_path):
    spec = read_spec(spec_of(tmp_path, ASKED_APART))
    usual, own = spec.each()
    assert (usual.space, usual.keep, usual.warm_grids) == (spec.space, None, [])
    assert own.space == {**spec.space, "tile_m": 128, "k_depth": [2, 8]}
    assert (own.keep, begun_with(own)[0].tile_n) == (2, 64)
    found = {}
    for point, why in points(spec).items():
        found.setdefault(point.problem.m, []).append((point, why))
    alone = [list(points(one).items()) for one in spec.each()]
    assert list(found.values()) == alone
    assert {point.config.tile_m for point, _ in found[512]} == {64, 128}
    assert count(spec) == count(usual) + count(own)


@pytest.mark.parametrize(
    ("key", "places"),
    [
        ('contexts = ["isolated", "chained"]', ["isolated", "chained"]),
        ('data = ["normal", "zeros", "zeros"]', ["isolated", "isolated zeros"]),
    ],
)
def test_contexts_and_kinds_of_data_are_places_of_their_own_and_isolated_is_the_default(tmp_path, key, places):
    found = points(read_spec(spec_of(tmp_path, SPEC.replace("[[prob", f"{key}\n[[prob"))))
    assert list(dict.fromkeys(map(place_of, found))) == [f"1024x1024x1024 burst {place}" for place in places]
    assert len(found) == 2 * 6
    assert read_spec(spec_of(tmp_path)).contexts == ["isolated"]


def test_a_rung_is_the_one_it_starts_from_with_what_it_sets(tmp_path):
    """Cumulative from the space on; a branch leaves the rungs between alone; max is what fits on each rung."""
    ladder = rungs(read_spec(spec_of(tmp_path, LADDER)))
    shapes = {rung.name: (c.tile_m, c.k_depth, c.stages, c.cluster_n) for rung, c in ladder}
    assert shapes == {
        "base": (64, 4, 2, 1),
        "ring": (64, 4, 9, 1),
        "tile": (128, 4, 6, 1),
        "same": (128, 4, 6, 1),
        "deep": (320, 16, 0, 1),
        "pair": (64, 4, 9, 2),
    }
    starts = {rung.name: rung.start for rung, _ in ladder}
    assert starts == {"base": None, "ring": "base", "tile": "ring", "same": "tile", "deep": "same", "pair": "ring"}


def test_a_ladder_needs_no_space(tmp_path):
    text = LADDER[: LADDER.index("[space]")] + LADDER[LADDER.index("[[rungs]]") :]
    ((_, config), *_) = rungs(read_spec(spec_of(tmp_path, text)))
    assert config == resolve(GemmConfig(stages=2))


def test_the_grid_is_the_product_in_the_order_of_the_file(tmp_path):
    found = [
        (c.tile_m, c.k_depth, c.stages, c.stagger) for c in (p.config for p in points(read_spec(spec_of(tmp_path))))
    ]
    assert found == [(64, 4, 9, 1), (64, 16, 2, 1), (128, 4, 6, 1), (128, 16, 1, 0), (320, 4, 3, 1), (320, 16, 0, 0)]


def test_a_cluster_sets_both_of_its_fields(tmp_path):
    spec = read_spec(spec_of(tmp_path, SPEC.replace("stagger = 1", 'stagger = 1\ncluster = ["2x1", "1x2"]')))
    assert {(config.cluster_m, config.cluster_n) for config in (point.config for point in points(spec))} == {
        (2, 1),
        (1, 2),
    }


def test_the_digest_follows_the_question_and_not_the_comments(tmp_path):
    base = read_spec(spec_of(tmp_path)).digest
    assert read_spec(spec_of(tmp_path, "# a comment\n" + SPEC)).digest == base
    assert read_spec(spec_of(tmp_path, SPEC.replace("best = 2", "best = 1"))).digest != base
    assert read_spec(spec_of(tmp_path, SPEC.replace("tile_n = 128", "tile_n = 128\npdl = false"))).digest != base


def test_a_spec_recorded_with_the_keys_of_earlier_versions_is_the_same_question(tmp_path):
    spec = read_spec(spec_of(tmp_path))
    recorded = {**spec.as_dict(), "across": "each", "objective": ["speedup"]}
    assert checked(recorded, "provenance").digest == spec.digest
    with pytest.raises(SpecError, match="across is not a key of a sweep"):
        checked({**recorded, "across": "worst"}, "provenance")


def test_the_digest_spells_out_how_things_are_measured(tmp_path):
    """A later version may add keys, but must not measure otherwise under the same question."""
    base = read_spec(spec_of(tmp_path)).digest
    assert read_spec(spec_of(tmp_path, SPEC + "[burst]\npairs = 15\n")).digest == base
    assert read_spec(spec_of(tmp_path, SPEC + "[burst]\npairs = 14\n")).digest != base
    assert read_spec(spec_of(tmp_path, SPEC + "[budget]\ntrials = 3\n")).digest == base


def test_earlier_names_of_parameters_ask_the_same_question(tmp_path):
    old = 'tile_n = 128\nearly = [true, false]\nzigzag = true\nmulticast = ["rows", "turns"]'
    new = 'tile_n = 128\npdl = [true, false]\nreverse_k = true\nmulticast = ["split", "alternate"]'
    first, second = (read_spec(spec_of(tmp_path, SPEC.replace("tile_n = 128", text))) for text in (old, new))
    assert first.space == second.space
    assert first.digest == second.digest
    both = SPEC.replace("tile_n = 128", "tile_n = 128\nearly = true\npdl = false")
    with pytest.raises(SpecError, match="is an earlier name of pdl, which is given too; leave one of them out"):
        read_spec(spec_of(tmp_path, both))


RECORDED = [path for path in recorded_folders() if (path / "provenance.json").is_file()]


@pytest.mark.results
@each("folder", RECORDED, ids=lambda path: path.name)
def test_a_recorded_study_asked_what_its_sweep_file_asks(folder):
    """But for three runs of scale.toml, whose race was another."""
    about = read_provenance(folder)
    files = [path for path in SWEEPS if path.stem == about["study"]]
    if not files or "against" in about["spec"]:
        return  # asked without a file, or a comparison, whose list is no sweep
    same = checked(about["spec"], "recorded").digest == read_spec(files[0]).digest
    assert same == (not folder.name.endswith(("scale-cold", "scale-two", "scale-warm")))


def huge(count):
    return "[" + ", ".join(str(1 + i) for i in range(count)) + "]"


def test_a_huge_grid_is_counted_and_refused_with_its_number(tmp_path):
    text = SPEC.replace("tile_n = 128", f"tile_n = {huge(200)}\nswizzle = {huge(500)}\nprefetch = {huge(300)}")
    spec = read_spec(spec_of(tmp_path, text))
    assert count(spec) == 6 * 200 * 500 * 300
    with pytest.raises(
        SpecError, match=f"small has 180,000,000 points of a problem and at most {MOST:,} are enumerated"
    ):
        points(spec)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tile_n = 128", 'tile = "256x2147483647"', "tile_n must be an integer from 1 to 1048576 but got 2147483647"),
        ("best = 2", "best = 2\nburst_pairs = 1" + "0" * 400, "final.burst_pairs: "),
        ("best = 2", "best = 2\nburst_pairs = 1" + "0" * 5000, "cannot be read: "),
        ("m = 1024", "m = 2147483648", "problems.0.m: Input should be less than 2147483648"),
        ("tile_n = 128", 'cluster = "' + "9" * 30 + 'x1"', 'must be written like "2x1"'),
        ("best = 2", "best = 2\nburst_rest = nan", "final.burst_rest: "),
    ],
)
def test_no_number_of_a_file_is_without_a_bound(tmp_path, old, new, message):
    with pytest.raises(SpecError) as caught:
        points(read_spec(spec_of(tmp_path, SPEC.replace(old, new, 1))))
    (line,) = str(caught.value).splitlines()
    assert message in line
    assert len(line) < 400


def test_a_byte_that_is_no_text_is_told_with_its_place(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_bytes(b'name = "x"\nquestion = "\x8b"\n')
    with pytest.raises(SpecError, match="line 2, column 13: byte 0x8b is not UTF-8"):
        read_spec(path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"config": "best"}, "compare: config: Input should be 'tuned' or 'auto', but got 'best'"),
        ({"config": "auto", "against": ["mkl"]}, "compare: against: must be among cublas, cublaslt"),
        ({"config": "auto", "space": {"tile_m": 128}}, "compare: space: has no meaning beside config; leave it out"),
        ({"config": "auto", "regimes": ["burst", "steady"]}, "compare: regimes: must be a single one beside config"),
        ({"menu": {"drawn": -1}}, "compare: menu.drawn: Input should be greater than or equal to 0"),
        ({"menu": {"drawn": 10**6 + 1}}, "compare: menu.drawn: Input should be less than or equal to 1000000"),
        ({"menu": {}, "processes": 2}, "compare: processes: has no meaning beside menu"),
        ({"space": {}, "against": ["quack"]}, "compare: against: is a key of a comparison"),
        ({}, "compare: space is missing"),
    ],
)
def test_a_spec_says_in_one_way_what_is_measured_of_each_problem(keys, message):
    with pytest.raises(SpecError) as caught:
        command_spec("compare", [GemmProblem(64, 64, 64)], name="list", **keys)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("key", ['config = "tuned"', "menu = {}", 'against = ["quack"]'])
def test_keys_of_other_commands_stand_in_no_sweep_file(tmp_path, key):
    with pytest.raises(SpecError, match=key.split()[0]):
        read_spec(spec_of(tmp_path, f"{key}\n{SPEC}"))
