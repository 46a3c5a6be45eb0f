"""Programs that make no steps: stopped wherever they are and moved, with their files and connections."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pod_harness import Pod
from pod_moves import dump_anywhere, free_port, until

from singularity_proxy.protocol import exit_codes, messages

pytestmark = pytest.mark.criu
Make = Callable[..., Pod]
G = 5


def fresh(ranks: list[int], world: int) -> messages.Plan:
    return messages.Plan("fresh", 1, world, ranks, "127.0.0.1", 29500)


def restore(ranks: list[int], world: int) -> messages.Plan:
    return messages.Plan("restore", 2, world, ranks, "127.0.0.1", 29501, G, "c")


@pytest.fixture
def run(make_pod: Make, rootfs: Path, criu_bundle: Path) -> Make:
    def make(
        name: str,
        plan: messages.Plan,
        script: str,
        *bring: tuple[Pod, int],
        arguments: Sequence[str] = (),
        **more: object,
    ) -> Pod:
        suffix = "sh" if script.startswith("#!/bin/sh") else "py"
        command = ["sh" if suffix == "sh" else "python3", f"program.{suffix}", *arguments]
        pod = make_pod(name, rootfs=rootfs, torch=None, plan=plan, command=command, criu=criu_bundle, **more)
        (pod.volumes / f"source/program.{suffix}").write_text(script)
        for source, rank in bring:
            pod.bring(source, "c", rank)
        return pod.start()

    return make


def dump(pod: Pod, **more: object) -> messages.LauncherEvent:
    return dump_anywhere(pod, G, **more)


def end(pod: Pod) -> None:
    pod.terminate()
    pod.wait_event("terminating")
    pod.sidecar.command("exit")
    assert pod.wait() == 143, pod.log()


def numbers(path: Path) -> list[int]:
    return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def counts_on(pod: Pod, at: int) -> Path:
    """Restored, it writes the numbers after `at` and ends well when it is told to. What it wrote, without a gap."""
    pod.wait_event("restored")
    path = pod.work(0) / "cwd/out"
    until(lambda: len(numbers(path)) > at + 20, "more lines", pod)
    (path.parent / "end").touch()
    assert pod.wait() == 0, pod.log()
    assert numbers(path) == list(range(1, len(numbers(path)) + 1))
    return path


def upper(pod: Pod, path: str) -> Path:
    """What the container wrote into its own file system."""
    return pod.folder / "upper" / path.lstrip("/")


LOOP = """#!/bin/sh
n=0
while [ ! -e end ]; do
  n=$((n+1))
  echo "$n $(date +%s.%N)" >> out
  sleep 0.01
done
echo "last $n"
"""


def test_a_shell_loop_moves_and_no_line_is_lost(run: Make) -> None:
    old = run("old", fresh([0], 1), LOOP)
    until(lambda: len(numbers(old.work(0) / "cwd/out")) > 20, "lines", old)
    assert dump(old).kind == "dumped", old.log()
    at = numbers(old.work(0) / "cwd/out")
    end(old)
    new = run("new", restore([0], 1), LOOP, (old, 0))
    new.wait_event("restored")
    path = new.work(0) / "cwd/out"
    until(lambda: len(numbers(path)) > len(at) + 20, "more lines", new)
    (path.parent / "end").touch()
    assert new.wait() == 0, new.log()
    got = numbers(path)
    assert got == list(range(1, len(got) + 1))
    assert f"[rank 0] last {got[-1]}" in new.log()


def test_loops_of_two_pods_meet_in_one_and_part_again(run: Make) -> None:
    first = [run(f"first-{rank}", fresh([rank], 2), LOOP) for rank in (0, 1)]
    for rank, pod in enumerate(first):
        until(lambda p=pod, r=rank: len(numbers(p.work(r) / "cwd/out")) > 5, "lines", pod)  # type: ignore[misc]
        assert dump(pod).kind == "dumped", pod.log()
        end(pod)
    one = run("one", restore([0, 1], 2), LOOP, (first[0], 0), (first[1], 1))
    assert dump(one).kind == "dumped", one.log()
    at = [len(numbers(one.work(rank) / "cwd/out")) for rank in (0, 1)]
    end(one)
    for rank in (0, 1):
        pod = run(f"last-{rank}", restore([rank], 2), LOOP, (one, rank))
        pod.wait_event("restored")
        path = pod.work(rank) / "cwd/out"
        until(lambda p=path, a=at[rank]: len(numbers(p)) > a + 5, "more lines", pod)  # type: ignore[misc]
        (path.parent / "end").touch()
        assert pod.wait() == 0, pod.log()
        assert numbers(path) == list(range(1, len(numbers(path)) + 1))


def test_saved_in_place_it_goes_on(run: Make) -> None:
    pod = run("pod", fresh([0], 1), LOOP)
    path = pod.work(0) / "cwd/out"
    until(lambda: len(numbers(path)) > 5, "lines", pod)
    assert dump(pod).kind == "dumped", pod.log()
    at = len(numbers(path))
    pod.sidecar.command("resume", generation=G)
    until(lambda: len(numbers(path)) > at + 5, "more lines", pod)
    assert numbers(path) == list(range(1, len(numbers(path)) + 1))


# --- sockets ----------------------------------------------------------------------------------------------------------
PAIR = """
import os, socket, subprocess, sys, threading, time
kind, host = (socket.AF_INET6, "::1") if len(sys.argv) > 1 else (socket.AF_INET, "127.0.0.1")
server = socket.socket(kind)
server.bind((host, 0))
server.listen()
def echo():
    peer, _ = server.accept()
    while data := peer.recv(100):
        peer.sendall(data)
threading.Thread(target=echo, daemon=True).start()
client = socket.socket(kind)
client.connect(server.getsockname())
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("127.0.0.1", 0))
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
log = open("out", "a", buffering=1)
n = 0
while not os.path.exists("end"):
    n += 1
    client.sendall(b"%d" % n)
    got = int(client.recv(100))
    datagrams.sendto(b"%d" % n, datagrams.getsockname())
    assert int(datagrams.recv(100)) == got
    child.stdin.write(b"%d\\n" % n)
    child.stdin.flush()
    assert int(child.stdout.readline()) == got
    log.write(f"{got}\\n")
    time.sleep(0.001)
late = socket.create_connection(server.getsockname())  # the listener still listens
"""


def test_connections_within_a_rank_survive_in_place_and_elsewhere(run: Make) -> None:
    old = run("old", fresh([0], 1), PAIR)
    path = old.work(0) / "cwd/out"
    until(lambda: len(numbers(path)) > 5, "lines", old)
    assert dump(old).kind == "dumped", old.log()
    assert re.search(r"rank 0: python3 program.py \(pid 1000\) listens on 127.0.0.1:\d+, kept", old.log())
    at = len(numbers(path))
    old.sidecar.command("resume", generation=G)
    until(lambda: len(numbers(path)) > at + 5, "more lines", old)
    assert dump(old).kind == "dumped", old.log()
    at = len(numbers(path))
    end(old)
    new = run("new", restore([0], 1), PAIR, (old, 0))
    counts_on(new, at)


class Echo:
    """A server that is no part of the job, at an address of this machine that is not its loopback."""

    def __init__(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            self.host = str(probe.getsockname()[0])
        self._listener = socket.create_server((self.host, 0))
        self.datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.datagrams.bind((self.host, 0))
        self.ends: list[bool] = []
        """Of each connection: has its other end been closed?"""
        self._threads = [threading.Thread(target=serve, daemon=True) for serve in (self._accept, self._answer)]
        for thread in self._threads:
            thread.start()

    @property
    def ports(self) -> tuple[int, int]:
        return self._listener.getsockname()[1], self.datagrams.getsockname()[1]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._listener.accept()
                self.ends.append(False)
                threading.Thread(target=self._echo, args=(peer, len(self.ends) - 1), daemon=True).start()

    def _echo(self, peer: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), peer:
            while data := peer.recv(100):
                peer.sendall(data)
        self.ends[number] = True

    def _answer(self) -> None:
        while data := self.datagrams.recvfrom(100):
            if data[0] == b"close":
                return
            self.datagrams.sendto(*data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in it
        self.datagrams.sendto(b"close", self.datagrams.getsockname())
        for thread in self._threads:
            thread.join(120)
        self._listener.close()
        self.datagrams.close()


@pytest.fixture
def outside() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


CLIENT = """
import os, socket, sys, time
host, port, datagrams = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
peer = socket.create_connection((host, port))
statistics = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
statistics.connect((host, datagrams))
statistics.settimeout(1)
def told(data):
    while True:  # a datagram may be lost: what had come and was not read does not travel
        statistics.send(data)
        try:
            while statistics.recv(100) != data:
                pass
            return
        except TimeoutError:
            pass
log = open("out", "a", buffering=1)
cuts = open("cuts", "a", buffering=1)
n = 0
while not os.path.exists("end"):
    n += 1
    try:
        peer.sendall(b"%d" % n)
        if peer.recv(100) != b"%d" % n:
            raise ConnectionError("the other end has closed it")
    except OSError as error:
        cuts.write(f"{type(error).__name__}\\n")
        peer = socket.create_connection((host, port))
    told(b"%d" % n)
    log.write(f"{n}\\n")
    time.sleep(0.001)
"""


def test_connections_to_servers_outside_go_on_in_place_and_are_cut_elsewhere(run: Make, outside: Echo) -> None:
    arguments = [outside.host, *map(str, outside.ports)]
    old = run("old", fresh([0], 1), CLIENT, arguments=arguments)
    path = old.work(0) / "cwd/out"
    until(lambda: len(numbers(path)) > 5, "lines", old)
    assert dump(old).kind == "dumped", old.log()
    to = rf"to {outside.host}:{{}}, cut if the rank moves"
    for protocol, port in zip(("tcp", "udp"), outside.ports, strict=True):
        assert re.search(rf"rank 0: python3 .* is connected \({protocol}\) from \S+ " + to.format(port), old.log())
    at = len(numbers(path))
    old.sidecar.command("resume", generation=G)
    until(lambda: len(numbers(path)) > at + 20, "more lines", old)
    assert (path.parent / "cuts").read_text() == "", "in place nothing has happened to it"
    assert outside.ends == [False]
    assert dump(old).kind == "dumped", old.log()
    at = len(numbers(path))
    end(old)
    until(lambda: outside.ends == [True], "the server hears that the old pod has gone", old)
    new = run("new", restore([0], 1), CLIENT, (old, 0), arguments=arguments)
    path = counts_on(new, at)
    assert (path.parent / "cuts").read_text().split() in (["BrokenPipeError"], ["ConnectionError"])
    assert len(outside.ends) == 2
    assert f"to {outside.host}:{outside.ports[0]}: cut, it was the pod's before this one" in new.log()


def test_a_connection_to_a_pod_of_the_job_is_named_and_the_program_goes_on(run: Make, outside: Echo) -> None:
    host, port = outside.host, outside.ports[0]
    script = f"""
import os, socket, time
peer = socket.create_connection(("{host}", {port}))
log = open("out", "a", buffering=1)
n = 0
while True:
    n += 1
    log.write(f"{{n}}\\n")
    time.sleep(0.001)
    if peer is not None and os.path.exists("close"):
        peer = None
"""
    pod = run("pod", fresh([0], 1), script)
    path = pod.work(0) / "cwd/out"
    until(lambda: numbers(path), "lines", pod)
    event = dump(pod, job=[host])
    assert event.kind == "dump_failed"
    named = rf"python3 program.py \(pid 1000\) is connected \(tcp\) from \S+ to {host}:{port} \(descriptor"
    assert re.search(named, event.message)
    assert not pod.image("c", 0).exists(), "refused before anything was dumped"
    at = len(numbers(path))
    pod.sidecar.command("resume", generation=G)
    until(lambda: len(numbers(path)) > at + 5, "more lines", pod)
    (path.parent / "close").touch()
    assert dump(pod, job=[host]).kind == "dumped", pod.log()


def test_two_ranks_with_one_port_do_not_become_one_pod(run: Make) -> None:
    port = free_port()
    script = f"""
import os, socket, time
server = socket.create_server(("127.0.0.1", {port}))
own = socket.socket(socket.AF_UNIX)
own.bind("\\0own-" + os.environ["RANK"])
own.listen()
open("out", "w").write("1\\n")
time.sleep(600)
"""
    old = []
    for rank in (0, 1):  # one after the other: here pods share a network
        pod = run(f"old-{rank}", fresh([rank], 2), script)
        until(lambda p=pod, r=rank: numbers(p.work(r) / "cwd/out"), "it listens", pod)  # type: ignore[misc]
        event = dump(pod)
        assert event.kind == "dumped", pod.log()
        held = [f"tcp 127.0.0.1:{port}", f"unix @own-{rank}"]
        assert event.occupied == [messages.Occupied(rank, held)], "so the checkpoint says it"
        end(pod)
        old.append(pod)
    one = run("one", restore([0, 1], 2), script, (old[0], 0), (old[1], 1))
    assert one.wait() == exit_codes.NOT_RESTORED, one.log()
    wanted = f"ranks 0 and 1 cannot share a pod: the one has tcp 127.0.0.1:{port}, the other"
    assert wanted in one.wait_event_after_end("restore_failed").message
    alone = run("alone", restore([1], 2), script, (old[1], 1))
    alone.wait_event("restored")


# --- files ------------------------------------------------------------------------------------------------------------
FILES = """
import mmap, os, time
os.makedirs("/data/deep", exist_ok=True)
opened = open("/data/log", "a", buffering=1)
with open("/data/deep/closed", "w") as f:
    f.write("closed")
os.symlink("closed", "/data/deep/link")
with open("/etc/hostname.own", "w") as f:
    f.write("x")
with open("/usr/lib/os-release", "a") as f:
    f.write("CHANGED=1\\n")
nameless = open("/data/nameless", "w+")
nameless.write("still here")
nameless.flush()
os.unlink("/data/nameless")
with open("/data/mapped", "w+b") as f:
    f.truncate(4096)
    mapped = mmap.mmap(f.fileno(), 4096)
n = 0
while not os.path.exists("end"):
    n += 1
    opened.write(f"{n}\\n")
    mapped[:8] = n.to_bytes(8, "little")
    time.sleep(0.001)
nameless.seek(0)
print("nameless", nameless.read(), flush=True)
with open("/data/mapped", "rb") as f:
    print("mapped", int.from_bytes(mapped[:8], "little") == n == int.from_bytes(f.read(8), "little"))
print("closed", open("/data/deep/link").read(), os.readlink("/data/deep/link"), flush=True)
print("changed", "CHANGED=1" in open("/usr/lib/os-release").read(), flush=True)
"""


def test_files_outside_the_work_directory_travel(run: Make) -> None:
    old = run("old", fresh([0], 1), FILES)
    until(lambda: len(numbers(upper(old, "/data/log"))) > 5, "lines", old)
    assert dump(old).kind == "dumped", old.log()
    at = len(numbers(upper(old, "/data/log")))
    end(old)
    new = run("new", restore([0], 1), FILES, (old, 0))
    new.wait_event("restored")
    path = upper(new, "/data/log")
    until(lambda: len(numbers(path)) > at + 5, "more lines", new)
    # What was unpacked here travels on, too.
    assert dump(new).kind == "dumped", new.log()
    end(new)
    last = run("last", restore([0], 1), FILES, (new, 0))
    last.wait_event("restored")
    (last.work(0) / "cwd/end").touch()
    assert last.wait() == 0, last.log()
    for line in ("nameless still here", "mapped True", "closed closed closed", "changed True"):
        assert f"[rank 0] {line}" in last.log()
    path = upper(last, "/data/log")
    assert numbers(path) == list(range(1, len(numbers(path)) + 1))


def test_too_many_bytes_of_files_are_refused_by_name(run: Make) -> None:
    script = """
import time
open("/large", "wb").write(bytes(3 << 20))
open("small", "w").write("ready")
time.sleep(600)
"""
    pod = run("pod", fresh([0], 1), script, env={"SINGULARITY_FILE_LIMIT": "2Mi"})
    until(lambda: (pod.work(0) / "cwd/small").exists(), "files", pod)
    event = dump(pod)
    assert event.kind == "dump_failed"
    assert "files of rank 0 are 3.0 MiB, more than the 2.0 MiB that travel" in event.message
    assert "/large (3.0 MiB)" in event.message and "SINGULARITY_FILE_LIMIT" in event.message


def test_a_limit_that_is_no_size(run: Make) -> None:
    pod = run("pod", fresh([0], 1), "#!/bin/sh\n", env={"SINGULARITY_FILE_LIMIT": "much"})
    assert pod.wait() == 2
    assert "SINGULARITY_FILE_LIMIT = 'much': wanted a number of bytes" in pod.log()


OWN = """
import fcntl, mmap, os, pathlib, time
rank = int(os.environ["RANK"])
data = pathlib.Path("/data")
data.mkdir()
(data / "same").write_text("same")
(data / "shard").write_text(str(rank))
(data / f"only-{rank}").touch()
with open("/etc/hostname.own", "w") as f:
    f.write(str(rank))
log = open("/log", "a", buffering=1)
with open(data / "mapped", "w+b") as f:
    f.truncate(4096)
    mapped = mmap.mmap(f.fileno(), 4096)
nameless = open(data / "nameless", "w+", buffering=1)
nameless.write(str(rank))
os.unlink(data / "nameless")
both, ranges = open("/shared/both", "a"), open("/shared/ranges", "a")
fcntl.flock(both, fcntl.LOCK_SH)
fcntl.lockf(ranges, fcntl.LOCK_EX, 10, rank * 10)
def locks():
    lines = [line for f in (both, ranges) for line in open(f"/proc/self/fdinfo/{f.fileno()}") if line[:5] == "lock:"]
    return ",".join(line.split()[2] for line in lines)
out = open("out", "a", buffering=1)
n = 0
while not os.path.exists("end"):
    n += 1
    log.write(f"{n}\\n")
    mapped[:8] = n.to_bytes(8, "little")
    (data / "new").write_text(str(n))
    (data / "new").replace(data / "replaced")
    nameless.seek(0)
    seen = [p.read_text() for p in (data / "shard", data / "same", pathlib.Path("/etc/hostname.own"))]
    right = int.from_bytes((data / "mapped").read_bytes()[:8], "little") == n == int((data / "replaced").read_text())
    lines = len(pathlib.Path("/log").read_text().split())
    names = ",".join(sorted(os.listdir(data)))
    out.write(f"{n} {' '.join(seen)} {nameless.read()} {right} {lines == n} {names} {locks()}\\n")
    time.sleep(0.002)
"""


def own(rank: int) -> str:
    return f"{rank} same {rank} {rank} True True mapped,only-{rank},replaced,same,shard FLOCK,POSIX"


@pytest.mark.parametrize("uids", [None, 100_000], ids=["on the node", "in a user namespace"])
def test_ranks_of_two_pods_that_become_one_see_the_files_that_each_saw_and_take_them_along(
    run: Make, tmp_path: Path, uids: int | None
) -> None:
    """Locks on a volume that both have, shared or of parts, are had in each of these pods, too. In a user namespace
    CRIU sees which files are mapped only by patch 4 (images/criu)."""
    shared = tmp_path / "shared"
    shared.mkdir()
    run = functools.partial(run, **({} if uids is None else {"uids": uids}))

    def lines(pod: Pod, rank: int) -> list[str]:
        """Without a line that is being written."""
        path = pod.work(rank) / "cwd/out"
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def counts(pod: Pod, rank: int, at: int) -> int:
        until(lambda: len(lines(pod, rank)) > at + 5, "more lines", pod)
        got = lines(pod, rank)
        assert got == [f"{n + 1} {own(rank)}" for n in range(len(got))], pod.log()
        return len(got)

    old = [run(f"old-{rank}", fresh([rank], 2), OWN, shared=shared) for rank in (0, 1)]
    at = [counts(pod, rank, 0) for rank, pod in enumerate(old)]
    for pod in old:
        assert dump(pod).kind == "dumped", pod.log()
        end(pod)
    one = run("one", restore([0, 1], 2), OWN, (old[0], 0), (old[1], 1), shared=shared)
    one.wait_event("restored")
    assert "ranks [0, 1] come from pods whose files were not the same: each sees those of its own pod" in one.log()
    at = [counts(one, rank, at[rank]) for rank in (0, 1)]
    assert dump(one).kind == "dumped", one.log()
    one.sidecar.command("resume", generation=G)
    at = [counts(one, rank, at[rank]) for rank in (0, 1)]
    assert dump(one).kind == "dumped", one.log()
    end(one)
    again = run("again", restore([0, 1], 2), OWN, (one, 0), (one, 1), shared=shared)
    again.wait_event("restored")
    at = [counts(again, rank, at[rank]) for rank in (0, 1)]
    assert dump(again).kind == "dumped", again.log()
    end(again)
    for rank in (0, 1):
        last = run(f"last-{rank}", restore([rank], 2), OWN, (again, rank), shared=shared)
        last.wait_event("restored")
        counts(last, rank, at[rank])
        (last.work(rank) / "cwd/end").touch()
        assert last.wait() == 0, last.log()


def test_ranks_of_two_pods_with_the_same_files_share_them(run: Make) -> None:
    script = """
import pathlib, time
pathlib.Path("/same").write_text("same")
pathlib.Path("ready").touch()
while not pathlib.Path("end").exists():
    if pathlib.Path("write").exists():
        pathlib.Path("/same").write_text("together")
    time.sleep(0.01)
"""
    old = [run(f"old-{rank}", fresh([rank], 2), script) for rank in (0, 1)]
    for rank, pod in enumerate(old):
        until((pod.work(rank) / "cwd/ready").exists, "a file", pod)
        assert dump(pod).kind == "dumped", pod.log()
        end(pod)
    one = run("one", restore([0, 1], 2), script, (old[0], 0), (old[1], 1))
    one.wait_event("restored")
    (one.work(1) / "cwd/write").touch()
    until(lambda: upper(one, "/same").read_text() == "together", "it writes", one)
    assert "not the same" not in one.log()


def test_a_rank_that_meets_the_others_is_not_stopped_anywhere(run: Make) -> None:
    """The leader's view was old: the page says that the rank takes part in something."""
    pod = run("pod", fresh([0], 2), LOOP)
    until(lambda: numbers(pod.work(0) / "cwd/out"), "lines", pod)
    pod.sidecar.page.words[8 + 2] = 1  # STATE_RUNNING
    event = dump(pod)
    assert event.kind == "dump_failed"
    assert "ranks [0] met the others" in event.message and event.late, "the next moment may be better"
    path = pod.work(0) / "cwd/out"
    at = len(numbers(path))
    pod.sidecar.command("resume", generation=G)
    until(lambda: len(numbers(path)) > at, "it goes on", pod)
    assert json.loads((pod.volumes / "run/rank-0/resume.json").read_text())["restore_id"]
