"""`pod_override`: what is merged into the training pod, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from kueue_samples import PLATFORM, spec

from kueue_integration.contract import job_names
from kueue_integration.errors import SpecError
from kueue_integration.manifests.job_manifests import render
from kueue_integration.spec.train_spec import from_mapping
from kueue_integration.spec.validate import validate
from singularity_proxy.protocol import names


def template(override: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    *_, job = render(spec(pod_override=override, **changes), PLATFORM)
    found: dict[str, Any] = job["spec"]["template"]
    return found


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    return next(c for c in (*pod["spec"]["containers"], *pod["spec"]["initContainers"]) if c["name"] == name)


def without_room(container: dict[str, Any]) -> dict[str, Any]:
    """Without the limit of the images' volume, which follows from the memory."""
    return {**container, "env": [e for e in container["env"] if e["name"] != names.ENV_IMAGE_ROOM]}


def refused(override: Any) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        validate(spec(pod_override=override), PLATFORM)
    return {field: text for field, _, text in caught.value.problems}


OVERRIDE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"labels": {"team": "vision"}, "annotations": {"example.org/bill": "7"}},
    "spec": {
        "serviceAccountName": "trainer",
        "restartPolicy": None,
        "affinity": {"podAffinity": {}},
        "nodeSelector": {"disk": "fast"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "containers": [
            {
                "name": "base",
                "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "t"}}}],
                "envFrom": [{"secretRef": {"name": "s"}}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                "resources": {"limits": {"example.org/nic": "1"}},
            }
        ],
        "initContainers": [
            {"name": "fetch", "image": "fetch:1"},
            {"name": "device-proxy", "resources": {"requests": {"memory": "1Gi"}}},
        ],
    },
}


def test_what_the_platform_does_not_name_is_merged_in() -> None:
    before, pod = template(None), template(OVERRIDE)
    assert pod["metadata"]["labels"] == {**before["metadata"]["labels"], "team": "vision"}
    assert pod["metadata"]["annotations"]["example.org/bill"] == "7"
    for field in ("serviceAccountName", "affinity", "nodeSelector", "tolerations"):
        assert pod["spec"][field] == OVERRIDE["spec"][field]  # type: ignore[index]
    assert pod["spec"]["restartPolicy"] == "Never"
    images = {"name": "singularity-images", "emptyDir": {}}  # with a device, the memory limit bounds no image
    own = [images if v["name"] == images["name"] else v for v in before["spec"]["volumes"]]
    assert [*own, OVERRIDE["spec"]["volumes"][0]] == pod["spec"]["volumes"]  # type: ignore[index]
    assert [c["name"] for c in pod["spec"]["containers"]] == [job_names.CONTAINER_TRAIN]
    assert [c["name"] for c in pod["spec"]["initContainers"]] == ["install-agent", "device-proxy", "fetch"]
    train, was = container(pod, "train"), container(before, "train")
    assert train["command"] == was["command"] and train["securityContext"] == was["securityContext"]
    kept = without_room(was)["env"]
    assert train["env"][: len(kept)] == kept and train["env"][-1]["name"] == "TOKEN"
    assert train["volumeMounts"] == [*was["volumeMounts"], {"name": "data", "mountPath": "/data"}]
    assert train["envFrom"] == [{"secretRef": {"name": "s"}}]
    assert train["resources"]["limits"]["example.org/nic"] == "1"
    sidecar = container(pod, "device-proxy")
    assert without_room(sidecar) == {
        **without_room(container(before, "device-proxy")), "resources": {"requests": {"memory": "1Gi"}},
    }  # fmt: skip


def test_an_environment_variable_replaces_the_one_of_that_name_whole() -> None:
    entry = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a"}}}
    override = {"spec": {"containers": [{"name": "train", "env": [entry]}]}}
    env = container(template(override, env={"A": "plain"}), "train")["env"]
    assert [e for e in env if e["name"] == "A"] == [entry]


@pytest.mark.parametrize(
    ("whole", "own", "wanted"),
    [
        ({}, {}, None),
        ({"runAsUser": 0, "fsGroup": 5}, {}, None),  # the launcher has these groups, and root's ranks have its own
        ({"runAsUser": 1000}, {}, "1000::"),
        ({}, {"runAsGroup": 5}, ":5:"),
        ({"runAsUser": 1000, "runAsGroup": 5, "fsGroup": 6, "supplementalGroups": [8, 7]}, {}, "1000:5:8,7,6"),
        ({"runAsUser": 1, "supplementalGroups": [8], "supplementalGroupsPolicy": "Strict"}, {}, "1::8:strict"),
        ({"runAsUser": 1000, "runAsGroup": 5}, {"runAsUser": 7}, "7:5:"),
        ({"runAsUser": 1000, "runAsNonRoot": True}, {"runAsUser": 7, "runAsGroup": 8, "runAsNonRoot": None}, "7:8:"),
        ({"runAsUser": 1000}, {"runAsUser": 0}, None),
    ],
)
def test_whom_the_program_runs_as_is_told_to_the_launcher(
    whole: dict[str, Any], own: dict[str, Any], wanted: str | None
) -> None:
    override = {"spec": {"securityContext": whole, "containers": [{"name": "base", "securityContext": own}]}}
    validate(spec(pod_override=override), PLATFORM)
    before, pod = template(None), template(override)
    assert pod["spec"]["securityContext"] == whole  # for volumes and containers of the user's own
    for name in ("train", "device-proxy", "install-agent"):
        context = container(pod, name)["securityContext"]
        assert context == container(before, name)["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"], context["runAsNonRoot"]) == (0, 0, False)
    env = [entry["value"] for entry in container(pod, "train")["env"] if entry["name"] == names.ENV_RUN_AS]
    assert env == ([] if wanted is None else [wanted])
    assert not any(entry["name"] == names.ENV_RUN_AS for entry in container(pod, "device-proxy")["env"])


def _train(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "train", **fields}]}}


@pytest.mark.parametrize(
    ("override", "field", "words"),
    [
        ("text", "pod_override", "must be a Pod"),
        ({"spec": {"nodeSelector": {"a": object()}}}, "pod_override", "not plain data"),
        ({"kind": "Job"}, "pod_override.kind", "that of a Pod"),
        ({"template": {}}, "pod_override.template", "use metadata and spec"),
        ({"spec": []}, "pod_override.spec", "must be a mapping"),
        ({"metadata": {"name": "x"}}, "pod_override.metadata.name", "is set by the Job"),
        ({"metadata": {"labels": {"singularity.dev/job": "x"}}}, "pod_override.metadata.labels['singularity.dev/job']",
         "set by the platform"),
        ({"spec": {"restartPolicy": "Always"}}, "pod_override.spec.restartPolicy", "next attempt has a new one"),
        ({"spec": {"terminationGracePeriodSeconds": 1}}, "pod_override.spec.terminationGracePeriodSeconds",
         "grace_period_s"),
        ({"spec": {"automountServiceAccountToken": True}}, "pod_override.spec.automountServiceAccountToken",
         "credentials"),
        ({"spec": {"hostPID": True}}, "pod_override.spec.hostPID", "namespaces"),
        ({"spec": {"nodeName": "n"}}, "pod_override.spec.nodeName", "nodeSelector"),
        ({"spec": {"toleration": []}}, "pod_override.spec.toleration", "did you mean tolerations?"),
        ({"spec": {"volumes": "data"}}, "pod_override.spec.volumes", "list of mappings"),
        ({"spec": {"volumes": [{"name": "singularity-run"}]}}, "pod_override.spec.volumes[0].name", "reserved"),
        ({"spec": {"containers": [{"name": "web"}]}}, "pod_override.spec.containers[0].name", "restartPolicy Always"),
        ({"spec": {"containers": [{"name": "train"}, {"name": "base"}]}}, "pod_override.spec.containers[1].name",
         "twice"),
        ({"spec": {"initContainers": [{"name": "base"}]}}, "pod_override.spec.initContainers[0].name", "init"),
        ({"spec": {"initContainers": [{"name": "device-proxy", "command": ["x"]}]}},
         "pod_override.spec.initContainers[0].command", "belongs to the platform"),
        ({"spec": {"initContainers": [{"name": "install-agent", "image": "x"}]}},
         "pod_override.spec.initContainers[0].image", "belongs to the platform"),
        ({"spec": {"initContainers": [{"name": "device-proxy", "env": [{"name": "LD_PRELOAD", "value": "x"}]}]}},
         "pod_override.spec.initContainers[0].env[0].name", "platform's own program"),
        (_train(image="x"), "pod_override.spec.containers[0].image", "set image instead"),
        (_train(command=["x"]), "pod_override.spec.containers[0].command", "command or script"),
        (_train(securityContext={"privileged": True}), "pod_override.spec.containers[0].securityContext.privileged",
         "CRIU needs the platform's; runAsUser, runAsGroup, runAsNonRoot can"),
        (_train(securityContext=[]), "pod_override.spec.containers[0].securityContext", "must be a mapping"),
        (_train(securityContext={"runAsUser": "me"}), "pod_override.spec.containers[0].securityContext.runAsUser",
         "must be a whole number, 0 to 2147483647"),
        (_train(securityContext={"runAsNonRoot": True}), "pod_override.spec.containers[0].securityContext.runAsNonRoot",
         "needs runAsUser beside it"),
        ({"spec": {"securityContext": {"runAsNonRoot": True, "runAsUser": 0}}},
         "pod_override.spec.securityContext.runAsNonRoot", "the image's own USER cannot be seen"),
        ({"spec": {"securityContext": {"runAsNonRoot": "yes"}}},
         "pod_override.spec.securityContext.runAsNonRoot", "must be true or false"),
        ({"spec": {"securityContext": {"runAsGroup": -1}}}, "pod_override.spec.securityContext.runAsGroup", "0 to"),
        ({"spec": {"securityContext": {"runAsGroup": 5}}}, "pod_override.spec.securityContext.runAsGroup",
         "containerd starts no pod of a group without a user"),
        ({"spec": {"securityContext": {"fsGroup": True}}}, "pod_override.spec.securityContext.fsGroup", "0 to"),
        ({"spec": {"securityContext": {"supplementalGroups": [1 << 31]}}},
         "pod_override.spec.securityContext.supplementalGroups", "list of whole numbers"),
        (_train(livenessProbe={}), "pod_override.spec.containers[0].livenessProbe", "answer no probe"),
        (_train(tty=True), "pod_override.spec.containers[0].tty", "not a field that can be set"),
        (_train(env=[{"name": "RANK", "value": "1"}]), "pod_override.spec.containers[0].env[0].name", "another name"),
        (_train(env=[{"name": "PYTHONPATH", "value": "/x"}]), "pod_override.spec.containers[0].env[0].name", "in env"),
        (_train(volumeMounts=[{"name": "none", "mountPath": "/x"}]),
         "pod_override.spec.containers[0].volumeMounts[0].name", "not one of the volumes"),
        (_train(volumeMounts=[{"name": "shared", "mountPath": "/singularity/run"}]),
         "pod_override.spec.containers[0].volumeMounts[0].mountPath", "mounted by the platform"),
        (_train(resources={"requests": {"cpu": "lots"}}),
         "pod_override.spec.containers[0].resources.requests['cpu']", "quantity"),
    ],
)  # fmt: skip
def test_what_would_break_the_engine_is_refused_by_field(override: Any, field: str, words: str) -> None:
    assert words in refused(override)[field]


def test_structures_may_come_as_the_json_text_of_a_template() -> None:
    found = from_mapping(
        {
            "name": "a", "queue": "q", "command": '["python3", "x.py"]', "env": '{"A": "b"}',
            "pod_override": '{"spec": {}}', "resume_on_exit_codes": '["75"]', "infrastructure_retries": "3",
        }
    )  # fmt: skip
    assert (found.command, found.env, found.pod_override) == (("python3", "x.py"), {"A": "b"}, {"spec": {}})
    assert (found.resume_on_exit_codes, found.infrastructure_retries) == ((75,), 3)
    with pytest.raises(SpecError) as caught:
        from_mapping({"name": "a", "queue": "q", "command": [], "env": "A=b", "resume_on_exit_codes": "75"})
    assert {field for field, *_ in caught.value.problems} == {"env", "resume_on_exit_codes"}


def test_budget_and_exit_codes_are_in_the_job() -> None:
    *_, job = render(spec(workers=4, infrastructure_retries=3, resume_on_exit_codes=[75, 9]), PLATFORM)
    assert job["metadata"]["annotations"][job_names.ANN_INFRASTRUCTURE_RETRIES] == "3"
    assert job["spec"]["backoffLimit"] == 12 + 12, "and three restores of a checkpoint in which all are killed"
    assert job["spec"]["podFailurePolicy"]["rules"][-1]["onExitCodes"]["values"] == [9, 75, 137]
