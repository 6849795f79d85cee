"""The executor for many hosts, on Dask.distributed. Dask provides transport, liveness and restarts; the coordinator
alone decides which point is open, sent again or done.

The scheduler lives in the coordinator's process. Hosts join by ``hopper-gemm worker``: a nanny for each GPU, and in
each Dask worker a relay, which passes tasks to the same worker process that the local executor has. A Dask task passes
a batch of tasks to one relay and ends; rows stream back as events.

Connections are encrypted by a certificate that lives as long as the coordinator: an open scheduler would run anybody's
code. Sockets listen only on the named address, or on the one by which a worker reached the coordinator, and Dask's web
pages, which anybody could read, are off.
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
from queue import Empty, Queue
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


class Cluster:
    """Workers of other hosts, which join at ``HOST`` or ``HOST:PORT``; an
    :class:`hopper_gemm.tune.run.executors.local.Executor`. ValueError if the address cannot be listened on."""

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
        """Command by which a host joins."""
        return f"hopper-gemm worker {self.address} --gpus 0 --pem {self.pem}"

    @property
    def awaited(self) -> str:
        """Name the command by which a worker joins; empty once the scheduler is gone."""
        return "" if self._lost else f"a worker ({self.command})"

    def poll(self, seconds: float) -> Sequence[tuple[str, Event]]:
        """Send the pending tasks, and return the events that arrived."""
        for name, address in list(self._watch.addresses.items()):
            if tasks := self._pending.pop(name, ()):
                self._submit(name, address, tasks)
        events, queue = [], self._watch.events
        with contextlib.suppress(Empty):
            events.append(queue.get(timeout=seconds) if seconds else queue.get_nowait())
            while True:
                events.append(queue.get_nowait())
        if self._client.status not in ("running", "connecting") and not self._lost:
            self._lost = True
            events.append(("", Left("the scheduler is gone; run the same command to go on", for_good=True)))
        return [(name, self._count_deaths(name, event)) for name, event in events]

    def send(self, worker: str, number: int, task: Task) -> None:
        """Queue a task until the next poll."""
        self._pending.setdefault(worker, []).append((number, task))

    def close(self) -> None:
        """Remove the key, and end client and scheduler."""
        self._key.release()
        for service in (self._client, self._cluster):
            with contextlib.suppress(Exception):
                service.close(timeout=10)

    def _count_deaths(self, name: str, event: Event) -> Event:
        """Count the deaths in a row of an event's worker; return the event, for good after too many deaths."""
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
        except Exception as error:  # the scheduler is gone; poll reports it
            logging.getLogger("distributed").warning("submit: %s", error)
            return
        self._futures.add(future)
        future.add_done_callback(lambda done: self._on_done(name, address, done))

    def _on_done(self, name: str, address: str, future: Any) -> None:
        """Drop a finished future; if it failed, the worker's GPU could not be opened."""
        self._futures.discard(future)
        if future.status == "error" and self._watch.addresses.get(name) == address:
            with contextlib.suppress(Exception):
                error = future.exception()
                if not type(error).__name__.startswith("Killed"):
                    reason = f"{type(error).__name__}: {error}".splitlines()[0]
                    self._watch.events.put((name, Left(reason, for_good=True)))
        future.release()


def _key_file(name: str, text: str) -> FileLock:
    """Write a key to a file that only its owner may read, locked while the coordinator lives. Unlocked key files were
    left by killed coordinators and are removed."""
    folder = private_folder("cluster")
    for stale in map(FileLock, folder.glob("*.pem")):
        stale.take()
        stale.release()
    key = FileLock(folder / f"{name}.pem")
    if not key.take(text):
        raise ValueError(f"{key.path} is another coordinator's; name another port with --host HOST:PORT")
    return key


class _Watch(SchedulerPlugin):
    """Watches the cluster's workers join and leave, opens the GPU of each new worker, and queues their events."""

    name = TOPIC

    def __init__(self, open_gpu: Callable[..., None]) -> None:
        self._open_gpu = open_gpu
        # not SimpleQueue: its get waits for ever where a signal handler outlasts the time limit (CPython)
        self.events: Queue[tuple[str, Event]] = Queue()
        self.addresses: dict[str, str] = {}  # addresses of the connected Dask workers, by name

    def add_worker(self, scheduler: Any, worker: str) -> None:
        name = str(scheduler.workers[worker].name)
        self.addresses[name] = worker
        thread = threading.Thread(target=self._open_gpu, args=(name, worker, []), daemon=True)
        thread.start()  # submit would block the scheduler's own loop

    def remove_worker(self, scheduler: Any, worker: str, **more: Any) -> None:
        for name in [name for name, address in self.addresses.items() if address == worker]:
            del self.addresses[name]
            self.events.put((name, Left("its worker is gone")))

    def log_event(self, topic: str, msg: Any) -> None:
        if topic == TOPIC:
            name, events = pickle.loads(msg)
            for event in events:
                self.events.put((name, event))


class _Relay:
    """Passes tasks from a Dask worker to the worker process of its GPU, and events to the coordinator."""

    def __init__(self, job: Job, dask_worker: Any) -> None:
        self._dask = dask_worker
        name, _, numbers = str(dask_worker.name).rpartition(" ")
        gpu, share, count = map(int, numbers.split("/"))
        cores = list(shares(sorted(os.sched_getaffinity(0)), count))[share]
        self._process, self._line = spawn(work, job, gpu, cores, False, name=name)
        Finalize(None, self._process.kill, exitpriority=1)  # else the end of this process would wait for it
        threading.Thread(target=self._listen, name="relay", daemon=True).start()

    def send(self, tasks: Sequence[tuple[int, Task]]) -> None:
        with contextlib.suppress(OSError):  # it died just now: the listener reports it
            for message in tasks:
                self._line.send(message)

    def _listen(self) -> None:
        """Pass events to the coordinator, those that arrive together in one message. When the worker process dies, end
        this process too: the nanny replaces it."""
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


_relays: dict[str, _Relay] = {}
"""The relay of this process, by the study that it serves."""


def _relay(batch: bytes) -> None:
    """Pass tasks to this Dask worker's relay, and open its GPU before the first. A Dask worker runs one call at a
    time."""
    job, tasks = pickle.loads(batch)
    if job.study not in _relays:
        _relays[job.study] = _Relay(job, get_worker())
    _relays[job.study].send(tasks)


def serve(address: str, gpus: Sequence[int], pem: Path, say: Callable[[str], None] = lambda text: None) -> None:
    """Serve the coordinator whose scheduler is at ``tls://HOST:PORT`` until it ends, with a nanny and a Dask worker for
    each GPU. Certificate and key are those that the coordinator made. ValueError if the file is missing or holds no
    key, or no coordinator with this key listens at the address."""
    try:
        text = pem.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--pem {pem} cannot be read ({error}); copy it from the coordinator's host") from None
    no_key = f"--pem {pem} holds no certificate with its key; copy it from the coordinator's host"
    cut = text.find("-----BEGIN PRIVATE KEY")
    if cut <= 0:
        raise ValueError(no_key)
    cert, key = text[:cut], text[cut:]
    security = Security(
        require_encryption=True, tls_ca_file=cert, tls_worker_cert=cert, tls_worker_key=key, tls_client_cert=cert,
        tls_client_key=key,
    )  # fmt: skip
    try:
        keys = security.get_connection_args("worker")
    except (OSError, ValueError):  # ssl's errors are OSErrors
        raise ValueError(no_key) from None
    log = log_file("worker")
    log_to(log)
    dask.config.set(CONFIG)

    async def run() -> None:
        """Run until the scheduler hangs up: Dask's own workers would look for it for half a minute."""
        try:
            comm = await connect(address, **keys)
        except OSError:
            message = f"nobody listens at {address}, or not with the key of {pem}; start a sweep, or copy its key"
            raise ValueError(message) from None
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
        os._exit(0)  # ends the nannies' processes, the workers beneath them, and their children

    asyncio.run(run())


def log_to(path: Path) -> None:
    """Send Dask's log to a file alone."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    loggers = [name for name in logging.root.manager.loggerDict if name.startswith("distributed.")]
    for name in ("distributed", *loggers, "asyncio", "tornado", "bokeh"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler] if "." not in name else [], "." in name
    if sys.stderr.isatty():
        logging.captureWarnings(True)
