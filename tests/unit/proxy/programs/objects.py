"""Objects of the kernel that a program may have, for `holds.py`: each function makes one, and returns how it is seen.

What is seen is the same before and after a move, if the object travels.
"""

import array
import ctypes
import fcntl
import mmap
import multiprocessing
import os
import pty
import resource
import select
import signal
import socket
import struct
import subprocess
import time
from multiprocessing import shared_memory as shared_memory_of_python
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
IOPRIO_GET, IOPRIO_SET, SET_MEMPOLICY, GET_MEMPOLICY, PIDFD_OPEN = 252, 251, 238, 239, 434
PR_GET_PDEATHSIG, PR_SET_THP_DISABLE, PR_GET_THP_DISABLE, PR_GET_CHILD_SUBREAPER = 2, 41, 42, 37


def check(result):
    assert result >= 0, os.strerror(ctypes.get_errno())
    return result


def child():
    pid = os.fork()
    while not pid:
        signal.pause()
    return pid


# --- descriptors ------------------------------------------------------------------------------------------------------
def pipe():
    """With bytes in it, and a size of its own."""
    read, write = os.pipe()
    fcntl.fcntl(write, 1031, 1 << 18)
    os.write(write, b"p" * 100_000)

    def seen():
        data = os.read(read, 1 << 18)
        os.write(write, data)
        return [len(data), fcntl.fcntl(write, 1032)]

    return seen


def fifo():
    os.mkfifo("fifo")
    end = os.open("fifo", os.O_RDWR)
    os.write(end, b"in it")

    def seen():
        data = os.read(end, 5)
        os.write(end, data)
        return data.decode()

    return seen


def eventfd():
    fd = os.eventfd(7, os.EFD_NONBLOCK)
    return lambda: [os.eventfd_read(fd), os.eventfd_write(fd, 7)]


def epoll():
    read, write = os.pipe()
    poll = select.epoll()
    poll.register(read, select.EPOLLIN | select.EPOLLET)
    poll.register(write, select.EPOLLOUT)
    return lambda: [len(poll.poll(0)) > 0, sorted(fd in (read, write) for fd, _ in poll.poll(0))]


def signalfd():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
    mask = ctypes.create_string_buffer(128)
    libc.sigemptyset(mask)
    libc.sigaddset(mask, int(signal.SIGRTMIN))
    fd = check(libc.signalfd(-1, mask, os.O_NONBLOCK))

    def seen():
        os.kill(os.getpid(), signal.SIGRTMIN)
        return os.read(fd, 128)[0]

    return seen


def pending():
    """A signal that is blocked, and one that waits."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN + 1})
    os.kill(os.getpid(), signal.SIGRTMIN + 1)
    return lambda: [int(each) for each in sorted(signal.sigpending())]


def memory_file():
    fd = os.memfd_create("mine")
    os.write(fd, b"content")
    shared = mmap.mmap(fd, 7)
    return lambda: [os.pread(fd, 7, 0).decode(), shared[:].decode()]


def unix_pair():
    """With bytes on their way, and a descriptor that was sent and not received."""
    one, other = socket.socketpair()
    read, write = os.pipe()
    os.write(write, b"through it")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [read]))]
    one.sendmsg([b"message"], rights)
    os.close(read)

    def seen():
        data, found, _, _ = other.recvmsg(100, socket.CMSG_LEN(4))
        fd = int.from_bytes(found[0][2], "little")
        got = os.read(fd, 100)
        os.write(write, got)
        one.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
        os.close(fd)
        return [data.decode(), got.decode()]

    return seen


def unix_listener():
    server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    server.bind("listener")
    server.listen()
    client.connect("listener")
    accepted, _ = server.accept()

    def seen():
        accepted.send(b"there")
        return [client.recv(5).decode(), server.getsockname()]

    return seen


def tcp():
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def seen():
        client.send(b"there")
        return [accepted.recv(5).decode(), client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)]

    return seen


def udp():
    one, other = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    other.bind(("127.0.0.1", 0))
    one.connect(other.getsockname())

    def seen():
        one.send(b"there")
        return other.recv(5).decode()

    return seen


def netlink():
    route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    route.bind((0, 0))
    return lambda: route.getsockname()[1] > 0


def terminal():
    """A pseudo terminal with both ends."""
    master, slave = pty.openpty()

    def seen():
        os.write(slave, b"line\n")
        return [os.read(master, 100).decode(), os.isatty(slave)]

    return seen


def process_descriptor():
    pid = child()
    fd = check(libc.syscall(PIDFD_OPEN, pid, 0))
    return lambda: f"Pid:\t{pid}" in Path(f"/proc/self/fdinfo/{fd}").read_text()


# --- files ------------------------------------------------------------------------------------------------------------
def path_only():
    fd = os.open("/etc", os.O_PATH)
    return lambda: os.stat("passwd", dir_fd=fd).st_size > 0


def deleted_file():
    fd = os.open("deleted", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"content")
    Path("deleted").unlink()
    return lambda: [os.pread(fd, 7, 0).decode(), os.fstat(fd).st_nlink]


def temporary_file():
    """Without a name from the beginning."""
    fd = os.open(".", os.O_RDWR | os.O_TMPFILE)
    os.write(fd, b"content")
    return lambda: os.pread(fd, 7, 0).decode()


def hard_links():
    Path("one").write_text("content")
    os.link("one", "two")
    fd = os.open("one", os.O_RDONLY)
    return lambda: [os.fstat(fd).st_nlink, Path("one").samefile("two"), os.pread(fd, 7, 0).decode()]


def holes():
    """A file of 40 GiB with three bytes, here, in the container's own file system, and without a name."""
    Path("/data").mkdir(exist_ok=True)
    files = [open(path, "w+b", buffering=0) for path in ("holes", "/data/holes", "holes-without-a-name")]  # noqa: SIM115
    for file in files:
        file.truncate(40 << 30)
        os.pwrite(file.fileno(), b"end", 39 << 30)
    Path("holes-without-a-name").unlink()

    def seen():
        return [[os.pread(file.fileno(), 3, 39 << 30).decode(), _small(file)] for file in files]

    return seen


def _small(file):
    status = os.fstat(file.fileno())
    return [status.st_size, status.st_blocks < 1 << 10]


def attributes():
    """Of a file and a folder: extended ones, an access list, mode and time."""
    Path("folder").mkdir()
    Path("folder/file").write_text("x")
    os.setxattr("folder", "user.one", b"\0\xff=\n")
    os.setxattr("folder/file", "user.two", b"2")
    # For user 7 beside owner, group, mask and others, as the kernel keeps it.
    entries = [(1, 6, -1), (2, 4, 7), (4, 4, -1), (16, 4, -1), (32, 0, -1)]
    words = b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr("folder/file", "system.posix_acl_access", struct.pack("<I", 2) + words)
    os.utime("folder/file", (1, 1))

    def seen():
        names = [(path, name) for path in ("folder", "folder/file") for name in sorted(os.listxattr(path))]
        status = Path("folder/file").stat()
        return [[*each, os.getxattr(*each).hex()] for each in names] + [status.st_mode, status.st_mtime]

    return seen


def signals_of_a_file():
    """O_ASYNC."""
    read, write = os.pipe()
    got = []
    signal.signal(signal.SIGIO, lambda *_: got.append(1))
    fcntl.fcntl(read, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)

    def seen():
        got.clear()
        os.write(write, b"x")
        until = time.monotonic() + 5
        while not got and time.monotonic() < until:
            time.sleep(0.001)
        return [os.read(read, 10).decode(), bool(got)]

    return seen


# --- shared memory, semaphores ----------------------------------------------------------------------------------------
def shared_memory():
    """With a name in /dev/shm, which stays open for writing."""
    found = shared_memory_of_python.SharedMemory("mine", create=True, size=4096)
    found.buf[:4] = b"kept"
    path = Path("/dev/shm/mine")

    def seen():
        found.buf[4] = found.buf[4] % 100 + 1
        return [bytes(found.buf[:4]).decode(), path.read_bytes()[4] == found.buf[4]]

    return seen


def shared_anonymous():
    """With a child."""
    shared = mmap.mmap(-1, 4096)
    if os.fork() == 0:
        while True:
            shared[1] = shared[0]
            time.sleep(0.001)

    def seen():
        shared[0] = shared[0] % 100 + 1
        until = time.monotonic() + 5
        while shared[1] != shared[0] and time.monotonic() < until:
            time.sleep(0.001)
        return shared[1] == shared[0]

    return seen


def semaphore():
    """POSIX, as multiprocessing makes it."""
    found = multiprocessing.get_context("fork").Semaphore(3)
    found.acquire()
    return found.get_value


# --- timers -----------------------------------------------------------------------------------------------------------
def interval_timer():
    """setitimer."""
    got = []
    signal.signal(signal.SIGALRM, lambda *_: got.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)

    def seen():
        got.clear()
        until = time.monotonic() + 5
        while len(got) < 2 and time.monotonic() < until:
            time.sleep(0.001)
        return [len(got) >= 2, signal.getitimer(signal.ITIMER_REAL)[1]]

    return seen


# --- processes and what they have chosen ------------------------------------------------------------------------------
def stopped_child():
    pid = child()
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    return lambda: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def zombie():
    pid = os.fork()
    if not pid:
        os._exit(3)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT).si_status


def cpus():
    """Of a child, and of one of its threads: this process would take its own to what it starts."""
    child = subprocess.Popen(["/usr/bin/python3", "-c", _PINNED])
    path = Path(f"/proc/{child.pid}/task")
    first = f"{min(os.sched_getaffinity(0))}"
    until = time.monotonic() + 20
    while len(list(path.iterdir())) < 2 or _allowed(path / str(child.pid)) != first:
        assert time.monotonic() < until
        time.sleep(0.01)
    return lambda: [_allowed(task) for task in sorted(path.iterdir())]


_PINNED = """
import os, threading, time
every = sorted(os.sched_getaffinity(0))
def other():
    os.sched_setaffinity(0, every[-1:])
    ready.set()
    time.sleep(1e6)
ready = threading.Event()
threading.Thread(target=other).start()
ready.wait()
os.sched_setaffinity(0, every[:1])
time.sleep(1e6)
"""


def _allowed(task):
    lines = (task / "status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:"))


def disk_priority():
    check(libc.syscall(IOPRIO_SET, 1, 0, (2 << 13) | 6))
    return lambda: libc.syscall(IOPRIO_GET, 1, 0)


def memory_policy():
    """Interleave over node 0."""
    check(libc.syscall(SET_MEMPOLICY, 3, ctypes.byref(ctypes.c_ulong(1)), 64))

    def seen():
        mode, nodes = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
        check(libc.syscall(GET_MEMPOLICY, ctypes.byref(mode), nodes, 1024, None, 0))
        return [mode.value, nodes[0]]

    return seen


def core_filter():
    path = Path("/proc/self/coredump_filter")
    path.write_text("0x7f")
    return path.read_text


def limits_and_mask():
    resource.setrlimit(resource.RLIMIT_NOFILE, (700, 800))
    os.umask(0o027)

    def seen():
        mask = os.umask(0o027)
        return [resource.getrlimit(resource.RLIMIT_NOFILE), mask]

    return seen


def niceness():
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.nice(5)
    return lambda: [os.nice(0), os.sched_getscheduler(0)]


def huge_pages_off():
    check(libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
    return lambda: libc.prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0)


def subreaper():
    check(libc.prctl(36, 1, 0, 0, 0))

    def seen():
        value = ctypes.c_int(-1)
        check(libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0))
        return value.value

    return seen
