"""Restores that come to no end, or to a bad one: each ends its attempt, in time, and never the job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pod_failure_policy import action
from pod_harness import Pod, stand_in
from test_launcher_pod import COUNTER, counter, counts_on, dump, fresh, numbers, restore
from waits import LIMIT_S, until

from kueue_integration.manifests.job_manifests import failure_rules
from singularity_proxy.launcher import supervise
from singularity_proxy.launcher.errors import LauncherError, MeetingError, RestoreError, SlotError
from singularity_proxy.launcher.laps import Laps
from singularity_proxy.launcher.outbox import Outbox
from singularity_proxy.launcher.paths import Paths
from singularity_proxy.launcher.ranks.slot import Slot
from singularity_proxy.launcher.snapshot import criu, standstill
from singularity_proxy.launcher.snapshot.engine import ProcessEngine
from singularity_proxy.launcher.snapshot.standstill import Standstill, activity
from singularity_proxy.launcher.supervise import Supervisor
from singularity_proxy.protocol import exit_codes, messages, names

Make = Callable[..., Pod]
STILL_S = 2.0


# --- what moves -------------------------------------------------------------------------------------------------------
def test_what_moves_is_not_at_a_standstill() -> None:
    """CPU time, bytes, processes that come and go: each is a sign of life."""
    now, seen = [0.0], {1: (5, 0, 100)}
    still = Standstill(lambda: dict(seen), 60.0, lambda: now[0])
    for change in ({1: (6, 0, 100)}, {1: (6, 0, 101)}, {2: (0, 0, 0)}):
        now[0] += 59
        assert not still.over()
        seen.update(change)
    now[0] += 59
    assert not still.over()
    del seen[2]  # one has ended
    now[0] += 59
    assert not still.over()
    now[0] += 59.5
    assert not still.over()
    now[0] += 0.5
    assert still.over()


def _child(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("code", ["while True: pass", "f = open('/dev/zero', 'rb', 0)\nwhile True: f.read(1 << 20)"])
def test_a_process_that_computes_or_reads_is_seen(code: str) -> None:
    with _child(code) as child:
        try:
            before = activity([child.pid])
            until(lambda: activity([child.pid]) != before, "it is seen to be active")
        finally:
            child.kill()


def test_a_process_that_waits_is_seen_to_stand_still() -> None:
    with _child("import sys; print(flush=True); sys.stdin.read()") as child:
        try:
            assert child.stdout is not None and child.stdout.readline()
            before = activity([child.pid])
            time.sleep(0.3)  # the time of a standstill, and not a wait for something
            assert activity([child.pid]) == before != {}
        finally:
            child.kill()
    assert activity([child.pid]) == {}


def test_large_images_may_take_longer(tmp_path: Path) -> None:
    assert standstill.limit_s(tmp_path) == standstill.LEAST_S
    (tmp_path / "rank-0").mkdir()
    with (tmp_path / "rank-0/pages").open("wb") as file:
        file.truncate(1 << 40)
    assert standstill.limit_s(tmp_path) > 10 * 3600


class _Slot:
    """A tool in it never ends."""

    def run(self, argv: object, timeout_s: float, real: object, connect: str, given_up: Callable[[], bool]) -> None:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and not given_up():
            time.sleep(0.01)


def test_a_tool_that_stands_still_is_given_up_long_before_its_limit() -> None:
    still = Standstill(lambda: {7: (1,)}, 0.1)
    said = criu.run(_Slot(), ["criu"], 10 * LIMIT_S, still=still)  # type: ignore[arg-type]
    assert said.startswith("stood still for 0 s: no CPU time")


# --- real ones --------------------------------------------------------------------------------------------------------
STOPS = """#!/singularity/agent/launcher/busybox sh
case "${6-} ${7-}" in *"/criu restore") [ -e /shared/stop ] && kill -STOP $$ ;; esac
exec /singularity/agent/launcher/loader "$@"
"""
"""In the place of the loader of the launcher's tools: a CRIU that is to restore stops itself first."""


@pytest.fixture
def impatient(criu_bundle: Path, tmp_path: Path) -> Path:
    """The agent, with less patience, and a CRIU that can be stopped."""
    agent = tmp_path / "agent"
    shutil.copytree(criu_bundle, agent, copy_function=os.link)
    [module] = agent.glob("launcher/python/lib/**/snapshot/standstill.py")
    text = module.read_text()
    module.unlink()
    for compiled in module.parent.glob("__pycache__/standstill.*"):
        compiled.unlink()  # what is installed is not compared with its source
    module.write_text(text.replace("STILL_S = 60.0", f"STILL_S = {STILL_S}"))
    assert f"\nSTILL_S = {STILL_S}\n" in module.read_text()
    stand_in(agent, STOPS)
    return agent


@pytest.fixture
def run(make_pod: Make, rootfs: Path, impatient: Path, tmp_path: Path) -> Make:
    shared = tmp_path / "shared"
    shared.mkdir()

    def make(name: str, plan: messages.Plan, before: Callable[[Pod], object] = lambda _: None, **more: object) -> Pod:
        options = {"rootfs": rootfs, "torch": None, "criu": impatient, "shared": shared, **more}
        made = make_pod(name, plan=plan, command=counter(), **options)
        (made.volumes / "source/count.py").write_text(COUNTER)
        before(made)
        return made.start()

    return make


@pytest.mark.criu
def test_a_criu_that_stands_still_loses_the_attempt_and_the_next_one_goes_on(run: Make, tmp_path: Path) -> None:
    old = run("old", fresh([0], 1))
    assert dump(old, [0]).kind == "dumped", old.log()
    old.delete()
    at = numbers(old.work(0) / "cwd/numbers")[-1]
    (tmp_path / "shared/stop").touch()
    stuck = run("stuck", restore([0], 1), lambda p: p.bring(old, "c", 0))
    code = stuck.wait()
    assert (code, action(failure_rules(), code)) == (exit_codes.LOST, "Ignore"), stuck.log()
    event = stuck.wait_event_after_end("restore_failed")
    assert "rank 0: CRIU restore stood still for 2 s: no CPU time was used, nothing was read" in event.message
    assert event.code == exit_codes.LOST and event.message.split(".")[0] in stuck.said().text
    assert stuck.said().cause == "platform"
    (tmp_path / "shared/stop").unlink()
    counts_on(run("new", restore([0], 1), lambda p: p.bring(old, "c", 0)), at)


# --- the launcher's own clock -----------------------------------------------------------------------------------------
class _Engine(ProcessEngine):
    def __init__(self, restores: Callable[[], None], tmp_path: Path) -> None:
        super().__init__({}, Paths(tmp_path))
        self._restores = restores

    def restore(self, *_: object) -> dict[int, Slot]:
        self._restores()
        return {}


def supervisor(tmp_path: Path, restores: Callable[[], None]) -> Supervisor:
    return Supervisor({names.ENV_COMMAND: '["python3", "x.py"]'}, Paths(tmp_path), _Engine(restores, tmp_path))


def test_a_restore_that_waits_for_a_dead_volume_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process can be asked what it does there, and none can be killed."""
    never = threading.Event()
    monkeypatch.setattr(standstill, "LEAST_S", 0.1)
    monkeypatch.setattr(supervise, "RESUME_TIMEOUT_S", 0.1)
    one = supervisor(tmp_path, lambda: never.wait(120) and None)
    waiting = threading.Thread(target=lambda: one._restore(restore([0], 1), Laps()), daemon=True)
    waiting.start()
    until(lambda: (one._check_late(), one.ended is not None)[1], "it has ended")
    assert one.ended == exit_codes.LOST
    never.set()
    waiting.join(LIMIT_S)


def test_a_bug_in_a_restore_costs_a_try_and_not_the_job(tmp_path: Path) -> None:
    def bug() -> None:
        raise KeyError("a bug")

    one = supervisor(tmp_path, bug)
    with pytest.raises(RestoreError, match="checkpoint c: KeyError: 'a bug'") as raised:
        tried(one)
    assert raised.value.exit_code == exit_codes.NOT_RESTORED
    one._check_late()
    assert one.ended is None


@pytest.mark.parametrize(("error", "apart"), [(RestoreError("no"), False), (MeetingError("no"), True)])
def test_a_try_that_fails_is_told(tmp_path: Path, error: LauncherError, apart: bool) -> None:
    told: list[messages.LauncherEvent] = []
    one = supervisor(tmp_path, lambda: None)
    one.outbox = Outbox(told.append, lambda _: None)
    one._give_up(error)()
    assert one.outbox.close(20)
    assert [(event.kind, event.code, event.apart) for event in told] == [("restore_failed", error.exit_code, apart)]
    assert one.ended == error.exit_code


def tried(one: Supervisor) -> None:
    def begin(plan: messages.Plan) -> Callable[[], None]:
        one._restore(plan, Laps())
        return lambda: None

    one._tried(restore([0], 1), begin)


def test_a_pod_without_room_for_a_slot_loses_the_attempt_and_no_checkpoint(tmp_path: Path) -> None:
    """It may be the node's: too many processes, no memory, a capability that only this one does not give."""

    def no_slot() -> None:
        raise SlotError("Resource temporarily unavailable")

    told: list[messages.LauncherEvent] = []
    one = supervisor(tmp_path, no_slot)
    one.outbox = Outbox(told.append, lambda _: None)
    with pytest.raises(LauncherError, match="checkpoint c was not tried: Resource temporarily unavailable") as raised:
        tried(one)
    code = raised.value.exit_code
    assert (code, action(failure_rules(), code)) == (exit_codes.LOST, "Ignore")
    one._give_up(raised.value)()
    assert one.outbox.close(20) and told == [], "nothing is counted against the checkpoint"


def test_what_travels_beside_the_images_is_a_part_of_the_try(tmp_path: Path) -> None:
    def full(_: messages.Plan) -> Callable[[], None]:
        raise OSError("No space left on device")

    with pytest.raises(RestoreError, match="checkpoint c: OSError: No space left"):
        supervisor(tmp_path, lambda: None)._tried(restore([0], 1), full)
