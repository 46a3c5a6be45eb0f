"""Holds what its arguments name (JSON: a list of [kind, ...]), and says how each of it is whenever it is asked.

A file `ask-N` asks; the answer is `state-N`, one value for each thing held, the same before and after a move.
"""

import ctypes
import fcntl
import json
import mmap
import os
import select
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import objects

libc = ctypes.CDLL(None, use_errno=True)
TRY = """
import fcntl, os, struct, sys
path, kind, start, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
fd = os.open(path, os.O_RDWR)
for exclusive in True, False:
    try:
        if kind == "flock":
            fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        else:
            how = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
            fcntl.fcntl(fd, fcntl.F_SETLK, struct.pack("hhqqi4x", how, 0, start, size, 0))
        print("free")
    except OSError:
        print("taken")
"""


def taken(path, kind, start=0, size=0):
    """Whether another process could have it exclusively, and shared."""
    words = [sys.executable, "-c", TRY, path, kind, str(start), str(size)]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def own(fd):
    """What the kernel says of the locks that a descriptor shows: kind, mode, range."""
    with open(f"/proc/self/fdinfo/{fd}") as file:
        words = [line.split() for line in file if line.startswith("lock:")]
    return sorted([w[2], w[4], w[7], w[8]] for w in words)


class Flock:
    """`how`: plain, by a child that has ended (as `flock 9` in a shell), shared with a child that lives."""

    def __init__(self, path, exclusive, how):
        self.path = path
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        mode = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        if how == "ended":
            pid = os.fork()
            if pid == 0:
                fcntl.flock(self.fd, mode)
                os._exit(0)
            os.waitpid(pid, 0)
        else:
            fcntl.flock(self.fd, mode)
        if how == "shared" and os.fork() == 0:
            while True:
                time.sleep(1)

    def state(self):
        return [own(self.fd), taken(self.path, "flock")]


class Range:
    """POSIX (`lockf`) or OFD lock of some bytes."""

    def __init__(self, path, ofd, exclusive, start, size):
        self.path, self.start, self.size = path, start, size
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        how = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
        words = struct.pack("hhqqi4x", how, 0, start, size, 0)
        fcntl.fcntl(self.fd, 37 if ofd else fcntl.F_SETLK, words)

    def state(self):
        beside = taken(self.path, "range", self.start + self.size, 1) if self.size else []
        return [own(self.fd), taken(self.path, "range", self.start, self.size), beside]


class Mapped:
    """A POSIX lock on a file that is mapped as well, as databases have it, in a process with threads that wait."""

    def __init__(self, path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(bytes(8192))
        self.path, self.fd = path, os.open(path, os.O_RDWR)
        self.mapped = mmap.mmap(self.fd, 8192)
        for start in (0, 100):
            fcntl.fcntl(self.fd, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, start, 10, 0))
        self.asked, self.answered = threading.Event(), threading.Event()
        threading.Thread(target=self.answer, daemon=True).start()

    def answer(self):
        while self.asked.wait():
            self.asked.clear()
            self.answered.set()

    def state(self):
        self.mapped[0] = 1
        self.asked.set()
        assert self.answered.wait(120)
        self.answered.clear()
        return [own(self.fd), *(taken(self.path, "range", start, 10) for start in (0, 50, 100))]


class Nameless:
    """A locked file whose name is gone."""

    def __init__(self, path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        Path(path).unlink()

    def state(self):
        return own(self.fd)


class Watch:
    def __init__(self, folder, mask):
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.folder, self.fd, self.asked = folder, libc.inotify_init1(os.O_NONBLOCK), 0
        self.wd = libc.inotify_add_watch(self.fd, folder.encode(), mask)
        assert self.wd > 0, os.strerror(ctypes.get_errno())

    def state(self):
        path = Path(self.folder) / "touched"
        path.write_text("x")
        path.unlink()
        data, at, found = os.read(self.fd, 65536), 0, []
        while at < len(data):
            wd, mask, _, size = struct.unpack_from("iIII", data, at)
            found.append([wd, mask, data[at + 16 : at + 16 + size].rstrip(b"\0").decode()])
            at += 16 + size
        return found


class Timer:
    """`read`: its ticks are taken; else it had expired long before and nobody has looked."""

    def __init__(self, clock, interval, absolute, read):
        self.fd = os.timerfd_create(clock, flags=os.TFD_NONBLOCK)
        first = time.clock_gettime(clock) + interval if absolute else interval
        flags = os.TFD_TIMER_ABSTIME if absolute else 0
        os.timerfd_settime(self.fd, flags=flags, initial=first, interval=interval)
        self.interval = interval
        if not read:
            select.select([self.fd], [], [], 10)

    def state(self):
        """[it ticks, and again, its interval]"""
        ticks = []
        for _ in range(2):
            ready, _, _ = select.select([self.fd], [], [], 10)
            ticks.append(bool(ready) and struct.unpack("q", os.read(self.fd, 8))[0] > 0)
        again = bool(select.select([self.fd], [], [], 10)[0])  # left unread: the kernel stops such a timer
        return [*ticks, again, round(os.timerfd_gettime(self.fd)[1], 6)]


HELPER = """
import pathlib, sys, time
path = pathlib.Path(sys.argv[1])
n = 0
while True:
    n += 1
    path.with_suffix(".new").write_text(str(n))
    path.with_suffix(".new").replace(path)
    time.sleep(0.02)
"""


class Helper:
    """A process that has detached itself. `how`: orphan, session (setsid, orphan), daemon (setsid, twice forked)."""

    def __init__(self, name, how):
        self.path = Path(name).resolve()
        mine = self.path.with_suffix(".pid")
        first = os.fork()
        if first == 0:
            if how != "orphan":
                os.setsid()
            pid = os.fork()
            if pid == 0 and how == "session":
                os.setsid()
            if pid == 0:
                mine.write_text(str(os.getpid()))
                os.execv(sys.executable, [sys.executable, "-c", HELPER, str(self.path)])
            os._exit(0)
        os.waitpid(first, 0)
        while not self.path.exists():
            time.sleep(0.01)
        self.pid = int(mine.read_text())

    def state(self):
        """Who it is, once it has gone on."""
        before, end = self.path.read_text(), time.monotonic() + 10
        while self.path.read_text() == before:
            if time.monotonic() > end:
                return "stands"
            time.sleep(0.01)
        parent = int(Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        return [self.pid, parent, os.getpgid(self.pid)]


class Hdf5:
    """A file that h5py keeps open, as data sets are."""

    def __init__(self, path):
        import h5py

        with h5py.File(path, "w") as file:
            file["x"] = list(range(1000))
        self.path, self.file = path, h5py.File(path, "r")

    def state(self):
        return [int(self.file["x"][5]), taken(self.path, "flock")]


class Lmdb:
    def __init__(self, path):
        import lmdb

        self.env, self.path = lmdb.open(path, map_size=1 << 24), path
        with self.env.begin(write=True) as transaction:
            transaction.put(b"n", b"0")

    def state(self):
        with self.env.begin(write=True) as transaction:
            before = int(transaction.get(b"n"))
            transaction.put(b"n", b"%d" % (before + 1))
        with self.env.begin() as transaction:
            return [int(transaction.get(b"n")) - before, taken(f"{self.path}/lock.mdb", "range")]


class Sqlite:
    """In WAL mode, with a reader in another process."""

    def __init__(self, path):
        import sqlite3

        self.base = sqlite3.connect(path, autocommit=True)
        self.base.execute("pragma journal_mode=wal")
        self.base.execute("create table t (n)")
        self.read = f"import sqlite3; print(sqlite3.connect({path!r}).execute('select count(*) from t').fetchone()[0])"

    def state(self):
        self.base.execute("insert into t values (1)")
        argv = [sys.executable, "-c", self.read]
        seen = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
        (count,) = self.base.execute("select count(*) from t").fetchone()
        return [int(seen) == count, self.base.execute("pragma journal_mode").fetchone()]


class Dask:
    """dask's LocalCluster with processes: a scheduler here, a nanny and a worker process each."""

    def __init__(self, workers):
        from distributed import Client, LocalCluster

        self.cluster = LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)
        self.client = Client(self.cluster)

    def state(self):
        total = self.client.submit(sum, list(range(100)), pure=False).result(120)
        return [total, sorted(self.client.run(os.getpid).values())]


def made(kind, *words):
    return globals()[kind](*words) if kind in globals() else SimpleNamespace(state=getattr(objects, kind)(*words))


def main():
    held = [made(*thing) for thing in json.loads(sys.argv[1])]
    Path("ready").touch()
    number = 0
    while not Path("end").exists():
        if not Path(f"ask-{number}").exists():
            time.sleep(0.005)
            continue
        Path("state.new").write_text(json.dumps([each.state() for each in held]))
        Path("state.new").rename(f"state-{number}")
        number += 1


if __name__ == "__main__":  # dask's workers import it
    main()
