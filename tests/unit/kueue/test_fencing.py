"""`singularityctl fence` and `unfence`: our check comes and goes, and nothing else of a ClusterQueue is touched."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from kueue_integration import cli, fencing
from kueue_integration.cli import fence as command
from kueue_integration.contract import job_names
from kueue_integration.errors import Conflict, NotFound
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import CLUSTER_QUEUE, LOCAL_QUEUE, Object, admission_checks

FENCE = job_names.ADMISSION_CHECK_NAME
OTHERS: list[Object] = [{"name": "dws-prov", "onFlavors": ["spot"]}, {"name": "our-budget-check"}]


def queue(name: str, *checks: Object) -> Object:
    spec: dict[str, Any] = {"queueingStrategy": "StrictFIFO", "resourceGroups": []}
    if checks:
        spec["admissionChecksStrategy"] = {"admissionChecks": [*checks]}
    return {"apiVersion": CLUSTER_QUEUE.api_version, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}


def job(name: str, ended: str = "", ours: bool = True) -> Object:
    labels = {job_names.KUEUE_QUEUE_LABEL: "train", **({job_names.LABEL_MANAGED: "true"} if ours else {})}
    status = {"conditions": [{"type": ended, "status": "True"}] if ended else []}
    meta = {"name": name, "namespace": "team", "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {}, "status": status}


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch) -> FakeKube:
    local = {"apiVersion": LOCAL_QUEUE.api_version, "kind": "LocalQueue", "spec": {"clusterQueue": "busy"}}
    made = FakeKube(
        queue("plain"), queue("others", *OTHERS), queue("busy", {"name": FENCE}),
        queue("fenced", {"name": FENCE}, *OTHERS),
        {**local, "metadata": {"name": "train", "namespace": "team"}},
    )  # fmt: skip
    monkeypatch.setattr(command, "open_cluster", lambda kubeconfig, context: made)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, [*arguments])


def checks(kube: FakeKube, name: str) -> fencing.Checks:
    return admission_checks(kube.get(CLUSTER_QUEUE, None, name))


def test_a_queue_is_fenced_and_keeps_the_checks_of_others(kube: FakeKube) -> None:
    done = run("fence", "others", "plain")
    assert done.exit_code == 0, done.output
    assert checks(kube, "others") == [*OTHERS, {"name": FENCE}] and checks(kube, "plain") == [{"name": FENCE}]
    assert "ClusterQueue others: fenced; admission checks: dws-prov, our-budget-check, singularity-fence" in done.output
    spec = kube.get(CLUSTER_QUEUE, None, "others")["spec"]
    assert {k: v for k, v in spec.items() if k != "admissionChecksStrategy"} == queue("x")["spec"]
    before = kube.objects()
    assert "was fenced already" in run("fence", "others").output and kube.objects() == before


def test_a_dry_run_changes_nothing(kube: FakeKube) -> None:
    before = kube.objects()
    for words in (("fence", "others", "--dry-run"), ("unfence", "--all", "--dry-run")):
        done = run(*words)
        assert done.exit_code == 0 and "(a dry run)" in done.output
    assert kube.objects() == before


def test_unfence_takes_ours_away_and_no_other(kube: FakeKube) -> None:
    done = run("unfence", "--all")
    assert done.exit_code == 0, done.output
    assert checks(kube, "fenced") == OTHERS and checks(kube, "others") == OTHERS
    assert "admissionChecksStrategy" not in kube.get(CLUSTER_QUEUE, None, "busy")["spec"]
    assert "no ClusterQueue has admission check" in run("unfence", "--all").output


def test_a_queue_whose_jobs_have_not_ended_stays_fenced(kube: FakeKube) -> None:
    for made in (job("ended", "Complete"), job("failed", "Failed"), job("foreign", ours=False), job("trains")):
        kube.put(made)
    before = kube.objects()
    done = run("unfence", "--all")
    assert done.exit_code == 2 and kube.objects() == before
    assert "queues = 'busy': has training jobs that have not ended (team/trains)" in done.output
    assert run("unfence", "fenced").exit_code == 0  # another queue is not in its way
    assert run("unfence", "--all", "--force").exit_code == 0 and not checks(kube, "busy")


def test_a_queue_that_is_not_there_keeps_no_other_from_its_change(kube: FakeKube) -> None:
    done = run("fence", "none", "plain")
    assert done.exit_code == 3 and "there is no ClusterQueue none; see" in done.output
    assert checks(kube, "plain") == [{"name": FENCE}]


@pytest.mark.parametrize("words", [("unfence",), ("unfence", "--all", "plain")])
def test_unfence_is_told_which_queues(kube: FakeKube, words: tuple[str, ...]) -> None:
    assert run(*words).exit_code == 2


class Raced(FakeKube):
    """Somebody else adds a check between our read and our write, `times` times."""

    times = 0

    def get(self, kind: Any, namespace: str | None, name: str) -> Object:
        found = super().get(kind, namespace, name)
        if kind is CLUSTER_QUEUE and self.times:
            self.times -= 1
            added = [*admission_checks(found), {"name": f"theirs-{self.times}"}]
            super().patch(kind, namespace, name, {"spec": {"admissionChecksStrategy": {"admissionChecks": added}}})
        return found


def test_what_others_write_meanwhile_is_kept() -> None:
    kube = Raced(queue("q"))
    kube.times = 2
    fencing.change(kube, "q", fence=True)
    assert admission_checks(kube.get(CLUSTER_QUEUE, None, "q")) == [
        {"name": "theirs-1"}, {"name": "theirs-0"}, {"name": FENCE},
    ]  # fmt: skip
    kube.times = fencing.TRIES
    with pytest.raises(Conflict):
        fencing.change(kube, "q", fence=False)


EACH: list[Object] = [{"name": FENCE}, {"name": FENCE, "onFlavors": ["spot"]}, *OTHERS]
CHECKS = st.lists(st.sampled_from(EACH), unique_by=lambda check: str(check["name"]))


@given(CHECKS)
def test_fence_and_unfence_touch_ours_alone(before: list[Object]) -> None:
    theirs = [item for item in before if item["name"] != FENCE]
    after = fencing.fenced(before)
    assert [item for item in after if item["name"] != FENCE] == theirs and after.count({"name": FENCE}) == 1
    assert len(after) == len(theirs) + 1
    assert fencing.fenced(after) == after and fencing.unfenced(after) == theirs == fencing.unfenced(before)


def test_only_the_jobs_of_these_queues_are_in_the_way() -> None:
    assert fencing.jobs_of(FakeKube(job("elsewhere")), {"busy"}) == {}


def test_the_chart_is_not_uninstalled_while_a_queue_is_fenced(kube: FakeKube) -> None:
    said = fencing.still_fenced(kube)
    assert "ClusterQueues busy, fenced have" in said and "singularityctl unfence --all" in said
    assert run("unfence", "--all").exit_code == 0 and fencing.still_fenced(kube) == ""


def test_where_kueue_is_gone_nothing_keeps_the_chart() -> None:
    class Gone(FakeKube):
        def list(self, *about: Any, **more: Any) -> list[Object]:
            raise NotFound("the server could not find the requested resource", 404)

    assert fencing.still_fenced(Gone()) == ""
