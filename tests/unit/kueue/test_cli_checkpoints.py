"""`checkpoints`: what is asked of the store, from here or in a pod, and what a live job keeps from being removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kueue_samples import PLATFORM, attempt, cluster, job, saved

from kueue_integration import cli, platform, storepod
from kueue_integration.cli import checkpoints
from kueue_integration.errors import PlatformError
from kueue_integration.fake import FakeKube
from kueue_integration.resources import POD
from proxy.protocol import names
from proxy.protocol.manifest import Manifest, Requirements
from proxy.store import Store, admin

CHART = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "singularity-platform", "namespace": "singularity-system"},
    "data": {"platform.json": platform.to_json(PLATFORM)},
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
    live = job(history=[attempt(restored_from="digits-a1-g2")], checkpoint=saved(), annotations={names.ANN_STORE: url})
    fake.put(live)
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
    assert refused.exit_code == 1 and "1 PROBLEMS" in refused.stdout and "4000 bytes instead of" in refused.stdout


def test_gc_asks_first_and_keeps_what_the_job_needs(kube: FakeKube, url: str) -> None:
    kube.put(
        {
            "apiVersion": "batch/v1", "kind": "Job",
            **{k: job(history=[attempt(restored_from="digits-a1-g2")], annotations={names.ANN_STORE: url})[k]
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


def test_an_archive_needs_the_store_here(kube: FakeKube, tmp_path: Path) -> None:
    refused = run("export", "digits", "digits-a1-g2", str(tmp_path / "one.tar"))
    assert refused.exit_code == 2 and "--where here --store file:///" in refused.stderr
    assert kube.list(POD, "default") == []


def test_what_a_pod_says_of_its_progress(kube: FakeKube, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storepod.told(["a warning", '{"progress": [3, 9]}', '{"progress": 1}', '{"result": []}']) == [(3, 9)]
    seen: list[tuple[int, int]] = []
    pod = storepod.manifest("default", PLATFORM, url, ["verify", "default", "digits", "digits-a1-g1"], 60)
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
    assert storepod.ask(kube, pod, 60, lambda *p: seen.append(p)) == {"result": {}}
    assert seen == [(4, 9)]


def test_a_pinned_checkpoint_outlives_gc_until_it_is_unpinned(kube: FakeKube, url: str) -> None:
    assert run("pin", "nobody", "digits-a1-g1", "--store", url).exit_code == 3
    assert run("pin", "digits", "digits-a1-g1").stdout == "digits-a1-g1 is pinned\n"
    kube.put(job(annotations={names.ANN_STORE: url}))
    run("gc", "digits", "--keep", "1", "--yes")
    assert [x.id for x in Store(url).list_checkpoints("default", "digits")] == ["digits-a1-g3", "digits-a1-g1"]
    assert run("pin", "digits", "digits-a1-g1", "--remove").exit_code == 0
    run("gc", "digits", "--keep", "1", "--yes")
    assert [x.id for x in Store(url).list_checkpoints("default", "digits")] == ["digits-a1-g3"]


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
    made = storepod.manifest("team", PLATFORM, "file:///mine/x", ["ls", "team", "train"], 60, its_job)["spec"]
    assert [v["name"] for v in made["volumes"]] == ["shared", "torch", "mine"]
    (container,) = made["containers"]
    assert [m["mountPath"] for m in container["volumeMounts"]] == ["/shared", "/opt/torch", "/mine"]
    assert container["command"][2:] == ["proxy.store", "file:///mine/x", "ls", "team", "train"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert made["automountServiceAccountToken"] is False and made["activeDeadlineSeconds"] == 60
    assert "/opt/torch" not in json.dumps(container["env"])


def test_a_pod_that_does_not_answer() -> None:
    kube = cluster(CHART)
    pod = storepod.manifest("default", PLATFORM, "file:///shared", ["ls", "default", "digits"], 1)
    waiting = {"name": "store", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    create = kube.create

    def and_wait(obj: Any, dry_run: bool = False) -> Any:
        made = create(obj, dry_run)
        kube.set_status(POD, "default", obj["metadata"]["name"], {"phase": "Pending", "containerStatuses": [waiting]})
        return made

    kube.create = and_wait  # type: ignore[method-assign]
    with pytest.raises(PlatformError, match="no such image"):
        storepod.ask(kube, pod, timeout_s=0.2)
    assert kube.list(POD, "default") == []
