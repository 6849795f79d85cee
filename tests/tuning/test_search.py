"""A search proposes legal points only, none twice, stays within its budget, and goes on where it stopped."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.legality import is_legal
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tables.trials import ResultsError, read_json, read_trials
from hopper_gemm.tuning.legal import LegalSpace
from hopper_gemm.tuning.objective import Objective
from hopper_gemm.tuning.samplers import EARLIER, SAMPLERS, diverse, make, predictions
from hopper_gemm.tuning.search import Search
from hopper_gemm.tuning.space import points
from hopper_gemm.tuning.spec import SpecError, read_spec
from hopper_gemm.tuning.storage import open_storage
from hopper_gemm.tuning.sweep import JOURNAL, Sweep
from tests.tuning.fakes import FakeBackend

CUBE = GemmProblem(1024, 1024, 1024)

SEARCH = """
name = "search"
regimes = ["burst"]
sampler = "gp"
[[problems]]
m = 1024
n = 1024
k = 1024
[space]
tile_m = [64, 128, 192, 256, 320]
tile_n = [64, 128, 192]
k_depth = [2, 4, 16]
stages = "max"
stagger = [0, 1]
cluster = ["1x1", "1x2"]
[budget]
trials = 12
[final]
best = 2
"""


def spec_of(tmp_path, text=SEARCH):
    path = tmp_path / "search.toml"
    path.write_text(text)
    return read_spec(path)


@pytest.fixture(autouse=True)
def unpublished(monkeypatch):
    """Pages and pictures are other tests' matter, and most of the time."""
    monkeypatch.setattr("hopper_gemm.tuning.sweep.publish", lambda folder: None)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "results" / "search"


@pytest.fixture
def space(tmp_path):
    return LegalSpace([point.config for point in points(spec_of(tmp_path)) if not point.refused])


def study_of(out):
    storage = open_storage(str(out / JOURNAL))
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sampler_tries_every_legal_config_once_and_nothing_else(space, sampler):
    """Some fail on the way; the failed corner is not proposed for ever."""
    predicted = predictions(space.configs, CUBE)
    few = LegalSpace(space.configs[::3])
    study = optuna.create_study(direction="maximize", sampler=make(sampler, few, Objective(), 0, predicted[::3]))
    tried = []
    for _ in range(len(few)):
        trial = study.ask(few.distributions)
        tried.append(few.find(trial.params))
        if few.configs[tried[-1]].k_depth == 16:
            trial.set_constraint("runs", 1.0)
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, float(few.configs[tried[-1]].tile_m))
    assert sorted(tried) == list(range(len(few)))
    with pytest.raises(ValueError, match="every legal config was tried"):
        study.ask(few.distributions)


def test_what_is_being_measured_is_not_proposed_again(space):
    predicted = predictions(space.configs, CUBE)
    for sampler in SAMPLERS:
        study = optuna.create_study(direction="maximize", sampler=make(sampler, space, Objective(), 0, predicted))
        asked = [space.find(study.ask(space.distributions).params) for _ in range(20)]
        assert len(set(asked)) == 20


def test_a_space_keeps_only_what_tells_configs_apart(space):
    assert space.names == ("tile_m", "tile_n", "k_depth", "stagger", "cluster_n")
    assert {space.find(space.parameters(i)) for i in range(len(space))} == set(range(len(space)))
    assert space.find({**space.parameters(0), "tile_m": "96"}) is None
    first, *_, last = space.places.tolist()
    assert (min(first), max(last)) == (0.0, 1.0)


def test_the_nearest_free_config_differs_in_as_little_as_can_be(space):
    wanted = space.parameters(7)
    free = np.array([i for i in range(len(space)) if i != 7])
    near = space.parameters(space.nearest(wanted, free))
    assert sum(near[name] != wanted[name] for name in wanted) == 1
    assert space.nearest(wanted, np.arange(len(space))) == 7


def test_flags_and_words_have_places_and_strangers_lie_between(space):
    configs = [
        GemmConfig(stages=4, peek=peek, unroll=unroll) for peek in (True, False, "producer") for unroll in (True, False)
    ]
    words = LegalSpace([replace(config, consumers=2, split="m", epi_n=64, epi_buffers=1) for config in configs])
    assert len({tuple(row) for row in words.places.tolist()}) == 6
    stranger = words.coordinates(replace(words.configs[0], peek="consumer"))
    assert stranger.shape == words.places[0].shape
    assert tuple(stranger) not in {tuple(row) for row in words.places.tolist()}
    between = space.coordinates(replace(space.configs[0], tile_m=384))
    assert between[0] > 1.0


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "prior"])
def test_a_search_measures_its_budget_and_then_the_finals(tmp_path, out, sampler):
    spec = spec_of(tmp_path, SEARCH.replace('"gp"', f'"{sampler}"'))
    backend = FakeBackend()
    Sweep(spec, out).run(backend)
    rows = read_trials(out / "trials.csv")
    assert len(rows) == 12
    assert set(backend.asked.values()) == {1}
    assert backend.prepared[:12] == list(dict.fromkeys(backend.prepared))
    assert len(backend.measured_again) == 2
    states = [trial.state for trial in study_of(out).trials]
    assert states.count(TrialState.COMPLETE) + states.count(TrialState.PRUNED) == 12
    assert Sweep(spec, out).plan().open == 0
    again = FakeBackend()
    Sweep(spec, out).run(again)
    assert not again.asked
    assert not again.measured_again


@pytest.mark.parametrize("after", [0, 1, 5, 11])
def test_interrupted_it_goes_on_and_measures_nothing_twice(tmp_path, out, after):
    spec = spec_of(tmp_path)
    first, second = FakeBackend(die_after=after), FakeBackend()
    with pytest.raises(KeyboardInterrupt):
        Sweep(spec, out).run(first)
    Sweep(spec, out).run(second)
    assert not set(first.asked) & set(second.asked)
    assert len(first.asked) + len(second.asked) == 12
    trials = study_of(out).trials
    assert not [trial for trial in trials if trial.state == TrialState.RUNNING]
    ended = [trial.user_attrs["config"] for trial in trials if trial.state != TrialState.FAIL]
    assert len(set(ended)) == len(ended) == 12


def test_a_deleted_journal_is_told_again_from_the_rows(tmp_path, out):
    spec = spec_of(tmp_path)
    Sweep(spec, out).run(FakeBackend(), trials=6)
    assert not (out / "final.csv").exists()
    (out / JOURNAL).unlink()
    backend = FakeBackend()
    Sweep(spec, out).run(backend)
    assert len(backend.asked) == 6
    assert len([trial for trial in study_of(out).trials if trial.state != TrialState.FAIL]) == 12


def test_a_larger_budget_goes_on_in_the_same_folder(tmp_path, out):
    Sweep(spec_of(tmp_path), out).run(FakeBackend())
    backend = FakeBackend()
    Sweep(spec_of(tmp_path, SEARCH.replace("trials = 12", "trials = 15")), out).run(backend)
    assert len(backend.asked) == 3


def test_seconds_are_shared_among_what_is_searched(tmp_path):
    text = SEARCH.replace("trials = 12", "seconds = 20").replace(
        "[space]", "[[problems]]\nm = 2048\nn = 2048\nk = 2048\n[space]"
    )
    spec = spec_of(tmp_path, text)
    now = [0.0]
    legal = [point for point in points(spec) if not point.refused]
    search = Search(open_storage(str(tmp_path / "j")), spec, legal, [], clock=lambda: now[0])
    sizes = []
    for asked in search:
        now[0] += 1.0
        sizes.append(asked.point.problem.m)
        search.tell(asked, FakeBackend().measure(asked.point))
    assert (sizes.count(1024), sizes.count(2048)) == (11, 11), (
        "until the first answer compilers start, and nothing counts"
    )
    assert search.finished


def test_a_budget_that_was_spent_before_leaves_nothing_to_search(tmp_path):
    spec = spec_of(tmp_path, SEARCH.replace("trials = 12", "seconds = 20"))
    legal = [point for point in points(spec) if not point.refused]
    search = Search(open_storage(str(tmp_path / "j")), spec, legal, [], spent=20.0)
    assert list(search) == []
    assert search.finished


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "prior"])
def test_thinking_beside_the_measurement_proposes_nothing_twice_and_keeps_the_budget(tmp_path, out, sampler):
    class Slow(FakeBackend):
        elsewhere = True

        def __init__(self):
            super().__init__()
            self.threads = set()

        def prepare(self, points):
            super().prepare(points)
            self.threads.add(threading.current_thread().name.split("_")[0])

        def measure(self, point, pairs=None):
            time.sleep(0.01)
            return super().measure(point, pairs)

    spec = spec_of(tmp_path, SEARCH.replace('"gp"', f'"{sampler}"').replace("trials = 12", "trials = 20"))
    backend = Slow()
    Sweep(spec, out).run(backend)
    rows = read_trials(out / "trials.csv")
    assert len(backend.asked) == len(rows) == 20
    assert backend.threads == {"search"}
    assert not [trial for trial in study_of(out).trials if trial.state == TrialState.RUNNING]


def test_what_is_compiled_is_measured_before_what_still_compiles(tmp_path, out):
    """And the first proposal is measured while the next ones are thought of."""

    class Compiling(FakeBackend):
        elsewhere = True

        def __init__(self):
            super().__init__()
            self.slow = None
            self.waited = []
            self.order = []

        def prepare(self, points):
            super().prepare(points)
            if len(self.prepared) == 3:
                self.slow = points[0]
            time.sleep(0.02)

        def ready(self, point):
            return point != self.slow or len(self.order) >= 6

        def measure(self, point, pairs=None):
            self.waited.append(not self.ready(point))
            self.order.append((point, len(self.prepared)))
            time.sleep(0.05)
            return super().measure(point, pairs)

    backend = Compiling()
    Sweep(spec_of(tmp_path, SEARCH.replace("trials = 12", "trials = 20")), out).run(backend)
    assert len(backend.order) == 20
    assert backend.order[0][1] < 4, "not after all that are proposed ahead"
    assert [point for point, _ in backend.order].index(backend.slow) >= 6
    assert not any(backend.waited)


def test_time_that_is_over_ends_the_thinking(tmp_path):
    spec = spec_of(tmp_path, SEARCH.replace("trials = 12", "seconds = 3").replace('"gp"', '"gp"\nahead = 40'))
    legal = [point for point in points(spec) if not point.refused]
    now = [0.0]
    search = Search(open_storage(str(tmp_path / "j")), spec, legal, [], clock=lambda: now[0], beside=True)
    for asked in search:
        now[0] += 1.0
        search.tell(asked, FakeBackend().measure(asked.point))
    (study,) = search.studies.values()
    states = Counter(trial.state for trial in study.trials)
    assert states[TrialState.RUNNING] == 0
    assert states[TrialState.COMPLETE] + states[TrialState.PRUNED] == 1 + 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("search")]


def test_what_is_tried_first_are_other_tiles_and_other_techniques_in_turn():
    configs = [GemmConfig(tile_m=m, tile_n=n) for m in (256, 128) for n in (128, 64)]
    configs += [replace(config, stream_k=True) for config in configs] + [GemmConfig(tile_m=64, schedule="pingpong")]
    predicted = np.log([1.0, 1.1, 1.2, 1.3, 1.05, 1.15, 1.25, 1.35, 2.0])
    assert diverse(predicted, configs, 4) == [0, 1, 4, 2]
    assert diverse(predicted[:4], configs[:4], 3) == [0, 1, 2]


def test_earlier_results_are_told_first_and_their_best_is_tried_first(tmp_path, out):
    Sweep(spec_of(tmp_path, SEARCH.replace('"gp"', '"random"')), out).run(FakeBackend())
    ran = read_trials(out / "trials.csv")
    best = ran.loc[ran["speedup"].idxmax()]
    later = tmp_path / "later"
    spec = spec_of(tmp_path, SEARCH.replace('sampler = "gp"', f'sampler = "gp"\nwarm_start = ["{out}"]'))
    Sweep(spec, later).run(FakeBackend())
    rows = read_trials(later / "trials.csv")
    assert len(rows) == 12
    assert (rows.iloc[0]["tile_m"], rows.iloc[0]["k_depth"]) == (best["tile_m"], best["k_depth"])
    told = [trial for trial in study_of(later).trials if EARLIER in trial.user_attrs]
    assert len(told) == (read_trials(out / "trials.csv")["status"] == "ok").sum()


def test_earlier_results_of_another_gpu_are_refused(tmp_path, out):
    Sweep(spec_of(tmp_path), out).run(FakeBackend())

    class Other(FakeBackend):
        def describe(self):
            return {**super().describe(), "gpu": {"name": "NVIDIA H100", "driver": "580"}}

    spec = spec_of(tmp_path, SEARCH.replace('sampler = "gp"', f'sampler = "gp"\nwarm_start = ["{out}"]'))
    with pytest.raises(ResultsError, match="recorded on an NVIDIA H200, not an NVIDIA H100; leave it out"):
        Sweep(spec, tmp_path / "later").run(Other())


def test_a_large_space_is_searched_among_candidates(monkeypatch, space):
    monkeypatch.setattr("hopper_gemm.tuning.samplers.CANDIDATES", 40)
    monkeypatch.setattr("hopper_gemm.tuning.samplers.OBSERVATIONS", 12)
    predicted = predictions(space.configs, CUBE)
    study = optuna.create_study(direction="maximize", sampler=make("gp", space, Objective(), 0, predicted))
    speeds = []
    for _ in range(25):
        trial = study.ask(space.distributions)
        config = space.configs[space.find(trial.params)]
        speeds.append(config.tile_m * config.tile_n / (1 + config.k_depth))
        study.tell(trial, speeds[-1])
    assert max(speeds) == max(c.tile_m * c.tile_n / (1 + c.k_depth) for c in space.configs)


class Metered(FakeBackend):
    """Small tiles are slow and thrifty, large ones fast and hungry."""

    def measure(self, point, pairs=None):
        answer = super().measure(point, pairs)
        if answer.status != "ok":
            return answer
        return replace(answer, figures={**answer.figures, "pj_per_flop": 0.5 + answer.figures["speedup"]})


def steady(text):
    return text.replace('["burst"]', '["steady"]')


def test_energy_can_be_looked_for_instead_of_time(tmp_path, out):
    spec = spec_of(tmp_path, steady(SEARCH).replace("[[prob", 'objective = "pj_per_flop"\n[[prob'))
    backend = Metered()
    Sweep(spec, out).run(backend)
    assert study_of(out).directions[0].name == "MINIMIZE"
    rows = read_trials(out / "trials.csv").query("status == 'ok'")
    least = rows.loc[rows["pj_per_flop"].idxmin(), "tile_m"]
    assert backend.measured_again[0].startswith(f"{least}x")
    assert not (out.parent / "best_configs.json").exists()


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp"])
def test_two_objectives_are_a_pareto_study(tmp_path, out, sampler):
    text = (
        steady(SEARCH)
        .replace("[[prob", 'objective = ["speedup", "pj_per_flop"]\n[[prob')
        .replace('"gp"', f'"{sampler}"')
    )
    backend = Metered()
    Sweep(spec_of(tmp_path, text), out).run(backend)
    assert len(study_of(out).directions) == 2
    assert len(backend.measured_again) == 2
    assert len(read_trials(out / "trials.csv")) == 12


def test_a_front_is_what_nothing_beats_in_both():
    both = Objective(("speedup", "pj_per_flop"))
    rows = [
        {"speedup": 1.0, "pj_per_flop": 1.0},
        {"speedup": 0.9, "pj_per_flop": 0.9},
        {"speedup": 0.8, "pj_per_flop": 0.95},
        {"speedup": 0.7, "pj_per_flop": 0.8},
        {"speedup": 2.0},
    ]
    assert both.best(rows, 8) == [0, 1, 3]
    assert both.best(rows, 2) == [0, 3]
    assert Objective().best(rows, 2) == [4, 0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"gp"', '"bayes"', "sampler: Input should be 'exhaustive', 'random', 'tpe', 'gp' or 'prior', but got 'bayes'"),
        ("trials = 12", "trials = 0", "budget.trials: Input should be greater than or equal to 1, but got 0"),
        ("[[prob", 'objective = "pj_per_flop"\n[[prob', "objective: pj_per_flop is measured in the steady regime only"),
        ("[[prob", 'objective = "watts"\n[[prob', "objective.0: Input should be 'speedup' or 'pj_per_flop'"),
        ("[[prob", 'objective = ["speedup", "speedup"]\n[[prob', "objective: must name each figure once"),
        ("[final]", "[race]\nlaps = 3\n[final]", "race.laps is not a key of a sweep"),
    ],
)
def test_a_mistake_of_a_search_is_one_line(tmp_path, old, new, message):
    with pytest.raises(SpecError) as caught:
        spec_of(tmp_path, SEARCH.replace(old, new, 1))
    (line,) = str(caught.value).splitlines()
    assert message in line


def test_a_large_grid_is_enumerated_as_the_rules_say(tmp_path):
    """What is shared between configs that differ at launch is what each would get by itself."""
    text = SEARCH.replace(
        'stages = "max"', 'stages = [3, "max"]\nraster = ["m", "n"]\nswizzle = [33, 8]\nserpentine = [true, false]'
    )
    found = points(spec_of(tmp_path, text))
    assert len(found) > 1000
    for point in found[::7]:
        assert is_legal(point.config, point.problem) == (not point.refused)
    assert {point.config.swizzle for point in found if not point.refused} == {8}


def test_provenance_counts_what_there_was(tmp_path, out):
    Sweep(spec_of(tmp_path), out).run(FakeBackend())
    about = read_json(out / "provenance.json")
    assert about["points"] == 180
    assert sum(about["skipped"].values()) > 0
    (place,) = about["importance"].values()
    assert place["evaluator"] == "PED-ANOVA"
    assert "tile_m" in place["parameters"]
