"""What a real API server stores for whoever may patch one Job: our clients read everybody else's all the same."""

from __future__ import annotations

import json

from api_server import TENANT, ApiServer
from waits import until

from kueue_integration.contract import job_names
from kueue_integration.controller.informer import Informer
from kueue_integration.kube.resources import JOB, NAMESPACE

SPACE = "deep"


def test_managed_fields_of_thousands_of_levels_hide_nobody(server: ApiServer) -> None:
    admin = server.kube()
    marked = {"name": SPACE, "labels": {job_names.LABEL_TRAINING: job_names.TRAINING_ENABLED}}
    admin.create({"apiVersion": NAMESPACE.api_version, "kind": NAMESPACE.name, "metadata": marked})
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "c"}]}
    for name in ("hostile", "other"):
        meta = {"name": name, "namespace": SPACE, "labels": {job_names.LABEL_MANAGED: "true"}}
        spec = {"suspend": True, "template": {"spec": pod}}
        admin.create({"apiVersion": JOB.api_version, "kind": JOB.name, "metadata": meta, "spec": spec})
    seen: list[str] = []
    informer = Informer(admin, JOB, lambda job, deleted: seen.append(job["metadata"]["name"]))
    informer.start()
    assert informer.synced.wait(120)
    deep = '{"f:metadata":' + '{"f:a":' * 5000 + "{}" + "}" * 5000 + "}"
    entry = (
        '{"manager":"x","operation":"Update","apiVersion":"batch/v1","time":"2020-01-01T00:00:00Z",'
        f'"fieldsType":"FieldsV1","fieldsV1":{deep}}}'
    )
    tenant = server.kube(TENANT)
    answer = tenant.credentials.pool.request(
        "PATCH", server.url + JOB.path(SPACE, "hostile"), body=f'{{"metadata":{{"managedFields":[{entry}]}}}}'.encode(),
        headers={**tenant.credentials.headers(), "Content-Type": "application/merge-patch+json"},
    )  # fmt: skip
    assert answer.status == 200 and answer.data.count(b'"f:a"') == 5000, "this API server does not store it any more"
    try:
        json.loads(answer.data)
    except RecursionError:
        pass
    else:
        raise AssertionError("the parser takes it now: this test shows nothing")
    assert {job["metadata"]["name"] for job in tenant.list(JOB, SPACE)} == {"hostile", "other"}
    admin.patch_job(SPACE, "other", {"metadata": {"annotations": {"seen": "1"}}})
    both = lambda: seen.count("hostile") >= 2 and seen.count("other") >= 2  # noqa: E731
    until(both, "the informer sees both again", detail=lambda: f"{seen}, {informer.problem}")
    assert informer.problem == ""
    informer.stop()
