"""A cluster that cannot listen, and a worker that cannot join, say why in one line."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from hopper_gemm.cli.options import listening
from hopper_gemm.tune.run.task import Job
from tests.tune.run.killing import Range

cluster = pytest.importorskip("hopper_gemm.tune.run.executors.cluster", exc_type=ValueError)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setitem(cluster.CONFIG, "distributed.comm.timeouts.connect", "1s")


@pytest.fixture(scope="module")
def coordinators():
    both = [cluster.Cluster(Job(name)) for name in ("one", "other")]
    yield both
    for one in both:
        one.close()


@pytest.mark.parametrize("host", ["", ":80", "h:", "h:99999", "h:x", "h:-1", "h:" + "9" * 5000])
def test_a_host_that_is_none_is_refused_with_cluster_and_without(host):
    for wanted in (True, False):
        with pytest.raises(ValueError, match=r"--host must be HOST or HOST:PORT with a port below 65536 but got '"):
            listening(wanted, host)


def test_a_host_is_listened_on_with_cluster_alone():
    assert [listening(wanted, "h:80") for wanted in (True, False)] == ["h:80", ""]


def test_a_port_in_use_and_an_unknown_host_are_told_in_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for where in (f"127.0.0.1:{taken.getsockname()[1]}", "nowhere.invalid"):
            with pytest.raises(
                ValueError, match=f"^--host {where} cannot be listened on .*; name another host or port$"
            ):
                cluster.Cluster(Job("x"), where)


def test_the_key_file_is_for_its_owner_alone_whatever_file_was_there_and_is_removed_at_the_end(tmp_path, monkeypatch):
    """A file that an earlier run left is replaced: a process that has it open does not read the new key."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    left = cluster.private_folder("cluster") / f"{port}.pem"
    left.write_text("left")
    left.chmod(0o666)
    with left.open() as before:
        running = cluster.Cluster(Job("x"), f"127.0.0.1:{port}")
        try:
            assert running.pem == left
            assert left.stat().st_mode & 0o777 == 0o600
            assert "PRIVATE KEY" in left.read_text()
            assert "PRIVATE KEY" not in before.read()
        finally:
            running.close()
    assert not left.exists()


def test_a_worker_with_a_cut_key_is_told_in_one_line(tmp_path, coordinators):
    cut = tmp_path / "cut.pem"
    cut.write_text(coordinators[0].pem.read_text()[:-200])
    with pytest.raises(ValueError, match=r"cut\.pem holds no certificate with its key; copy it from the coordinator"):
        cluster.serve(coordinators[0].address, [0], cut)


def test_a_worker_with_the_key_of_another_run_or_with_nobody_to_join_is_told_in_one_line(quick, coordinators):
    one, other = coordinators
    for address, pem in ((one.address, other.pem), ("tls://127.0.0.1:1", one.pem)):
        with pytest.raises(ValueError, match=f"^nobody listens at {address}, or not with the key of .*pem; start a s"):
            cluster.serve(address, [0], pem)


def started(place):
    """A coordinator without workers, and its key file."""
    before = place.errors.stat().st_size if place.errors.exists() else 0
    coordinator = place.command("sweep", str(place.spec), "--out", str(place.out), "--cluster")
    place.processes.append(coordinator)
    return coordinator, Path(place.joining(before, coordinator)[-1])


@pytest.fixture
def place(tmp_path):
    found = Range(tmp_path / "r", 2, "dask", seconds=0.2)
    yield found
    found.end()


def test_a_coordinator_that_is_terminated_removes_its_key_and_the_next_one_those_of_killed_ones(place):
    """The key of one that lives stays, whoever else starts."""
    first, killed_key = started(place)
    second, key = started(place)
    assert (killed_key.exists(), key.exists()) == (True, True)
    first.kill()
    second.send_signal(signal.SIGTERM)
    assert (first.wait(60), second.wait(60)) == (-signal.SIGKILL, 130)
    assert not key.exists()
    _, key = started(place)
    assert list(key.parent.iterdir()) == [key]


PAGES = ("status", "info/main/workers.html", "info/main/logs.html", "json/counts.json", "metrics", "health")


def test_coordinator_and_workers_listen_on_the_named_address_alone_and_serve_no_page(place):
    """Pages of Dask name hosts and show logs to whoever asks."""
    import psutil

    coordinator = place.start()
    place.until(lambda: place.rows() >= 4, coordinator)
    assert place.errors.read_text().count("errors of this host go to ") == 1, "of the worker command, with two GPUs"
    found = [one for pid in place.alive() for one in psutil.Process(pid).net_connections() if one.status == "LISTEN"]
    assert len(found) >= 4, "a scheduler, a nanny for each of two GPUs, their workers"
    assert {one.laddr.ip for one in found} == {"127.0.0.1"}
    for one in found:
        for page in PAGES:
            with suppress(URLError, ConnectionError), urlopen(f"http://127.0.0.1:{one.laddr.port}/{page}", timeout=5):
                pytest.fail(f"{page} is served")
