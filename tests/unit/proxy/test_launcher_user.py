"""Ranks that run as the user whom the job's owner asks for, and are dumped and restored as that one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pod_moves
import pytest
from pod_harness import Pod
from pod_moves import free_port
from program_runs import Program, Runner

from singularity_proxy.launcher.errors import CommandError
from singularity_proxy.launcher.ranks import accounts, privileges, slot_init, user
from singularity_proxy.launcher.ranks.user import User
from singularity_proxy.protocol import messages, names, page

Make = Callable[..., Pod]
AS = {names.ENV_RUN_AS: "1000:1001:4242"}
GENERATION = page.generation(1, 1)
FRESH = messages.Plan("fresh", 1, 1, [0], "127.0.0.1", 29500)
RESTORE = messages.Plan("restore", 2, 1, [0], "127.0.0.1", 29500, GENERATION, "c")
until = pod_moves.until


# --- who --------------------------------------------------------------------------------------------------------------
@pytest.fixture
def passwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that knows uid 7 as seven, who is in groups 70 and 77, besides root."""
    (tmp_path / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nseven:x:7:70::/home/seven:/bin/sh\n")
    (tmp_path / "group").write_text("root:x:0:\nseven:x:70:\nmore:x:77:other,seven\n")
    monkeypatch.setattr(accounts, "ETC", tmp_path)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", None),
        ("1000::", User(1000, 0)),
        ("1000:1001:5,4", User(1000, 1001, (4, 5))),
        ("7::", User(7, 70, (77,), "seven", "/home/seven")),
        ("7:3:5", User(7, 3, (5, 77), "seven", "/home/seven")),
        ("7:3:5:strict", User(7, 3, (5,), "seven", "/home/seven")),
        (":3:", User(0, 3, (), "root", "/root")),
    ],
)
@pytest.mark.usefixtures("passwd")
def test_whom_a_rank_runs_as(text: str, wanted: User | None) -> None:
    assert user.wanted({names.ENV_RUN_AS: text}) == wanted


@pytest.mark.parametrize("text", ["1000", "me::", "1:2:3,", "-1::", "1:2:3:Strict", "2147483648::", "1::2147483648"])
def test_a_user_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match=r"SINGULARITY_RUN_AS = .*: wanted uid:gid:group,group"):
        user.wanted({names.ENV_RUN_AS: text})


@pytest.mark.parametrize("text", ["65536::", "1000:70000:", "1000:1000:4,70000"])
def test_ids_that_a_user_namespace_does_not_have_are_refused(text: str) -> None:
    with pytest.raises(CommandError, match="ids up to 65535"):
        user.wanted({names.ENV_RUN_AS: text}, 65535)
    assert user.wanted({names.ENV_RUN_AS: text}) is not None


@pytest.mark.parametrize(
    ("base", "wanted"),
    [
        ({}, {"HOME": "/home/seven", "USER": "seven", "LOGNAME": "seven"}),
        ({"HOME": "/root"}, {"HOME": "/home/seven", "USER": "seven", "LOGNAME": "seven"}),  # the runtime's, root's
        ({"HOME": "/data", "USER": "me"}, {"LOGNAME": "seven"}),
    ],
)
@pytest.mark.usefixtures("passwd")
def test_the_environment_of_a_user(base: dict[str, str], wanted: dict[str, str]) -> None:
    assert User(7, 70, (), "seven", "/home/seven").environment(base) == wanted
    assert User(8, 8).environment({"HOME": "/root"}) == {"HOME": "/"}


@pytest.mark.parametrize("whom", ["1000", "[1]", '["1", 2]', "[true, 2]"])
def test_an_order_that_names_nobody_is_refused(whom: str) -> None:
    with pytest.raises(ValueError, match="expected a list of uid, gid and further groups"):
        slot_init.parse(f'{{"run": ["x"], "env": {{}}, "cwd": "/", "log": "/l", "as": {whom}}}'.encode())


def _process(proc: Path, pid: int, ids: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "status").write_text(f"Name:\tx\nUid:\t{ids}\t9\nGid:\t5\t5\t5\t5\nNSpid:\t{pid}\n")
    (proc / str(pid) / "cmdline").write_bytes(b"x\0")


def test_processes_of_several_users_are_told(tmp_path: Path) -> None:
    _process(tmp_path, 1, "1000\t1000\t1000")
    _process(tmp_path, 2, "1000\t1000\t1000")
    _process(tmp_path, 3, "0\t0\t0")
    _process(tmp_path, 4, "1000\t0\t0")
    assert user.several([1, 2, 99], tmp_path) == user.several([], tmp_path) == ""
    assert user.several([1, 2, 3], tmp_path) == "x (pid 1) of uid 1000, gid 5 and x (pid 3) of uid 0, gid 5"
    assert user.several([4], tmp_path) == "x (pid 4) of uid 1000/0/0, gid 5"


# --- for real ---------------------------------------------------------------------------------------------------------
def statuses(pod: Pod, word: str) -> list[dict[str, str]]:
    """What /proc says of the pod's processes that have `word` in their command line, without the launcher's own."""
    assert pod.process is not None
    found, todo = [], [pod.process.pid]
    while todo:
        pid = todo.pop()
        folder = Path(f"/proc/{pid}")
        try:
            todo += [
                int(child) for task in (folder / "task").iterdir() for child in (task / "children").read_text().split()
            ]
            command, lines = (folder / "cmdline").read_bytes().decode(), (folder / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if word in command and "_singularity" not in command and "unshare" not in command:
            status = {name: " ".join(value.split()) for name, _, value in (line.partition(":") for line in lines)}
            found.append({**status, "/proc": str(folder.stat().st_uid)})
    return found


def all_are(pod: Pod, word: str, least: int) -> None:
    """At least so many processes, and all of the user, without a capability."""
    found = statuses(pod, word)
    assert len(found) >= least, pod.log()
    for status in found:
        assert status["Uid"] == "1000 1000 1000 1000" and status["Gid"] == "1001 1001 1001 1001"
        assert status["Groups"] == "4242"
        assert status["/proc"] == "1000", "it may read what /proc says of itself (PR_SET_DUMPABLE)"
        assert {int(status[f"Cap{kind}"], 16) for kind in ("Eff", "Prm", "Inh", "Amb")} == {0}
        assert int(status["CapBnd"], 16) == privileges.MASK, "a program of root's among its children has no more"
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def owner(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_uid, status.st_gid


@pytest.fixture
def make(make_pod: Make, rootfs: Path, criu_bundle: Path) -> Make:
    return partial(make_pod, rootfs=rootfs, torch=None, criu=criu_bundle)


LOOP = r"""
echo mine > /tmp/mine; chmod 600 /tmp/mine; exec 3>>/tmp/mine; echo mine > /dev/shm/mine; id > ids; echo $HOME > home
echo again > /proc/self/fd/1; cat given > copy; echo more >> given
n=0
until [ -e end ]; do n=$((n+1)); echo $n >> numbers; sleep 0.01; done
echo more >&3; id >> ids; stat -c %u:%g /tmp/mine /dev/shm/mine given; cat /tmp/mine
"""


@pytest.mark.criu
def test_a_shell_of_another_user_goes_on_as_that_one(make: Make) -> None:
    command = ["sh", "-c", LOOP.strip().replace(" ", "\t")]
    pod = make("old", plan=FRESH, command=command, env=AS)
    (pod.volumes / "source/given").write_text("given\n")
    for name in ("run", "work", "images"):
        (pod.volumes / name).chmod(0o777)  # as a kubelet makes them
    pod.start()
    numbers = pod.work(0) / "cwd/numbers"
    until(lambda: numbers.exists() and len(numbers.read_text()) > 20, "it counts", pod)
    all_are(pod, "until", 1)
    assert owner(pod.volumes / "run/page") == (0, 1001) and (pod.volumes / "run/page").stat().st_mode & 0o777 == 0o660
    first, new = pod, pod
    for attempt, generation in enumerate((GENERATION, page.generation(2, 1)), 2):
        pod, seen = new, len(new.sidecar.events)
        pod.sidecar.command("dump", generation=generation, checkpoint_id="c", anywhere=True)
        event = pod.wait_event("dumped", "dump_failed", skip=seen)
        assert event.kind == "dumped", pod.log()
        images = {owner(path) for path in pod.image("c", 0).iterdir()}
        assert images == {(0, 0)}, "for the sidecar, which has no capability"
        at = len((pod.work(0) / "cwd/numbers").read_text().split())
        pod.delete()
        plan = messages.Plan("restore", attempt, 1, [0], "127.0.0.1", 29500, generation, "c")
        new = make(f"attempt-{attempt}", plan=plan, command=command, env=AS)
        new.bring(pod, "c", 0)
        new.start().wait_event("restored")
        cwd = new.work(0) / "cwd"
        until(lambda c=cwd, n=at: len((c / "numbers").read_text().split()) > n + 20, "it counts on", new)  # type: ignore[misc]
        all_are(new, "until", 1)
    for made in (first, new):
        for folder in (made.work(0), *(made.volumes / name for name in ("run", "work", "images"))):
            assert owner(folder) == (0, 0) and folder.stat().st_mode & 0o777 == 0o755, folder
    for path in (new.work(0) / "tmp", new.work(0) / "stdout.log", cwd, *cwd.iterdir()):
        assert owner(path) == (1000, 1001), path
    assert owner(new.volumes / "run/rank-0") == (1000, 1001)
    (cwd / "end").touch()
    assert new.wait() == 0, new.log()
    count = [int(word) for word in (cwd / "numbers").read_text().split()]
    assert count == list(range(1, len(count) + 1))
    before, after = (cwd / "ids").read_text().splitlines()
    assert before == after == "uid=1000 gid=1001 groups=1001,4242"
    assert (cwd / "home").read_text() == "/\n" and (cwd / "copy").read_text() == "given\n"
    assert "[rank 0] again" in first.log()
    said = [line for line in new.log().splitlines() if line.startswith("[rank 0] ")]
    assert said == [f"[rank 0] {text}" for text in (*["1000:1001"] * 3, "mine", "more")], new.log()


@pytest.mark.criu
def test_a_rank_with_processes_of_two_users_is_not_saved_and_goes_on(make: Make) -> None:
    script = "setpriv --reuid 1000 --clear-groups sleep 1000 & until [ -e end ]; do echo x >> numbers; sleep 0.01; done"
    pod = make("pod", plan=FRESH, command=["sh", "-c", script.replace(" ", "\t")]).start()
    numbers = pod.work(0) / "cwd/numbers"
    until(lambda: numbers.exists() and any(s["Uid"].startswith("1000") for s in statuses(pod, "1000")), "both", pod)
    pod.sidecar.command("dump", generation=GENERATION, checkpoint_id="c", anywhere=True)
    event = pod.wait_event("dumped", "dump_failed")
    assert event.kind == "dump_failed", pod.log()
    assert "rank 0: sh -c" in event.message and "of uid 0, gid 0 and sleep 1000" in event.message
    assert "of uid 1000, gid 0. CRIU can save those of one user" in event.message
    assert not pod.image("c", 0).exists(), "refused before anything was dumped"
    at = len(numbers.read_text())
    pod.sidecar.command("resume", generation=GENERATION)
    until(lambda: len(numbers.read_text()) > at, "it goes on", pod)


@pytest.mark.criu
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(Program("loader.py", ("24",), 14, env=AS), id="loader", marks=pytest.mark.full),
        pytest.param(Program("children.py", ("80",), 10, env=AS), id="children", marks=pytest.mark.full),
    ],
)
def test_ranks_of_another_user_lose_nothing(program: Program, make: Make, torch_env: Path) -> None:
    runner = Runner(partial(make, torch=torch_env), program)
    reference = runner.start("reference")
    assert reference.wait() == 0, reference.log()
    pod = runner.start("old")
    runner.wait_lines(pod, program.stop_at)
    all_are(pod, program.script, 2)
    runner.stop(pod, GENERATION)
    new = runner.restore("new", pod, GENERATION)
    all_are(new, program.script, 2)
    assert new.wait() == 0, new.log()
    assert runner.losses(new) == runner.losses(reference)
    assert {owner(new.work(rank) / "cwd/losses") for rank in runner.ranks} == {(1000, 1001)}


@pytest.mark.criu
def test_a_program_that_changes_its_user_itself_is_saved(make: Make) -> None:
    script = "touch numbers; chmod 666 numbers; exec setpriv --reuid 1000 --regid 7 --clear-groups sh loop.sh"
    command = ["sh", "-c", script.replace(" ", "\t")]
    pod = make("old", plan=FRESH, command=command)
    (pod.volumes / "source/loop.sh").write_text(
        "until [ -e end ]; do echo x >> numbers; sleep 0.01; done; id -u; id -g"
    )
    pod.start()
    numbers = pod.work(0) / "cwd/numbers"
    until(lambda: numbers.exists() and len(numbers.read_text()) > 20, "it counts", pod)
    pod.sidecar.command("dump", generation=GENERATION, checkpoint_id="c", anywhere=True)
    event = pod.wait_event("dumped", "dump_failed")
    assert event.kind == "dumped", pod.log()
    at = len(numbers.read_text())
    pod.delete()
    new = make("new", plan=RESTORE, command=command)
    new.bring(pod, "c", 0)
    new.start().wait_event("restored")
    until(lambda: len((new.work(0) / "cwd/numbers").read_text()) > at, "it counts on", new)
    (new.work(0) / "cwd/end").touch()
    assert new.wait() == 0, new.log()
    assert "[rank 0] 1000\n[rank 0] 7\n" in new.log()


@pytest.mark.criu
def test_several_checkpoints_in_place(make: Make) -> None:
    """What stays behind of one must not be in the next one's way; and the page is still the rank's after it."""
    command = ["sh", "-c", "until [ -e end ]; do echo x >> numbers; sleep 0.01; done".replace(" ", "\t")]
    pod = make("pod", plan=messages.Plan("fresh", 1, 1, [0], "127.0.0.1", free_port()), command=command, env=AS).start()
    numbers = pod.work(0) / "cwd/numbers"
    until(numbers.exists, "it counts", pod)
    for sequence in (1, 2):
        generation, seen = page.generation(1, sequence), len(pod.sidecar.events)
        pod.sidecar.command("dump", generation=generation, checkpoint_id=f"c{sequence}", anywhere=True)
        event = pod.wait_event("dumped", "dump_failed", skip=seen)
        assert event.kind == "dumped", pod.log()
        at = len(numbers.read_text())
        pod.sidecar.command("resume", generation=generation)
        until(lambda at=at: len(numbers.read_text()) > at + 20, "it goes on", pod)  # type: ignore[misc]
    (pod.work(0) / "cwd/end").touch()
    assert pod.wait() == 0, pod.log()
