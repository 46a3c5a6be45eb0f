"""What a launcher without any privilege would do: namespaces of its own, a family of processes in them, CRIU.

usage: no_privilege.py save|restore   in a pod as of `test_e2e_no_privilege.py`, with an empty /work

`save` dumps the family, ends it, and waits. `restore` waits for the file /work/ready, and lets the family go on from
what lies in /work. The network is the pod's. Prints a line for each part that is refused, and for what came out.
"""

import ctypes
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

WORK = Path("/work")
ROOT = 302
"""PID of the family's first process: above what a restore starts before it."""
PRIVATE, QUIET, PROFILE_SAYS_NO = 0x44000, 0xE, 3
MOUNT, REFUSE, ALLOW, LOAD, EQUAL, RETURN = 165, 0x00050001, 0x7FFF0000, 0x20, 0x15, 0x06
FILTER = struct.pack("HBBI" * 4, LOAD, 0, 0, 0, EQUAL, 0, 1, MOUNT, RETURN, 0, 0, REFUSE, RETURN, 0, 0, ALLOW)
"""As the launcher's: without `mount`."""
ENVIRONMENT = {"XDG_RUNTIME_DIR": "/work", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": "/work", "HOME": "/work"}
PROGRAM = """
import multiprocessing, time
def work(queue, lock):
    while True:
        with lock:
            queue.put(0)
        time.sleep(0.02)
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    queue, lock = context.Queue(4), context.Semaphore(1)
    for _ in range(2):
        context.Process(target=work, args=(queue, lock), daemon=True).start()
    step, out = 0, open("/work/steps", "a", buffering=1)
    while True:
        queue.get()
        out.write(f"{step}\\n")
        step += 1
"""
libc = ctypes.CDLL(None, use_errno=True)


def say(text: str) -> None:
    print(text, flush=True)


def mount(source: bytes, target: bytes, kind: bytes | None, flags: int) -> None:
    if libc.mount(source, target, kind, flags, None):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def part(name: str, act, *args) -> None:
    try:
        act(*args)
    except OSError as error:
        say(f"refused: {name}: {error.strerror}")
        sys.exit(PROFILE_SAYS_NO)


def enter() -> None:
    """Become root of a user namespace with one uid, and process 1 of a PID namespace with a /proc of its own."""
    user, group = os.getuid(), os.getgid()
    part("unshare", os.unshare, os.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        part(name, Path("/proc/self", name).write_text, text)
    part("unshare", os.unshare, os.CLONE_NEWPID | os.CLONE_NEWNS | os.CLONE_NEWIPC | os.CLONE_NEWUTS)
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    part("mount", mount, b"none", b"/", None, PRIVATE)
    part("mount of /proc", mount, b"proc", b"/proc", b"proc", QUIET)
    part("mount of /dev/shm", mount, b"shm", b"/dev/shm", b"tmpfs", QUIET)


def steps() -> list[int]:
    return [int(word) for word in (WORK / "steps").read_text().split()]


def until(condition, what: str) -> None:
    end = time.monotonic() + 120
    while not condition():
        if time.monotonic() > end:
            say(f"refused: {what} did not come")
            sys.exit(1)
        time.sleep(0.1)


def criu(verb: str, *more: str) -> None:
    options = ["-D", "/work/images", "-W", "/work", "-o", f"{verb}.log", "--unprivileged", "--tcp-close", *more]
    if subprocess.run(["criu", verb, *options], env=ENVIRONMENT, timeout=200).returncode:
        lines = (WORK / f"{verb}.log").read_text(errors="replace").splitlines()
        say(f"refused: {verb}: " + " | ".join(line for line in lines if "Error" in line))
        sys.exit(1)


def load_filter() -> None:
    content = ctypes.create_string_buffer(FILTER, len(FILTER))
    program = struct.pack("HxxxxxxQ", len(FILTER) // 8, ctypes.addressof(content))
    if libc.prctl(22, 2, program, 0, 0):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
        raise OSError(ctypes.get_errno(), "prctl")


def filters() -> str:
    status = Path(f"/proc/{ROOT}/status").read_text()
    return next(line.split()[1] for line in status.splitlines() if line.startswith("Seccomp_filters"))


def save() -> None:
    for name in ("images", "steps", "log", "program.py"):
        (WORK / name).mkdir() if name == "images" else (WORK / name).touch()
    (WORK / "program.py").write_text(PROGRAM)
    (WORK / "filter").write_bytes(FILTER)
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(ROOT - 1))
    log = (WORK / "log").open("w")
    family = subprocess.Popen(
        ["python3", "-S", "/work/program.py"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENVIRONMENT,
        start_new_session=True, preexec_fn=load_filter,
    )  # fmt: skip
    assert family.pid == ROOT, family.pid
    until(lambda: len(steps()) > 20, "steps")
    say(f"filters: {filters()}")
    criu("dump", "-t", str(ROOT), "--link-remap", "--seccomp-filter", "/work/filter")
    (WORK / "saved").touch()
    say(f"saved after {len(steps())} steps")
    time.sleep(600)


def restore() -> None:
    until((WORK / "ready").exists, "what was saved")
    before = len(steps())
    criu("restore", "-d")
    until(lambda: len(steps()) > before + 20, "more steps")
    got = steps()
    say(f"filters: {filters()}")
    say(f"restored: {before} steps, then more; no gap: {got == list(range(len(got)))}")


if __name__ == "__main__":
    say(" ".join(Path("/proc/self/status").read_text().split()))
    enter()
    {"save": save, "restore": restore}[sys.argv[1]]()
