"""The launcher as pid 1 of a container, with programs that need no torch: they freeze by the agent's file contract."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pod_failure_policy import action
from pod_harness import Pod
from pod_moves import until

from airflow_provider import return_value, taskflow
from kueue_integration.manifests.job_manifests import failure_rules
from localcluster.config import cache_dir
from localcluster.images.rootfs import debian
from singularity_proxy.protocol import exit_codes, messages, names

pytestmark = pytest.mark.criu
Make = Callable[..., Pod]

COUNTER = """
import json, os, sys, time
# A rank as the launcher sees one: freezes for generation 5 when told to, goes on when told to.
control = os.environ["SINGULARITY_RANK_DIR"]
log = open(sys.argv[1], "a", buffering=1)
exec(sys.argv[2])
n = 0
while not os.path.exists("end"):
    n += 1
    log.write(f"{n}\\n")
    if n % 100 == 0:
        print(n, flush=True)
    if os.path.exists("freeze"):
        os.rename("freeze", "frozen")
        with open(control + "/tmp", "w") as f:
            json.dump({"generation": 5, "step": n}, f)
        os.rename(control + "/tmp", control + "/frozen.json")
        while not os.path.exists(control + "/resume.json"):
            time.sleep(0.01)
        order = json.load(open(control + "/resume.json"))
        if "SINGULARITY_NOBODY" in order["env"]:
            sys.exit("nobody else came to the meeting")
        with open(control + "/tmp", "w") as f:
            json.dump({"restore_id": order["restore_id"]}, f)
        os.rename(control + "/tmp", control + "/resumed.json")
    time.sleep(0.001)
log.write(f"end {order['env'].get('SINGULARITY_POD')}\\n")
"""


def fresh(ranks: list[int], world: int) -> messages.Plan:
    return messages.Plan("fresh", 1, world, ranks, "127.0.0.1", 29500)


def restore(ranks: list[int], world: int) -> messages.Plan:
    return messages.Plan("restore", 2, world, ranks, "127.0.0.1", 29501, 5, "c")


@pytest.fixture
def run(make_pod: Make, rootfs: Path, criu_bundle: Path) -> Make:
    def make(
        name: str,
        plan: messages.Plan,
        command: list[str],
        before: Callable[[Pod], object] = lambda _: None,
        **more: object,
    ) -> Pod:
        options = {"rootfs": rootfs, "torch": None, "criu": criu_bundle, **more}
        made = make_pod(name, plan=plan, command=command, **options)
        (made.volumes / "source/count.py").write_text(COUNTER)
        before(made)
        return made.start()

    return make


def counter(where: str = "numbers", extra: str = "0") -> list[str]:
    assert " " not in extra
    return ["python3", "count.py", where, extra]


def dump(pod: Pod, ranks: list[int]) -> messages.LauncherEvent:
    pod.wait_event("started", "restored")
    for rank in ranks:
        until(lambda r=rank: (pod.work(r) / "cwd/numbers").exists(), "counting", pod)  # type: ignore[misc]
        (pod.work(rank) / "cwd/freeze").touch()
    pod.sidecar.command("dump", generation=5, checkpoint_id="c", remaining_s=60)
    return pod.wait_event("dumped", "dump_failed")


def numbers(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split("\n") if word.isdigit()]


def counts_on(pod: Pod, at: int) -> None:
    """Restored, it counts beyond `at` and ends well when it is told to, without a gap."""
    pod.wait_event("restored")
    path = pod.work(0) / "cwd/numbers"
    until(lambda: numbers(path)[-1] > at + 100, "it counts on", pod)
    (path.parent / "end").touch()
    assert pod.wait() == 0, pod.log()
    assert numbers(path) == list(range(1, len(numbers(path)) + 1))


# --- exit codes -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("script", "code"),
    [("exit $RANK", 1), ("exit 0", 0), ("kill -9 $$", 137), ("kill -TERM $$", 1), ("exit $((7+RANK))", None)],
)
def test_exit_code_of_the_ranks(run: Make, script: str, code: int | None) -> None:
    pod = run("pod", fresh([0, 1], 2), ["sh", "-c", script.replace(" ", "\t")])
    got = pod.wait()
    assert got == code if code is not None else got in (7, 8), pod.log()
    ended = [event for event in pod.sidecar.events if event.kind == "exited"]
    assert sorted(event.rank for event in ended) == [0, 1]


@pytest.mark.parametrize(("code", "handed"), [(0, True), (3, False)])
def test_what_rank_0_leaves_behind_is_handed_over_however_much_is_printed_after_it(
    run: Make, code: int, handed: bool
) -> None:
    script = f"""
import os, sys
open(os.environ["SINGULARITY_RESULT_FILE"], "w").write('{{"value": %s}}' % os.environ["RANK"])
for line in range(5000):
    print("wandb", line)
sys.exit({code})
"""
    pod = run("pod", fresh([0, 1], 2), ["python3", "-c", f"exec(bytes.fromhex('{script.encode().hex()}'))"])
    assert pod.wait() == code, pod.log()[-2000:]
    path = pod.volumes / "run" / names.HANDED_RESULT_FILE
    assert (path.read_text() if path.exists() else None) == ('{"value": 0}' if handed else None)


def test_a_result_travels_with_its_rank(run: Make) -> None:
    """Written before the move, handed over by the pod in which the rank ends."""
    extra = """open(os.environ["SINGULARITY_RESULT_FILE"],"w").write('{"value":7}')"""
    first = run("first", fresh([0], 1), counter(extra=extra))
    dumped = dump(first, [0])
    assert dumped.kind == "dumped", dumped.message
    assert not (first.volumes / "run" / names.HANDED_RESULT_FILE).exists()
    at = numbers(first.work(0) / "cwd/numbers")[-1]
    first.terminate()
    first.wait_event("terminating")
    first.sidecar.command("exit")
    assert first.wait() == 143
    second = run("second", restore([0], 1), counter(), before=lambda pod: pod.bring(first, "c", 0))
    counts_on(second, at)
    assert (second.volumes / "run" / names.HANDED_RESULT_FILE).read_text() == '{"value":7}'


def test_outputs_travel_and_are_handed_over_before_the_pod_ends(run: Make) -> None:
    """Written before the move by a user who lets nobody read it; the sidecar, which has no capability, reads it after
    the end, and the container ends only when it is told to."""
    extra = """o=os.environ["OUTPUTS"];os.umask(0o077);os.mkdir(o+"/deep");open(o+"/deep/model","w").write("7")"""
    user = {names.ENV_RUN_AS: "1000:1001:"}
    first = run("first", replace(fresh([0], 1), outputs=True), counter(extra=extra), env=user)
    dumped = dump(first, [0])
    assert dumped.kind == "dumped", dumped.message
    at = numbers(first.work(0) / "cwd/numbers")[-1]
    first.terminate()
    first.wait_event("terminating")
    first.sidecar.command("exit")
    assert first.wait() == 143
    plan = replace(restore([0], 1), outputs=True)
    second = run("second", plan, counter(), env=user, before=lambda pod: pod.bring(first, "c", 0))
    second.wait_event("restored")
    path = second.work(0) / "cwd/numbers"
    until(lambda: numbers(path)[-1] > at + 100, "it counts on", second)
    (path.parent / "end").touch()
    second.wait_event("finished")
    made = second.work(0) / names.OUTPUTS_DIR / "deep/model"
    assert made.read_text() == "7"
    for each in (made, made.parent, made.parent.parent):
        state = each.stat()
        assert state.st_uid == 0 and state.st_mode & stat.S_IRUSR, f"{each} is not for root without capabilities"
    assert second.wait() == 0 and "command finish" in second.log()


def test_outputs_that_are_not_stored_are_the_last_words(run: Make) -> None:
    script = "open(__import__('os').environ['OUTPUTS']+'/model','w').write('1')"
    before = lambda p: setattr(p.sidecar, "world_ends", False)  # noqa: E731
    pod = run("pod", replace(fresh([0], 1), outputs=True), ["python3", "-c", script], before=before)
    pod.wait_event("finished")
    pod.sidecar.command("exit", exit_code=exit_codes.PROTOCOL, message="the outputs could not be stored: no space")
    assert pod.wait() == exit_codes.PROTOCOL, pod.log()
    assert pod.said().text == "the outputs could not be stored: no space" and pod.said().cause == "platform"


def test_what_a_training_function_returns_with_torch(run: Make, torch_env: Path) -> None:
    body = """
def fit():
    import torch
    curve = torch.tensor([1.0, 0.5], requires_grad=True)
    return {
        "loss": torch.tensor(0.25), "curve": curve, "steps": torch.tensor(7), "half": torch.tensor(1.5).bfloat16(),
        "nan": torch.tensor(float("nan")), "model": torch.nn.Linear(2, 2), "shape": curve.shape,
    }
"""

    def ship(pod: Pod) -> None:
        for name, text in taskflow.files("fit", body, [], {}).items():
            (pod.volumes / "source" / name).write_text(text)

    pod = run("pod", fresh([0], 1), ["python3", taskflow.SCRIPT], before=ship, torch=torch_env)
    assert pod.wait() == 0, pod.log()
    value, notes = return_value.taken(json.loads((pod.volumes / "run" / names.HANDED_RESULT_FILE).read_text()))
    assert value.pop("model").startswith("Linear(in_features=2")
    assert value == {"loss": 0.25, "curve": [1.0, 0.5], "steps": 7, "half": 1.5, "nan": "nan", "shape": (2,)}
    assert len(notes) == 2


@pytest.mark.parametrize(
    ("ranks", "starter", "told"),
    [
        ([0], "", "rank of , at "),
        ([0], "torch.distributed.run", "rank 0 of 1, at 127.0.0.1:29500"),
        ([0, 1], "", "rank 0 of 2, at 127.0.0.1:29500"),
    ],
)
def test_who_is_told_of_a_world(run: Make, ranks: list[int], starter: str, told: str) -> None:
    """A plain command of one rank gets what a plain shell gives."""
    script = """
import os
rank, world, address, port = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
print("rank", *([rank] if rank else []), f"of {world}, at {address}{':' if port else ''}{port}")
"""
    command = ["python3", *(["-m", starter] if starter else []), "told.py"]
    pod = run(
        "pod", fresh(ranks, len(ranks)), command, before=lambda p: (p.volumes / "source/told.py").write_text(script)
    )
    assert pod.wait() == 0, pod.log()
    assert f"[rank 0] {told}" in pod.log().splitlines(), pod.log()


def test_a_failure_takes_the_others_along(run: Make) -> None:
    script = "[ $RANK = 0 ] && exit 3; trap 'echo asked; exit 0' TERM; while :; do sleep 0.1; done"
    began = time.monotonic()
    pod = run("pod", fresh([0, 1], 2), ["sh", "-c", script.replace(" ", "\t")])
    assert pod.wait() == 3, pod.log()
    assert time.monotonic() - began > 5
    assert "[rank 1] asked" in pod.log()


def test_a_rank_that_ignores_sigterm_is_killed(run: Make) -> None:
    script = "[ $RANK = 0 ] && exit 3; trap '' TERM; while :; do sleep 0.1; done"
    pod = run("pod", fresh([0, 1], 2), ["sh", "-c", script.replace(" ", "\t")])
    assert pod.wait() == 3, pod.log()
    assert [e.code for e in pod.sidecar.events if e.rank == 1 and e.kind == "exited"] == [137]


def test_a_command_that_is_not_there(run: Make) -> None:
    pod = run("pod", fresh([0], 1), ["no-such-program"])
    assert pod.wait() == 127
    assert "no-such-program" in pod.log()


def test_an_isolated_interpreter_is_refused(run: Make) -> None:
    pod = run("pod", fresh([0], 1), ["python3", "-I", "x.py"])
    assert pod.wait() == 2
    assert "start the program without -I" in pod.log()


# --- memory -----------------------------------------------------------------------------------------------------------
def test_a_rank_that_needs_more_memory_than_there_is(run: Make, memory_256m: Path) -> None:
    pod = run("pod", fresh([0, 1], 2), ["python3", "-c", "bytes([1])*(1<<30)"], cgroup=memory_256m)
    assert pod.wait() == 137, pod.log()
    first = next(e for e in pod.sidecar.events if e.kind == "exited" and e.code == 137)
    assert first.message == "out of memory: the kernel killed it, the limit of the container is 256 MiB"
    assert f"rank {first.rank} ended with code 137: out of memory" in pod.log()
    assert pod.said() == messages.LastWords(f"rank {first.rank} ended with code 137: {first.message}", "memory")


def test_a_rank_that_is_killed_for_another_reason(run: Make) -> None:
    pod = run("pod", fresh([0], 1), ["sh", "-c", "kill\t-9\t$$"])
    assert pod.wait() == 137
    assert "rank 0 ended with code 137\n" in pod.log() and "out of memory" not in pod.log()


# --- the end of the world ---------------------------------------------------------------------------------------------
def test_a_pod_waits_for_the_ranks_of_the_other_pods(run: Make) -> None:
    pod = run("pod", fresh([0], 2), ["true"], before=lambda p: setattr(p.sidecar, "world_ends", False))
    pod.wait_event("finished")
    again = len(pod.sidecar.events)
    pod.wait_event("finished", skip=again)  # for a sidecar that was started anew meanwhile
    assert pod.alive()
    pod.sidecar.command("finish")
    assert pod.wait() == 0, pod.log()
    assert [(e.rank, e.code) for e in pod.sidecar.events if e.kind == "exited"] == [(0, 0)]


@pytest.mark.parametrize("told", [True, False])
def test_a_pod_that_waits_does_not_end_as_complete_when_it_is_asked_to_end(run: Make, told: bool) -> None:
    before = lambda p: setattr(p.sidecar, "world_ends", False)  # noqa: E731
    pod = run("pod", fresh([0], 2), ["true"], before=before, env={names.ENV_GRACE: "60" if told else "4"})
    pod.wait_event("finished")
    pod.terminate()
    pod.wait_event("terminating")
    if told:
        pod.sidecar.command("exit")
    assert pod.wait() == 143, pod.log()


def test_a_rank_that_failed_does_not_wait(run: Make) -> None:
    pod = run("pod", fresh([0], 2), ["false"], before=lambda p: setattr(p.sidecar, "world_ends", False))
    assert pod.wait() == 1
    assert not [e for e in pod.sidecar.events if e.kind == "finished"]


def test_finish_ends_no_rank_that_runs(run: Make) -> None:
    pod = run("pod", fresh([0], 2), counter())
    pod.wait_event("started")
    pod.sidecar.command("finish")
    path = pod.work(0) / "cwd/numbers"
    until(lambda: "command finish" in pod.log(), "the command", pod)
    at = len(numbers(path)) if path.exists() else 0
    until(lambda: path.exists() and len(numbers(path)) > at + 100, "it counts on", pod)
    assert pod.alive()


# --- SIGTERM ----------------------------------------------------------------------------------------------------------
def test_sigterm_waits_for_the_sidecar(run: Make) -> None:
    pod = run("pod", fresh([0], 1), counter(), env={names.ENV_GRACE: "60"})
    pod.wait_event("started")
    pod.terminate()
    assert 55 < pod.wait_event("terminating").grace_s <= 60
    pod.sidecar.command("exit")
    assert pod.wait() == 143


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_another_signal_that_an_image_ends_with_asks_for_a_checkpoint_too(run: Make, number: signal.Signals) -> None:
    pod = run("pod", fresh([0], 1), counter(), env={names.ENV_GRACE: "60"})
    pod.wait_event("started")
    os.kill(pod.launcher_pid(), number)
    pod.wait_event("terminating")
    pod.sidecar.command("exit")
    assert pod.wait() == 143, pod.log()


def test_a_signal_reaches_the_ranks_that_have_a_handler_before_and_after_a_move(run: Make) -> None:
    handler = f"__import__('signal').signal({signal.SIGUSR1:d},lambda*_:print('heard',flush=True))"
    old = run("old", fresh([0, 1], 2), counter(extra=f"{handler}if(os.environ['RANK']=='1')else(0)"))
    assert dump(old, [0, 1]).kind == "dumped", old.log()
    old.sidecar.command("resume", generation=5)
    old.wait_event("started")
    os.kill(old.launcher_pid(), signal.SIGUSR1)
    until(lambda: "[rank 1] heard" in old.log(), "it is heard", old)
    assert "SIGUSR1 is passed on to ranks [1]" in old.log()
    os.kill(old.launcher_pid(), signal.SIGUSR2)
    until(lambda: "SIGUSR2: no rank has a handler for it" in old.log(), "it is said", old)
    assert old.alive()
    old.delete()
    new = run("new", restore([0, 1], 2), counter(), before=lambda p: [p.bring(old, "c", rank) for rank in (0, 1)])
    new.wait_event("restored")
    os.kill(new.launcher_pid(), signal.SIGUSR1)
    until(lambda: "[rank 1] heard" in new.log(), "it is heard in the new pod", new)
    for rank in (0, 1):
        (new.work(rank) / "cwd/end").touch()
    assert new.wait() == 0, new.log()


@pytest.mark.parametrize("command", ["accelerate launch train.py", "no-such/torchrun --virtual-local-rank train.py"])
def test_a_command_that_cannot_be_taken_apart_is_refused(run: Make, command: str) -> None:
    pod = run("pod", fresh([0, 1], 2), command.split())
    assert pod.wait() == 2, pod.log()
    assert "name the script instead" in pod.log() or "use LOCAL_RANK" in pod.log()


def test_sigterm_without_an_answer_ends_within_the_grace_period(run: Make) -> None:
    pod = run("pod", fresh([0], 1), counter(), env={names.ENV_GRACE: "4"})
    pod.wait_event("started")
    pod.terminate()
    assert pod.wait() == 143
    assert "the grace period is over" in pod.log()


def test_a_plan_that_is_refused(run: Make) -> None:
    pod = run("pod", fresh([0], 1), counter(), before=lambda p: setattr(p.sidecar, "refuse", "no"))
    assert pod.wait() == exit_codes.PROTOCOL
    assert "refuses to give a plan: no" in pod.log()


def test_a_pod_of_a_job_whose_ranks_have_all_ended_well_is_complete_at_once(run: Make) -> None:
    pod = run("pod", messages.Plan("finished", 2, 2, [], "", 0), counter())
    assert pod.wait() == exit_codes.FINISHED, pod.log()
    assert not pod.work(0).exists() and not pod.sidecar.events


def test_a_plan_that_the_next_attempt_may_get(run: Make) -> None:
    def away(pod: Pod) -> None:
        pod.sidecar.refuse, pod.sidecar.refuse_with = "store gs://b: cannot read x: 503", exit_codes.LOST

    pod = run("pod", fresh([0], 1), counter(), before=away)
    assert pod.wait() == exit_codes.LOST, "the Job is not to fail by it"
    assert "store gs://b: cannot read x: 503. This attempt ends here, the next one tries again" in pod.log()


# --- a full disk ------------------------------------------------------------------------------------------------------
def test_a_dump_that_the_pods_disk_has_no_room_for_fails_and_the_rank_goes_on(run: Make, tmp_path: Path) -> None:
    images = tmp_path / "pod/singularity/images"
    small = lambda _: subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", images], check=True)  # noqa: E731
    pod = run("pod", fresh([0], 1), counter(), before=small)
    try:
        event = dump(pod, [0])
        assert event.kind == "dump_failed", event.message
        assert re.search(r"hold \d+ MiB of memory and files, and /singularity/images has 1 MiB free", event.message)
        path = pod.work(0) / "cwd/numbers"
        at = numbers(path)[-1]
        pod.sidecar.command("resume", generation=5)
        until(lambda: numbers(path)[-1] > at + 100, "it counts on", pod)
        (path.parent / "end").touch()
        assert pod.wait() == 0, pod.log()
        assert numbers(path) == list(range(1, len(numbers(path)) + 1))
    finally:
        pod.delete()
        subprocess.run(["umount", images], check=True)


def test_a_dump_that_the_kubelet_would_evict_the_pod_for_fails_before_it_writes(run: Make) -> None:
    """The volume has a limit, and the disk has more room than that."""
    pod = run("pod", fresh([0], 1), counter(), env={names.ENV_IMAGE_ROOM: str(17 * 2**20)})
    try:
        event = dump(pod, [0])
        assert event.kind == "dump_failed", event.message
        told = "/singularity/images may hold 1 MiB more: its limit is 17 MiB. Raise checkpoint_disk"
        assert told in event.message
        assert [path for path in (pod.volumes / "images").rglob("*") if path.is_file()] == []
        path = pod.work(0) / "cwd/numbers"
        at = numbers(path)[-1]
        pod.sidecar.command("resume", generation=5)
        until(lambda: numbers(path)[-1] > at + 100, "it counts on", pod)
    finally:
        pod.delete()


# --- what a rank may do -----------------------------------------------------------------------------------------------
def test_a_rank_has_no_added_capabilities_and_a_masked_proc(run: Make) -> None:
    script = """
grep CapEff /proc/self/status
echo x > /proc/sys/kernel/core_pattern && echo WRITTEN
[ -s /proc/kcore ] && echo KCORE
mount -t tmpfs x /mnt && echo MOUNTED
echo pid $$ $(ls /proc | grep -c '^[0-9]*$')
ls /dev/shm
echo $TMPDIR $PWD
"""
    pod = run("pod", fresh([0], 1), ["sh", "-c", script.replace(" ", "\t")])
    pod.wait()
    lines = [line.removeprefix("[rank 0] ") for line in pod.log().splitlines() if line.startswith("[rank 0]")]
    effective = int(next(line.split()[1] for line in lines if line.startswith("CapEff")), 16)
    for capability in (12, 19, 21, 25):  # NET_ADMIN, SYS_PTRACE, SYS_ADMIN, SYS_TIME
        assert not effective & 1 << capability, lines
    assert not {"WRITTEN", "KCORE", "MOUNTED"} & set(lines), lines
    assert any(line.startswith("pid 1000 ") for line in lines), lines
    assert "/singularity/work/rank-0/tmp /singularity/work/rank-0/cwd" in lines


# --- dump and restore -------------------------------------------------------------------------------------------------
def test_two_ranks_move_into_a_new_pod_without_a_gap(run: Make) -> None:
    old = run("old", fresh([0, 1], 2), counter())
    assert dump(old, [0, 1]).kind == "dumped", old.log()
    at = [numbers(old.work(rank) / "cwd/numbers")[-1] for rank in (0, 1)]
    shown = old.log()
    old.terminate()
    old.wait_event("terminating")
    old.sidecar.command("exit")
    assert old.wait() == 143
    new = run("new", restore([0, 1], 2), counter(), before=lambda p: [p.bring(old, "c", rank) for rank in (0, 1)])
    new.wait_event("restored")
    for rank in (0, 1):
        path = new.work(rank) / "cwd/numbers"
        until(lambda p=path, a=at[rank]: numbers(p)[-1] > a + 200, "it counts on", new)  # type: ignore[misc]
        (new.work(rank) / "cwd/end").touch()
    assert new.wait() == 0, new.log()
    for rank in (0, 1):
        text = new.work(rank) / "cwd/numbers"
        got = numbers(text)
        assert got == list(range(1, len(got) + 1))
        assert text.read_text().endswith("end new\n")
        printed = [line for pod_log in (shown, new.log()) for line in pod_log.splitlines() if f"[rank {rank}]" in line]
        assert len(printed) == len(set(printed)) == len(got) // 100


def test_a_copy_of_a_rank_goes_on_in_a_pod_of_another_job_while_the_first_goes_on_too(run: Make) -> None:
    """What a fork does: the same process image, another host name, another job in the rank's environment."""
    job, host = "order['env']['SINGULARITY_JOB']", "__import__('socket').gethostname()"
    program = COUNTER.replace('log.write(f"end', f'print("job", {job})\nprint("host", {host})\nlog.write(f"end')

    def brings(pod: Pod) -> None:
        (pod.volumes / "source/count.py").write_text(program)

    first = run("digits-0", fresh([0], 1), counter(), before=brings, env={names.ENV_JOB: "digits"})
    assert dump(first, [0]).kind == "dumped", first.log()
    at = numbers(first.work(0) / "cwd/numbers")[-1]
    plan = messages.Plan("restore", 2, 1, [0], "127.0.0.1", 29501, 5, "c")
    twin = run("twin-0", plan, counter(), before=lambda p: p.bring(first, "c", 0), env={names.ENV_JOB: "twin"})
    twin.wait_event("restored")
    first.sidecar.command("resume", generation=5)
    for pod in (first, twin):
        path = pod.work(0) / "cwd/numbers"
        until(lambda p=path: numbers(p)[-1] > at + 200, "both count on", pod)  # type: ignore[misc]
    for pod in (first, twin):
        path = pod.work(0) / "cwd/numbers"
        (path.parent / "end").touch()
        assert pod.wait() == 0, pod.log()
        assert numbers(path) == list(range(1, len(numbers(path)) + 1))
        assert f"[rank 0] job {pod.name.removesuffix('-0')}" in pod.log(), pod.log()
        assert f"[rank 0] host {pod.name}" in pod.log(), pod.log()


def test_after_a_dump_the_rank_stands_still_until_it_is_told_to_go_on(run: Make) -> None:
    pod = run("pod", fresh([0], 1), counter())
    assert dump(pod, [0]).kind == "dumped", pod.log()
    path = pod.work(0) / "cwd/numbers"
    record = json.loads((pod.image("c", 0) / "rank.json").read_text())
    assert (record["rank"], record["root"], record["step"]) == (0, 1000, numbers(path)[-1])
    states = {line.split()[2] for line in _stats(pod)}
    assert states == {"T"}
    pod.sidecar.command("resume", generation=5)
    until(lambda: numbers(path)[-1] > record["step"] + 10, "it counts on", pod)
    (path.parent / "end").touch()
    assert pod.wait() == 0
    assert numbers(path) == list(range(1, len(numbers(path)) + 1))


def _stats(pod: Pod) -> list[str]:
    """/proc/<pid>/stat of the processes that run count.py in this pod; another may have its name."""
    assert pod.process is not None
    mine, found = Path(f"/proc/{pod.process.pid}/ns/uts").readlink(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
                if (entry / "ns/uts").readlink() == mine and b"SINGULARITY_RANK_DIR=" in environment:
                    found.append((entry / "stat").read_text())
            except OSError:
                continue
    return found


def test_an_open_connection_is_named_and_the_rank_goes_on(run: Make) -> None:
    code = "import\tsocket;s=socket.create_server(('127.0.0.1',0));c=socket.create_connection(s.getsockname())"
    pod = run("pod", fresh([0], 1), counter(extra=code))
    event = dump(pod, [0])
    assert event.kind == "dump_failed"
    assert "rank 0: python3 count.py" in event.message
    assert "is connected (tcp) from 127.0.0.1:" in event.message
    path = pod.work(0) / "cwd/numbers"
    at = numbers(path)[-1]
    pod.sidecar.command("resume", generation=5)
    until(lambda: numbers(path)[-1] > at, "it counts on", pod)


def test_a_rank_that_never_freezes_fails_the_dump_at_its_deadline(run: Make) -> None:
    pod = run("pod", fresh([0], 1), counter())
    pod.wait_event("started")
    pod.sidecar.command("dump", generation=5, checkpoint_id="c", remaining_s=0.5)
    assert "did not freeze for generation 5" in pod.wait_event("dump_failed").message


def test_what_another_job_has_appended_to_a_shared_file_stays(run: Make, tmp_path: Path) -> None:
    shared = tmp_path / "volume"
    shared.mkdir()
    code = "keep=open('/shared/out','a',1);keep.write('kept\\n')"
    old = run("old", fresh([0], 1), counter(extra=code), shared=shared)
    assert dump(old, [0]).kind == "dumped", old.log()
    old.delete()
    with (shared / "out").open("a") as file:
        file.write("of another job\n")
    new = run("new", restore([0], 1), counter(), shared=shared, before=lambda p: p.bring(old, "c", 0))
    new.wait_event("restored")
    assert (shared / "out").read_text() == "kept\nof another job\n"
    assert "/shared/out: has 20 bytes, had 5 at the checkpoint, and is left so" in new.log()


def test_an_image_that_is_not_there_ends_with_its_own_code(run: Make) -> None:
    pod = run("pod", restore([0], 1), counter())
    assert pod.wait() == exit_codes.NOT_RESTORED
    assert "the image is incomplete" in pod.wait_event_after_end("restore_failed").message


def test_a_damaged_image_ends_with_crius_own_words(run: Make) -> None:
    old = run("old", fresh([0], 1), counter())
    assert dump(old, [0]).kind == "dumped", old.log()
    old.delete()

    def damage(pod: Pod) -> None:
        pod.bring(old, "c", 0)
        next(pod.image("c", 0).glob("core-*.img")).write_bytes(b"nothing")

    pod = run("pod", restore([0], 1), counter(), before=damage)
    assert pod.wait() == exit_codes.NOT_RESTORED, pod.log()
    assert "rank 0: CRIU restore ended with" in pod.wait_event_after_end("restore_failed").message


def test_a_rank_whose_others_do_not_come_to_the_meeting_loses_the_attempt_and_not_the_job(run: Make) -> None:
    """A pod was lost in the meantime, or started too late: nothing is wrong with this one, nor with the checkpoint."""
    old = run("old", fresh([0], 1), counter())
    assert dump(old, [0]).kind == "dumped", old.log()
    old.delete()
    alone = {"SINGULARITY_NOBODY": "1"}
    pod = run("pod", restore([0], 1), counter(), env=alone, before=lambda p: p.bring(old, "c", 0))
    code = pod.wait()
    assert "rank 0 ended with code 1 while it met the other ranks" in pod.log()
    assert (code, action(failure_rules(), code)) == (exit_codes.LOST, "Ignore")


# --- another image ----------------------------------------------------------------------------------------------------
def image_with(top: Path, rootfs: Path, path: str, content: bytes | None) -> Path:
    """The image `rootfs` with another file at `path`, or without it: a layer on top of it."""
    place = top / path.lstrip("/")
    place.parent.mkdir(parents=True)
    if content is None:
        os.mknod(place, stat.S_IFCHR, os.makedev(0, 0))  # how overlayfs says that a file is gone
    else:
        place.write_bytes(content)
        place.chmod((rootfs / path.lstrip("/")).stat().st_mode)
    return Path(f"{top}:{rootfs}")


def test_a_pod_with_another_image_is_refused_and_one_with_the_same_goes_on(
    run: Make, rootfs: Path, tmp_path: Path
) -> None:
    """A tag that was pushed again: one library is gone, is another build, or has grown."""
    old = run("old", fresh([0], 1), counter(extra="import\tsqlite3"))
    assert dump(old, [0]).kind == "dumped", old.log()
    old.delete()
    at = numbers(old.work(0) / "cwd/numbers")[-1]
    record = json.loads((old.image("c", 0) / "rank.json").read_text())
    mapped = {Path(file["path"]).name.split(".")[0]: file for file in record["mapped"]}
    lost, built, grown = (mapped[name] for name in ("libsqlite3", "libc", "_sqlite3"))
    content = {f["path"]: (rootfs / f["path"].lstrip("/")).read_bytes() for f in (lost, built, grown)}
    assert all(len(content[f["path"]]) == f["size"] for f in (lost, built, grown))
    build_id = content[built["path"]].index(b"\x14\0\0\0\3\0\0\0GNU\0") + 12  # a note of 20 bytes, of that kind
    other = bytearray(content[built["path"]])
    other[build_id] ^= 0xFF
    cases = {
        "gone": (lost["path"], None, f"{lost['path']} ({lost['size']} bytes), which rank 0 runs, is not here"),
        "built": (built["path"], bytes(other), f"{built['path']} begins with other bytes here (digest "),
        "grown": (grown["path"], content[grown["path"]] + b"x", f"has {grown['size'] + 1} bytes here, and"),
    }
    for name, (path, new, wanted) in cases.items():
        image = image_with(tmp_path / f"layer-{name}", rootfs, path, new)
        pod = run(name, restore([0], 1), counter(), rootfs=image, before=lambda p: p.bring(old, "c", 0))
        assert pod.wait() == exit_codes.NOT_RESTORED, pod.log()
        said = pod.wait_event_after_end("restore_failed").message
        assert said.startswith("this pod has another image than the checkpoint: ") and wanted in said
        assert "(IMAGE@sha256:...)" in said and "and 1 more" not in said
        assert not pod.work(0).exists() and not list(pod.image("c", 0).parent.glob("criu-*")), "nothing was begun"
    same = run("same", restore([0], 1), counter(), before=lambda p: p.bring(old, "c", 0))
    counts_on(same, at)


@pytest.fixture(scope="session")
def older(rootfs: Path) -> Path:
    return debian(cache_dir(), print, "bookworm", ("python3",))


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("program", ["python", "shell"])
def test_an_image_with_older_libraries_and_no_criu(run: Make, older: Path, program: str) -> None:
    """Debian 12: Python 3.11 and glibc 2.36. The agent brings CRIU with the libraries that it needs."""
    assert (older / "usr/bin/python3.11").exists() and not list(older.glob("usr/*bin/criu"))
    loop = "n=0;\twhile\t[\t!\t-e\tend\t];\tdo\tn=$((n+1));\techo\t$n\t>>\tnumbers;\tsleep\t0.01;\tdone"
    command = counter() if program == "python" else ["sh", "-c", loop]
    old = run("old", fresh([0], 1), command, rootfs=older)
    if program == "python":
        event = dump(old, [0])
    else:
        old.wait_event("started")
        until(lambda: (old.work(0) / "cwd/numbers").exists(), "counting", old)
        old.sidecar.command("dump", generation=5, checkpoint_id="c", remaining_s=60, anywhere=True)
        event = old.wait_event("dumped", "dump_failed")
    assert event.kind == "dumped", old.log()
    at = numbers(old.work(0) / "cwd/numbers")[-1]
    old.delete()
    new = run("new", restore([0], 1), command, rootfs=older, before=lambda p: p.bring(old, "c", 0))
    counts_on(new, at)
