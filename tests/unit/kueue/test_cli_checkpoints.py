"""`checkpoints`: what is asked of the store, from here or in a pod, and what a live job keeps from being removed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kueue_samples import PLATFORM, attempt, cluster, job, saved, spec

from kueue_integration import cli
from kueue_integration.cli import checkpoints, formats
from kueue_integration.contract import job_names
from kueue_integration.errors import PlatformError
from kueue_integration.jobs import store_pod
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import POD
from kueue_integration.manifests.job_manifests import render
from kueue_integration.spec import platform_config
from singularity_proxy.protocol import names
from singularity_proxy.protocol.manifest import Manifest, Requirements, dumps
from singularity_proxy.protocol.messages import FailedRestore, to_json
from singularity_proxy.store import NamespaceKeys, Store, admin, layout

CHART = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "singularity-platform", "namespace": "singularity-system"},
    "data": {"platform.json": platform_config.to_json(PLATFORM)},
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/store"
    image = tmp_path / "image"
    image.mkdir()
    (image / "pages-1.img").write_bytes(b"x" * 4000)
    store = Store(url)
    for number in (1, 2, 3):
        store.write_manifest(
            Manifest(
                id=f"digits-a1-g{number}", namespace="default", job="digits", attempt=1, generation=number, step=number,
                world_size=1, engine="process", created_at=1e9 + number,
                ranks=store.put_ranks("default", "digits", f"digits-a1-g{number}", {0: image}).images,
                requirements=Requirements("x86_64", ""),
            )
        )  # fmt: skip
    return url


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch, url: str) -> FakeKube:
    """A cluster whose pods are carried out at once, as a kubelet would with the store's volume."""
    fake = cluster(CHART)
    monkeypatch.setattr(checkpoints, "open_cluster", lambda kubeconfig, context: fake)
    create = fake.create

    def and_run(obj: Any, dry_run: bool = False) -> Any:
        made = create(obj, dry_run)
        if obj["kind"] == "Pod":
            command = obj["spec"]["containers"][0]["command"]
            said = admin.answer(command[3], command[4:])
            meta = obj["metadata"]
            fake.logs[meta["namespace"], meta["name"], "store"] = ["a warning of a library", json.dumps(said)]
            fake.set_status(
                POD, meta["namespace"], meta["name"], {"phase": "Failed" if "error" in said else "Succeeded"}
            )
        return made

    monkeypatch.setattr(fake, "create", and_run)
    committed = replace(saved(), sha256=Store(url).read_digest("default", "digits", "digits-a1-g1")[1])
    notes = {job_names.ANN_STORE: url}
    fake.put(job(history=[attempt(restored_from="digits-a1-g2")], checkpoint=committed, annotations=notes))
    return fake


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["checkpoints", *arguments])


@pytest.mark.parametrize("where", ["pod", "here"])
def test_ls_show_and_verify(kube: FakeKube, where: str) -> None:
    listed = json.loads(run("ls", "digits", "--where", where, "-o", "json").stdout)
    assert [(e["id"], e["in_use"]) for e in listed] == [
        ("digits-a1-g3", False), ("digits-a1-g2", True), ("digits-a1-g1", True),
    ]  # fmt: skip
    table = run("ls", "digits", "--where", where).stdout
    assert "digits-a1-g2" in table and "IN USE" in table
    assert {(e["apiVersion"], e["kind"]) for e in listed} == {(formats.API_VERSION, "Checkpoint")}
    names = run("ls", "digits", "--where", where, "-o", "name").stdout
    assert (
        names.split()
        == run("ls", "digits", "-o", "jsonpath={.items[*].id}").stdout.split()
        == [e["id"] for e in listed]
    )
    assert "architecture: x86_64" in run("show", "digits", "digits-a1-g1", "--where", where).stdout
    verified = run("verify", "digits", "--where", where)
    assert verified.exit_code == 0 and verified.stdout.startswith("digits-a1-g3: 2 objects")
    assert kube.list(POD, "default") == []


def test_a_file_store_is_asked_in_a_pod_by_itself(kube: FakeKube) -> None:
    shown = run("ls", "digits")
    assert shown.exit_code == 0 and "in pod default/singularity-store-" in shown.stderr
    assert ("create", "Pod") in [(verb, kind) for verb, kind, _ in kube.requests]


def test_verify_exits_1_for_what_is_altered(kube: FakeKube, tmp_path: Path) -> None:
    (pack,) = [p for p in (tmp_path / "store").rglob("packs/*") if p.is_file()]
    pack.write_bytes(b"y" * 4000)
    refused = run("verify", "digits", "digits-a1-g1")
    assert refused.exit_code == 1 and "1 PROBLEMS" in refused.stdout and "is longer than its" in refused.stdout


def test_what_was_replaced_since_its_commit_is_said_and_not_exported(kube: FakeKube, tmp_path: Path, url: str) -> None:
    """The store calls it whole: only the Job knows what was committed."""
    store, archive = Store(url), tmp_path / "one.tar"
    forged = dumps(replace(store.read_manifest("default", "digits", "digits-a1-g1"), step=99))
    store.backend.write(layout.manifest_path("default", "digits", "digits-a1-g1"), forged.encode())
    listed = {e["id"]: e["problem"] for e in json.loads(run("ls", "digits", "-o", "json").stdout)}
    assert listed == {"digits-a1-g3": "", "digits-a1-g2": "", "digits-a1-g1": "not the manifest that was committed"}
    verified = run("verify", "digits", "digits-a1-g1")
    assert verified.exit_code == 1 and "is not the manifest that was committed" in verified.stdout
    shown = run("show", "digits", "digits-a1-g1")
    assert shown.exit_code == 3 and "is not the manifest that was committed" in shown.stderr
    refused = run("export", "digits", "digits-a1-g1", str(archive), "--where", "here")
    assert refused.exit_code == 3 and not archive.exists()


def test_a_checkpoint_that_a_pod_found_damaged_is_listed_as_such(kube: FakeKube, url: str) -> None:
    newest = replace(saved(), id="digits-a1-g3", sha256=Store(url).read_digest("default", "digits", "digits-a1-g3")[1])
    damaged = replace(newest, unusable="pack 00ff is missing")
    notes = {job_names.ANN_STORE: url, job_names.ANN_CHECKPOINTS: to_json([damaged])}
    kube.put(job(history=[attempt()], annotations=notes))
    listed = {e["id"]: e["problem"] for e in json.loads(run("ls", "digits", "-o", "json").stdout)}
    assert listed == {"digits-a1-g3": "pack 00ff is missing", "digits-a1-g2": "", "digits-a1-g1": ""}
    assert run("verify", "digits").stdout.startswith("digits-a1-g2: 2 objects"), "the newest that can be restored"


def test_a_checkpoint_that_was_not_restored_is_listed_with_its_tries(kube: FakeKube, url: str) -> None:
    newest = replace(saved(), id="digits-a1-g3", sha256=Store(url).read_digest("default", "digits", "digits-a1-g3")[1])
    failed = replace(newest, failed=[FailedRestore(2, "why"), FailedRestore(3, "why")])
    notes = {job_names.ANN_STORE: url, job_names.ANN_CHECKPOINTS: to_json([failed])}
    kube.put(job(history=[attempt()], annotations=notes))
    listed = {e["id"]: e.get("failed_restores") for e in json.loads(run("ls", "digits", "-o", "json").stdout)}
    assert listed == {"digits-a1-g3": 2, "digits-a1-g2": None, "digits-a1-g1": None}
    assert run("ls", "digits").stdout.count("not restored in 2 tries") == 1


def test_gc_asks_first_and_keeps_what_the_job_needs(kube: FakeKube, url: str) -> None:
    kube.put(
        {
            "apiVersion": "batch/v1", "kind": "Job",
            **{k: job(history=[attempt(restored_from="digits-a1-g2")], annotations={job_names.ANN_STORE: url})[k]
               for k in ("metadata", "spec", "status")},
        }
    )  # fmt: skip
    plan = run("gc", "digits", "--keep", "1")
    assert plan.exit_code == 0 and "would delete 1 checkpoints: digits-a1-g1" in plan.stdout
    assert "digits-a1-g2 (in use)" in plan.stdout and "add --yes" in plan.stdout
    assert len(Store(url).list_checkpoints("default", "digits")) == 3
    done = run("gc", "digits", "--keep", "1", "--yes")
    assert done.exit_code == 0 and "deleted 1 checkpoints: digits-a1-g1" in done.stdout
    assert [x.id for x in Store(url).list_checkpoints("default", "digits")] == ["digits-a1-g3", "digits-a1-g2"]


def test_gc_is_told_that_an_upload_that_broke_off_has_ended(kube: FakeKube, url: str, tmp_path: Path) -> None:
    (tmp_path / "rank").mkdir()
    (tmp_path / "rank" / "pages-1.img").write_bytes(b"z" * 4000)
    store = Store(url)
    store.put_ranks("default", "digits", "digits-a2-g1", {0: tmp_path / "rank"})
    done = run("gc", "digits", "--yes")
    assert "1 uploads are under way" in done.stdout and "add --ended" in done.stdout
    about = {"name": "digits-0", "namespace": "default", "labels": {job_names.LABEL_JOB: "digits"}}
    kube.put({"apiVersion": "v1", "kind": "Pod", "metadata": about, "status": {"phase": "Running"}})
    refused = run("gc", "digits", "--yes", "--ended")
    assert refused.exit_code == 2 and "has pods that run" in refused.stderr and store.uploads("default", "digits")
    kube.set_status(POD, "default", "digits-0", {"phase": "Failed"})
    done = run("gc", "digits", "--yes", "--ended")
    assert done.exit_code == 0 and "under way" not in done.stdout and store.uploads("default", "digits") == []


def test_export_and_import_take_a_checkpoint_elsewhere(kube: FakeKube, tmp_path: Path, url: str) -> None:
    archive, other = tmp_path / "one.tar", f"file://{tmp_path}/other"
    done = run("export", "digits", "digits-a1-g2", str(archive), "--where", "here")
    assert done.exit_code == 0 and "MB in" in done.stdout and archive.stat().st_size > 4000
    taken = run("import", "copy", str(archive), "--store", other, "--where", "here")
    assert taken.exit_code == 0 and taken.stdout == "imported digits-a1-g2 of default/copy\n"
    made = Store(other).read_manifest("default", "copy", "digits-a1-g2")
    assert Store(other).verify(made) == []
    assert run("import", "copy", str(archive), "--store", other, "--where", "here").exit_code == 3, "is there"
    archive.write_bytes(archive.read_bytes()[:2000])
    broken = run("import", "broken", str(archive), "--store", other, "--where", "here")
    assert broken.exit_code == 3 and "archive" in broken.stderr
    assert Store(other).jobs() == [("default", "copy")]
    missing = run("export", "digits", "digits-a9-g9", str(tmp_path / "none.tar"), "--where", "here")
    assert missing.exit_code == 3 and not (tmp_path / "none.tar").exists()


def test_a_store_is_looked_after_without_a_cluster(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "open_cluster", lambda kubeconfig, context: pytest.fail("the cluster is gone"))
    alone = ("--no-cluster", "--store", url)
    assert run("jobs", *alone).stdout == "digits\n"
    assert run("ls", "digits", *alone, "-o", "name").stdout.split() == [f"digits-a1-g{n}" for n in (3, 2, 1)]
    assert run("verify", "digits", *alone).exit_code == 0
    assert run("gc", "digits", "--yes", "--ended", *alone).exit_code == 0
    assert [x.id for x in Store(url).list_checkpoints("default", "digits")] == ["digits-a1-g3"]
    for wrong in (["ls", "digits", "--no-cluster"], ["ls", "digits", *alone, "--where", "pod"]):
        refused = run(*wrong)
        assert refused.exit_code == 2 and "--no-cluster = True: needs --store URL" in refused.stderr
    singularityctl = [Path(sys.executable).with_name("singularityctl"), "checkpoints"]
    taken = subprocess.run(
        [*singularityctl, "export", "digits", "digits-a1-g3", "-", *alone], check=True, capture_output=True
    )
    take = [*singularityctl, "import", "copy", "-", "--no-cluster", "--store", f"file://{tmp_path}/other"]
    assert b"digits-a1-g3 of default/copy" in subprocess.check_output(take, input=taken.stdout)
    assert subprocess.run(take, input=taken.stdout[:-2000], capture_output=True).returncode == 3


def test_an_archive_needs_the_store_here(kube: FakeKube, tmp_path: Path) -> None:
    refused = run("export", "digits", "digits-a1-g2", str(tmp_path / "one.tar"))
    assert refused.exit_code == 2 and "--where here --store file:///" in refused.stderr
    assert kube.list(POD, "default") == []


def test_what_a_pod_says_of_its_progress(kube: FakeKube, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_pod.told(["a warning", '{"progress": [3, 9]}', '{"progress": 1}', '{"result": []}']) == [(3, 9)]
    seen: list[tuple[int, int]] = []
    pod = store_pod.manifest("default", PLATFORM, url, ["verify", "default", "digits", "digits-a1-g1"], 60)
    name, create = pod["metadata"]["name"], kube.create
    states = iter([("Running", ["a warning", '{"progress": [4, 9]}']), ("Succeeded", ['{"result": {}}'])])

    def turn() -> None:
        phase, kube.logs["default", name, "store"] = next(states)
        kube.set_status(POD, "default", name, {"phase": phase})

    def and_turn(obj: Any, dry_run: bool = False) -> Any:
        made = create(obj, dry_run)
        turn()
        return made

    def watch(*args: Any, **options: Any) -> Any:
        turn()
        return iter(())

    monkeypatch.setattr(kube, "create", and_turn)
    monkeypatch.setattr(kube, "watch", watch)
    assert store_pod.ask(kube, pod, 60, lambda *p: seen.append(p)) == {}
    assert seen == [(4, 9)]


def test_a_pinned_checkpoint_outlives_gc_until_it_is_unpinned(kube: FakeKube, url: str) -> None:
    assert run("pin", "nobody", "digits-a1-g1", "--store", url).exit_code == 3
    assert run("pin", "digits", "digits-a1-g1").stdout == "digits-a1-g1 is pinned\n"
    kube.put(job(annotations={job_names.ANN_STORE: url}))
    run("gc", "digits", "--keep", "1", "--yes")
    assert [x.id for x in Store(url).list_checkpoints("default", "digits")] == ["digits-a1-g3", "digits-a1-g1"]
    assert run("pin", "digits", "digits-a1-g1", "--remove").exit_code == 0
    run("gc", "digits", "--keep", "1", "--yes")
    assert [x.id for x in Store(url).list_checkpoints("default", "digits")] == ["digits-a1-g3"]


def test_keys_of_an_encrypted_store(kube: FakeKube, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has no key reads what is in clear. Data keys are wrapped anew once there is a new one."""
    keys, image = tmp_path / "keys", tmp_path / "encrypted"
    for folder in (keys, image):
        folder.mkdir()
    (keys / "2026").write_bytes(b"1" * 32)
    (image / "pages-1.img").write_bytes(b"secret" * 1000)
    (made,) = Store(url, keys=NamespaceKeys(keys)).put_ranks("default", "digits", "digits-a1-g4", {0: image}).images
    newest = Store(url).list_checkpoints("default", "digits")[0].manifest
    assert newest is not None
    Store(url).write_manifest(replace(newest, id="digits-a1-g4", generation=newest.generation + 1, ranks=[made]))
    assert run("ls", "digits").stdout.count("digits-a1-g") == 4
    blind = run("verify", "digits", "digits-a1-g4")
    assert blind.exit_code == 3 and "--where pod" in blind.stderr
    monkeypatch.setenv(names.ENV_STORE_KEYS, str(keys))
    assert run("verify", "digits", "digits-a1-g4").exit_code == 0
    (keys / "2027").write_bytes(b"2" * 32)
    assert run("rewrap", "digits").stdout == "digits: 1 data keys are wrapped anew\n"
    Store(url, keys=NamespaceKeys(keys)).put_ranks("default", "other", "other-a1-g1", {0: image})
    (keys / "2028").write_bytes(b"3" * 32)
    every = run("rewrap", "--store", url).stdout.splitlines()
    assert every == [f"{name}: 1 data keys are wrapped anew" for name in ("digits", "other")]
    Store(url, keys=NamespaceKeys(keys)).put_ranks("default", "other", "other-a1-g2", {0: image})
    (keys / "2028").rename(tmp_path / "lost")
    lost = run("rewrap", "--store", url)
    assert lost.exit_code == 1 and lost.stdout.startswith("digits: ") and "other: " in lost.stdout
    (tmp_path / "lost").rename(keys / "2028")
    (keys / "2026").unlink()
    assert run("verify", "digits", "digits-a1-g4").exit_code == 0
    assert run("rewrap", "digits").stdout == "digits: 0 data keys are wrapped anew\n"


def test_what_a_job_refers_to() -> None:
    pod = {"metadata": {"annotations": {names.ANN_CHECKPOINT: "digits-a0-g9"}}}
    running = job(history=[attempt(restored_from="digits-a0-g1")], checkpoint=saved())
    assert checkpoints.referred(running, [pod]) == {"digits-a1-g1", "digits-a0-g1", "digits-a0-g9"}
    over = job(history=[attempt(restored_from="digits-a0-g1", ended_by="Finished")])
    assert checkpoints.referred(over, [{"metadata": {}}]) == set()
    assert checkpoints.referred(None) == set()


def test_errors_are_sentences_with_their_exit_codes(kube: FakeKube) -> None:
    missing = run("show", "digits", "digits-a9-g9")
    assert missing.exit_code == 3 and "no checkpoint 'digits-a9-g9'" in missing.stderr
    assert run("verify", "nobody", "--store", "file:///nowhere/at/all").exit_code == 2
    assert run("gc", "digits", "--keep", "0").exit_code == 2
    assert "no checkpoints of job default/nobody" in run("ls", "nobody").stdout


def test_the_pod_has_the_volumes_but_no_token_and_no_power() -> None:
    sidecar = {"name": "device-proxy", "volumeMounts": [{"name": "mine", "mountPath": "/mine"}]}
    own = [{"name": "mine", "emptyDir": {}}, {"name": "singularity-run", "emptyDir": {}}, {"name": "shared"}]
    its_job = {"spec": {"template": {"spec": {"volumes": own, "initContainers": [sidecar]}}}}
    made = store_pod.manifest("team", PLATFORM, "file:///mine/x", ["ls", "team", "train"], 60, its_job)["spec"]
    assert [v["name"] for v in made["volumes"]] == ["shared", "torch", "mine"]
    (container,) = made["containers"]
    assert [m["mountPath"] for m in container["volumeMounts"]] == ["/shared", "/opt/torch", "/mine"]
    assert container["command"][2:] == ["proxy.store", "file:///mine/x", "ls", "team", "train"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert made["automountServiceAccountToken"] is False and made["activeDeadlineSeconds"] == 60
    assert "/opt/torch" not in json.dumps(container["env"])


def test_the_pod_of_a_job_of_the_state_engine_is_as_its_own_are() -> None:
    """Its namespace may enforce `restricted`: the platform's hostPath volumes would not be admitted."""
    claims = tuple({"name": n, "persistentVolumeClaim": {"claimName": n}} for n in ("shared", "torch"))
    *_, its_job = render(spec(engine="state"), replace(PLATFORM, volumes=claims))
    made = store_pod.manifest("team", PLATFORM, "file:///shared/x", ["ls"], 60, its_job)["spec"]
    assert made["volumes"] == [*claims]
    assert [m["mountPath"] for m in made["containers"][0]["volumeMounts"]] == ["/shared", "/opt/torch"]
    assert made["securityContext"] == its_job["spec"]["template"]["spec"]["securityContext"]
    context = made["containers"][0]["securityContext"]
    assert context["runAsNonRoot"] and not context["allowPrivilegeEscalation"] and "runAsUser" not in context


def test_a_pod_that_does_not_answer() -> None:
    kube = cluster(CHART)
    pod = store_pod.manifest("default", PLATFORM, "file:///shared", ["ls", "default", "digits"], 1)
    waiting = {"name": "store", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    create = kube.create

    def and_wait(obj: Any, dry_run: bool = False) -> Any:
        made = create(obj, dry_run)
        kube.set_status(POD, "default", obj["metadata"]["name"], {"phase": "Pending", "containerStatuses": [waiting]})
        return made

    kube.create = and_wait  # type: ignore[method-assign]
    with pytest.raises(PlatformError, match="no such image"):
        store_pod.ask(kube, pod, timeout_s=0.2)
    assert kube.list(POD, "default") == []
