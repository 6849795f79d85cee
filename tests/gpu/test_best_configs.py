"""Today's kernel runs the recorded best configs, right and as fast as the binaries that were kept."""

from __future__ import annotations

import pytest

from hopper_gemm.measure.device import find_hopper, slug
from hopper_gemm.model.tuned import recorded_tables
from hopper_gemm.run.coordinator import run
from hopper_gemm.run.questions.check import Check, guarded_of
from hopper_gemm.run.source import Source
from hopper_gemm.run.task import Job

pytestmark = pytest.mark.gpu


def test_no_best_config_is_slower_than_its_recorded_binary():
    gpu = find_hopper()
    table = recorded_tables().get(slug(gpu.name))
    if table is None:
        pytest.skip(f"no tuned table is recorded for {gpu.name}")
    question = Check(guarded_of(table))
    run(question, Source((gpu,)).executor(Job("check")))
    assert question.checked
    assert [one.as_dict() for one in question.checked if one.verdict.status == "fallen"] == []
