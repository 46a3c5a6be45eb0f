"""The launcher in a user namespace of its own, as in a pod with `hostUsers: false`: ranks are saved and restored there,
and whoever breaks out of all that is inside the pod is nobody on the node."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import broken_out
import pytest
from pod_harness import Pod
from pod_moves import until
from test_launcher_pod import COUNTER, counter, counts_on, dump, fresh, numbers, restore

from singularity_proxy.protocol import user_namespace

pytestmark = pytest.mark.criu
Make = Callable[..., Pod]
FIRST, OTHER = 100_000, 300_000
"""First uid of the host that is a pod's: two nodes give different ones."""
BEYOND = 70_000
"""A uid on the disk that no pod has: of an image, say."""

SHARED = r"""
import ctypes, mmap, os, threading

libc = ctypes.CDLL(None, use_errno=True)
libc.sem_open.restype = ctypes.c_void_p
for call in (libc.sem_wait, libc.sem_post):
    call.argtypes = [ctypes.c_void_p]

def mapped(name):
    path = "/dev/shm/" + name
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, 4096)
    memory = mmap.mmap(descriptor, 4096, trackfd=False)
    os.unlink(path)
    return descriptor, memory

def semaphore(name):
    return libc.sem_open(name, os.O_CREAT, 0o600, 0)

# Nobody has the first one open; only the child has the second. The parent has mapped the semaphore under a name that
# glibc has unlinked since, the child under its own.
descriptor, orphan = mapped("orphan")
os.close(descriptor)
held_by_child, held = mapped("held")
ask, answer = semaphore(b"/ask"), semaphore(b"/answer")
if os.fork() == 0:
    ask, answer = semaphore(b"/ask"), semaphore(b"/answer")
    while True:
        libc.sem_wait(ask)
        for memory in (orphan, held):
            memory[8:16] = memory[:8]
        libc.sem_post(answer)
os.close(held_by_child)

def talk():
    rounds = 0
    while True:
        rounds += 1
        number = rounds.to_bytes(8, "little")
        orphan[:8] = held[:8] = number
        libc.sem_post(ask)
        libc.sem_wait(answer)
        assert orphan[8:16] == held[8:16] == number, rounds
        with open("rounds.new", "w") as file:
            file.write(str(rounds))
        os.replace("rounds.new", "rounds")

threading.Thread(target=talk, daemon=True).start()
"""
"""A rank and its child that need two deleted files and two semaphores as shared memory."""

CLOCK = r"""
import threading, time

def tick():
    while True:
        with open("clock", "a") as file:
            file.write(f"{time.monotonic()!r}\n")
        time.sleep(0.01)

threading.Thread(target=tick, daemon=True).start()
"""

NAMESPACE = r"""
import ctypes, errno, threading, time

def tries():
    libc = ctypes.CDLL(None, use_errno=True)
    while True:
        failed = libc.unshare(0x10000000)  # a user namespace: no capability is needed for one
        with open("tried", "a") as file:
            file.write("made\n" if not failed else errno.errorcode[ctypes.get_errno()] + "\n")
        time.sleep(0.01)

threading.Thread(target=tries, daemon=True).start()
"""

OWN_FILTER = r"""
import ctypes, struct

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000), 8)
assert ctypes.CDLL(None).prctl(22, 2, ctypes.byref(Program(1, ctypes.addressof(allow))), 0, 0) == 0
"""


SEALED = r"""
import fcntl, mmap, os

descriptor = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
os.ftruncate(descriptor, 4096)
fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
memory = mmap.mmap(descriptor, 4096, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
"""


REPLACED = r"""
import mmap, os

with open("mapped", "wb") as file:
    file.write(bytes(4096))
descriptor = os.open("mapped", os.O_RDONLY)
memory = mmap.mmap(descriptor, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ, trackfd=False)
os.close(descriptor)
os.replace(__file__, "mapped")
"""


THEIRS = r"""
import os, threading, time

path = "/theirs"
kept = open(path)

def looks():
    while True:
        kept.seek(0)
        try:
            os.close(os.open(path, os.O_WRONLY))
            may = "written"
        except OSError:
            may = "refused"
        with open("seen", "a") as file:
            file.write(f"{os.fstat(kept.fileno()).st_uid} {kept.read()} {may}\n")
        time.sleep(0.01)

threading.Thread(target=looks, daemon=True).start()
"""
"""A rank that keeps a file of somebody else's open."""


@pytest.fixture
def run(make_pod: Make, rootfs: Path, criu_bundle: Path) -> Make:
    def make(name: str, plan: object, module: str = "", uids: int | None = FIRST, source: Pod | None = None) -> Pod:
        extra = "__import__('extra')" if module else "0"
        pod = make_pod(
            name, plan=plan, command=counter(extra=extra), rootfs=rootfs, torch=None, criu=criu_bundle, uids=uids
        )
        (pod.volumes / "source/count.py").write_text(COUNTER)
        (pod.volumes / "source/extra.py").write_text(module)
        theirs = pod.folder / "upper/theirs"
        theirs.write_text("text")
        os.chown(theirs, BEYOND, BEYOND)
        if source is not None:
            pod.bring(source, "c", 0)
        return pod.start()

    return make


def moved(run: Make, module: str, written: str, uids: int = FIRST) -> tuple[Pod, Pod, float]:
    """A rank whose `module` has `written` a file, before and after its move; and the seconds when it was nowhere."""
    old = run("old", fresh([0], 1), module)
    until(lambda: (old.work(0) / "cwd" / written).exists(), f"the rank writes {written}", old)
    assert dump(old, [0]).kind == "dumped", old.log()
    gone = time.monotonic()
    old.delete()
    away = time.monotonic() - gone
    return old, run("new", restore([0], 1), module, uids, source=old), away


def rank_status(pod: Pod) -> list[dict[str, str]]:
    """/proc/PID/status of the pod's ranks."""
    texts = [(entry / "status").read_text() for entry in pod.processes()]
    found = [dict(line.partition(":\t")[::2] for line in text.splitlines()) for text in texts]
    numbers = [fields["NSpid"].split() for fields in found]  # here, in the pod, and in the slot, whose init is 1
    return [fields for fields, pids in zip(found, numbers, strict=True) if len(pids) == 3 and pids[2] != "1"]


def lines(path: Path) -> list[str]:
    """The whole lines of a file."""
    return path.read_text().split("\n")[:-1] if path.exists() else []


# --- saved and restored -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("uids", [FIRST, OTHER])
def test_processes_that_share_deleted_files_and_semaphores_go_on_sharing_them(run: Make, uids: int) -> None:
    old, new, _ = moved(run, SHARED, "rounds", uids)
    before = int((old.work(0) / "cwd/rounds").read_text())
    new.wait_event("restored")
    path = new.work(0) / "cwd/rounds"
    until(lambda: int(path.read_text()) > before + 20, "parent and child go on", new)
    counts_on(new, numbers(old.work(0) / "cwd/numbers")[-1])


def test_the_monotonic_clock_of_a_rank_stands_still_while_the_rank_is_nowhere(run: Make) -> None:
    old, new, away = moved(run, CLOCK, "clock")
    seen = len(lines(old.work(0) / "cwd/clock"))
    new.wait_event("restored")
    path = new.work(0) / "cwd/clock"
    until(lambda: len(lines(path)) > seen + 5, "the clock goes on", new)
    times = [float(line) for line in lines(path)]
    assert times == sorted(times)
    assert time.monotonic() - times[-1] >= away
    own = Path("/proc/self/ns/time").readlink()
    assert {Path(f"/proc/{fields['Pid']}/ns/time").readlink() == own for fields in rank_status(new)} == {False}


def test_the_filter_of_system_calls_is_in_force_before_and_after_a_move(run: Make) -> None:
    old, new, _ = moved(run, NAMESPACE, "tried")
    seen = len(lines(old.work(0) / "cwd/tried"))
    new.wait_event("restored")
    path = new.work(0) / "cwd/tried"
    until(lambda: len(lines(path)) > seen + 5, "it goes on trying", new)
    assert set(lines(path)) == {"EPERM"}
    (fields,) = rank_status(new)
    assert (fields["Seccomp"], fields["Seccomp_filters"], fields["NoNewPrivs"]) == ("2", "1", "1")


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (OWN_FILTER, "is under 2 filters"),
        (SEALED, "has mapped /memfd:sealed"),
        (REPLACED, "cwd/mapped. Leave the files"),
    ],
    ids=["filter", "memory file", "replaced file"],
)
def test_what_cannot_be_saved_is_named_and_the_rank_goes_on(run: Make, module: str, said: str) -> None:
    pod = run("pod", fresh([0], 1), module)
    event = dump(pod, [0])
    assert event.kind == "dump_failed"
    assert "count.py" in event.message and said in event.message, event.message
    path = pod.work(0) / "cwd/numbers"
    at = numbers(path)[-1]
    pod.sidecar.command("resume", generation=5)
    until(lambda: numbers(path)[-1] > at + 10, "it counts on", pod)


def test_a_checkpoint_of_a_pod_without_a_user_namespace_goes_on_in_one_and_the_other_way_round(run: Make) -> None:
    for number, (first, second) in enumerate(((None, FIRST), (FIRST, None))):
        old = run(f"old-{number}", fresh([0], 1), uids=first)
        assert dump(old, [0]).kind == "dumped", old.log()
        old.delete()
        new = run(f"new-{number}", restore([0], 1), uids=second, source=old)
        counts_on(new, numbers(old.work(0) / "cwd/numbers")[-1])


@pytest.mark.parametrize(("first", "second"), [(None, FIRST), (FIRST, OTHER)], ids=["from the node", "to another"])
def test_files_of_owners_that_the_namespace_has_not_are_nobodys_and_read_before_and_after_a_move(
    run: Make, first: int | None, second: int
) -> None:
    """So are they in pods that a job of the node goes on in. Nobody in there may change them."""
    old = run("old", fresh([0], 1), THEIRS, uids=first)
    until(lambda: lines(old.work(0) / "cwd/seen"), "it looks", old)
    assert dump(old, [0]).kind == "dumped", old.log()
    seen = lines(old.work(0) / "cwd/seen")
    assert set(seen) == {f"{BEYOND} text written" if first is None else "65534 text refused"}
    old.delete()
    new = run("new", restore([0], 1), THEIRS, uids=second, source=old)
    new.wait_event("restored")
    path = new.work(0) / "cwd/seen"
    until(lambda: len(lines(path)) > len(seen) + 3, "it goes on looking", new)
    assert lines(path)[-1] == "65534 text refused"


def test_neither_the_launcher_nor_criu_makes_a_user_namespace(run: Make) -> None:
    """AppArmor's restriction of them (Ubuntu) does not concern a pod whose namespace the runtime has made, as root."""
    old, new, _ = moved(run, "", "numbers")
    new.wait_event("restored")
    tries = ["nsenter", "-t", str(new.launcher_pid()), "-U", "unshare", "--user", "true"]
    refused = subprocess.run(tries, capture_output=True, text=True, check=False, timeout=120)
    assert "No space left on device" in refused.stderr  # what the kernel says where no more may be made
    counts_on(new, numbers(old.work(0) / "cwd/numbers")[-1])


# --- who has broken out -----------------------------------------------------------------------------------------------
def test_who_has_broken_out_of_everything_in_the_pod_can_do_to_the_node_what_an_unprivileged_process_can(
    run: Make,
) -> None:
    pod, plain = run("pod", fresh([0], 1)), run("plain", fresh([0], 1), uids=None)
    for each in (pod, plain):
        each.wait_event("started")
    assert Path(f"/proc/{pod.launcher_pid()}/uid_map").read_text().split()[:2] == ["0", str(FIRST)]
    refused = broken_out.tried(pod.launcher_pid(), own_users=True)
    free = broken_out.tried(plain.launcher_pid(), own_users=False)
    nobody = broken_out.tried_by_nobody()
    assert {name: said in broken_out.REFUSED for name, said in refused.items()} == dict.fromkeys(refused, True), refused
    assert {name: said in broken_out.REFUSED for name, said in nobody.items()} == dict.fromkeys(refused, True), nobody
    # Without a user namespace the same process may do it all: the attempts are real.
    assert {name: said in broken_out.REFUSED for name, said in free.items()} == dict.fromkeys(refused, False), free


def test_a_container_knows_whether_it_has_a_user_namespace(tmp_path: Path) -> None:
    known = (("         0          0 4294967295\n", False, 4294967294), ("0 100000 65536\n", True, 65535))
    for text, own, largest in known:
        (tmp_path / "uid_map").write_text(text)
        assert user_namespace.inside(tmp_path / "uid_map") is own
        assert user_namespace.largest(tmp_path / "uid_map") == largest
