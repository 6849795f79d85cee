"""The executor for many hosts, on Dask.distributed: transport, liveness and restarts are Dask's; which point is open,
sent again or done is the coordinator's alone.

The scheduler lives in the coordinator's process. Hosts join by ``hopper-gemm worker``: a nanny for each GPU, and in
each Dask worker a desk, which passes tasks to the same worker process that the local executor has. A task of Dask hands
some of ours to one desk and ends with that; answers stream back as events. Connections are encrypted by a certificate
that is made at the start and thrown away at the end: an open scheduler would run anybody's code. Nothing listens but on
the address that was named, or by which a worker reached it, and Dask's web pages, which anybody could read, are off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.util import Finalize
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from hopper_gemm.compiler.child import spawn
from hopper_gemm.tune.run.executors.local import RESPAWNS
from hopper_gemm.tune.run.task import Event, Job, Left, Task
from hopper_gemm.tune.run.worker import log_file, private_folder, shares, work
from hopper_gemm.tune.study.files import FileLock
from hopper_gemm.tune.study.row import Row

try:
    import dask
    from distributed import Client, LocalCluster, Nanny, get_worker
    from distributed.comm import connect, get_address_host
    from distributed.diagnostics.plugin import SchedulerPlugin
    from distributed.security import Security
except ImportError:
    raise ValueError("a cluster needs Dask; pip install 'hopper-gemm[cluster]'") from None

TOPIC = "hopper-gemm"
CONFIG = {
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.worker-ttl": "15s",
    "distributed.diagnostics.nvml": False,
    "distributed.worker.daemon": False,
    "distributed.comm.timeouts.connect": "10s",
    "distributed.admin.tick.limit": "60s",
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
LOST = "the scheduler is gone; run the same command to go on"


class Cluster:
    """See the module, and :class:`hopper_gemm.tune.run.executors.local.Executor`.

    Args:
        job: of the run.
        where: ``HOST`` or ``HOST:PORT`` to listen on.

    Raises:
        ValueError: nobody can listen there.
    """

    def __init__(self, job: Job, where: str = "127.0.0.1") -> None:
        host, _, port = where.partition(":")
        log_to(log_file(f"{job.study}-cluster"))
        dask.config.set(CONFIG)
        security = Security.temporary()
        self._job = job
        self._watch = _Watch(self._submit)
        self._deaths: Counter[str] = Counter()
        self._pending: dict[str, list[tuple[int, Task]]] = {}
        """Tasks by name of the worker, until the next poll sends them together."""
        self._futures: set[Any] = set()
        self._lost = False
        try:
            self._cluster = LocalCluster(
                n_workers=0,
                host=host,
                scheduler_port=int(port or 0),
                protocol="tls://",
                security=security,
                dashboard_address=f"{host}:0",
                scheduler_kwargs={"dashboard": False},
                silence_logs=False,
            )
        except (RuntimeError, OSError) as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            why = getattr(cause, "strerror", None) or cause
            raise ValueError(f"--host {where} cannot be listened on ({why}); name another host or port") from None
        self._client = Client(self._cluster, set_as_default=False)
        scheduler = self._cluster.scheduler
        self._cluster.loop.add_callback(scheduler.add_plugin, self._watch, name=TOPIC)
        self.address: str = self._cluster.scheduler_address
        self._key = _key_file(self.address.rpartition(":")[2], security.tls_worker_cert + security.tls_worker_key)
        self.pem = self._key.path

    @property
    def command(self) -> str:
        """The command by which a host joins."""
        return f"hopper-gemm worker {self.address} --gpus 0 --pem {self.pem}"

    @property
    def awaited(self) -> str:
        """See :class:`hopper_gemm.tune.run.executors.local.Executor`."""
        return "" if self._lost else f"a worker ({self.command})"

    def poll(self, seconds: float) -> Sequence[tuple[str, Event]]:
        """See :class:`hopper_gemm.tune.run.executors.local.Executor`."""
        for name, address in list(self._watch.addresses.items()):
            if tasks := self._pending.pop(name, ()):
                self._submit(name, address, tasks)
        found, heard = [], self._watch.heard
        with contextlib.suppress(Empty):
            found.append(heard.get(timeout=seconds) if seconds else heard.get_nowait())
            while True:
                found.append(heard.get_nowait())
        if self._client.status not in ("running", "connecting") and not self._lost:
            self._lost = True
            found.append(("", Left(LOST, for_good=True)))
        return [(name, self._noted(name, event)) for name, event in found]

    def send(self, worker: str, number: int, task: Task) -> None:
        """See :class:`hopper_gemm.tune.run.executors.local.Executor`."""
        self._pending.setdefault(worker, []).append((number, task))

    def close(self) -> None:
        """See :class:`hopper_gemm.tune.run.executors.local.Executor`."""
        self._key.release()
        for thing in (self._client, self._cluster):
            with contextlib.suppress(Exception):
                thing.close(timeout=10)

    # -----------------------------------------------------------------------------------------

    def _noted(self, name: str, event: Event) -> Event:
        """An event for the coordinator, with what it means for the worker's account."""
        if isinstance(event, Row):
            self._deaths[name] = 0
        elif isinstance(event, Left) and name:
            self._pending.pop(name, None)
            self._deaths[name] += 1
            if self._deaths[name] > RESPAWNS:
                return Left(f"{event.reason}, {self._deaths[name]} times in a row", for_good=True)
        return event

    def _submit(self, name: str, address: str, tasks: Sequence[tuple[int, Task]]) -> None:
        batch = pickle.dumps((self._job, tasks))
        try:
            future = self._client.submit(_relay, batch, workers=[address], pure=False, retries=0)
        except Exception as error:  # the scheduler is gone; poll tells
            logging.getLogger("distributed").warning("submit: %s", error)
            return
        self._futures.add(future)
        future.add_done_callback(lambda done: self._returned(name, address, done))

    def _returned(self, name: str, address: str, future: Any) -> None:
        """Tasks were handed over; where that failed, the worker could not be opened."""
        self._futures.discard(future)
        if future.status == "error" and self._watch.addresses.get(name) == address:
            with contextlib.suppress(Exception):
                error = future.exception()
                if not type(error).__name__.startswith("Killed"):
                    reason = f"{type(error).__name__}: {error}".splitlines()[0]
                    self._watch.heard.put((name, Left(reason, for_good=True)))
        future.release()


def _key_file(name: str, text: str) -> FileLock:
    """A file with a key, for its owner alone. It is locked while the coordinator lives: one that is free was left by a
    coordinator that was killed, and is removed.

    Raises:
        ValueError: it cannot be made.
    """
    folder = private_folder("cluster")
    for left in map(FileLock, folder.glob("*.pem")):
        left.take()
        left.release()
    key = FileLock(folder / f"{name}.pem")
    if not key.take(text):
        raise ValueError(f"{key.path} is another coordinator's; name another port with --host HOST:PORT")
    return key


class _Watch(SchedulerPlugin):
    """The cluster's workers as they join and leave, and their events.

    Args:
        opening: given name, address and no tasks, has the GPU of a new Dask worker opened.
    """

    name = TOPIC

    def __init__(self, opening: Callable[..., None]) -> None:
        self._opening = opening
        self.heard: SimpleQueue[tuple[str, Event]] = SimpleQueue()
        self.addresses: dict[str, str] = {}
        """Addresses of the connected Dask workers, by name."""

    def add_worker(self, scheduler: Any, worker: str) -> None:
        name = str(scheduler.workers[worker].name)
        self.addresses[name] = worker
        opening = threading.Thread(target=self._opening, args=(name, worker, []), daemon=True)
        opening.start()  # not from the scheduler's own loop

    def remove_worker(self, scheduler: Any, worker: str, **more: Any) -> None:
        for name in [name for name, address in self.addresses.items() if address == worker]:
            del self.addresses[name]
            self.heard.put((name, Left("its worker is gone")))

    def log_event(self, topic: str, msg: Any) -> None:
        if topic == TOPIC:
            name, events = pickle.loads(msg)
            for event in events:
                self.heard.put((name, event))


class _Desk:
    """A Dask worker's relay: tasks go to the worker process of its GPU, its reports to the coordinator."""

    def __init__(self, job: Job, dask_worker: Any) -> None:
        self._dask = dask_worker
        name, _, numbers = str(dask_worker.name).rpartition(" ")
        gpu, share, count = map(int, numbers.split("/"))
        cores = list(shares(sorted(os.sched_getaffinity(0)), count))[share]
        self._process, self._line = spawn(work, job, gpu, cores, False, name=name)
        Finalize(None, self._process.kill, exitpriority=1)  # else the end of this process would wait for it
        threading.Thread(target=self._listen, name="desk", daemon=True).start()

    def relay(self, tasks: Sequence[tuple[int, Task]]) -> None:
        """Pass tasks on."""
        with contextlib.suppress(OSError):  # it died just now: the listener tells
            for one in tasks:
                self._line.send(one)

    def _listen(self) -> None:
        """Pass events on, those that come together in one message; the death of the worker process is that of Dask's
        worker, which its nanny replaces."""
        over = False
        while True:
            events: list[Event] = []
            try:
                events.append(self._line.recv())
                while self._line.poll(0):
                    events.append(self._line.recv())
            except (EOFError, OSError):
                if not events:
                    if not over:
                        os._exit(1)
                    return
            self._dask.log_event(TOPIC, pickle.dumps((str(self._dask.name), events)))
            over = over or any(isinstance(event, Left) for event in events)


_desks: dict[str, _Desk] = {}
"""The one of this process, by the study it serves."""


def _relay(batch: bytes) -> None:
    """In a Dask worker, which runs one at a time: open its GPU if need be, and pass tasks on."""
    job, tasks = pickle.loads(batch)
    if job.study not in _desks:
        _desks[job.study] = _Desk(job, get_worker())
    _desks[job.study].relay(tasks)


def serve(address: str, gpus: Sequence[int], pem: Path, say: Callable[[str], None] = lambda text: None) -> None:
    """Join a coordinator, until it ends: a nanny and a Dask worker for each GPU.

    Args:
        address: of the scheduler, ``tls://HOST:PORT``.
        gpus: indices among the visible GPUs of this host.
        pem: file with the certificate and the key that the coordinator made.
        say: takes a line for the user once the coordinator has answered.

    Raises:
        ValueError: there is no such file, it holds no key, or nobody listens there with this key.
    """
    try:
        text = pem.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--pem {pem} cannot be read ({error}); copy it from the coordinator's host") from None
    other = f"--pem {pem} holds no certificate with its key; copy it from the coordinator's host"
    cut = text.find("-----BEGIN PRIVATE KEY")
    if cut <= 0:
        raise ValueError(other)
    cert, key = text[:cut], text[cut:]
    security = Security(
        require_encryption=True, tls_ca_file=cert, tls_worker_cert=cert, tls_worker_key=key, tls_client_cert=cert,
        tls_client_key=key,
    )  # fmt: skip
    try:
        keys = security.get_connection_args("worker")
    except (OSError, ValueError):  # ssl's errors are OSErrors
        raise ValueError(other) from None
    log = log_file("worker")
    log_to(log)
    dask.config.set(CONFIG)

    async def run() -> None:
        """Until the scheduler hangs up: Dask's own workers would look for it for half a minute."""
        try:
            comm = await connect(address, **keys)
        except OSError:
            told = f"nobody listens at {address}, or not with the key of {pem}; start a sweep, or copy its key"
            raise ValueError(told) from None
        say(f"joined {address}; the sweep's terminal shows what happens, errors of this host go to {log}")
        with log.open("a") as file:
            os.dup2(file.fileno(), 2)  # what Dask's processes print
        host, own = socket.gethostname(), get_address_host(comm.local_address)
        nannies = [
            Nanny(
                address,
                name=f"{host} GPU {gpu} {gpu}/{share}/{len(gpus)}",
                nthreads=1,
                host=own,
                memory_limit=0,
                security=security,
                local_directory=str(private_folder("dask")),
            )
            for share, gpu in enumerate(gpus)
        ]
        asyncio.gather(*nannies)
        with contextlib.suppress(Exception):
            await comm.read()
        os._exit(0)  # and with it the nannies' processes, ours beneath them, and their children

    asyncio.run(run())


def log_to(path: Path) -> None:
    """Let the engine speak to a file, and to nobody else."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    known = [name for name in logging.root.manager.loggerDict if name.startswith("distributed.")]
    for name in ("distributed", *known, "asyncio", "tornado", "bokeh"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler] if "." not in name else [], "." in name
    if sys.stderr.isatty():
        logging.captureWarnings(True)
