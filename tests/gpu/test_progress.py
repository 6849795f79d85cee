"""Every launch ends, and is right, whatever else the GPU does: each kernel in each circumstance, in a child that a hang
costs and not the run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from hopper_gemm.compiler.child import Child
from hopper_gemm.compiler.store import KernelId
from tests.verify.harness import ANSWER_SECONDS, LATENESS, PROCESSES, RUNS, VerifyJob, verdict
from tests.verify.kinds import load_jobs
from tests.verify.load import answering

pytestmark = pytest.mark.gpu

JOBS = {(job.circumstance, job.of): job for job in load_jobs() if job.circumstance != LATENESS}


def kernels() -> list[KernelId]:
    """Kernels of all jobs."""
    return [kernel for job in JOBS.values() for kernel in job.kernels]


@pytest.fixture(scope="module")
def ask(kernel_store):
    """What a child answers to a job, or two children at once."""
    children = [Child(answering, kernel_store) for _ in range(2)]

    def one(child: Child, circumstance: str, job: VerifyJob) -> str:
        assert child.ask(None, 120.0).kind == "answer"
        status, reason, _ = verdict(child.ask((circumstance, job.pair, RUNS), ANSWER_SECONDS))
        return "" if status == "ok" else f"{status}: {reason}"

    def found(circumstance: str, name: str) -> str:
        job = JOBS[circumstance, name]
        if circumstance != PROCESSES:
            return one(children[0], circumstance, job)
        with ThreadPoolExecutor(2) as threads:
            return "".join(threads.map(lambda child: one(child, "streams", job), children))

    yield found
    for child in children:
        child.close()


@pytest.mark.parametrize(("circumstance", "name"), JOBS)
def test_a_launch_ends_and_is_right_in_every_circumstance(ask, circumstance, name):
    """What this GPU or torch cannot do is skipped with the reason."""
    answer = ask(circumstance, name)
    if answer.startswith("skipped"):
        pytest.skip(answer)
    assert answer == ""
