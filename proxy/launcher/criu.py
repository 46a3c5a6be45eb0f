"""CRIU's command lines and what its log says when it fails."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import reap
from .errors import DumpError, LauncherError
from .slot import Slot

_LOADER = "ld-linux-x86-64.so.2"
# Said by healthy runs in a container, too.
_HARMLESS = re.compile(r"tun:|rlimit")
# Connections stay inside the slot (`sockets`): while both ends stand still, nothing has to be locked out.
_COMMON = ("-v4", "--tcp-established", "--network-lock", "skip")
LARGEST_GHOST = 0xFFFFF000
"""CRIU keeps the limit in 32 bits."""
DUMP_LOG = "dump.log"
RESTORE_LOG = "restore.log"
FEATURES = Path("/run/criu.kdat")
"""Where CRIU looks for what it knows about the kernel."""
_PROBE = 'mount -t tmpfs run "$0"; "$@" >&2 || :; cat "$0/criu.kdat"'
PROBE_S = 30.0
LATE_S = 20.0
"""How long a CRIU whose time is over may still take. It is a child of the `nsenter` that is killed, and lives on: to
kill it in the middle of a dump would leave ranks broken."""


@dataclass(frozen=True)
class Criu:
    """:param command: argv prefix that runs CRIU"""

    command: tuple[str, ...]

    @classmethod
    def find(cls, folder: Path) -> Criu:
        """The CRIU of the agent image, else the one on PATH. Raises LauncherError."""
        binary, loader = folder / "criu", folder / _LOADER
        if binary.exists() and loader.exists():
            return cls((str(loader), "--library-path", str(folder / "lib"), str(binary)))
        found = shutil.which("criu")
        if found is None:
            raise LauncherError(
                f"no CRIU: neither {binary} with its loader nor `criu` on PATH; was the agent installed?"
            )
        return cls((found,))

    def dump(
        self, root: int, images: Path, work: Path, ghosts: int = 512 << 20, real: tuple[int, int] = (0, 0)
    ) -> list[str]:
        """Dump and leave everything stopped: it can go on if the checkpoint comes to nothing, and cannot run ahead.

        :param ghosts: bytes that a file may have which is deleted and still in use
        :param real: uid and gid of the processes; for others than root's `probe` must have been called

        prlimit(2) on a process of another user needs CAP_SYS_RESOURCE, which machines in the cloud do not all have to
        give; but the kernel compares with the caller's *real* ids alone. So CRIU gets those of the processes, and stays
        root in effect.

        `--link-remap`: a named semaphore is mapped under a temporary name that glibc has unlinked since.
        """
        borrowed = ["setpriv", "--ruid", str(real[0]), "--rgid", str(real[1]), "--keep-groups", "--"]
        return [
            *(borrowed if any(real) else ()), *self.command, "dump", "-t", str(root), "-D", str(images),
            "-W", str(work), "-o", DUMP_LOG, *_COMMON, "--ghost-limit", str(min(ghosts, LARGEST_GHOST)), "--link-remap",
            "--leave-stopped",
        ]  # fmt: skip

    def probe(self, target: Path = FEATURES) -> None:
        """Leave what CRIU finds out about the kernel where it looks for it. Raises DumpError.

        One of its probes loads libxtables, which ends a process whose real and effective uid differ (exit code 111).
        CRIU itself keeps what it has found on a tmpfs only, so it gets one, which nobody else sees.
        """
        if target.exists():
            return
        target.parent.mkdir(exist_ok=True)
        words = [*self.command, "check", "--feature", "mem_dirty_track"]
        process = reap.spawn(
            ["unshare", "--mount", "sh", "-ec", _PROBE, str(target.parent), *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            found, said = process.communicate(timeout=PROBE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise DumpError(f"CRIU did not tell within {PROBE_S:.0f} s what this kernel can do") from None
        finally:
            reap.forget(process)
        if process.returncode != 0 or not found:
            text = said.decode(errors="replace").strip()[-500:]
            raise DumpError(f"CRIU did not tell what this kernel can do: {text or process.returncode}")
        written = target.with_name(f"{target.name}.tmp")
        written.write_bytes(found)
        written.replace(target)

    def restore(self, images: Path, work: Path) -> list[str]:
        """Restore and detach."""
        return [
            *self.command, "restore", "-d", "-D", str(images), "-W", str(work), "-o", RESTORE_LOG, *_COMMON,
        ]  # fmt: skip


def run(slot: Slot, argv: Sequence[str], timeout_s: float) -> str:
    """Run CRIU inside a slot. "" when it succeeded, else what happened."""
    process = reap.spawn(slot.inside(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        said, _ = process.communicate(timeout=max(timeout_s, 0.0))
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=LATE_S)
        return f"did not end within {timeout_s:.0f} s"
    finally:
        reap.forget(process)
    if process.returncode == 0:
        return ""
    return f"ended with {process.returncode}: {said.decode(errors='replace').strip()[-500:]}"


def errors(log: Path, most: int = 6) -> list[str]:
    """The first error lines of a CRIU log."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return [f"no log: {error}"]
    return [line.strip()[:300] for line in lines if "Error" in line and not _HARMLESS.search(line)][:most]
