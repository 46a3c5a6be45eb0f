"""Submitting: one Job for one identity, and bad input before anything is created."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kueue_samples import PLATFORM, cluster, namespace, spec

from kueue_integration.contract import job_names
from kueue_integration.errors import (
    AlreadyExists,
    Conflict,
    ConflictError,
    Forbidden,
    Invalid,
    JobNotFoundError,
    KubeError,
    NotFound,
    PlatformError,
    SpecError,
    Unreachable,
)
from kueue_integration.jobs import lifecycle
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    CONFIG_MAP,
    JOB,
    LOCAL_QUEUE,
    NAMESPACE,
    PRIORITY_CLASS,
    SERVICE,
    Object,
)
from kueue_integration.spec import platform_config

OURS = (JOB, SERVICE, CONFIG_MAP)


def left(kube: FakeKube) -> list[tuple[str, str]]:
    return [(o["kind"], o["metadata"]["name"]) for o in kube.objects() if o["kind"] in {k.name for k in OURS}]


def finish(kube: FakeKube, kind: str) -> None:
    kube.set_status(JOB, "default", "digits", {"conditions": [{"type": kind, "status": "True"}]})


def test_everything_is_created_and_owned_by_the_job() -> None:
    kube = cluster()
    done = lifecycle.submit(kube, spec(), PLATFORM)
    assert (done.namespace, done.name, done.adopted) == ("default", "digits", False)
    assert sorted(left(kube)) == [("ConfigMap", "digits-files"), ("Job", "digits"), ("Service", "digits")]
    for kind, name in ((SERVICE, "digits"), (CONFIG_MAP, "digits-files")):
        (owner,) = kube.get(kind, "default", name)["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Job", done.uid)


def test_a_secret_in_the_environment_is_told_to_be_in_each_checkpoint(caplog: pytest.LogCaptureFixture) -> None:
    key = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "k"}}}
    sources = [{"secretRef": {"name": "tokens"}}, {"configMapRef": {"name": "c"}}]
    override = {"spec": {"containers": [{"name": "train", "env": [key], "envFrom": sources}]}}
    told = "variables of Secrets tokens, wandb will be in each checkpoint, {}"
    ours = {"secret": "keys"}
    for engine, keys, wanted in (("process", {}, "in clear"), ("process", ours, "encrypted"), ("state", {}, "")):
        caplog.clear()
        platform = replace(PLATFORM, store_keys=keys)
        lifecycle.submit(cluster(), spec(pod_override=override, engine=engine), platform)
        assert (told.format(wanted) in caplog.text) if wanted else ("each checkpoint" not in caplog.text)
    caplog.clear()
    lifecycle.submit(cluster(), spec(), PLATFORM)
    assert "Secret" not in caplog.text


@pytest.mark.parametrize("end", [None, "Complete", "Failed"])
def test_the_same_identity_adopts_a_live_and_a_finished_job(end: str | None) -> None:
    kube = cluster()
    first = lifecycle.submit(kube, spec(), PLATFORM)
    if end:
        finish(kube, end)
    again = lifecycle.submit(kube, spec(), PLATFORM)
    assert again.adopted and again.uid == first.uid
    assert len(kube.list(JOB)) == 1


def test_adopting_completes_what_a_dead_submitter_left_undone() -> None:
    kube = cluster()
    lifecycle.submit(kube, spec(), PLATFORM)
    kube.delete(CONFIG_MAP, "default", "digits-files")
    assert lifecycle.submit(kube, spec(), PLATFORM).adopted
    assert ("ConfigMap", "digits-files") in left(kube)


def test_the_same_identity_under_another_name_makes_no_second_job() -> None:
    kube = cluster()
    first = lifecycle.submit(kube, spec(), PLATFORM)
    other = lifecycle.submit(kube, spec(name="other"), PLATFORM)
    assert (other.name, other.uid, other.adopted) == ("digits", first.uid, True)
    assert sorted(left(kube)) == [("ConfigMap", "digits-files"), ("Job", "digits"), ("Service", "digits")]


@pytest.mark.parametrize(("first", "second"), [("abc", "xyz"), (None, None), ("abc", None), (None, "abc")])
def test_a_name_of_somebody_else_is_refused(first: str | None, second: str | None) -> None:
    kube = cluster()
    lifecycle.submit(kube, spec(identity=first), PLATFORM)
    before = kube.objects()
    with pytest.raises(ConflictError, match="exists already"):
        lifecycle.submit(kube, spec(identity=second), PLATFORM)
    assert kube.objects() == before


def test_a_job_on_its_way_out_is_not_adopted() -> None:
    kube = cluster()
    lifecycle.submit(kube, spec(), PLATFORM)
    job = kube.get_job("default", "digits")
    job["metadata"]["deletionTimestamp"] = "2026-11-20T00:00:00Z"
    kube.put(job)
    with pytest.raises(ConflictError, match="being deleted"):
        lifecycle.submit(kube, spec(), PLATFORM)


def test_two_submitters_at_once_end_at_one_job() -> None:
    kube = cluster()

    class Late(FakeKube):
        """Another submitter creates the Job between this one's search and its create."""

        def create(self, obj: Any, dry_run: bool = False) -> Object:
            if obj["kind"] == "Job" and self.find(JOB, "default", "digits") is None:
                super().create(obj)
            return super().create(obj, dry_run)

    late = Late(*kube.objects())
    done = lifecycle.submit(late, spec(), PLATFORM)
    assert done.adopted and len(late.list(JOB)) == 1 and ("Service", "digits") in left(late)


@pytest.mark.parametrize("kind", [SERVICE, CONFIG_MAP])
@pytest.mark.parametrize("error", [Unreachable("gone"), Forbidden("no", 403), Invalid("bad", 422)])
def test_nothing_half_done_stays(kind: Any, error: KubeError) -> None:
    kube = cluster()
    kube.fail_next("create", kind, error)
    with pytest.raises((KubeError, SpecError)):
        lifecycle.submit(kube, spec(), PLATFORM)
    assert left(kube) == []


def test_if_it_cannot_be_taken_back_the_error_says_how() -> None:
    kube = cluster()
    kube.fail_next("create", SERVICE, Unreachable("gone"))
    kube.fail_next("delete", JOB, Unreachable("still gone"))
    with pytest.raises(KubeError, match="singularityctl delete digits --namespace default"):
        lifecycle.submit(kube, spec(), PLATFORM)


def test_a_service_of_somebody_else_is_left_alone() -> None:
    kube = cluster({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "digits", "namespace": "default"}})
    with pytest.raises(ConflictError, match="Service 'digits'"):
        lifecycle.submit(kube, spec(), PLATFORM)
    assert left(kube) == [("Service", "digits")]


def test_a_leftover_of_a_deleted_job_is_replaced() -> None:
    kube = cluster()
    old = lifecycle.submit(kube, spec(), PLATFORM)
    kube.delete(JOB, "default", "digits", propagation="Orphan")
    new = lifecycle.submit(kube, spec(), PLATFORM)
    assert new.uid != old.uid and not new.adopted
    for kind, name in ((SERVICE, "digits"), (CONFIG_MAP, "digits-files")):
        assert kube.get(kind, "default", name)["metadata"]["ownerReferences"][0]["uid"] == new.uid


@pytest.mark.parametrize(
    ("changes", "field", "fix"),
    [
        ({"queue": "nope"}, "queue", "use one of: training"),
        ({"priority_class": "nope"}, "priority_class", "use one of: high, low"),
        ({"namespace": "nope"}, "namespace", "does not exist"),
        ({"workers": 0}, "workers", "1 or more"),
    ],
)
@pytest.mark.parametrize("function", [lifecycle.submit, lifecycle.validate_only])
def test_bad_input_creates_nothing(function: Any, changes: dict[str, Any], field: str, fix: str) -> None:
    kube = cluster()
    with pytest.raises(SpecError) as raised:
        function(kube, spec(**changes), PLATFORM)
    ((name, _, text),) = raised.value.problems
    assert name == field and fix in text
    assert left(kube) == [] and not [r for r in kube.requests if r[0] == "create"]


def test_no_job_begins_where_the_guard_is_not_in_force_and_one_that_lives_goes_on() -> None:
    kube = cluster()
    bare = {"metadata": {"labels": {job_names.LABEL_TRAINING: None}}}
    kube.patch(NAMESPACE, None, "default", bare)
    with pytest.raises(PlatformError, match=r"kubectl label namespace default singularity\.dev/training=enabled"):
        lifecycle.submit(kube, spec(), PLATFORM)
    assert left(kube) == []
    kube.patch(NAMESPACE, None, "default", namespace())
    lifecycle.submit(kube, spec(), PLATFORM)
    kube.patch(NAMESPACE, None, "default", bare)
    assert lifecycle.submit(kube, spec(), PLATFORM).adopted


def test_a_namespace_without_queues() -> None:
    kube = cluster({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "empty"}})
    with pytest.raises(SpecError, match="it has none"):
        lifecycle.submit(kube, spec(namespace="empty"), PLATFORM)


def test_what_the_api_server_refuses_is_bad_input_too() -> None:
    kube = cluster()
    kube.fail_next("create", JOB, Invalid("spec.x: too long", 422))
    with pytest.raises(SpecError, match="too long"):
        lifecycle.submit(kube, spec(), PLATFORM)
    assert left(kube) == []


def test_validate_only_asks_the_api_server_and_creates_nothing() -> None:
    kube = cluster()
    lifecycle.validate_only(kube, spec(), PLATFORM)
    assert left(kube) == []
    assert [r[1] for r in kube.requests if r[0] == "create"] == ["ConfigMap", "Service", "Job"]


def test_a_cluster_without_kueue() -> None:
    kube = cluster()
    kube.fail_next("list", LOCAL_QUEUE, NotFound("no such resource", 404))
    with pytest.raises(PlatformError, match=r"kueue\.x-k8s\.io/v1beta2"):
        lifecycle.submit(kube, spec(), PLATFORM)


def test_a_queue_without_the_fence_would_start_pods_that_know_nothing() -> None:
    kube = cluster()
    kube.patch(CLUSTER_QUEUE, None, "training", {"spec": {"admissionChecksStrategy": None}})
    with pytest.raises(PlatformError, match="singularity-fence"):
        lifecycle.submit(kube, spec(), PLATFORM)


def test_the_fence_may_have_another_name() -> None:
    kube = cluster()
    fence = kube.get(ADMISSION_CHECK, None, "singularity-fence")
    kube.put({**fence, "metadata": {"name": "mine"}})
    strategy = {"admissionChecksStrategy": {"admissionChecks": [{"name": "mine"}]}}
    kube.patch(CLUSTER_QUEUE, None, "training", {"spec": strategy})
    assert not lifecycle.submit(kube, spec(), PLATFORM).adopted


def test_behind_a_multikueue_check_the_fence_is_in_another_cluster() -> None:
    kube = cluster()
    fence = kube.get(ADMISSION_CHECK, None, "singularity-fence")
    kube.put({**fence, "metadata": {"name": "far"}, "spec": {"controllerName": "kueue.x-k8s.io/multikueue"}})
    strategy = {"admissionChecksStrategy": {"admissionChecks": [{"name": "far"}]}}
    kube.patch(CLUSTER_QUEUE, None, "training", {"spec": strategy})
    assert not lifecycle.submit(kube, spec(), PLATFORM).adopted


def test_a_queue_that_leads_nowhere() -> None:
    kube = cluster()
    kube.delete(CLUSTER_QUEUE, None, "training")
    with pytest.raises(PlatformError, match="does not exist"):
        lifecycle.submit(kube, spec(), PLATFORM)


def test_pod_security_would_refuse_every_pod() -> None:
    kube = cluster()
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    kube.patch(NAMESPACE, None, "default", {"metadata": {"labels": labels}})
    with pytest.raises(PlatformError, match=r"pod-security\.kubernetes\.io/enforce=privileged.* or engine 'state'"):
        lifecycle.submit(kube, spec(), PLATFORM)
    assert lifecycle.submit(kube, spec(engine="state"), PLATFORM).uid


def test_a_user_who_may_not_look_around_can_still_submit() -> None:
    kube = cluster()
    for verb, kind in (("list", PRIORITY_CLASS), ("get", NAMESPACE), ("get", CLUSTER_QUEUE)):
        kube.fail_next(verb, kind, Forbidden("no", 403))
    assert not lifecycle.submit(kube, spec(), PLATFORM).adopted


def test_delete_takes_everything_and_only_that_uid() -> None:
    kube = cluster()
    done = lifecycle.submit(kube, spec(), PLATFORM)
    assert lifecycle.delete(kube, "default", "digits", uid="another") is False
    assert lifecycle.delete(kube, "default", "digits", uid=done.uid) is True
    assert left(kube) == []
    assert lifecycle.delete(kube, "default", "digits") is False


def test_delete_leaves_jobs_of_others_alone() -> None:
    kube = FakeKube({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "default"}})
    with pytest.raises(JobNotFoundError, match="not a training job"):
        lifecycle.delete(kube, "default", "j")
    assert left(kube) == [("Job", "j")]


def test_delete_loses_a_race_without_harm() -> None:
    kube = cluster()
    lifecycle.submit(kube, spec(), PLATFORM)
    kube.fail_next("delete", JOB, NotFound("gone", 404))
    assert lifecycle.delete(kube, "default", "digits") is False
    kube.fail_next("delete", JOB, Conflict("another uid", 409))
    with pytest.raises(Conflict):
        lifecycle.delete(kube, "default", "digits")


def test_search_finds_only_that_identity() -> None:
    kube = cluster()
    lifecycle.submit(kube, spec(), PLATFORM)
    lifecycle.submit(kube, spec(name="other", identity="zzz"), PLATFORM)
    assert [j["metadata"]["name"] for j in lifecycle.search(kube, "default", "zzz")] == ["other"]
    assert lifecycle.search(kube, "elsewhere", "zzz") == []


def test_an_existing_name_with_no_job_behind_it_is_not_swallowed() -> None:
    kube = cluster()
    kube.fail_next("create", JOB, AlreadyExists("taken", 409, "AlreadyExists"))
    with pytest.raises(AlreadyExists):
        lifecycle.submit(kube, spec(), PLATFORM)


def chart(text: str | None) -> FakeKube:
    meta = {"name": "singularity-platform", "namespace": "singularity-system"}
    return FakeKube(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"platform.json": text} if text else {}}
    )


def test_platform_round_trip() -> None:
    assert platform_config.load(chart(platform_config.to_json(PLATFORM))) == PLATFORM


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "has no key"),
        ("{", "not valid JSON"),
        ("[]", "must be an object"),
        ("{}", "has no agent_image"),
        ('{"agent_image": "", "controller_url": "", "controller_ca": ""}', "must not be empty"),
        (
            '{"agent_image": "a", "controller_url": "u", "controller_ca": "c", "max_budget_s": "9"}',
            "max_budget_s = '9'",
        ),
        ('{"agent_image": "a", "controller_url": "u", "controller_ca": "c", "max_budget_s": true}', "max_budget_s"),
        ('{"agent_image": "a", "controller_url": "u", "controller_ca": "c", "volumes": {}}', "volumes"),
    ],
)
def test_a_spoiled_platform_names_the_field_and_the_fix(text: str | None, words: str) -> None:
    fix = "get pods,leases" if text is None else "helm upgrade --install"
    with pytest.raises(PlatformError, match=fix) as raised:
        platform_config.load(chart(text))
    assert words in str(raised.value)


def test_no_chart() -> None:
    with pytest.raises(PlatformError, match="chart is not installed"):
        platform_config.load(FakeKube())


def test_a_newer_chart_may_say_more() -> None:
    text = '{"agent_image": "a", "controller_url": "u", "controller_ca": "c", "new": 1, "volumes": null}'
    assert platform_config.from_json(text).volumes == ()


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        (None, "has no Kueue"),
        (["v1beta1"], "serves v1beta1 only, not v1beta2: upgrade it"),
        (["v1beta2"], "apply all CRDs"),
    ],
)
def test_a_cluster_without_the_kueue_that_is_needed(versions: list[str] | None, words: str) -> None:
    kube = cluster()
    if versions is not None:
        kube.paths["/apis/kueue.x-k8s.io"] = {"versions": [{"version": version} for version in versions]}
    kube.fail_next("list", LOCAL_QUEUE, NotFound("the server could not find the requested resource", 404))
    with pytest.raises(PlatformError, match=words):
        lifecycle.submit(kube, spec(), PLATFORM)
    assert left(kube) == []
