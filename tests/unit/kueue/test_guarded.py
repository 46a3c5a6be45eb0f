"""Which namespaces the controller puts the guard in force in, and which it leaves as they are."""

from __future__ import annotations

import pytest

from kueue_integration.contract import job_names
from kueue_integration.controller.guarded import LOOK_S, Guarded, to_guard
from kueue_integration.errors import Forbidden
from kueue_integration.jobs import preflight
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import NAMESPACE, Object, label

FENCED = {
    "metadata": {"name": "fenced"},
    "spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": job_names.ADMISSION_CHECK_NAME}]}},
}
OPEN: Object = {"metadata": {"name": "open"}, "spec": {}}


def queue(namespace: str, target: str = "fenced") -> Object:
    return {"metadata": {"namespace": namespace, "name": "q"}, "spec": {"clusterQueue": target}}


class Cluster:
    """Namespaces with these labels, each with a LocalQueue of a fenced queue, and a controller that looks at them."""

    def __init__(self, **labels: str) -> None:
        self.kube, self.now = FakeKube(), 0.0
        self.queues, self.jobs = [queue(name) for name in labels], list[Object]()
        for name, value in labels.items():
            marked = {job_names.LABEL_TRAINING: value} if value else {}
            meta = {"name": name, "labels": {"kept": "x", **marked}}
            self.kube.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        self.starts()

    def starts(self) -> None:
        copies = (lambda: self.queues), (lambda: [FENCED, OPEN]), (lambda: self.jobs)
        self.guarded = Guarded(self.kube, *copies, lambda: self.now)

    def label(self, name: str) -> str | None:
        return label(self.kube.get(NAMESPACE, None, name), job_names.LABEL_TRAINING)

    def unlabel(self, name: str) -> None:
        self.kube.patch(NAMESPACE, None, name, {"metadata": {"labels": {job_names.LABEL_TRAINING: None}}})

    def job(self, namespace: str, ended: bool = False, begun: bool = True) -> None:
        conditions = [{"type": "Complete", "status": "True"}] if ended else []
        meta = {"namespace": namespace, "name": "j", "annotations": {job_names.ANN_ATTEMPT: "1"} if begun else {}}
        self.jobs.append({"metadata": meta, "status": {"conditions": conditions}})


def test_a_namespace_with_a_way_to_a_fenced_queue_is_guarded() -> None:
    assert to_guard([queue("a"), queue("b", "open"), queue("c", "gone"), queue("d")], [FENCED, OPEN]) == {"a", "d"}
    assert to_guard([{"metadata": {"namespace": "a"}}], [FENCED]) == set()
    cluster = Cluster(team="")
    cluster.guarded.keep()
    assert cluster.label("team") == job_names.TRAINING_ENABLED
    assert label(cluster.kube.get(NAMESPACE, None, "team"), "kept") == "x"


def test_a_namespace_whose_label_says_something_else_stays_as_it_is() -> None:
    cluster = Cluster(team="disabled")
    cluster.guarded.keep()
    assert cluster.label("team") == "disabled" and cluster.guarded.why_not("team")


def test_jobs_of_a_release_before_the_guard_run_to_their_end_first() -> None:
    cluster = Cluster(team="", done="", waits="")
    cluster.job("team")
    cluster.job("done", ended=True)
    cluster.job("waits", begun=False)
    assert cluster.guarded.why_not("team") == "", "nothing is known yet"
    cluster.guarded.keep()
    assert (cluster.label("team"), cluster.label("done")) == (None, job_names.TRAINING_ENABLED)
    assert cluster.label("waits") == job_names.TRAINING_ENABLED
    assert cluster.guarded.why_not("team") == preflight.unguarded("team") and not cluster.guarded.why_not("done")
    cluster.jobs.clear()
    cluster.guarded.keep()
    assert cluster.label("team") == job_names.TRAINING_ENABLED and not cluster.guarded.why_not("team")


def test_a_label_that_was_taken_away_comes_back_also_while_jobs_run() -> None:
    cluster = Cluster(team="enabled")
    cluster.guarded.keep()
    cluster.job("team")
    cluster.unlabel("team")
    cluster.guarded.keep()
    assert cluster.label("team") is None, "it has been looked at a moment ago"
    cluster.now += LOOK_S
    cluster.guarded.keep()
    assert cluster.label("team") == job_names.TRAINING_ENABLED


def test_one_that_refuses_delays_no_other_and_is_asked_again_at_once() -> None:
    cluster = Cluster(one="", two="")
    cluster.queues.append(queue("not-there"))
    cluster.kube.fail_next("patch", NAMESPACE, Forbidden("no", 403, "Forbidden"))
    with pytest.raises(Forbidden):
        cluster.guarded.keep()
    assert (cluster.label("one"), cluster.label("two")) == (None, job_names.TRAINING_ENABLED)
    cluster.guarded.keep()
    assert cluster.label("one") == job_names.TRAINING_ENABLED
    asked = len(cluster.kube.requests)
    cluster.guarded.keep()
    assert len(cluster.kube.requests) == asked, "nothing is asked of a namespace that was looked at"
