"""A machine for the GPU kit: an empty root file system with python3 and torch only, and the kit's folder in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_ENTER = r"""
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o "lowerdir=$ROOTFS,upperdir=/mnt/upper,workdir=/mnt/work" /mnt/root
cd /mnt/root
mkdir -p opt/torch kit report tmp .old dev/shm proc
mount --bind "$TORCH" opt/torch; mount -o remount,bind,ro opt/torch
mount --bind "$KIT" kit; mount -o remount,bind,ro kit
mount --bind "$REPORT" report
mount -t tmpfs tmpfs dev
for d in null zero full random urandom tty; do touch dev/$d; mount --bind /dev/$d dev/$d; done
mkdir dev/shm; mount -t tmpfs -o size=1g tmpfs dev/shm
mount -t tmpfs tmpfs tmp
mount -t proc proc proc
rm -f usr/sbin/criu
pivot_root . .old
cd /
umount -l /.old
python3 -c 'import fcntl, socket, struct
# SIOCSIFFLAGS: the loopback is up on every machine
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh", b"lo", 1))'
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec env -i PATH="$PATH" HOME=/root OMP_NUM_THREADS=1 PYTHONPATH=/opt/torch bash /kit/run --out /report "$@"
"""


def run_kit(
    kit: Path, rootfs: Path, torch: Path, report: Path, *arguments: str, timeout: float = 280
) -> subprocess.CompletedProcess[str]:
    """`bash run --out report ARGUMENTS` on that machine, which has no network but its own."""
    report.mkdir(exist_ok=True)
    return subprocess.run(
        ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-ec", _ENTER, "sh", *arguments],
        env={
            "PATH": os.environ["PATH"], "ROOTFS": str(rootfs), "TORCH": str(torch), "KIT": str(kit),
            "REPORT": str(report),
        },
        capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
