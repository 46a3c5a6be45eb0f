"""What the namespace allows and what the caller may do in it."""

from __future__ import annotations

from collections.abc import Iterator

from ..contract import job_names
from ..errors import Forbidden
from ..jobs.preflight import POD_SECURITY, guard_command, why_unguarded
from ..kube.api import Kube
from ..kube.resources import (
    CONFIG_MAP,
    JOB,
    LOCAL_QUEUE,
    NAMESPACE,
    POD,
    PROGRESS,
    SECRET,
    SERVICE,
    WORKLOAD,
    Kind,
    label,
)
from . import engines
from .check import FAIL, OK, WARN, Check

MISSING = "namespace"
"""Name of the finding that the namespace does not exist: no other finding is possible then."""

_NEEDED: tuple[tuple[Kind, str | None, tuple[str, ...]], ...] = (
    (JOB, None, ("get", "list", "watch", "create", "patch", "delete")),
    (CONFIG_MAP, None, ("get", "create", "delete")),
    (SERVICE, None, ("get", "create", "delete")),
    (POD, None, ("list",)),
    (POD, "log", ("get",)),
    (WORKLOAD, None, ("list", "watch")),
    (LOCAL_QUEUE, None, ("list",)),
)
"""What submit, status, logs, delete and Airflow's triggerer ask for. docs/administration/access.md grants it."""
_PROGRESS = f"{PROGRESS.plural}.{PROGRESS.group}"


def pod_security(kube: Kube, namespace: str) -> Iterator[Check]:
    """The namespace exists and lets pods add the capabilities that checkpoints need."""
    try:
        found = kube.find(NAMESPACE, None, namespace)
    except Forbidden as error:
        fix = f"Ask for its label {POD_SECURITY}: it must be privileged or absent."
        yield Check("pod security", WARN, f"not checked: {error}", fix)
        return
    if found is None:
        fix = f"Create it, or name another one (-n):\nkubectl create namespace {namespace}"
        yield Check(MISSING, FAIL, f"{namespace} does not exist", fix)
        return
    level = (found["metadata"].get("labels") or {}).get(POD_SECURITY)
    if level in ("baseline", "restricted"):
        yield Check(
            "pod security",
            WARN,
            f"{namespace} enforces {level!r}: only jobs with engine 'state' can run here",
            f"For engines 'process' and 'both', allow its capabilities, or use another namespace:\n"
            f"kubectl label namespace {namespace} --overwrite {POD_SECURITY}=privileged",
        )
    else:
        yield Check("pod security", OK, f"namespace {namespace}: {level or 'no level of its own'}")
    yield engines.automatic(namespace, level)


def training(kube: Kube, namespace: str) -> Iterator[Check]:
    """The guard of pods is in force in the namespace."""
    found = kube.find(NAMESPACE, None, namespace)
    marked = label(found, job_names.LABEL_TRAINING) == job_names.TRAINING_ENABLED
    if marked:
        yield Check("pod guard", OK, f"namespace {namespace}: capabilities are for the launcher only")
        return
    fix = f"No job begins here without it. Pods that run are left alone:\n{guard_command(namespace)}"
    yield Check("pod guard", FAIL, why_unguarded(namespace), fix)


def permissions(kube: Kube, namespace: str) -> Iterator[Check]:
    """The API server's own answers for the caller."""
    missing: list[str] = []
    grants: list[str] = []
    for kind, part, verbs in _NEEDED:
        denied = [verb for verb in verbs if not kube.allowed(verb, kind, namespace, part)]
        if denied:
            resource = kind.plural + (f".{kind.group}" if kind.group else "") + (f"/{part}" if part else "")
            missing.append(f"{'/'.join(denied)} {resource}")
            grants.append(f"--verb={','.join(denied)} --resource={resource}")
    if not all(kube.allowed(verb, PROGRESS, namespace) for verb in ("get", "list", "watch")):
        grant = f"create role singularity-progress --verb=get,list,watch --resource={_PROGRESS}"
        why = f"you may not read {_PROGRESS} in {namespace}: steps and loss are as old as the last change of phase"
        fix = f"Ask for this Role, with a RoleBinding to you:\nkubectl -n {namespace} {grant}"
        yield Check("progress", WARN, why, fix)
    if not all(kube.allowed(verb, SECRET, namespace) for verb in ("get", "create", "delete")):
        grant = f"create role singularity-secrets --verb=get,create,delete --resource={SECRET.plural}"
        why = f"you may not make Secrets in {namespace}: jobs with values that Airflow masks, or --secret-env, fail"
        fix = f"Ask for this Role, with a RoleBinding to you:\nkubectl -n {namespace} {grant}"
        yield Check("secrets", WARN, why, fix)
    if not missing:
        yield Check("permissions", OK, f"you may submit, follow and delete jobs in {namespace}")
        return
    role = "\n".join(
        f"kubectl -n {namespace} create role singularity-user-{number} \\\n  {grant}"
        for number, grant in enumerate(grants, 1)
    )
    fix = f"Ask for these Roles in namespace {namespace}, each with a RoleBinding to you:\n{role}"
    yield Check("permissions", FAIL, f"you may not {'; '.join(missing)} in {namespace}", fix)
