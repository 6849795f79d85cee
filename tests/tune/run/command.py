"""``hopper-gemm`` with GPUs that are not there: ``python -m tests.tune.run.command sweep FILE --gpus 0,1``."""

import gc

from hopper_gemm.lab.counters import counting_question
from hopper_gemm.tune.run import task
from tests.tune.run import fakes

task.Rig.__init__.__defaults__ = (fakes.find, fakes.measuring, fakes.naming, fakes.compiling)
counting_question.KINDS.update(fakes.COUNTERS)


def lose_scheduler(*_):
    """Let a cluster's scheduler end, as SIGUSR1 asks for."""
    for one in gc.get_objects():
        if type(one).__name__ == "LocalCluster":
            one.loop.add_callback(one.scheduler.close)


if __name__ == "__main__":
    import signal

    from hopper_gemm.cli import entry

    signal.signal(signal.SIGUSR1, lose_scheduler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts in the background

    entry()
