"""`rewind` and `fork` as users run them: against a store with real content, and an API server in memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kueue_samples import PLATFORM, attempt, cluster, spec

from kueue_integration import cli
from kueue_integration.cli import checkpoints, submit
from kueue_integration.contract import branches, job_names
from kueue_integration.contract.record_types import JobRequest
from kueue_integration.errors import ConflictError, RequestRefusedError, SpecError
from kueue_integration.jobs import lifecycle, time_travel
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CONFIG_MAP, JOB, POD, SERVICE, annotation, label
from kueue_integration.requests import user_requests
from kueue_integration.spec import platform_config
from kueue_integration.spec.platform_config import PlatformConfig
from singularity_proxy.protocol import names
from singularity_proxy.protocol.manifest import Manifest, Requirements
from singularity_proxy.protocol.messages import CheckpointRef, Origin, from_json, to_json
from singularity_proxy.store import Store, admin

NS = "default"


def commit(store: Store, image: Path, number: int) -> CheckpointRef:
    name = f"digits-a1-g{number}"
    ranks = store.put_ranks(NS, "digits", name, dict.fromkeys(range(4), image)).images
    made = Manifest(
        id=name, namespace=NS, job="digits", attempt=1, generation=1_000_000 + number, step=100 * number, world_size=4,
        engine="process", created_at=1e9 + number, ranks=ranks,
        requirements=Requirements("x86_64", ""),
    )  # fmt: skip
    digest = store.write_manifest(made)
    return CheckpointRef(
        name, made.generation, 1, made.step, 4, store.url, bytes=4000, bytes_stored=4000, created_at=made.created_at,
        sha256=digest,
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[CheckpointRef]]:
    """A store with three checkpoints; each test has a copy."""
    folder = tmp_path_factory.mktemp("made")
    image = folder / "image"
    image.mkdir()
    store, found = Store(f"file://{folder}/store"), []
    for number in (1, 2, 3):
        (image / "pages-1.img").write_bytes(bytes([number]) * 4000)
        found.append(commit(store, image, number))
    return folder / "store", found


@pytest.fixture
def store(tmp_path: Path, made: tuple[Path, list[CheckpointRef]]) -> Store:
    shutil.copytree(made[0], tmp_path / "store")
    return Store(f"file://{tmp_path}/store")


@pytest.fixture
def refs(store: Store, made: tuple[Path, list[CheckpointRef]]) -> list[CheckpointRef]:
    return [replace(ref, url=store.url) for ref in made[1]]


def with_store(store: Store) -> PlatformConfig:
    folder = store.url.removeprefix("file://")
    volume = {"name": "store", "hostPath": {"path": folder}}
    return replace(PLATFORM, store=store.url, volumes=(*PLATFORM.volumes, volume),
                   volume_mounts=(*PLATFORM.volume_mounts, {"name": "store", "mountPath": folder}))  # fmt: skip


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch, store: Store, refs: list[CheckpointRef]) -> Iterator[FakeKube]:
    """Job digits of `submit` trains; pods that ask the store are carried out at once."""
    platform = with_store(store)
    chart = {"name": "singularity-platform", "namespace": "singularity-system"}
    fake = cluster({"apiVersion": "v1", "kind": "ConfigMap", "metadata": chart,
                    "data": {"platform.json": platform_config.to_json(platform)}})  # fmt: skip
    for module in (checkpoints, submit):
        monkeypatch.setattr(module, "open_cluster", lambda kubeconfig, context: fake)
    create = fake.create

    def and_run(obj: Any, dry_run: bool = False) -> Any:
        made = create(obj, dry_run)
        if obj["kind"] == "Pod":
            command, meta = obj["spec"]["containers"][0]["command"], obj["metadata"]
            said = admin.answer(command[3], command[4:])
            fake.logs[meta["namespace"], meta["name"], "store"] = [json.dumps(said)]
            fake.set_status(POD, meta["namespace"], meta["name"], {"phase": "Succeeded"})
        return made

    monkeypatch.setattr(fake, "create", and_run)
    lifecycle.submit(fake, spec(), platform)
    told = {
        job_names.ANN_CHECKPOINTS: to_json(refs),
        names.ANN_CHECKPOINT: to_json(refs[-1]),
        job_names.ANN_HISTORY: to_json([attempt(first_step=0, last_step=349)]),
        job_names.ANN_ATTEMPT: "1",
        job_names.ANN_PROGRESS: '{"attempt":1,"step":350,"at":1}',
        f"airflow.{names.DOMAIN}/task": "{}",
    }
    fake.patch(JOB, NS, "digits", {"metadata": {"annotations": told}, "spec": {"suspend": False}})
    yield fake
    assert fake.list(POD, NS) == [], "no pod is left behind"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, [*arguments])


def held(store: Store) -> dict[str, tuple[str, ...]]:
    return {entry.id: entry.held for entry in store.list_checkpoints(NS, "digits") if entry.held}


# --- rewind -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("where", ["auto", "here"])
def test_rewind_looks_into_the_store_holds_the_checkpoint_and_asks(kube: FakeKube, store: Store, where: str) -> None:
    done = run("rewind", "digits", "--to", "digits-a1-g1", "--where", where)
    assert done.exit_code == 0 and "rewind of job default/digits: asked for" in done.stdout, done.output
    asked = user_requests.asked(kube.get_job(NS, "digits"), user_requests.CHANGE)
    assert asked is not None and (asked.op, asked.checkpoint) == ("rewind", "digits-a1-g1")
    assert held(store) == {"digits-a1-g1": (names.HOLD_REWIND,)}
    again = run("rewind", "digits", "--to", "digits-a1-g1", "--where", where)
    assert again.exit_code == 0
    assert user_requests.asked(kube.get_job(NS, "digits"), user_requests.CHANGE) == asked, "it joins the first"


def test_a_request_without_a_checkpoint_is_read_by_an_older_controller() -> None:
    text = user_requests.written(JobRequest("r", "pause", 1.0))[job_names.ANN_REQUEST] or ""
    assert "checkpoint" not in json.loads(text)
    text = user_requests.written(JobRequest("r", "rewind", 1.0, checkpoint="c"))[job_names.ANN_REQUEST] or ""
    assert from_json(JobRequest, text).checkpoint == "c"


@pytest.mark.parametrize(
    ("spoil", "checkpoint", "words"),
    [
        (lambda store, root: None, "digits-a9-g9",
         "is no committed checkpoint that job digits knows; it has digits-a1-g1 (step 100), "),
        (lambda store, root: store.drop(NS, "digits", ["digits-a1-g1"]), "digits-a1-g1",
         "no checkpoint 'digits-a1-g1'"),
        (lambda store, root: [p.unlink() for p in (root / "packs").iterdir()], "digits-a1-g1", "is missing"),
        (lambda store, root: (root / "digits-a1-g1.json").write_bytes((root / "digits-a1-g2.json").read_bytes()),
         "digits-a1-g1", "is not the manifest that was committed"),
    ],
    ids=["unknown", "gone", "damaged", "replaced"],
)  # fmt: skip
@pytest.mark.parametrize("command", [("rewind", "--to"), ("fork", "--name", "twin", "--from")], ids=lambda c: c[0])
def test_what_is_not_whole_is_refused_before_anything_happens(
    kube: FakeKube, store: Store, tmp_path: Path, spoil: Any, checkpoint: str, words: str, command: tuple[str, ...]
) -> None:
    spoil(store, tmp_path / "store/jobs/default/digits")
    before = kube.get_job(NS, "digits")
    done = run(command[0], "digits", *command[1:], checkpoint)
    assert done.exit_code == 2 and f"checkpoint = '{checkpoint}': " in done.stderr, done.output
    assert words in " ".join(done.stderr.split()), done.stderr
    assert kube.get_job(NS, "digits") == before and len(kube.list(JOB, NS)) == 1
    assert held(store) == {}


def test_a_failed_job_goes_on_as_a_new_one_unless_airflow_looks_at_it(kube: FakeKube) -> None:
    kube.set_status(JOB, NS, "digits", {"conditions": [{"type": "Failed", "status": "True"}]})
    refused = run("rewind", "digits", "--to", "digits-a1-g2")
    assert refused.exit_code == 2 and "clear the task, with start_from='earlier run'" in refused.stderr
    kube.patch(JOB, NS, "digits", {"metadata": {"annotations": {f"airflow.{names.DOMAIN}/task": None}}})
    for name in ("digits-2", "digits-3"):
        done = run("rewind", "digits", "--to", "digits-a1-g2", "--wait")
        assert done.exit_code == 0 and f"job {name} goes on from checkpoint digits-a1-g2 (step 200)" in done.stdout
        assert branches.start_from(kube.get_job(NS, name)) == Origin("digits", "digits-a1-g2")


# --- fork -------------------------------------------------------------------------------------------------------------
def test_a_fork_has_the_pods_of_its_source_and_nothing_of_its_past(kube: FakeKube, store: Store) -> None:
    before = kube.get_job(NS, "digits")
    done = run("fork", "digits", "--from", "digits-a1-g2", "--name", "twin", "--priority-class", "high")
    assert done.exit_code == 0, done.output
    assert "job default/twin goes on from checkpoint digits-a1-g2 (step 200) of job digits" in done.stdout
    twin = kube.get_job(NS, "twin")
    assert held(store) == {"digits-a1-g2": ("twin",)}
    assert kube.get_job(NS, "digits") == before, "the source is left alone"

    # As `submit` under the new name would have made it, but for what it begins with.
    platform = with_store(store)
    fresh = cluster()
    lifecycle.submit(fresh, spec(name="twin", priority_class="high", identity=None), platform)
    want = fresh.get_job(NS, "twin")
    start = {job_names.ANN_START_FROM: to_json(Origin("digits", "digits-a1-g2"))}
    assert twin["metadata"]["annotations"] == {**want["metadata"]["annotations"], **start}
    assert twin["metadata"]["labels"] == want["metadata"]["labels"]
    assert twin["spec"] == want["spec"]
    for kind, name in ((SERVICE, "twin"), (CONFIG_MAP, "twin-files")):
        made, wanted = kube.get(kind, NS, name), fresh.get(kind, NS, name)
        assert made["metadata"]["labels"] == wanted["metadata"]["labels"]
        assert (made.get("spec"), made.get("data")) == (wanted.get("spec"), wanted.get("data"))
        assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == [twin["metadata"]["uid"]]


def test_what_kueue_has_added_for_a_flavor_is_not_taken_over(kube: FakeKube) -> None:
    job = kube.get_job(NS, "digits")
    template = json.loads(json.dumps(job["spec"]["template"]))
    kube.put({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {"name": "w", "namespace": NS, "labels": {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}},
        "spec": {"podSets": [{"name": "main", "count": 4, "template": template}]}, "status": {},
    })  # fmt: skip
    admitted = {"metadata": {"labels": {"kueue.x-k8s.io/podset": "main"},
                             "annotations": {job_names.ANN_ATTEMPT: "1"}},
                "spec": {"nodeSelector": {"flavor": "ondemand"}}}  # fmt: skip
    kube.patch(JOB, NS, "digits", {"spec": {"template": admitted, "parallelism": 2, "completions": 2}})
    assert run("fork", "digits", "--name", "twin").exit_code == 0
    twin = kube.get_job(NS, "twin")
    assert "nodeSelector" not in twin["spec"]["template"]["spec"]
    assert label(twin["spec"]["template"], "kueue.x-k8s.io/podset") is None
    assert annotation(twin["spec"]["template"], job_names.ANN_ATTEMPT) is None
    assert (twin["spec"]["parallelism"], twin["spec"]["suspend"]) == (4, True)
    assert branches.start_from(twin) == Origin("digits", "digits-a1-g3"), "the newest by default"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--name", "digits"), "Job 'digits' in namespace 'default' exists already"),
        (("--name", "Twin"), "name = 'Twin': must start with a letter"),
        (("--name", "twin", "--queue", "gold"), "queue = 'gold': is not a LocalQueue"),
        (("--name", "twin", "--priority-class", "gold"), "priority_class = 'gold': is not a WorkloadPriorityClass"),
    ],
)
def test_a_fork_that_cannot_be_is_refused_before_anything_happens(
    kube: FakeKube, store: Store, options: tuple[str, ...], words: str
) -> None:
    done = run("fork", "digits", *options)
    assert done.exit_code == 2 and words in done.stderr, done.output
    assert len(kube.list(JOB, NS)) == 1 and held(store) == {}


def test_a_fork_that_the_api_server_refuses_holds_nothing(
    kube: FakeKube, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = lifecycle.create

    def fails(kube: Any, job: Any, children: Any, dry_run: bool = False) -> Any:
        if not dry_run:
            raise ConflictError("somebody was faster")
        return create(kube, job, children, dry_run)

    monkeypatch.setattr(lifecycle, "create", fails)
    assert run("fork", "digits", "--name", "twin").exit_code == 2
    assert held(store) == {}


def test_other_sizes_stores_and_kinds_are_refused(kube: FakeKube) -> None:
    start = time_travel.find(kube, NS, "digits")
    other = {"metadata": {"annotations": {job_names.ANN_WORLD_SIZE: "8", job_names.ANN_STORE: start.ref.url}}}
    with pytest.raises(SpecError, match="has 4 ranks, the job has 8"):
        time_travel.require_fit(other, start)
    kube.patch(JOB, NS, "digits", {"spec": {"managedBy": job_names.MULTIKUEUE_CONTROLLER}})
    with pytest.raises(SpecError, match="fork it there"):
        time_travel.fork(kube, NS, "digits", "twin")
    with pytest.raises(RequestRefusedError, match="rewind it there"):
        time_travel.rewind(kube, NS, "digits", "digits-a1-g1")


def test_the_list_shows_branches_and_holders(kube: FakeKube, store: Store, refs: list[CheckpointRef]) -> None:
    run("fork", "digits", "--from", "digits-a1-g2", "--name", "twin")
    run("rewind", "digits", "--to", "digits-a1-g1")
    back = {names.ANN_CHECKPOINT: to_json(refs[0])}
    kube.patch(JOB, NS, "digits", {"metadata": {"annotations": back}})
    lines = {line.split()[0]: line for line in run("checkpoints", "ls", "digits").stdout.splitlines()}
    assert lines["digits-a1-g3"].endswith("side branch")
    assert lines["digits-a1-g2"].endswith("side branch; held by twin")
    assert lines["digits-a1-g1"].endswith("held by its own rewind")
    assert "digits-a1-g2" in run("checkpoints", "gc", "digits", "--keep", "1").stdout.split("stay:")[1]


def test_the_list_says_how_to_let_go_of_what_is_held_for_a_job_that_was_deleted(kube: FakeKube, store: Store) -> None:
    run("fork", "digits", "--from", "digits-a1-g2", "--name", "twin")
    assert "which is not there" not in run("checkpoints", "ls", "digits").stdout
    kube.delete(JOB, NS, "twin")
    told = run("checkpoints", "ls", "digits").stdout.splitlines()[-1]
    assert told.startswith("digits-a1-g2 is held for job twin, which is not there.")
    done = run(*told.partition("singularityctl ")[2].split())
    assert done.exit_code == 0 and held(store) == {}, done.output
    assert "which is not there" not in run("checkpoints", "ls", "digits").stdout


def test_what_a_fork_began_with_is_found_where_it_was_made(kube: FakeKube, refs: list[CheckpointRef]) -> None:
    run("fork", "digits", "--from", "digits-a1-g2", "--name", "twin")
    begun = branches.begun("digits", kube.get_job(NS, "digits"), refs[1])
    kube.patch(JOB, NS, "twin", {"metadata": {"annotations": begun}})
    assert "all there" in run("checkpoints", "verify", "twin", "digits-a1-g2").stdout
    back = run("rewind", "twin", "--to", "digits-a1-g2")
    assert back.exit_code == 0, back.output
