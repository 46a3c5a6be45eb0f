"""What the chart installs: published configuration, store, controller, Lease, policy with its binding, fence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..contract import job_names
from ..errors import ChartError, Forbidden, KubeError, NotFound
from ..guard import in_force
from ..guard import names as guard_names
from ..kube.api import Kube
from ..kube.resources import (
    ADMISSION_CHECK,
    ADMISSION_POLICY,
    ADMISSION_POLICY_BINDING,
    CONFIG_MAP,
    DEPLOYMENT,
    LEASE,
    Kind,
    Object,
    condition,
    selector,
)
from ..spec import platform_config, validation
from ..spec.platform_config import PlatformConfig
from ..spec.train_spec import TrainSpec
from .check import FAIL, HELM, IMAGES, OK, REPAIR, WARN, Check, listing, unix

POLICY = job_names.HOLD_LEASE
"""The policy and its binding have the name of the Lease that they read."""
CLOCK_SKEW_S = 2.0
_SYSTEM = job_names.SYSTEM_NAMESPACE
_LOOK = (
    f"kubectl -n {_SYSTEM} describe deployment,pods\nkubectl -n {_SYSTEM} logs deployment/{job_names.CONTROLLER_NAME}"
)
_USERNAME = re.compile(r"""username\s*==\s*["']([^"']+)["']""")


def config(kube: Kube) -> PlatformConfig | Check:
    """The published configuration, or what is wrong with it."""
    try:
        if kube.find(CONFIG_MAP, _SYSTEM, job_names.PLATFORM_CONFIGMAP) is None:
            missing = f"not installed: no ConfigMap {_SYSTEM}/{job_names.PLATFORM_CONFIGMAP}"
            fix = "In a checkout of this project, build and push two images, then install the chart (after Kueue):"
            return Check("chart", FAIL, missing, f"{fix}\n{IMAGES}\n{HELM}")
        return platform_config.load(kube)
    except Forbidden as error:
        fix = "Every authenticated user must be able to read it; the chart's RoleBinding is missing:"
        return Check("chart", FAIL, f"its configuration cannot be read: {error}", f"{fix}\n{REPAIR}")
    except KubeError as error:
        return Check("chart", FAIL, f"not checked: {error}", "Run it again when the API server answers.")
    except ChartError as error:
        return Check("chart", FAIL, error.why, f"Its values or the ConfigMap were edited by hand; upgrade it:\n{HELM}")


def config_checks(found: PlatformConfig | Check) -> Iterator[Check]:
    yield found if isinstance(found, Check) else Check("chart", OK, f"installed; agent image {found.agent_image}")


def store(config: PlatformConfig) -> Iterator[Check]:
    """The default store is one that a job may use, by the very rules of a submission. It is not contacted."""
    if not config.store:
        yield Check(
            "store",
            WARN,
            "the platform has no default: every job must name one (--store)",
            f"Set one that all nodes reach:\n{REPAIR} \\\n  --set store.url=gs://BUCKET/checkpoints",
        )
        return
    probe = TrainSpec(name="doctor", queue="doctor", command=["true"])
    wrong = [text for field, _, text in validation.problems(probe, config) if field == "store"]
    for text in wrong:
        fix = "Correct the chart's store.url (for file://, store.volumes and store.volumeMounts too):"
        change = f"{REPAIR} \\\n  --set store.url=gs://BUCKET/checkpoints"
        yield Check("store", FAIL, f"{config.store} {text}", f"{fix}\n{change}")
    if not wrong:
        shared = "; the volume must be the same on all nodes" if config.store.startswith("file:") else ""
        yield Check("store", OK, config.store + shared)


def controller(kube: Kube) -> Iterator[Check]:
    """A replica is ready."""
    found = kube.find(DEPLOYMENT, _SYSTEM, job_names.CONTROLLER_NAME)
    if found is None:
        yield Check(
            "controller", FAIL, f"no Deployment {job_names.CONTROLLER_NAME} in {_SYSTEM}", f"Upgrade:\n{REPAIR}"
        )
        return
    wanted = (found.get("spec") or {}).get("replicas", 1)
    ready = (found.get("status") or {}).get("readyReplicas") or 0
    if ready >= 1:
        yield Check("controller", OK, f"{ready} of {wanted} replicas ready")
    elif wanted == 0:
        scale = f"kubectl -n {_SYSTEM} scale deployment/{job_names.CONTROLLER_NAME} --replicas=1"
        yield Check("controller", FAIL, "scaled to 0 replicas: nothing is held, no job starts", f"Start it:\n{scale}")
    else:
        yield Check("controller", FAIL, f"0 of {wanted} replicas ready", f"See why (image, Secret, quota):\n{_LOOK}")


def lease(kube: Kube, now: float) -> Iterator[Check]:
    """Renewed within its duration; the policy lets every suspend through once it is not."""
    found = kube.find(LEASE, _SYSTEM, job_names.HOLD_LEASE)
    if found is None:
        yield Check(
            "lease", FAIL, f"no Lease {job_names.HOLD_LEASE} in {_SYSTEM}: nothing is held", f"Upgrade:\n{REPAIR}"
        )
        return
    spec = found.get("spec") or {}
    try:
        age, duration = now - unix(str(spec["renewTime"])), float(spec["leaseDurationSeconds"])
    except (KeyError, ValueError, TypeError):
        yield Check("lease", FAIL, "no controller has ever taken it: nothing is held", f"See why:\n{_LOOK}")
        return
    holder = spec.get("holderIdentity") or "nobody"
    if age > duration:
        fix = f"The controller is dead, cut off, or the clocks of its node and of this machine differ:\n{_LOOK}"
        silent = f"not renewed for {age:.0f} s (lasts {duration:.0f} s), last by {holder}: nothing is held"
        yield Check("lease", FAIL, silent, fix)
    elif age < -CLOCK_SKEW_S:
        fix = "Synchronise the clocks (NTP): deadlines are compared between controller and API server."
        yield Check("lease", WARN, f"renewed {-age:.0f} s in the future, as this machine's clock has it", fix)
    else:
        yield Check("lease", OK, f"renewed {max(age, 0):.1f} s ago by {holder}, lasts {duration:.0f} s")


def policy(kube: Kube) -> Iterator[Check]:
    """The policy and its binding are there, as the chart made them, and mean the user that Kueue really is."""
    rule = kube.find(ADMISSION_POLICY, None, POLICY)
    binding = kube.find(ADMISSION_POLICY_BINDING, None, POLICY)
    missing = [kind.name for kind, obj in _parts(rule, binding) if obj is None]
    if rule is None or binding is None:
        without = "preemption does not wait for checkpoints"
        yield Check("hold policy", FAIL, f"no {' and no '.join(missing)} {POLICY}: {without}", f"Upgrade:\n{REPAIR}")
        return
    wrong = [*_edited(rule.get("spec") or {}, binding.get("spec") or {})]
    if wrong:
        yield Check("hold policy", FAIL, "edited by hand: " + "; ".join(wrong), f"Undo it:\n{REPAIR}")
        return
    meant = _meant_user(rule)
    actual = _kueue_users(kube)
    if actual and meant not in actual:
        yield Check(
            "hold policy",
            FAIL,
            f"holds back {meant}, but Kueue runs as {', '.join(sorted(actual))}",
            f"Name the right user:\n{REPAIR} \\\n  --set kueue.username={min(actual)}",
        )
    else:
        yield Check(
            "hold policy", OK, f"denies with its binding; holds back {meant.removeprefix('system:serviceaccount:')}"
        )


def guards(kube: Kube) -> Iterator[Check]:
    """The guard policies and their bindings are there and refuse what they find."""
    wrong: list[str] = []
    for name in guard_names.POLICIES:
        policy, binding = (kube.find(kind, None, name) for kind in (ADMISSION_POLICY, ADMISSION_POLICY_BINDING))
        if problem := in_force.problem(name, policy, binding):
            wrong.append(problem)
    if kube.find(LEASE, _SYSTEM, job_names.TRUSTED_IMAGES_LEASE) is None:
        what = f"no Lease {_SYSTEM}/{job_names.TRUSTED_IMAGES_LEASE}: the guard of pods lets no pod in"
        yield Check("guard policies", FAIL, what, f"The controller makes it again; if it does not, upgrade:\n{REPAIR}")
    elif wrong:
        what = f"{'; '.join(wrong)}: tenants can write what is the platform's"
        yield Check("guard policies", FAIL, what, f"Upgrade:\n{REPAIR}")
    else:
        yield Check("guard policies", OK, f"{listing(guard_names.POLICIES, 9)}")


def _parts(rule: Object | None, binding: Object | None) -> Sequence[tuple[Kind, Object | None]]:
    return (ADMISSION_POLICY, rule), (ADMISSION_POLICY_BINDING, binding)


def _edited(rule: Object, binding: Object) -> Iterator[str]:
    param: dict[str, Any] = binding.get("paramRef") or {}
    if rule.get("failurePolicy") != "Ignore":
        yield "failurePolicy is not Ignore, so an error could block every preemption"
    if "Deny" not in (binding.get("validationActions") or ()):
        yield "the binding does not Deny, so nothing is held"
    if (param.get("name"), param.get("namespace")) != (job_names.HOLD_LEASE, _SYSTEM):
        yield f"the binding does not read Lease {_SYSTEM}/{job_names.HOLD_LEASE}"
    if param.get("parameterNotFoundAction") != "Allow":
        yield "parameterNotFoundAction is not Allow, so a missing Lease blocks every preemption"


def _meant_user(rule: Object) -> str:
    conditions = (rule.get("spec") or {}).get("matchConditions") or ()
    found = [match[1] for c in conditions if (match := _USERNAME.search(str(c.get("expression", ""))))]
    return found[0] if found else "no known user"


def _kueue_users(kube: Kube) -> set[str]:
    """Whom Kueue's Deployments run as; empty where it is not run by one, or where we may not look."""
    labels = {"app.kubernetes.io/name": "kueue", "control-plane": "controller-manager"}
    try:
        found = kube.list(DEPLOYMENT, None, selector(labels))
    except (Forbidden, NotFound):
        return set()
    return {
        f"system:serviceaccount:{d['metadata']['namespace']}:"
        f"{d['spec']['template']['spec'].get('serviceAccountName') or 'default'}"
        for d in found
    }


def fence(kube: Kube) -> Iterator[Check]:
    """Our AdmissionCheck is there, is ours, and the controller has set it Active."""
    name = job_names.ADMISSION_CHECK_NAME
    found = kube.find(ADMISSION_CHECK, None, name)
    if found is None:
        yield Check("fence", FAIL, f"no AdmissionCheck {name}: no job can be started", f"Upgrade:\n{REPAIR}")
        return
    owner = (found.get("spec") or {}).get("controllerName")
    active = condition(found, "Active")
    if owner != job_names.ADMISSION_CHECK_CONTROLLER:
        again = f"The field cannot be changed; make it again:\nkubectl delete admissioncheck {name}\n{REPAIR}"
        yield Check("fence", FAIL, f"AdmissionCheck {name} belongs to {owner}", again)
    elif active is None or active.get("status") != "True":
        told = (active or {}).get("message") or "the controller has not answered for it"
        off = f"AdmissionCheck {name} is not Active ({told}): its queues admit nothing"
        yield Check("fence", FAIL, off, f"The controller sets it at its start; see why it did not:\n{_LOOK}")
    else:
        yield Check("fence", OK, f"AdmissionCheck {name} is Active")
