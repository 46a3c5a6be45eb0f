"""What programs hold besides memory and connections: locks, watches, timers, helpers that have detached themselves."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kernel_table
import pytest
from pod_harness import Pod
from pod_moves import dump_anywhere, until
from program_runs import PROGRAMS

from localcluster.config import cache_dir
from localcluster.images.rootfs import beside_torch
from singularity_proxy.launcher.errors import RestoreError
from singularity_proxy.launcher.snapshot import locks
from singularity_proxy.launcher.snapshot.image import FileLock
from singularity_proxy.protocol import exit_codes, messages

pytestmark = pytest.mark.criu
Make = Callable[..., Pod]
Run = Callable[..., Pod]
G = 5


@pytest.fixture
def run(make_pod: Make, rootfs: Path, criu_bundle: Path) -> Run:
    def make(
        name: str, things: Sequence[Any], source: Pod | None = None, libraries: Path | None = None, **more: object
    ) -> Pod:
        plan = messages.Plan("fresh", 1, 1, [0], "127.0.0.1", 29500)
        if source is not None:
            plan = messages.Plan("restore", 2, 1, [0], "127.0.0.1", 29501, G, "c")
        command = ["python3", "holds.py", json.dumps(things, separators=(",", ":"))]
        pod = make_pod(name, rootfs=rootfs, torch=libraries, plan=plan, command=command, criu=criu_bundle, **more)
        for script in ("holds.py", "objects.py"):
            shutil.copy(PROGRAMS / script, pod.volumes / "source")
        if source is not None:
            pod.bring(source, "c", 0)
        return pod.start()

    return make


def asked(pod: Pod, number: int) -> Any:
    """How the program says that the things are."""
    cwd = pod.work(0) / "cwd"
    until(cwd.exists, "it starts", pod)
    (cwd / f"ask-{number}").touch()
    until(lambda: (cwd / f"state-{number}").exists(), "an answer", pod)
    return json.loads((cwd / f"state-{number}").read_text())


def moved(run: Run, things: Sequence[Any], **more: object) -> Pod:
    """Dumped, asked in place, dumped again and restored in another pod: the same each time."""
    old = run("old", things, **more)
    before = asked(old, 0)
    event = dump_anywhere(old, G)
    assert event.kind == "dumped", f"{event.message}\n{old.log()}"
    old.sidecar.command("resume", generation=G)
    assert asked(old, 1) == before
    assert dump_anywhere(old, G).kind == "dumped", old.log()
    old.delete()
    new = run("new", things, old, **more)
    new.wait_event("restored")
    assert asked(new, 2) == before
    assert dump_anywhere(new, G).kind == "dumped", new.log()
    new.delete()
    last = run("last", things, new, **more)
    last.wait_event("restored")
    assert asked(last, 3) == before
    return last


# --- any mixture ------------------------------------------------------------------------------------------------------
def thing(draw: random.Random, number: int) -> list[Any]:
    """One thing to hold, whichever; `number` keeps its files apart from those of others."""
    place = draw.choice(["", "/data/", "/shared/"])  # working directory, the container's own, a volume
    flag = draw.random() < 0.5
    interval = draw.choice([0.01, 0.05])
    folder = draw.choice(["watched", "/watched", "/shared/watched"])
    every: dict[str, list[Any]] = {
        "Flock": [f"{place}{number}", flag, draw.choice(["plain", "ended", "shared"])],
        "Range": [f"{place}{number}", flag, draw.random() < 0.5, draw.choice([0, 7]), draw.choice([0, 1, 100])],
        "Nameless": [f"{place}{number}"],
        "Mapped": [f"{place}{number}"],
        "Watch": [f"{folder}/{number}", draw.choice([0x100, 0x300, 0x302])],
        "Timer": [draw.choice([0, 1, 7]), interval, flag, draw.random() < 0.5],
        "Helper": [str(number), draw.choice(["orphan", "session", "daemon"])],
    }
    kind = draw.choice(list(every))
    return [kind, *every[kind]]


def mixture(seed: int) -> list[list[Any]]:
    draw = random.Random(seed)
    return [thing(draw, number) for number in range(draw.randint(4, 8))]


EVERY_KIND = [
    ["Flock", "0", True, "plain"], ["Flock", "/data/1", True, "ended"], ["Flock", "/shared/2", False, "shared"],
    ["Range", "/shared/3", False, True, 10, 20], ["Range", "4", True, False, 0, 0], ["Nameless", "5"],
    ["Mapped", "/data/mapped"],
    ["Watch", "6", 0x300], ["Watch", "/shared/7", 0x100], ["Timer", 1, 0.05, False, False],
    ["Timer", 0, 0.05, True, True], ["Timer", 7, 0.05, False, False],
    ["Helper", "8", "orphan"], ["Helper", "9", "session"], ["Helper", "10", "daemon"],
]  # fmt: skip


OBJECTS = [[name] for names in kernel_table.TRAVEL.values() for name in names if name.islower()]


@pytest.mark.parametrize(
    "things",
    [
        pytest.param([*OBJECTS, *EVERY_KIND], id="every kind"),
        *(pytest.param(mixture(n), id=str(n), marks=pytest.mark.full if n else []) for n in range(25)),
    ],
)
def test_what_a_program_holds_is_the_same_after_two_moves(run: Run, tmp_path: Path, things: list[list[Any]]) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    moved(run, things, shared=shared)


def test_the_page_has_the_table_of_what_is_run_here() -> None:
    names = {name for names in kernel_table.TRAVEL.values() for name in names}
    assert names == {name for name, *_ in [*EVERY_KIND, *OBJECTS]}
    made = re.findall(r"^def (\w+)\(\):$", (PROGRAMS / "objects.py").read_text(), re.MULTILINE)
    assert {*made} - {"child", "other"} == {name for [name] in OBJECTS}
    assert {name for names in kernel_table.REFUSED.values() for name in names} == {*REFUSED}
    page = Path(__file__).resolve().parents[3] / "docs/programs.md"
    assert kernel_table.markdown() in page.read_text(), f"docs/programs.md:\n{kernel_table.markdown()}"


@pytest.mark.full
@pytest.mark.timeout(900)
def test_files_of_h5py_lmdb_and_sqlite_and_a_dask_cluster_are_the_same_after_two_moves(run: Run) -> None:
    """From PyPI, as they are: each holds locks."""
    packages = ("h5py==3.16.0", "lmdb==3.0.0", "distributed==2026.8.0")
    libraries = beside_torch(cache_dir(), packages, print)
    things = [["Hdf5", "/data.h5"], ["Lmdb", "data.lmdb"], ["Sqlite", "/data.sqlite"], ["Dask", 2]]
    moved(run, things, libraries=libraries)


def test_a_watched_folder_of_a_volume_that_is_gone_loses_the_attempt_by_name(run: Run, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    things = [["Watch", "/shared/watched", 0x300]]
    old = run("old", things, shared=shared)
    asked(old, 0)
    assert dump_anywhere(old, G).kind == "dumped", old.log()
    old.delete()
    (shared / "watched").rename(shared / "elsewhere")
    new = run("new", things, old, shared=shared)
    assert new.wait() == exit_codes.LOST, new.log()
    said = new.wait_event_after_end("restore_failed").message
    assert "rank 0 watches /shared/watched (inotify), which is not in this pod" in said


# --- locks of volumes -------------------------------------------------------------------------------------------------
@pytest.mark.full
def test_a_lock_that_another_pod_has_taken_ends_the_attempt_by_name(run: Run, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    things = [["Flock", "/shared/lock", True, "plain"]]
    old = run("old", things, shared=shared)
    before = asked(old, 0)
    assert dump_anywhere(old, G).kind == "dumped", old.log()
    old.delete()
    with (shared / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        new = run("new", things, old, shared=shared)
        assert new.wait() == exit_codes.LOST, new.log()
        said = new.wait_event_after_end("restore_failed").message
        assert (
            "rank 0 had an exclusive lock (flock) on /shared/lock at the checkpoint, and somebody else has it" in said
        )
    again = run("again", things, old, shared=shared)
    again.wait_event("restored")
    assert asked(again, 1) == before


HOLDER = """
import fcntl, os, struct, sys
path, kind, exclusive, start, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
fd = os.open(path, os.O_RDWR)
if kind == "flock":
    fcntl.flock(fd, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
else:
    how = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
    fcntl.fcntl(fd, 37 if kind == "ofd" else fcntl.F_SETLK, struct.pack("hhqqi4x", how, 0, start, size, 0))
print("has it", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holder(lock: FileLock) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lock."""
    words = [lock.path, lock.kind, str(int(lock.exclusive)), str(lock.start), str(lock.size)]
    argv = [sys.executable, "-c", HOLDER, *words]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "has it\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def conflict(one: FileLock, other: FileLock) -> bool:
    """The kernel's rules, in one sentence: kinds of ranges see each other, flock sees flock alone, readers share."""
    apart = one.kind != "flock" and any(a.size and a.start + a.size <= b.start for a, b in ((one, other), (other, one)))
    return (one.kind == "flock") == (other.kind == "flock") and (one.exclusive or other.exclusive) and not apart


def test_every_pair_of_locks_is_waited_for_or_not_as_the_kernel_has_it(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    Path(path).touch()
    ranges = [("flock", 0, 0), ("posix", 0, 10), ("ofd", 0, 0), ("posix", 10, 5), ("ofd", 5, 10)]
    every = [FileLock(path, kind, mode, start, size) for kind, start, size in ranges for mode in (True, False)]
    for theirs in every:
        with holder(theirs) as process:
            assert locks.held([process.pid]) == [theirs]
            for mine in every:
                if not conflict(mine, theirs):
                    locks.check({3: [mine]}, [str(tmp_path)], patience_s=0)
                    continue
                with pytest.raises(
                    RestoreError, match=rf"rank 3 had .* on {path} at the checkpoint, and somebody"
                ) as e:
                    locks.check({3: [mine]}, [str(tmp_path)], patience_s=0)
                assert e.value.exit_code == exit_codes.LOST


def test_a_lock_that_is_given_back_is_waited_for_and_the_pods_own_files_are_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    lock = FileLock(str(path), "flock", True)
    with ThreadPoolExecutor(1) as pool:
        with holder(lock):
            waits = pool.submit(locks.check, {0: [lock]}, [str(tmp_path)], 30)
            locks.check({0: [lock]}, ["/elsewhere"], 0)
            with pytest.raises(TimeoutError):
                waits.result(0.3)
        assert waits.result(120) is None
    locks.check({0: [lock, FileLock(str(tmp_path / "gone"), "flock", True)]}, [str(tmp_path)], 0)
    with pytest.raises(RestoreError, match="rank 1 had an exclusive lock"):  # on two nodes both may have had it
        locks.check({0: [lock], 1: [lock]}, [str(tmp_path)], 0)


# --- what is refused by name ------------------------------------------------------------------------------------------
TIED = """
import ctypes, fcntl, os, pathlib, signal, socket, sys, time
libc = ctypes.CDLL(None)
def lease():
    held = os.open("leased", os.O_RDONLY | os.O_CREAT)
    fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    return lambda: os.close(held)
def outside():
    client = socket.socket(socket.AF_UNIX)
    client.connect("/shared/server")
    return client.close
def linked():
    held = os.open("/first", os.O_RDWR | os.O_CREAT)
    os.link("/first", "/second")
    os.unlink("/first")
    return lambda: os.close(held)
def watched():
    held, queue = os.open("gone", os.O_CREAT), libc.inotify_init1(0)
    assert libc.inotify_add_watch(queue, b"gone", 2) > 0
    os.unlink("gone")
    return lambda: (os.close(queue), os.close(held))
def attached():
    number = libc.shmget(0, 4096, 0o1600)
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(number, None, 0)
    return lambda: (libc.shmdt(ctypes.c_void_p(address)), libc.shmctl(number, 0, None))
def unattached():
    number = libc.shmget(7, 4096, 0o1600)
    return lambda: libc.shmctl(number, 0, None)
def left():
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, b"%d" % libc.shmget(8, 4096, 0o1600))
        os._exit(0)
    os.wait()
    number = int(os.read(read, 20))
    return lambda: libc.shmctl(number, 0, None)
def messages():
    number = libc.msgget(9, 0o1600)
    return lambda: libc.msgctl(number, 0, None)
def semaphores():
    number = libc.semget(10, 1, 0o1600)
    return lambda: libc.semctl(number, 0, 0)
def queue():
    held = libc.mq_open(b"/opened", os.O_RDWR | os.O_CREAT, 0o600, None)
    assert held >= 0
    return lambda: (os.close(held), libc.mq_unlink(b"/opened"))
def named():
    os.close(libc.mq_open(b"/named", os.O_RDWR | os.O_CREAT, 0o600, None))
    return lambda: libc.mq_unlink(b"/named")
def counts():
    held = os.eventfd(1, os.EFD_SEMAPHORE)
    return lambda: os.close(held)
def signalled():
    held = os.open(".", os.O_RDONLY)
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fcntl.fcntl(held, fcntl.F_NOTIFY, fcntl.DN_CREATE | fcntl.DN_MULTISHOT)
    return lambda: os.close(held)
def child():
    pid = os.fork()
    while not pid:
        time.sleep(1)
    return pid
def traced():
    pid = child()
    assert libc.ptrace(0x4206, pid, 0, 0) == 0  # PTRACE_SEIZE
    return lambda: (os.kill(pid, signal.SIGKILL), os.waitpid(pid, 0))
def stray():
    libc.prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    read, write = os.pipe()
    if os.fork() == 0:
        pid = os.fork()
        if pid:
            os.write(write, str(pid).encode())
            os._exit(0)
        while True:
            time.sleep(1)
    os.wait()
    pid = int(os.read(read, 20))
    return lambda: os.kill(pid, signal.SIGKILL)
for name in sys.argv[1:]:
    undo = globals()[name]()
    pathlib.Path(f"{name}-held").touch()
    while not pathlib.Path(f"{name}-end").exists():
        time.sleep(0.01)
    undo()
    pathlib.Path(f"{name}-gone").touch()
time.sleep(600)
"""
REFUSED = {
    "attached": r"System V do not travel: rank 0: .*\(pid 1000\) has attached shared memory segment \d+\.",
    "unattached": r"System V do not travel: rank 0: .*\(pid 1000\) has made shared memory segment \d+\.",
    "left": r"System V do not travel: rank 0: a process that has ended has left shared memory segment \d+\.",
    "messages": r"System V do not travel: rank 0: there is a queue of messages, number \d+\.",
    "semaphores": r"System V do not travel: rank 0: there is a set of semaphores, number \d+\.",
    "queue": r"POSIX queues .*: rank 0: .*\(pid 1000\) has POSIX queue /opened open \(descriptor \d+\)\.",
    "named": r"POSIX queues .*: rank 0: there is POSIX queue /named\.",
    "counts": r"rank 0: .*\(pid 1000\) has an eventfd with EFD_SEMAPHORE \(descriptor \d+\)\.",
    "signalled": r"rank 0: .*\(pid 1000\) is signalled changes in \S+/cwd \(F_NOTIFY, descriptor \d+\)\.",
    "lease": r"leases on files do not travel: rank 0: .*\(pid 1000\) has a lease \(F_SETLEASE\) on \S+/leased",
    "outside": r"other end outside the rank: rank 0: .*\(pid 1000\) is connected to /\S*server \(descriptor \d",
    "watched": r"rank 0: files that are watched by inotify were not found by a path .*\(pid 1000\) \(descriptor \d",
    "linked": r"another hard link to them is left: rank 0: .*\(pid 1000\) has /first open \(descriptor \d+\)\. Close",
    "traced": r"under a debugger: rank 0: .*\(pid 100\d\) is traced by .*\(pid 1000\)",
    "stray": r"do not descend from the first one of their rank, .*: rank 0: .*\(pid 10\d\d\). A rank",
}


def test_what_cannot_travel_is_refused_by_name_and_the_program_goes_on(
    make_pod: Make, rootfs: Path, criu_bundle: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    folder = os.open(shared, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server, contextlib.ExitStack() as accepted:
        server.settimeout(30)
        server.bind(f"/proc/self/fd/{folder}/server")
        server.listen()
        os.close(folder)
        plan = messages.Plan("fresh", 1, 1, [0], "127.0.0.1", 29500)
        command = ["python3", "tied.py", *REFUSED]
        pod = make_pod("pod", rootfs=rootfs, torch=None, plan=plan, command=command, criu=criu_bundle, shared=shared)
        (pod.volumes / "source/tied.py").write_text(TIED)
        pod.start()
        cwd = pod.work(0) / "cwd"
        for name, words in REFUSED.items():
            until((cwd / f"{name}-held").exists, name, pod)
            if name == "outside":
                accepted.enter_context(server.accept()[0])
            event = dump_anywhere(pod, G, remaining_s=0.3)
            assert event.kind == "dump_failed" and re.search(words, event.message), f"{name}: {event}"
            assert not (pod.image("c", 0) / "inventory.img").exists(), "refused before anything was dumped"
            pod.sidecar.command("resume", generation=G)
            (cwd / f"{name}-end").touch()
            until((cwd / f"{name}-gone").exists, f"{name} given back", pod)
        assert dump_anywhere(pod, G).kind == "dumped", pod.log()


BUSY = """
import ctypes, os, pathlib, socket, time
libc = ctypes.CDLL(None)
queue = libc.inotify_init1(0)
libc.inotify_add_watch(queue, b".", 0x100)
pathlib.Path("seen").touch()
server = socket.socket(socket.AF_UNIX)
server.bind("server")
server.listen()
client = socket.socket(socket.AF_UNIX)
client.connect("server")
client.send(b"x")
pathlib.Path("held").touch()
time.sleep(600)
"""


def test_what_waits_to_be_accepted_or_read_is_named(make_pod: Make, rootfs: Path, criu_bundle: Path) -> None:
    plan = messages.Plan("fresh", 1, 1, [0], "127.0.0.1", 29500)
    pods = []
    for name, script in (("both", BUSY), ("read", BUSY.replace('client.send(b"x")', "server.close(); client.close()"))):
        pod = make_pod(name, rootfs=rootfs, torch=None, plan=plan, command=["python3", "p.py"], criu=criu_bundle)
        (pod.volumes / "source/p.py").write_text(script)
        pods.append(pod.start())
    for pod in pods:
        until((pod.work(0) / "cwd/held").exists, "it holds", pod)
    event = dump_anywhere(pods[0], G)
    assert event.kind == "dump_failed"
    assert re.search(r"python3 p.py \(pid 1000\) has 1 connections to accept at server \(descriptor", event.message)
    assert dump_anywhere(pods[1], G).kind == "dumped", pods[1].log()
    assert re.search(r"has not read what its inotify watches saw \(descriptor \d\), lost if the rank", pods[1].log())
