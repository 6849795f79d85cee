"""``hopper-gemm`` with GPUs that are not there: ``python -m tests.tune.run.command sweep FILE --gpus 0,1``."""

import gc
import threading

from hopper_gemm.lab.counters import counting_question
from hopper_gemm.tune.run import task
from tests.tune.run import fakes

task.Rig.__init__.__defaults__ = (fakes.find, fakes.measuring, fakes.naming, fakes.compiling)
counting_question.KINDS.update(fakes.COUNTERS)


def lose_scheduler(*_):
    """Let a cluster's scheduler end, as SIGUSR1 asks for. Looking for it takes seconds on a busy machine, and a signal
    handler that outlasts the time limit of a ``SimpleQueue.get`` leaves that waiting for ever (CPython)."""
    threading.Thread(target=_close_schedulers, daemon=True).start()


def _close_schedulers():
    for one in gc.get_objects():
        if type(one).__name__ == "LocalCluster":
            one.loop.add_callback(one.scheduler.close)


if __name__ == "__main__":
    import signal

    from hopper_gemm.cli import entry

    signal.signal(signal.SIGUSR1, lose_scheduler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts in the background

    entry()
