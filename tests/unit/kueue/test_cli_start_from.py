"""`submit --start-from` as users run it: a new job that begins with a checkpoint of another one."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import Result
from kueue_samples import PLATFORM, spec
from test_cli_time_travel import NS, held, kube, made, refs, run, store

from kueue_integration.contract import branches
from kueue_integration.errors import ConflictError
from kueue_integration.jobs import lifecycle
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import JOB
from singularity_proxy.protocol.messages import Origin
from singularity_proxy.store import Store

__all__ = ["kube", "made", "refs", "store"]
COMMAND = ("--", *spec().command)


def submitted(wanted: str, *options: str, ranks: int = 4) -> Result:
    with TemporaryDirectory() as folder:  # the files of the job whose processes go on
        for path, text in spec().files.items():
            (Path(folder) / path).parent.mkdir(exist_ok=True)
            (Path(folder) / path).write_text(text)
        size = ("--workers", str(ranks), "--workdir", folder)
        return run("submit", "--name", "twin", "--queue", "training", *size, "--start-from", wanted, *options, *COMMAND)


@pytest.mark.parametrize(
    ("wanted", "checkpoint"),
    [("digits", "digits-a1-g3"), ("digits/digits-a1-g1", "digits-a1-g1"), ("digits-a1-g2", "digits-a1-g2")],
)
def test_a_job_one_of_its_checkpoints_and_an_id(kube: FakeKube, store: Store, wanted: str, checkpoint: str) -> None:
    done = submitted(wanted)
    assert done.exit_code == 0, done.output
    step = 100 * int(checkpoint[-1])
    assert done.stdout.splitlines()[-1] == f"begins with checkpoint {checkpoint} (step {step}) of job digits"
    assert branches.start_from(kube.get_job(NS, "twin")) == Origin("digits", checkpoint)
    assert held(store) == {checkpoint: ("twin",)}


def test_another_command_would_not_be_seen_by_the_saved_processes(kube: FakeKube, store: Store) -> None:
    command = ("--", "python3", "train.py", "--steps", "1")
    done = run("submit", "--name", "twin", "--queue", "training", "--workers", "4", "--start-from", "digits", *command)
    assert done.exit_code == 2 and "go on with the command that they were started with" in done.stderr, done.output
    assert kube.find(JOB, NS, "twin") is None and held(store) == {}


def test_other_files_would_not_be_seen_either(kube: FakeKube, store: Store) -> None:
    size = ("--queue", "training", "--workers", "4")
    done = run("submit", "--name", "twin", *size, "--start-from", "digits", *COMMAND)
    assert done.exit_code == 2 and "go on with the file lib/model.py that they were" in done.stderr, done.output
    assert kube.find(JOB, NS, "twin") is None and held(store) == {}


def test_a_dry_run_says_where_it_would_begin_and_holds_nothing(kube: FakeKube, store: Store) -> None:
    done = submitted("digits", "--dry-run")
    assert done.exit_code == 0 and "begins with checkpoint digits-a1-g3 (step 300)" in done.stdout
    assert kube.find(JOB, NS, "twin") is None and held(store) == {}


@pytest.mark.parametrize(
    ("wanted", "ranks", "words"),
    [
        ("nobody", 4, "is neither a training job of namespace 'default' nor a checkpoint that one of them knows"),
        ("digits/digits-a9-g9", 4, "is no committed checkpoint that job digits knows; it has digits-a1-g1 (step 100)"),
        ("digits", 8, "has 4 ranks, the job has 8: the number of ranks stays"),
        ("/digits-a1-g1", 4, "has no name of a job before '/'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_what_cannot_be_begun_with_is_refused_before_anything_is_created(
    kube: FakeKube, store: Store, wanted: str, ranks: int, words: str, dry: tuple[str, ...]
) -> None:
    done = submitted(wanted, *dry, ranks=ranks)
    assert done.exit_code == 2 and "start_from = " in done.stderr and words in done.stderr, done.output
    assert kube.find(JOB, NS, "twin") is None and held(store) == {}


def test_a_checkpoint_that_is_gone_from_the_store_is_refused(kube: FakeKube, store: Store) -> None:
    Path(store.url.removeprefix("file://"), f"jobs/{NS}/digits/digits-a1-g2.json").unlink()
    done = submitted("digits-a1-g2")
    assert done.exit_code == 2 and "start_from = 'digits-a1-g2': " in done.stderr, done.output
    assert kube.find(JOB, NS, "twin") is None


def test_a_submit_that_the_api_server_refuses_holds_nothing(
    kube: FakeKube, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ConflictError("somebody was faster")

    monkeypatch.setattr(lifecycle, "submit", fails)
    assert submitted("digits").exit_code == 2
    assert held(store) == {}


def test_a_job_that_is_there_already_is_adopted_as_it_is(kube: FakeKube, store: Store) -> None:
    lifecycle.submit(kube, spec(name="twin", identity="me"), PLATFORM)
    done = submitted("digits", "--identity", "me", "-o", "json")
    assert json.loads(done.stdout)["adopted"] is True
    assert branches.start_from(kube.get_job(NS, "twin")) is None and held(store) == {}
