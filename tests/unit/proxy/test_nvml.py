"""What NVML says of GPUs. The contract runs on the fake, on the real pynvml over a fake libnvidia-ml, on a real GPU."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pynvml
import pytest
from fake_libnvml import FakeLibrary

from singularity_proxy.launcher.device import nvml, reader, watch
from singularity_proxy.launcher.device.fake_nvml import FakeGpu, FakeNvml
from singularity_proxy.protocol import gpus
from singularity_proxy.protocol.messages import GpuFault, Gpus, PodGpus

GIB = 1 << 30
FIRST, SECOND = (f"GPU-{n:08d}-0000-0000-0000-000000000000" for n in range(2))
NEVER_S = 3600.0
WAIT_S = 20.0


@pytest.fixture
def fake() -> FakeNvml:
    """The second GPU has no utilisation sensor and bad memory."""
    return FakeNvml(
        [
            FakeGpu(FIRST, "NVIDIA H200", GIB, 139 * GIB, busy=45),
            FakeGpu(SECOND, "NVIDIA H200", 2 * GIB, 139 * GIB, busy=None, corrected=None, uncorrected=3),
        ]
    )


@pytest.fixture(params=["fake", "pynvml"])
def library(request: pytest.FixtureRequest, fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What stands in pynvml's place; `fake` says what it sees."""
    if request.param == "fake":
        return fake
    monkeypatch.setattr(pynvml, "nvmlLib", FakeLibrary(fake))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return pynvml


class Watched:
    """What was told, by a watch in a thread of its own."""

    def __init__(self, library: Any, every_s: float) -> None:
        self.told: list[Gpus] = []
        self._changed = threading.Condition()
        self.ended = threading.Event()
        args = (library, self._take, self.ended, every_s)
        self.thread = threading.Thread(target=watch.watch, args=args, daemon=True)
        self.thread.start()

    def _take(self, now: Gpus) -> None:
        with self._changed:
            self.told.append(now)
            self._changed.notify_all()

    def until(self, least: int) -> Gpus:
        """The newest after `least` were told."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.told) >= least, WAIT_S), self.told
            return self.told[-1]


@contextmanager
def watched(library: Any, every_s: float = NEVER_S) -> Iterator[Watched]:
    found = Watched(library, every_s)
    try:
        yield found
    finally:
        found.ended.set()
        # A wait for events ends at once only when one comes.
        found.thread.join(WAIT_S if every_s < NEVER_S else 0)


def test_health_is_read_and_told(library: Any, fake: FakeNvml) -> None:
    first, second = nvml.read(library)
    assert first.line() == f"{FIRST} NVIDIA H200: 1.0 of 139.0 GiB used, 45 % busy"
    assert first.sound and not second.sound
    assert second.line().endswith("2.0 of 139.0 GiB used; NOT SOUND: 3 uncorrected memory errors, replace it")
    assert (first.corrected_errors, second.corrected_errors) == (0, None)
    assert fake.open == 0


def test_no_driver_is_no_health_and_nothing_to_watch(library: Any, fake: FakeNvml) -> None:
    fake.driver = False
    assert nvml.read(library) == []
    told: list[Gpus] = []
    watch.watch(library, told.append, threading.Event())  # returns
    assert told == []


def test_the_first_look_is_told_at_once_and_an_xid_when_it_comes(library: Any, fake: FakeNvml) -> None:
    with watched(library) as seen:
        first = seen.until(1)
        assert first == Gpus(2, 45.0, 2 * GIB, 139 * GIB, ecc_corrected=0, ecc_uncorrected=0)
        fake.happens(1, fake.nvmlEventTypeXidCriticalError, 79)
        assert seen.until(2).faults == [GpuFault(SECOND, 79, 1)]
        fake.happens(1, fake.nvmlEventTypeXidCriticalError, 79)
        assert seen.until(3).faults == [GpuFault(SECOND, 79, 2)]
        fake.happens(0, fake.nvmlEventTypeXidCriticalError, 31)
        found = seen.until(4)
        assert {(f.gpu, f.xid, f.count) for f in found.faults} == {(SECOND, 79, 2), (FIRST, 31, 1)}
        assert found.count == 2
        seen.ended.set()
        fake.happens(0, fake.nvmlEventTypeXidCriticalError, 31)  # ends the wait
        seen.thread.join(WAIT_S)
    assert fake.open == 0 and fake.sets == {}


def test_looks_add_up(library: Any, fake: FakeNvml) -> None:
    """Mean of all looks, the peak, and errors since the first look."""
    with watched(library, every_s=0.01) as seen:
        seen.until(1)
        fake.gpus[0].busy, fake.gpus[0].used = 95, 70 * GIB
        fake.gpus[0].corrected, fake.gpus[1].uncorrected = 4, 5
        seen.until(len(seen.told) + 2)
        fake.gpus[0].used = GIB
        found = seen.until(len(seen.told) + 2)
    assert found.utilisation is not None and 45 < found.utilisation <= 95
    assert (found.memory_peak, found.memory_total) == (70 * GIB, 139 * GIB)
    assert (found.ecc_corrected, found.ecc_uncorrected, found.faults) == (4, 2, [])
    assert fake.open == 0 and fake.sets == {}


def test_a_lost_gpu_does_not_hide_the_other_one_and_is_told_by_name(library: Any, fake: FakeNvml) -> None:
    with watched(library, every_s=0.01) as seen:
        seen.until(1)
        fake.gpus[1].lost = True
        fake.happens(1, fake.nvmlEventTypeXidCriticalError, 79)
        fake.gpus[0].used = 50 * GIB
        while True:
            found = seen.until(len(seen.told) + 1)
            if found.memory_peak == 50 * GIB and found.faults:
                break
    assert found.faults == [GpuFault(SECOND, 79, 1)] and found.count == 2


def test_gpus_that_report_nothing_are_still_looked_at(library: Any, fake: FakeNvml) -> None:
    for gpu in fake.gpus:
        gpu.reports = False
    with watched(library, every_s=0.01) as seen:
        seen.until(3)
        seen.ended.set()
        seen.thread.join(WAIT_S)
        assert not seen.thread.is_alive()
    with watched(library) as seen:  # also in the midst of a long wait
        seen.until(1)
        seen.ended.set()
        seen.thread.join(WAIT_S)
        assert not seen.thread.is_alive()


def test_an_ecc_event_is_no_xid(library: Any, fake: FakeNvml) -> None:
    with watched(library, every_s=0.05) as seen:
        seen.until(1)
        fake.happens(0, fake.nvmlEventTypeDoubleBitEccError)
        fake.gpus[0].uncorrected = 1
        found = seen.until(len(seen.told) + 2)
    assert found.ecc_uncorrected == 1 and found.faults == []


def test_nothing_can_be_asked_outside_of_a_session(library: Any, fake: FakeNvml) -> None:
    with pytest.raises(library.NVMLError) as refused:
        library.nvmlDeviceGetCount()
    assert refused.value.value == library.NVML_ERROR_UNINITIALIZED


def test_the_fake_has_the_names_of_the_real_library() -> None:
    assert nvml.library() is pynvml
    for name, value in vars(FakeNvml).items():
        if name.startswith("nvml") and callable(value):
            mine = [p for p in inspect.signature(value).parameters if p != "self"]
            theirs = inspect.signature(getattr(pynvml, name)).parameters
            assert mine == [p for p in theirs if theirs[p].default is inspect.Parameter.empty], name
        elif name.startswith(("nvml", "NVML_")):
            assert getattr(pynvml, name) == value, name
    assert nvml.load("/no/such/library") is None


# --- the process that reads it ----------------------------------------------------------------------------------------
SAYS = """
import json, sys, time
print("GPU-1 H200: 1.0 of 139.0 GiB used \\x1b[31m", flush=True)
print(json.dumps({"count": 2, "utilisation": 45.0}), flush=True)
print("{broken", flush=True)
print('{"count": "many"}', flush=True)
sys.stdout.buffer.write(b"\\xff" * 100_000 + b"\\n")
print(json.dumps({"count": 3}), flush=True)
print("\\n".join(f"line {n}" for n in range(1000)), flush=True)
"""


def test_what_the_reading_process_says_is_passed_on_and_no_more() -> None:
    told: list[Gpus] = []
    said: list[str] = []
    reader.follow([sys.executable, "-c", SAYS], {"PATH": "/usr/bin:/bin"}, told.append, said.append)
    assert told == [Gpus(2, 45.0), Gpus(3)]
    assert said[0] == "GPU-1 H200: 1.0 of 139.0 GiB used ?[31m" and len(said) == reader.MOST_TEXTS
    assert all(len(text) <= reader.LONGEST for text in said)


def test_a_reading_process_that_cannot_be_started_is_said_once() -> None:
    said: list[str] = []
    reader.follow(["/no/such/program"], {}, lambda gpus: None, said.append)
    assert len(said) == 1 and said[0].startswith("nothing is known of the GPUs' health: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives up capabilities")
def test_the_reading_process_has_no_rights() -> None:
    code = (
        "import singularity_proxy.launcher.device.health_process as h; h.harmless()\n"
        "print(open('/proc/self/status').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert status["Uid"].split() == status["Gid"].split() == ["65534"] * 4 and status["Groups"].strip() == ""
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


@pytest.mark.gpu
def test_a_real_gpu_is_watched() -> None:
    with watched(pynvml, every_s=0.5) as seen:
        found = seen.until(3)
    assert found.count >= 1 and found.memory_total > GIB and found.ecc_uncorrected in (0, None)


# --- one for all pods -------------------------------------------------------------------------------------------------
def test_a_reset_gpu_counts_from_zero_again() -> None:
    tally = watch.Tally()
    for errors in (7, 9, 1, 2):
        tally.look(nvml.Health(FIRST, "H200", 0, GIB, None, errors))
    found = tally.sum()
    assert found is not None and found.ecc_uncorrected == 4 and found.utilisation is None


def test_pods_are_merged() -> None:
    assert gpus.merged([None, None]) is None
    one = Gpus(1, 90.0, 5, 10, ecc_corrected=1, faults=[GpuFault(FIRST, 31, 1)])
    two = Gpus(3, 50.0, 4, 80, ecc_corrected=2, faults=[GpuFault(FIRST, 31, 2), GpuFault(SECOND, 79, 1)])
    found = gpus.merged([one, None, two])
    assert found == Gpus(4, 60.0, 5, 10, ecc_corrected=3, faults=[GpuFault(FIRST, 31, 3), GpuFault(SECOND, 79, 1)])
    assert gpus.events(found) == 4 and gpus.events(None) == 0


def test_a_storm_of_faults_stays_small_and_is_counted() -> None:
    many = [GpuFault(FIRST, number, 2) for number in range(1, 101)]
    found = gpus.merged([Gpus(1, faults=many), Gpus(1, faults=many[:1], faults_more=5)])
    assert found is not None and len(found.faults) == gpus.MAX_FAULTS
    assert gpus.events(found) == 2 * 100 + 2 + 5 and found.faults[0] == GpuFault(FIRST, 1, 4)


def test_the_share_of_samples_in_which_clocks_were_slowed_down_is_told(library: Any, fake: FakeNvml) -> None:
    fake.gpus[0].clocks = 0x4  # a power cap: normal under load
    fake.gpus[1].clocks = 0x40  # heat
    looks = nvml.read(library)
    assert [each.throttled for each in looks] == [False, True]
    tally = watch.Tally()
    for each in looks:
        tally.look(each)
    whole = tally.sum()
    assert whole is not None and whole.throttled == 50.0
    fake.gpus[0].clocks = fake.gpus[1].clocks = None
    assert [each.throttled for each in nvml.read(library)] == [None, None]


def test_pods_with_something_wrong_are_named() -> None:
    good = Gpus(8, 90.0, throttled=0.0, ecc_uncorrected=0)
    bad = Gpus(8, 10.0, throttled=80.0, ecc_uncorrected=2, faults=[GpuFault(FIRST, 79, 1), GpuFault(SECOND, 79, 2)])
    found = gpus.of_pods({0: good, 3: bad, 1: None})
    assert found is not None and found.pods == [PodGpus(3, [79], 2, 80.0)]
    assert (found.throttled, found.count) == (40.0, 16)
    assert gpus.of_pods({0: None}) is None
    many = gpus.of_pods(dict.fromkeys(range(50), bad))
    assert many is not None and [pod.index for pod in many.pods] == list(range(gpus.MAX_PODS))
    storm = gpus.bounded(Gpus(1, pods=[PodGpus(0, list(range(100)))]))
    assert len(storm.pods[0].xids) == gpus.MAX_XIDS
