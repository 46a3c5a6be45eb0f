"""The launcher's parts for the state engine: plain ranks, checkpoints laid together, progress, refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from waits import until

from singularity_proxy.errors import ConfigError
from singularity_proxy.launcher import reap
from singularity_proxy.launcher.errors import CommandError, DumpError, RestoreError, SlotError
from singularity_proxy.launcher.laps import Laps
from singularity_proxy.launcher.output.progress import Readout
from singularity_proxy.launcher.paths import Paths
from singularity_proxy.launcher.ranks import environment
from singularity_proxy.launcher.ranks.plain import PlainRank
from singularity_proxy.launcher.ranks.user import User
from singularity_proxy.launcher.signals import pass_on
from singularity_proxy.launcher.snapshot import ended as ended_ranks
from singularity_proxy.launcher.snapshot import engines, outputs
from singularity_proxy.launcher.snapshot.engine import ProcessEngine
from singularity_proxy.launcher.snapshot.page_nowhere import Nowhere
from singularity_proxy.launcher.snapshot.rank_dump import Order
from singularity_proxy.launcher.snapshot.state_engine import StateEngine
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import Plan, Reading
from singularity_proxy.protocol.state_image import lay_together
from singularity_proxy.sidecar import config

PLAN = Plan("restore", 2, 1, [0], "10.0.0.1", 29500, 5, "c")


def started(tmp_path: Path, code: str) -> PlainRank:
    rank = PlainRank(0)
    rank.start([sys.executable, "-c", code], dict(os.environ), tmp_path, tmp_path / "log")
    return rank


def ended(rank: PlainRank) -> int:
    until(lambda: rank.poll() is not None)
    code = rank.poll()
    assert code is not None
    return code


# --- plain ranks ------------------------------------------------------------------------------------------------------
def test_a_plain_rank_writes_to_its_log_and_ends_with_its_code(tmp_path: Path) -> None:
    rank = started(tmp_path, "import os; print(os.getcwd(), flush=True); os.system('echo below'); exit(7)")
    assert ended(rank) == 7
    assert (tmp_path / "log").read_text() == f"{tmp_path}\nbelow\n"


def test_a_signal_counts_128_more_as_in_a_shell(tmp_path: Path) -> None:
    rank = started(tmp_path, "import time; print('up', flush=True); time.sleep(60)")
    until(lambda: (tmp_path / "log").exists() and "up" in (tmp_path / "log").read_text())
    rank.signal(signal.SIGTERM)
    assert ended(rank) == 128 + signal.SIGTERM


def test_what_a_rank_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    """As in a slot: loader workers of a rank that was killed would hold its port and its memory."""
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); sys.exit(3)"
    rank = started(tmp_path, code)
    assert ended(rank) == 3
    child = Path("/proc") / (tmp_path / "log").read_text().strip()
    until(lambda: not child.exists() or "\nState:\tZ" in (child / "status").read_text())


def test_a_rank_is_killed_with_all_that_it_has_started(tmp_path: Path) -> None:
    rank = started(tmp_path, "import os; os.system('echo up; sleep 60')")
    until(lambda: (tmp_path / "log").exists() and "up" in (tmp_path / "log").read_text())
    rank.kill()
    assert ended(rank) == 128 + signal.SIGKILL
    assert reap.orphans() is not None


def test_a_signal_is_passed_on_only_to_who_has_a_handler(tmp_path: Path) -> None:
    handler = "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: exit(5)); "
    for name, code in (("deaf", ""), ("hears", handler)):
        folder = tmp_path / name
        folder.mkdir()
        rank = started(folder, code + "import time; print('up', flush=True); time.sleep(60)")
        until(lambda log=folder / "log": log.exists() and "up" in log.read_text())  # type: ignore[misc]
        assert pass_on(signal.SIGUSR1, [rank]) == ([0] if code else [])
        if code:
            assert ended(rank) == 5
        rank.kill()


def test_a_program_that_is_not_there_and_a_user_that_nobody_can_become(tmp_path: Path) -> None:
    rank = PlainRank(0)
    rank.start(["/no/such/program"], {}, tmp_path, tmp_path / "log")
    assert rank.poll() == 127
    assert (tmp_path / "log").read_text() == "/no/such/program: cannot be executed: No such file or directory\n"
    with pytest.raises(SlotError, match="rank 1 cannot run as uid 7: the pod's securityContext says who it is"):
        PlainRank(1).start(["true"], {}, tmp_path, tmp_path / "log", User(7, 7))


# --- the engine -------------------------------------------------------------------------------------------------------
def test_the_environment_says_which_engine(tmp_path: Path) -> None:
    assert isinstance(engines.of({names.ENV_ENGINE: "state"}, Paths(tmp_path)), StateEngine)
    assert isinstance(engines.of({}, Paths(tmp_path)), ProcessEngine)
    with pytest.raises(CommandError, match="SINGULARITY_ENGINE = 'magic': this agent knows process, state, both"):
        engines.of({names.ENV_ENGINE: "magic"}, Paths(tmp_path))


def test_ranks_of_an_elastic_job_are_always_told_their_world(tmp_path: Path) -> None:
    alone = Plan("fresh", 1, 1, [0], "10.0.0.1", 29500)
    given = environment.environment({}, alone, 0, Paths(tmp_path), elastic=True)
    assert (given["RANK"], given["WORLD_SIZE"], given["MASTER_ADDR"]) == ("0", "1", "10.0.0.1")
    assert given["OMP_NUM_THREADS"] == "1", "the bits depend on it"
    assert names.ENV_ALONE not in given
    assert "RANK" not in environment.environment({}, alone, 0, Paths(tmp_path))


def test_a_rank_is_told_where_its_state_goes_and_has_a_home(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    given = StateEngine({}, paths).environment(3)
    assert given[names.ENV_STATE_TO] == str(paths.state_to(3)) and names.ENV_STATE_FROM not in given
    assert (given["HOME"], given["USER"]) == (str(paths.work(3)), "train")
    own = StateEngine({"HOME": "/home/ann", "USER": "ann"}, paths).environment(3)
    assert not {"HOME", "USER", "LOGNAME"} & set(own)


def saved_by(images: Path, rank: int, *blobs: str, manifest: bool = False) -> None:
    folder = images / f"rank-{rank}"
    (folder / "blobs").mkdir(parents=True)
    for blob in blobs:
        (folder / "blobs" / blob).write_text(blob)
    if manifest:
        (folder / "checkpoints/1-step-7").mkdir(parents=True)
        (folder / "checkpoints/1-step-7/manifest.json").write_text("{}")


def test_what_the_ranks_have_saved_becomes_one_folder(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    images = paths.images("c")
    saved_by(images, 0, "a", "b", manifest=True)
    saved_by(images, 1)
    saved_by(images, 2, "c", "a")
    engine, told = StateEngine({}, paths), []
    engine.restore(PLAN, dict, told.append, Laps())
    assert sorted(path.name for path in (paths.state_from / "blobs").iterdir()) == ["a", "b", "c"]
    assert (paths.state_from / "checkpoints/1-step-7/manifest.json").exists()
    assert engine.environment(0)[names.ENV_STATE_FROM] == str(paths.state_from)
    assert told == [f"checkpoint c of 3 ranks lies in {paths.state_from}"]


def test_images_without_a_manifest_are_no_checkpoint(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    saved_by(paths.images("c"), 0, "a")
    with pytest.raises(RestoreError, match=r"c cannot be laid out in .*has no manifest of singularity_train"):
        StateEngine({}, paths).restore(PLAN, dict, print, Laps())
    with pytest.raises(FileNotFoundError):
        lay_together(tmp_path / "nothing", tmp_path / "target")


def test_a_rank_that_says_it_is_saved_and_is_not_fails_the_dump(tmp_path: Path) -> None:
    paths, rank = Paths(tmp_path), PlainRank(0)
    paths.control(0).mkdir(parents=True)
    (paths.control(0) / names.FROZEN_FILE).write_text(json.dumps({"generation": 5, "step": 9}))
    order = Order(5, "c", time.monotonic() + 20)
    with pytest.raises(DumpError, match="rank 0 says that its state is saved, but it is not there"):
        StateEngine({}, paths).dump({0: rank}, order, Laps())


def test_a_trial_leaves_the_state_for_a_checkpoint_of_the_same_stop(tmp_path: Path) -> None:
    paths, ranks = Paths(tmp_path), {0: PlainRank(0)}
    paths.control(0).mkdir(parents=True)
    (paths.control(0) / names.FROZEN_FILE).write_text(json.dumps({"generation": 5, "step": 9}))
    trial = Order(5, "c", time.monotonic() + 20, trial=Nowhere(paths.withdrawn("c"), time.monotonic() + 20))
    with pytest.raises(DumpError, match="rank 0 says that its state is saved, but it is not there"):
        StateEngine({}, paths).dump(ranks, trial, Laps())
    (paths.state_to(0) / "5").mkdir(parents=True)
    assert StateEngine({}, paths).dump(ranks, trial, Laps()) == [] and not paths.images("c").exists()
    StateEngine({}, paths).dump(ranks, replace(trial, trial=None), Laps())
    assert paths.image("c", 0).is_dir()


def test_what_ranks_hold_is_that_of_all_processes_of_their_sessions(tmp_path: Path) -> None:
    child = "import os; h = bytearray(32 << 20); os.fork(); h2 = os.urandom(8 << 20); import time; time.sleep(60)"
    engine, rank = StateEngine({}, Paths(tmp_path)), started(tmp_path, child)
    try:
        until(lambda: len(rank.processes()) == 2 and engine.weigh({0: rank}) > 70 << 20)
    finally:
        rank.kill()
    until(lambda: rank.poll() is not None)
    assert engine.weigh({0: rank}) == 0


def test_what_was_saved_for_a_stop_that_is_given_up_goes(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    paths.control(0).mkdir(parents=True)
    (paths.state_to(0) / "5").mkdir(parents=True)
    (paths.state_to(0) / "6").mkdir()
    assert StateEngine({}, paths).resume({0: PlainRank(0)}, 5, "10.0.0.1", 29501) == []
    assert [path.name for path in paths.state_to(0).iterdir()] == ["6"]
    assert json.loads((paths.control(0) / names.RESUME_FILE).read_text())["generation"] == 5


# --- progress, configuration ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ('{"step": 8, "steps": 20, "loss": 0.5}', Reading(8, 20, 0.5)),
        ('{"step": 8, "steps": null, "loss": null}', Reading(8)),
        ('{"step": "x"}', Reading(3)), ("{", Reading(3)), ('{"step": 1, "loss": NaN}', Reading(3)),
    ],
)  # fmt: skip
def test_the_file_of_the_library_comes_before_what_is_printed(tmp_path: Path, text: str, reading: Reading) -> None:
    file = tmp_path / names.PROGRESS_FILE
    readout = Readout(file)
    readout.see(b"step 3")
    assert readout.due(0.0) == Reading(3), "without the file"
    file.write_text(text)
    assert readout.due(10.0) == (None if reading == Reading(3) else reading)


def test_the_world_of_the_sidecar_follows_the_workers(tmp_path: Path) -> None:
    env = {
        names.ENV_NAMESPACE: "n", names.ENV_JOB: "j", names.ENV_POD: "j-0", names.ENV_POD_IP: "10.0.0.1",
        names.ENV_INDEX: "1", names.ENV_ATTEMPT: "2", names.ENV_WORKERS: "3", names.ENV_WORLD_SIZE: "8",
        names.ENV_STORE: "file:///s", names.ENV_CONTROLLER_URL: "https://c", names.ENV_CONTROLLER_CA: "pem",
        names.ENV_TOKEN_FILE: "/t", names.ENV_ENGINE: "state", names.ENV_RANKS_PER_WORKER: "2",
    }  # fmt: skip
    found = config.from_env(env)
    assert (found.world_size, found.ranks, found.engine) == (6, [2, 3], "state")
    assert config.from_env({**env, names.ENV_ENGINE: ""}).ranks == [3, 4, 5], "8 ranks in 3 pods"
    with pytest.raises(ConfigError, match="SINGULARITY_ENGINE = 'magic': this agent knows process, state, both"):
        config.from_env({**env, names.ENV_ENGINE: "magic"})


def test_a_rank_that_loses_another_one_before_attach_says_so(tmp_path: Path, agent_lib: Path) -> None:
    """Else the job would fail because a node was lost while its ranks met for the first time."""
    env = {"PYTHONPATH": str(agent_lib), names.ENV_RANK_DIR: str(tmp_path), names.ENV_ENGINE: "state"}
    note = tmp_path / names.LOST_PEER_FILE
    for text, told in (("bad input", False), ("gloo/transport/tcp: Connection closed by peer", True)):
        code = f"raise RuntimeError({text!r})"
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=120, check=False)
        assert done.returncode == 1 and note.exists() == told, done.stderr


def test_the_library_is_there_without_torch_being_imported(tmp_path: Path, agent_lib: Path) -> None:
    """`train_host` runs in the user's process, before torch may be there."""
    code = "import sys; from _singularity.agent import train_host; assert 'torch' not in sys.modules"
    env = {"PYTHONPATH": str(agent_lib), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=120)
    assert (agent_lib / "singularity_train/attach.py").exists()


# --- outputs ----------------------------------------------------------------------------------------------------------
def test_outputs_of_more_ranks_go_to_those_that_are_left(tmp_path: Path) -> None:
    """Without the folder of a rank, which does not travel: what several had of one name is the lowest rank's."""
    before, after = Paths(tmp_path / "before"), Paths(tmp_path / "after")
    for rank in range(4):
        folder = before.outputs(rank)
        (folder / "shards").mkdir(parents=True)
        (folder / "shards" / str(rank)).write_text(str(rank))
        (folder / "last").write_text(str(rank))
        after.image("c", rank).mkdir(parents=True)
        outputs.pack(before, rank, after.image("c", rank))
    beside = after.image("c", 3) / names.STATE_PART  # engine `both`
    beside.mkdir()
    (after.image("c", 3) / names.OUTPUTS_TAR).rename(beside / names.OUTPUTS_TAR)
    plan = Plan("restore", 2, 2, [0], "", 1, checkpoint_id="c", through="state", outputs=True)
    outputs.unpack(after, plan)
    assert sorted(path.name for path in (after.outputs(0) / "shards").iterdir()) == ["0", "2"]
    assert (after.outputs(0) / "last").read_text() == "0" and not after.outputs(1).exists()
    outputs.unpack(after, replace(plan, ranks=[1]))
    assert sorted(path.name for path in (after.outputs(1) / "shards").iterdir()) == ["1", "3"]


def test_outputs_of_images_that_are_fetched_in_parts_come_beside_them(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    paths.outputs(0).mkdir(parents=True)
    (paths.outputs(0) / "model").write_text("7")
    (paths.outputs_from / "rank-0").mkdir(parents=True)
    outputs.pack(paths, 0, paths.outputs_from / "rank-0")
    shutil.rmtree(paths.outputs(0))
    outputs.unpack(paths, Plan("restore", 2, 1, [0], "", 1, checkpoint_id="c", through="state", outputs=True))
    assert (paths.outputs(0) / "model").read_text() == "7" and not paths.outputs_from.exists()


def test_a_rank_without_outputs_has_no_archive(tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    outputs.pack(paths, 0, tmp_path)
    paths.outputs(0).mkdir(parents=True)
    outputs.pack(paths, 0, tmp_path)
    assert not (tmp_path / names.OUTPUTS_TAR).exists()


def test_outputs_of_a_rank_that_had_ended_are_kept_with_it(tmp_path: Path) -> None:
    paths, plan = Paths(tmp_path), Plan("restore", 2, 2, [0, 1], "", 1, checkpoint_id="c", outputs=True)
    paths.outputs(1).mkdir(parents=True)
    (paths.outputs(1) / "model").write_text("7")
    paths.run.mkdir(parents=True)
    (paths.run / names.PAGE_FILE).write_bytes(bytes(1 << 16))
    ended_ranks.save(paths, "c", 1)
    shutil.rmtree(paths.outputs(1))
    outputs.unpack(paths, plan, ended_ranks.among(plan, paths))
    assert (paths.outputs(1) / "model").read_text() == "7"
