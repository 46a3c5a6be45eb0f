"""Counts every tenth of a second while it holds locks, a watch, a timer and a helper: number, what it sees, when."""

import ctypes
import fcntl
import json
import os
import struct
import subprocess
import time
from pathlib import Path

RANK = os.environ["RANK"]
OUTPUT = Path(os.environ["OUTPUT"])
libc = ctypes.CDLL(None)
Path("/data").mkdir(exist_ok=True)
shard = Path(f"/data/of-{RANK}") if os.environ["LOCAL_WORLD_SIZE"] != "1" else Path("/data/shard")
shard.write_text(RANK)  # the same path in each pod of one rank
local = open(f"/data/lock-{RANK}", "w")  # noqa: SIM115
fcntl.flock(local, fcntl.LOCK_EX)
shared = open(OUTPUT / f"lock-{RANK}", "w")  # noqa: SIM115
fcntl.lockf(shared, fcntl.LOCK_EX, 10)
queue = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(queue, b".", 0x100) > 0  # IN_CREATE
timer = os.timerfd_create(time.CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK)
os.timerfd_settime(timer, initial=0.05, interval=0.05)
helper = "while true; do date +%s%N > beat.new; mv beat.new beat; sleep 0.05; done"
subprocess.run(["sh", "-c", f"nohup sh -c '{helper}' >/dev/null 2>&1 &"], check=True)


def locks():
    lines = [line for f in (local, shared) for line in Path(f"/proc/self/fdinfo/{f.fileno()}").read_text().splitlines()]
    return [line.split()[2] for line in lines if line.startswith("lock:")]


def beats():
    before, end = Path("beat").read_text() if Path("beat").exists() else "", time.monotonic() + 30
    while time.monotonic() < end:
        if Path("beat").exists() and Path("beat").read_text() not in ("", before):
            return True
        time.sleep(0.01)
    return False


number = 0
with (OUTPUT / f"lines-{RANK}").open("a", buffering=1) as out:
    while not (OUTPUT / "stop").exists():
        Path(f"seen-{number}").touch()
        seen = f"seen-{number}".encode() in os.read(queue, 65536)
        Path(f"seen-{number}").unlink()
        time.sleep(0.1)
        ticks = struct.unpack("q", os.read(timer, 8))[0] > 0
        value = json.dumps([*locks(), seen, ticks, beats(), shard.read_text() == RANK], separators=(",", ":"))
        out.write(f"{number} {value} {time.time()}\n")
        number += 1
