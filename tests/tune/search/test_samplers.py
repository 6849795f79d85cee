"""A sampler proposes legal configs only, and none twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import optuna
import pytest

from hopper_gemm.model.config import GemmConfig
from hopper_gemm.model.kernel import resolve
from hopper_gemm.model.problem import GemmProblem
from hopper_gemm.tune.parameters import config_of
from hopper_gemm.tune.search import gp
from hopper_gemm.tune.search.gp import Covariance, Posterior
from hopper_gemm.tune.search.legal import LegalSpace
from hopper_gemm.tune.search.samplers import Plugged, diverse, predictions
from hopper_gemm.tune.search.search import SAMPLERS, make
from hopper_gemm.tune.study.space import points
from tests.tune.run.instant import SEARCH, spec_of
from tests.verify.drawing import varied

CUBE = GemmProblem(1024, 1024, 1024)


@pytest.fixture
def space(tmp_path):
    return LegalSpace([point.config for point, why in points(spec_of(tmp_path, SEARCH)).items() if not why])


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_tries_every_legal_config_once_and_nothing_else(space, name):
    """Some fail on the way; the failed corner is not proposed for ever."""
    few = LegalSpace(space.configs[::3])
    sampler = make(name, few, 0, predictions(space.configs, CUBE)[::3])
    tried = []
    for _ in range(len(few)):
        tried.append(sampler.ask())
        config = few.configs[tried[-1]]
        sampler.tell(tried[-1], None if config.k_depth == 16 else float(config.tile_m))
    assert sorted(tried) == list(range(len(few)))
    with pytest.raises(ValueError, match="every legal config was tried"):
        sampler.ask()


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_is_being_measured_is_not_proposed_again(space, name):
    sampler = make(name, space, 0, predictions(space.configs, CUBE))
    assert len({sampler.ask() for _ in range(20)}) == 20


@pytest.mark.parametrize("speedup", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_speedup_is_refused_and_the_config_stays_pending(space, speedup):
    """A nan would be kept and be the best of all; it can be told right afterwards."""
    sampler = make("random", space, 0, np.zeros(len(space)))
    number = sampler.ask()
    with pytest.raises(ValueError, match=f"above 0 and finite, None where the config did not run, but got {speedup}"):
        sampler.tell(number, speedup)
    assert sampler.losses == {}
    sampler.tell(number, None)
    assert sampler.failed == {number}


def test_a_config_that_was_not_asked_or_was_told_already_cannot_be_told(space):
    sampler = make("random", space, 0, np.zeros(len(space)))
    number = sampler.ask()
    sampler.tell(number, 1.0)
    for wrong in (number, (number + 1) % len(space)):
        with pytest.raises(ValueError, match=f"ask gave and that was not told yet, but got number {wrong}"):
            sampler.tell(wrong, 1.0)


@pytest.mark.parametrize("name", ["RandomSampler", "NSGAIISampler", "TPESampler"])
def test_any_sampler_of_optuna_tries_every_legal_config_once(space, name):
    """What it suggests becomes the nearest config that is free, and it learns of that one."""
    few = LegalSpace(space.configs[::16])
    sampler = Plugged(few, 0, getattr(optuna.samplers, name)(seed=0))
    for _ in range(len(few)):
        number = sampler.ask()
        sampler.tell(number, None if number % 5 == 0 else float(number + 1))
    assert sorted({*sampler.losses, *sampler.failed}) == list(range(len(few)))


class Learner(optuna.samplers.RandomSampler):
    """Learns of each trial when it ends, and then proposes the best parameters again."""

    def __init__(self):
        super().__init__(seed=0)
        self.begun, self.ended, self.best = 0, [], (0.0, {})

    def before_trial(self, study, trial):
        self.begun += 1

    def after_trial(self, study, trial, state, values):
        self.ended.append(state.name)
        if values:
            self.best = max(self.best, (values[0], trial.params), key=lambda ended: ended[0])

    def sample_relative(self, study, trial, search_space):
        return dict(self.best[1])


def test_a_sampler_that_learns_when_a_trial_ends_is_told_of_each(space):
    """The next config is the one nearest to the best so far, which after_trial keeps."""
    learner = Learner()
    sampler = Plugged(space, 0, learner)
    first = sampler.ask()
    sampler.tell(first, 2.0)
    second = sampler.ask()
    sampler.tell(second, None)
    assert learner.ended == ["COMPLETE", "PRUNED"]
    assert learner.begun == 2
    free = np.array([number for number in range(len(space)) if number != first])
    assert second == space.nearest(space.parameters(first), free)


def test_a_sampler_sees_numbers_as_numbers_and_a_journal_sees_text(space):
    """CMA-ES and QMC know no categories."""
    numbers, text = (LegalSpace(space.configs, as_text=as_text) for as_text in (False, True))
    assert numbers.parameters(7)["tile_m"] == space.configs[7].tile_m
    assert text.parameters(7)["tile_m"] == str(space.configs[7].tile_m)
    for kind in (numbers, text):
        assert {kind.find(kind.parameters(i)) for i in range(len(space))} == set(range(len(space)))
        for name, distribution in kind.distributions.items():
            distribution.to_internal_repr(kind.parameters(7)[name])
    between = numbers.parameters(7) | {"tile_m": numbers.parameters(7)["tile_m"] + 1}
    assert numbers.nearest(between, np.arange(len(space))) == 7


def test_a_space_keeps_only_what_tells_configs_apart(space):
    assert space.names == ("tile_m", "tile_n", "k_depth", "stagger", "cluster_n")
    assert {space.find(space.parameters(i)) for i in range(len(space))} == set(range(len(space)))
    assert space.find({**space.parameters(0), "tile_m": "96"}) is None
    first, *_, last = space.points.tolist()
    assert (min(first), max(last)) == (0.0, 1.0)


def test_the_nearest_free_config_differs_in_as_little_as_can_be(space):
    wanted = space.parameters(7)
    free = np.array([i for i in range(len(space)) if i != 7])
    near = space.parameters(space.nearest(wanted, free))
    assert sum(near[name] != wanted[name] for name in wanted) == 1
    assert space.nearest(wanted, np.arange(len(space))) == 7


def test_flags_and_words_have_places_and_strangers_lie_between(space):
    same = {"stages": 4, "consumers": 2, "split": "m", "epi_n": 64, "epi_buffers": 1}
    ways = [(peek, unroll) for peek in (True, False, "producer") for unroll in (True, False)]
    words = LegalSpace([config_of({**same, "peek": peek, "unroll": unroll}) for peek, unroll in ways])
    assert len({tuple(row) for row in words.points.tolist()}) == 6
    stranger = words.coordinates(varied(words.configs[0], peek="consumer"))
    assert stranger.shape == words.points[0].shape
    assert tuple(stranger) not in {tuple(row) for row in words.points.tolist()}
    assert space.coordinates(replace(space.configs[0], tile_m=384))[0] > 1.0


def test_the_kernel_s_own_configs_have_a_place_in_a_space_that_varies_a_parameter_of_the_study():
    """It stands at its default in them."""
    tile = resolve(GemmConfig(tile_m=256))
    space = LegalSpace([varied(tile, skew=skew) for skew in (0, 1, 2)])
    assert space.like(tile) == 0
    assert space.coordinates(tile).tolist() == [0.0]


def test_what_is_tried_first_are_other_tiles_and_other_techniques_in_turn():
    configs = [GemmConfig(tile_m=m, tile_n=n) for m in (256, 128) for n in (128, 64)]
    configs += [replace(config, swap_ab=True) for config in configs] + [GemmConfig(tile_m=64, schedule="pingpong")]
    predicted = np.log([1.0, 1.1, 1.2, 1.3, 1.05, 1.15, 1.25, 1.35, 2.0])
    assert diverse(predicted, configs, 4) == [0, 1, 4, 2]
    assert diverse(predicted[:4], configs[:4], 3) == [0, 1, 2]


def test_a_large_space_is_searched_among_candidates(monkeypatch, space):
    monkeypatch.setattr(gp, "CANDIDATES", 40)
    monkeypatch.setattr(gp, "OBSERVATIONS", 12)
    sampler = make("gp", space, 0, predictions(space.configs, CUBE))
    speeds = []
    for _ in range(25):
        number = sampler.ask()
        config = space.configs[number]
        speeds.append(config.tile_m * config.tile_n / (1 + config.k_depth))
        sampler.tell(number, speeds[-1])
    assert max(speeds) == max(c.tile_m * c.tile_n / (1 + c.k_depth) for c in space.configs)


def test_a_posterior_that_grew_place_by_place_is_that_made_at_once():
    rng = np.random.default_rng(0)
    places, known, figures = rng.random((50, 3)), rng.random((12, 3)), rng.normal(size=12)
    kernel = Covariance(np.array([0, 1, 2]), np.array([0.6, 1.2, 0.3]), 1e-2)
    grown = Posterior(kernel, places, known[:5])
    for place in known[5:]:
        grown.add(place)
    for one, other in zip(Posterior(kernel, places, known).predict(figures), grown.predict(figures), strict=True):
        assert np.allclose(one, other, atol=1e-5)


def test_where_nothing_is_predicted_to_be_faster_the_process_tries_what_is_unlike_the_tried(space):
    """It is curious; by the mean alone it would take the next config of the space."""
    sampler = gp.Gp(space, 0, np.zeros(len(space)))
    first = sampler.ask()
    sampler.tell(first, 1.0)
    distances = np.abs(space.points - space.points[first]).sum(axis=1)
    assert distances[sampler.ask()] > np.median(distances)


def test_a_covariance_that_is_not_positive_definite_gets_as_much_noise_as_it_takes():
    factor = gp._factor(np.array([[1.0, 1.5], [1.5, 1.0]]), 0.0)
    assert np.isfinite(factor).all()
