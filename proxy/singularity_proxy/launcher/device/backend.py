"""Device state of a rank's processes: suspended before the dump, resumed in place, restored in another pod."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from ...protocol import decode
from ..errors import DumpError, RestoreError
from . import remap
from .copies import Copies
from .copies import wanted as copies_wanted
from .driver import CudaDriver, Device, Driver, DriverError, State

RECORD = "devices.json"
"""Beside CRIU's images, only for a rank that has state on a device."""
NODES = ("/dev/nvidia",)
MIN_LOCK_MS = 1000


@dataclass(frozen=True)
class DeviceRecord:
    """The facts that a restore needs. `pids` as the processes see themselves in their slot."""

    pids: list[int]
    devices: list[Device]
    """All GPUs that the dumping pod saw, in CUDA's order."""
    used: list[str] = field(default_factory=list)
    """UUIDs that the rank has state on."""
    copied: bool = False
    """Its device memory lies in files of the image, not in its own memory."""


class Backend(Protocol):
    """Of one pod. Ranks are given as rank -> PIDs of its processes, in our PID namespace."""

    name: str
    problem: str
    """Why the devices of this pod cannot be used; "" if they can."""

    def users(self, pids: Sequence[int]) -> list[int]:
        """Those that have state on a device."""

    def suspend(self, ranks: Mapping[int, Sequence[int]], deadline: float, images: Mapping[int, Path]) -> None:
        """Move all device state of all ranks into their own memory, or into their images.

        :param deadline: of the monotonic clock
        :param images: rank -> folder, which need not exist
        Raises DumpError; suspended processes go on then.
        """

    def record(self, pids: Sequence[int], used: Sequence[str] | None) -> DeviceRecord | None:
        """What to keep of one suspended rank; None: it has no state on a device. `used`: UUIDs that its agent reported;
        None: there was no report, so all GPUs of the pod count."""

    def resume(self, pids: Sequence[int]) -> None:
        """Undo `suspend` in place; nothing happens to processes that are not suspended. Raises DumpError."""

    def restore(self, pids: Mapping[int, int], record: DeviceRecord, place: int, images: Path) -> dict[str, str]:
        """Give a restored rank its devices back. `pids`: PID in the slot -> ours. Raises RestoreError.

        :param images: folder of the rank
        Returns UUID of each GPU of the dumping pod -> of the one in its place.
        """


class NoDevices:
    """A machine without devices. A checkpoint that has device state is refused, never half restored."""

    name = "cpu"

    def __init__(self, problem: str = "") -> None:
        self.problem = problem

    def users(self, pids: Sequence[int]) -> list[int]:
        return []

    def suspend(self, ranks: Mapping[int, Sequence[int]], deadline: float, images: Mapping[int, Path]) -> None:
        return

    def record(self, pids: Sequence[int], used: Sequence[str] | None) -> DeviceRecord | None:
        return None

    def resume(self, pids: Sequence[int]) -> None:
        return

    def restore(self, pids: Mapping[int, int], record: DeviceRecord, place: int, images: Path) -> dict[str, str]:
        kinds = ", ".join(sorted({each.name for each in record.devices})) or "GPUs"
        raise RestoreError(
            f"the checkpoint has state on {kinds}, this pod has no GPU that its driver would restore: ask for "
            "nvidia.com/gpu, with driver 570 or newer"
        )


class Cuda:
    """:param driver: NVIDIA's, or the fake one
    :param proc: where processes are looked at
    :param copy: copy device memory ourselves, where the driver can
    """

    name = "cuda"
    problem = ""

    def __init__(self, driver: Driver, proc: Path = Path("/proc"), copy: bool = False) -> None:
        self._driver = driver
        self._proc = proc
        self._copy = copy and driver.lends()
        self._suspended: set[int] = set()
        self._copies: dict[int, Copies] = {}

    def users(self, pids: Sequence[int]) -> list[int]:
        found = []
        for pid in pids:
            if pid in self._suspended:  # it has given its descriptors up
                found.append(pid)
                continue
            if self._holds_a_device(pid):
                try:
                    self._driver.state(pid)
                except DriverError:
                    continue  # NVML alone, say: no CUDA state
                found.append(pid)
        return found

    def _holds_a_device(self, pid: int) -> bool:
        try:
            entries = list((self._proc / str(pid) / "fd").iterdir())
        except OSError:
            return False  # it has ended
        for entry in entries:
            try:
                if str(entry.readlink()).startswith(NODES):
                    return True
            except OSError:
                continue
        return False

    def suspend(self, ranks: Mapping[int, Sequence[int]], deadline: float, images: Mapping[int, Path]) -> None:
        owners = {pid: rank for rank, pids in ranks.items() for pid in self.users(pids)}
        if not owners:
            return
        try:
            # All are locked before the first is copied: a process that waits for another's device could never be locked
            # later.
            self._each(owners, "lock", lambda pid: self._driver.lock(pid, self._patience(deadline)))
            self._suspended |= owners.keys()
            if self._copy:
                self._copies |= {pid: Copies(images[rank], _inner(pid, self._proc)) for pid, rank in owners.items()}
            self._each(owners, "checkpoint", lambda pid: self._driver.checkpoint(pid, self._copies.get(pid)))
            problems = [copies.problem for pid, copies in self._copies.items() if pid in owners and copies.problem]
            if problems:
                raise DumpError("; ".join(problems))
        except DumpError:
            for pid in owners:
                self._go_on(pid)
            raise

    def _patience(self, deadline: float) -> int:
        return max(MIN_LOCK_MS, int((deadline - time.monotonic()) * 1000))

    def _each(self, owners: Mapping[int, int], verb: str, work: Callable[[int], None]) -> None:
        with ThreadPoolExecutor(len(owners)) as pool:
            jobs = {pid: pool.submit(work, pid) for pid in owners}
        problems = [
            f"rank {owners[pid]}: {_explain(verb, error)}"
            for pid, job in jobs.items()
            if (error := job.exception()) is not None
        ]
        if problems:
            raise DumpError("; ".join(problems))

    def record(self, pids: Sequence[int], used: Sequence[str] | None) -> DeviceRecord | None:
        mine = [pid for pid in pids if pid in self._suspended]
        if not mine:
            return None
        devices = self._driver.devices()
        here = [device.uuid for device in devices]
        names = here if used is None else [name for name in used if name in here]
        return DeviceRecord([_inner(pid, self._proc) for pid in mine], devices, names, self._copy)

    def resume(self, pids: Sequence[int]) -> None:
        problems = [text for pid in pids if pid in self._suspended and (text := self._go_on(pid))]
        if problems:
            raise DumpError("; ".join(problems))

    def _go_on(self, pid: int) -> str:
        """Bring a process to RUNNING from any state. Returns the problem, "" if there was none."""
        copies = self._copies.pop(pid, None)
        try:
            if self._driver.state(pid) is State.CHECKPOINTED:
                if copies is not None and not copies.complete:
                    return f"process {pid} has lost its device memory: not all of it could be copied"
                self._driver.restore(pid, {}, copies)
            if self._driver.state(pid) is State.LOCKED:
                self._driver.unlock(pid)
        except DriverError as error:
            return f"process {pid} could not get its device back ({error})"
        finally:
            self._suspended.discard(pid)
        return ""

    def restore(self, pids: Mapping[int, int], record: DeviceRecord, place: int, images: Path) -> dict[str, str]:
        if record.copied and not self._driver.lends():
            raise RestoreError(
                "the checkpoint has device memory that the launcher copied; this pod's driver cannot take it back: it "
                "needs CUDA 13.4"
            )
        missing = [pid for pid in record.pids if pid not in pids]
        if missing:
            raise RestoreError(f"processes {missing} had state on a device and were not restored")
        chosen = remap.pairs(record.devices, record.used, self._driver.devices(), place)
        for inner in record.pids:
            copies = Copies(images, inner) if record.copied else None
            try:
                self._driver.restore(pids[inner], {} if all(a == b for a, b in chosen.items()) else chosen, copies)
                self._driver.unlock(pids[inner])
            except DriverError as error:
                raise RestoreError(f"process {inner} did not get its device state back ({error})") from None
        return chosen


def _explain(verb: str, error: BaseException) -> str:
    if isinstance(error, DriverError) and error.code == "CUDA_ERROR_NOT_READY":
        return "its device was still busy when the time for the checkpoint was over"
    if isinstance(error, DriverError) and error.code == "CUDA_ERROR_NOT_SUPPORTED":
        return f"the driver cannot {verb} it ({error}); it does not support managed memory, CUDA IPC and MPS"
    return f"{verb} failed ({error})"


def _inner(pid: int, proc: Path) -> int:
    """PID as the process sees itself."""
    lines = (proc / str(pid) / "status").read_text().splitlines()
    return int(next((line.split()[-1] for line in lines if line.startswith("NSpid:")), str(pid)))


def by_inner(pids: Sequence[int], proc: Path = Path("/proc")) -> dict[int, int]:
    """PID in the slot -> ours."""
    return {_inner(pid, proc): pid for pid in pids}


def write(folder: Path, record: DeviceRecord) -> None:
    (folder / RECORD).write_text(json.dumps(asdict(record)))


LARGEST_RECORD = 1 << 20
"""Bytes."""


def read(folder: Path) -> DeviceRecord | None:
    """None: the rank had no state on a device. Raises RestoreError."""
    try:
        data = decode.json_value((folder / RECORD).read_bytes(), LARGEST_RECORD)
        if isinstance(data, decode.Unreadable):
            raise ValueError(data.why)
        devices = [Device(str(d["uuid"]), str(d["name"]), int(d["memory"])) for d in data["devices"]]
        used = [str(name) for name in data["used"]]
        return DeviceRecord([int(pid) for pid in data["pids"]], devices, used, bool(data.get("copied")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RestoreError(f"{folder / RECORD} cannot be used: {error!r}; the image is incomplete") from None


def find(env: Mapping[str, str]) -> Backend:
    """The backend of this container: CUDA if there is a device, and a driver with the checkpoint API.

    Raises CommandError for a variable that cannot be used.
    """
    copy = copies_wanted(env)
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return NoDevices()
    try:
        driver = CudaDriver()
        return Cuda(driver, copy=copy) if driver.devices() else NoDevices()
    except (DriverError, OSError) as error:
        return NoDevices(f"what the ranks have on this pod's GPUs cannot be saved: {error}")
