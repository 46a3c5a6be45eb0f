"""Adoption by label: a real API server asks the controller's own route, by the chart's own webhook, and refuses by its
policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from adoption_cases import BAD, BAD_TRAINJOBS, GOOD, changed, jobset, labelled, plain, trainjob
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from api_server import TENANT, Policies
from kueue_samples import PLATFORM
from rendered import render

from kueue_integration.adoption import judge, recreate, review
from kueue_integration.adoption.patch import adopted
from kueue_integration.contract import job_names
from kueue_integration.controller import certificates
from kueue_integration.controller.sidecar_api.adoption import MOST, Adoption
from kueue_integration.controller.sidecar_api.http import _errors
from kueue_integration.errors import KubeError, SpecError
from kueue_integration.job import states
from kueue_integration.kube.resources import Object, annotation, kind_of
from kueue_integration.spec import privileges
from kueue_integration.spec.platform_config import AUTO, NODE, USER_NAMESPACE, PlatformConfig

NAMESPACE = "default"
"""Of the cases. In the other namespaces other tests make labelled Jobs that nobody adopts."""
LEVELS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "a claim": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
    "huge pages": {"volumes": [{"name": "data", "emptyDir": {"medium": "HugePages"}}]},
    "a device": {"resources": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}},
    "a device claim": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]},
}
GUARDS = "'singularity-guard-"
POLICY = kind_of({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy"})


class Controller:
    """The route of a controller, with a certificate of its own."""

    def __init__(self, folder: Path) -> None:
        ca, key = certificates.authority(time.time(), 30)
        cert, cert_key = certificates.leaf(ca, key, ["localhost"], time.time())
        (folder / "pem").write_text(cert + cert_key)
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(folder / "pem")
        self.authority, self.port, self.platform = ca, 0, PLATFORM
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.start()

    def _known(self) -> PlatformConfig:
        return self.platform

    def start(self) -> None:
        self._do(self._start())

    def stop(self) -> None:
        assert self._runner is not None
        self._do(self._runner.cleanup())

    def _do(self, wish: Any) -> None:
        asyncio.run_coroutine_threadsafe(wish, self._loop).result(120)

    async def _start(self) -> None:
        app = web.Application(middlewares=[_errors])
        Adoption(self._known).attach(app)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._context)
        await site.start()
        self.port = self.port or self._runner.addresses[0][1]


@pytest.fixture(scope="module")
def controller(policies: Policies, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """The chart's webhook and policy are in force in NAMESPACE."""
    made = Controller(tmp_path_factory.mktemp("controller"))
    values = tmp_path_factory.mktemp("values") / "values.json"
    pods = {"volumes": [*PLATFORM.volumes], "volumeMounts": [*PLATFORM.volume_mounts], "env": dict(PLATFORM.env)}
    values.write_text(json.dumps({"pods": pods, "adoption": {"enabled": True}, "store": {"url": PLATFORM.store}}))
    objects = render(values=str(values))
    here = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
    hook = objects["MutatingWebhookConfiguration", review.NAME]
    policy = objects[POLICY.name, review.NAME]
    policy["spec"]["matchConstraints"]["namespaceSelector"] = here
    for each in hook["webhooks"]:
        each["namespaceSelector"] = here
        authorities = b64encode(made.authority.encode()).decode()
        each["clientConfig"] = {"url": f"https://localhost:{made.port}{review.PATH}", "caBundle": authorities}
    policies.label(NAMESPACE)
    policies.admin.create(hook)
    changed_policy(policies, policy["spec"])  # its binding is there: the chart has the policy without adoption, too
    unfit = labelled(changed("spec.completionMode", None))
    policies.eventually(lambda: "must be Indexed" in refusal(policies, unfit), "the policy of adoption is in force")
    policies.eventually(lambda: not refusal(policies, labelled(plain())), "the webhook is asked")
    yield made
    made.stop()
    policies.admin.delete(kind_of(hook), None, review.NAME)
    usual = render()[POLICY.name, review.NAME]["spec"]
    changed_policy(policies, {**usual, "matchConstraints": {**usual["matchConstraints"], "namespaceSelector": None}})


def changed_policy(policies: Policies, spec: Object) -> None:
    policies.admin.patch(POLICY, None, review.NAME, {"spec": spec})


def skip_if_dropped(policies: Policies, field: str, job: Object) -> None:
    """Kubernetes 1.34 drops a container's restartPolicy, whose feature gate is off there: nobody is asked about it."""
    if field.endswith("containers[0].restartPolicy"):
        with contextlib.suppress(KubeError):
            made = policies.admin.create(job, dry_run=True)
            if "restartPolicy" not in made["spec"]["template"]["spec"]["containers"][0]:
                pytest.skip("this API server drops the field before any policy sees it")


def refusal(policies: Policies, job: Object) -> str:
    try:
        policies.server.kube(TENANT).create(job, dry_run=True)
    except KubeError as error:
        return str(error)
    return ""


def stripped(job: Object) -> Object:
    """What would have been stored, without what differs between two calls."""
    text = json.dumps(job).replace(job["metadata"]["uid"], "UID")
    result: Object = json.loads(text)
    for name in ("uid", "creationTimestamp", "managedFields", "resourceVersion", "generation"):
        result["metadata"].pop(name, None)
    return result


@pytest.mark.parametrize("job", GOOD, ids=range(len(GOOD)))
def test_label_and_command_make_the_same_object(policies: Policies, controller: Controller, job: Object) -> None:
    tenant = policies.server.kube(TENANT)
    by_label = tenant.create(labelled(job), dry_run=True)
    by_command = tenant.create(adopted(job, PLATFORM), dry_run=True)
    assert stripped(by_label) == stripped(by_command)


@pytest.mark.parametrize("setting", [AUTO, USER_NAMESPACE, NODE])
@pytest.mark.parametrize("wish", [None, AUTO, USER_NAMESPACE])
@pytest.mark.parametrize("case", LEVELS)
def test_a_label_gives_the_level_that_the_command_gives(
    policies: Policies, controller: Controller, setting: str, wish: str | None, case: str
) -> None:
    """As the controller's setting says: the webhook of all settings is the same."""
    job, more = plain(), LEVELS[case]
    job["metadata"]["annotations"] |= {job_names.ANN_PRIVILEGES: wish} if wish else {}
    pod = job["spec"]["template"]["spec"]
    pod["volumes"] = [*pod["volumes"], *more.get("volumes", ())]
    pod["containers"][0]["resources"] |= more.get("resources", {})
    pod |= {key: value for key, value in more.items() if key == "resourceClaims"}
    able = {"new": {privileges.CAN: privileges.ALL}}
    given = replace(PLATFORM, privileges=setting, user_namespaces=able)
    want = recreate.manifest(job, given)
    controller.platform = given
    try:
        made = policies.admin.create(labelled(job), dry_run=True)
    finally:
        controller.platform = PLATFORM
    for read in (states.privileges, lambda each: annotation(each, job_names.ANN_PRIVILEGES_WHY)):
        assert read(made) == read(want)
    expected = setting if setting != AUTO else NODE if more else USER_NAMESPACE
    assert states.privileges(made) == (USER_NAMESPACE if wish == USER_NAMESPACE else expected)


@pytest.mark.parametrize(("field", "path", "value"), BAD, ids=[f"{n}-{case[0]}" for n, case in enumerate(BAD)])
def test_a_bad_one_is_refused_with_its_field(
    policies: Policies, controller: Controller, field: str, path: str, value: Any
) -> None:
    """By the policy of adoption, or by a guard, which needs no rule of adoption beside it."""
    skip_if_dropped(policies, field, changed(path, value))
    said = refusal(policies, labelled(changed(path, value)))
    asked = (f"denied request: {field}: ", f"{field} = ", GUARDS, f" is invalid: {field}")  # a path is there twice
    assert any(text in said for text in asked), said


# --- the command asks -------------------------------------------------------------------------------------------------
def by_command(policies: Policies, job: Object) -> str:
    """What `adopt` says of a job of any kind; "" if it would be created. Its queue is not looked for."""
    tenant = policies.server.kube(TENANT)
    try:
        judge.judged(tenant, job, PLATFORM)
        judge.create(tenant, recreate.manifest(job, PLATFORM), dry_run=True)
    except SpecError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("job", [*GOOD, jobset(), trainjob()], ids=range(len(GOOD) + 2))
def test_nothing_is_said_of_a_good_one(policies: Policies, controller: Controller, job: Object) -> None:
    assert by_command(policies, job) == ""


@pytest.mark.parametrize(("field", "path", "value"), BAD, ids=[f"{n}-{case[0]}" for n, case in enumerate(BAD)])
def test_the_command_prints_the_api_servers_own_sentence(
    policies: Policies, controller: Controller, field: str, path: str, value: Any
) -> None:
    """Also of the Job inside of a JobSet."""
    skip_if_dropped(policies, field, changed(path, value))
    jobs = [changed(path, value)]
    if "managedBy" not in path and "min-parallelism" not in path:  # which are the JobSet's own
        jobs.append(changed(path.replace("spec.", "spec.replicatedJobs.0.template.spec.", 1), value, jobset()))
    for job in jobs:
        said = by_command(policies, job)
        assert any(text in said for text in (f"denied request: {field}", GUARDS, f"{field} = ", f"{field}: ")), said


@pytest.mark.parametrize(("field", "path", "value"), BAD_TRAINJOBS, ids=[path for _, path, _ in BAD_TRAINJOBS])
def test_the_command_says_what_the_job_of_a_trainjob_breaks(
    policies: Policies, controller: Controller, field: str, path: str, value: Any
) -> None:
    assert field in by_command(policies, changed(path, value, trainjob()))


def test_all_problems_are_told_at_once_with_their_values(policies: Policies, controller: Controller) -> None:
    job = changed("spec.completions", 4, changed("spec.template.spec.containers.0.command", ["/opt/bin/torchrun"]))
    said = by_command(policies, changed("metadata.annotations.singularity~dev/checkpoint-budget-seconds", "9999", job))
    for text in ("spec.completions = 4: must equal", "command = /opt/bin/torchrun: starts torchrun",
                 "checkpoint-budget-seconds] = 9999: must be a whole number of seconds"):  # fmt: skip
        assert text in said


def test_while_the_controller_is_away_only_jobs_that_need_it_are_refused(
    policies: Policies, controller: Controller
) -> None:
    controller.stop()
    try:
        assert 'failed calling webhook "adoption.singularity.dev"' in refusal(policies, labelled(plain()))
        assert refusal(policies, plain()) == ""  # somebody else's
        assert refusal(policies, adopted(plain(), PLATFORM)) == ""  # ours, made by the command
        assert "must be Indexed" in refusal(policies, labelled(changed("spec.completionMode", None)))
    finally:
        controller.start()
    policies.eventually(lambda: not refusal(policies, labelled(plain())), "adoption works again")


# --- whatever anybody sends -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"[]", 400), (b'{"request": {"object": {"kind": "Job"}}}', 200), (b"[" * 100, 400),
     (json.dumps({"request": {"object": {"kind": "Job", "metadata": {"name": 1}, "spec": []}}}).encode(), 200),
     (json.dumps({"request": {"object": {"kind": "Job", "spec": 5}}}).encode(), 400),
     (json.dumps({"request": {"object": {"kind": "Pod"}}}).encode(), 400), (b" " * (MOST + 1), 413)],
    ids=["nothing", "a list", "no spec", "deep", "other types", "no mapping", "a pod", "large"],
)  # fmt: skip
def test_what_is_no_job_gets_an_answer(tmp_path: Path, body: bytes, status: int) -> None:
    async def asked() -> tuple[int, str]:
        app = web.Application(middlewares=[_errors])
        Adoption(lambda: PLATFORM).attach(app)
        async with TestClient(TestServer(app)) as client:
            answer = await client.post(review.PATH, data=body)
            return answer.status, await answer.text()

    found, said = asyncio.run(asked())
    assert found == status and '"allowed": true' not in said


def test_before_the_authorities_are_known_it_says_so() -> None:
    async def asked() -> tuple[int, str]:
        app = web.Application(middlewares=[_errors])
        Adoption(lambda: None).attach(app)
        async with TestClient(TestServer(app)) as client:
            answer = await client.post(review.PATH, data=b"{}")
            return answer.status, await answer.text()

    status, text = asyncio.run(asked())
    assert status == 503 and "authorities are not known yet" in text
