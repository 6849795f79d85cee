"""Every launch ends, and is right, whatever else the GPU does: each kernel in each circumstance, in a child that a hang
costs and not the run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hopper_gemm.compiler.child import Child, Handler
from hopper_gemm.compiler.store import KernelId
from tests.verify.harness import ANSWER_SECONDS, PROCESSES, RUNS, VerifyJob, verdict
from tests.verify.kinds import KINDS, LATENESS, kind, load_jobs
from tests.verify.load import answering

pytestmark = pytest.mark.gpu

JOBS = {(job.circumstance, job.of): job for job in load_jobs() if job.circumstance != LATENESS}
MEETING = [name for name in KINDS if kind(name).config.has_workspace]
"""Kinds whose CTAs meet in a workspace."""


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


def right(answer: str) -> None:
    """Nothing is wrong; what this GPU or torch cannot do is skipped with the reason."""
    if answer.startswith("skipped"):
        pytest.skip(answer)
    assert answer == ""


@pytest.mark.parametrize("name", MEETING)
def test_two_graphs_of_one_problem_may_be_replayed_in_any_order_at_once_and_without_the_kernels_object(ask, name):
    """A workspace that was made and cleared in the first graph left the second spinning."""
    right(ask("graphs", name))


@pytest.mark.parametrize("name", KINDS)
def test_a_green_context_with_fewer_sms_than_the_device_has_is_enough(ask, name):
    """Parts waited for parts that never got an SM."""
    right(ask("few SMs", name))


@pytest.mark.parametrize("name", KINDS)
def test_streams_of_two_priorities_take_sms_from_each_other(ask, name):
    """Two launches, each with some of its parts resident, waited for the rest for ever."""
    right(ask("priorities", name))


@pytest.mark.parametrize("name", KINDS)
def test_sms_that_another_kernel_holds_are_missed_by_nobody(ask, name):
    right(ask("busy SMs", name))


@pytest.mark.parametrize("name", KINDS)
def test_a_chain_of_dependent_launches_gives_the_same_bits_with_pdl(ask, name):
    if ("chain", name) not in JOBS:
        pytest.skip("more parts than the chain's k has stages")
    right(ask("chain", name))


@pytest.mark.parametrize("name", KINDS)
def test_streams_threads_and_processes_share_a_gpu(ask, name):
    for circumstance in ("streams", "threads", PROCESSES):
        right(ask(circumstance, name))


def loading_at_once(store: Path) -> Handler:
    """Answers how many of so many threads that load and launch a kernel each, for the first time, were right."""
    import threading

    import torch

    from tests.verify.load import Case

    def handle(names: list[str]) -> int:
        torch.cuda.init()
        together = threading.Barrier(len(names))

        def first(name: str) -> bool:
            together.wait()
            with torch.cuda.stream(torch.cuda.Stream()):
                case = Case.of(kind(name), store)
                outputs = case.outputs(2)
                for out in outputs:
                    case.launch(out)
                return not case.wrong(outputs, name)

        with ThreadPoolExecutor(len(names)) as pool:
            return sum(pool.map(first, names))

    return handle


def test_first_calls_from_many_threads_compile_and_load_one_after_the_other(tmp_path):
    """The compiler is not thread-safe: the process died."""
    names = ["static", "split-K", "stream-K", "dynamic", "pingpong", "static", "split-K", "dynamic"]
    child = Child(loading_at_once, tmp_path)
    try:
        reply = child.ask(names, 240.0)
    finally:
        child.close()
    assert (reply.kind, reply.value) == ("answer", len(names)), reply.error
