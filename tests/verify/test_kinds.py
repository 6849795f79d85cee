"""Every kind of kernel is verified in every circumstance that it can run in."""

from __future__ import annotations

import re

from hopper_gemm.model.legality import reasons
from hopper_gemm.tune.parameters import all_values
from tests.verify import load
from tests.verify.harness import LATENESS, PROCESSES
from tests.verify.kinds import CIRCUMSTANCES, KINDS, LATE, kind, load_jobs
from tests.verify.load import CIRCUMSTANCES as FUNCTIONS


def test_every_kind_can_run_its_problem():
    refused = {name: reasons(kind(name).config, kind(name).problem) for name in (*KINDS, *LATE)}
    assert {name: found for name, found in refused.items() if found} == {}


def test_every_circumstance_has_a_function():
    assert set(FUNCTIONS) == set(CIRCUMSTANCES) - {PROCESSES}


def test_what_is_said_of_a_circumstance_is_what_is_done():
    for name, figures in (("busy SMs", load.HELD), ("late", (*load.HELD, load.SLOWEST)), ("few SMs", load.GREEN)):
        assert re.findall(r"[\d.]+", CIRCUMSTANCES[name]) == [str(figure) for figure in figures]
    assert CIRCUMSTANCES["chain"].startswith(f"{load.CHAIN_STEPS} ")


def test_all_kinds_meet_all_circumstances_but_chains_that_cannot_be():
    jobs = {job.kind for job in load_jobs()}
    missing = {f"{way}: {name}" for way in CIRCUMSTANCES if way != LATENESS for name in KINDS} - jobs
    assert all(one.startswith("chain: split-K, many parts") for one in missing)
    assert {f"late: {name}" for name in LATE} <= jobs


def test_both_ways_in_which_sums_meet_and_both_schedulers_are_among_the_kinds():
    configs = [kind(name).config for name in KINDS]
    for technique in ("stream_k", "pace", "skew", "pdl"):
        assert technique == "pdl" or any(all_values(config)[technique] for config in configs)
    assert {config.scheduler for config in configs} == {"static", "dynamic"}
    assert {config.reduction for config in configs if config.split_k > 1} == {"cluster", "workspace"}
