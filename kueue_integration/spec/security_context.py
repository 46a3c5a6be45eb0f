"""Whom a job's program runs as: the ids of the pod's security contexts, for the launcher. Pure.

The training container is root's, for CRIU; the launcher becomes the wanted user right before it starts the program.
What the image itself says (USER) cannot be seen through the Kubernetes API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from singularity_proxy.protocol import names

Problem = tuple[str, object, str]
KEPT = ("runAsUser", "runAsGroup", "runAsNonRoot")
"""Of the container's own security context. What else stands there would take from the launcher what CRIU needs."""
LARGEST_ID = (1 << 31) - 1
"""As in Kubernetes."""
NEEDS_ID = f"must be a whole number, 0 to {LARGEST_ID}"
NEEDS_IDS = f"must be a list of whole numbers, 0 to {LARGEST_ID}"
ALONE = "needs runAsUser beside it: containerd starts no pod of a group without a user"
NEEDS_USER = (
    "needs runAsUser beside it, other than 0: without one the program runs as uid 0, for the image's own USER cannot "
    "be seen from here"
)


def env(pod: Mapping[str, Any], container: Mapping[str, Any]) -> list[dict[str, Any]]:
    """names.ENV_RUN_AS for the training container of a pod spec; nothing where the program is to run as root.

    As Kubernetes has it the container's ids come before the pod's, and the pod's further groups are the container's.
    """
    whole = pod.get("securityContext") or {}
    uid, gid = (_effective(name, pod, container) for name in ("runAsUser", "runAsGroup"))
    if not uid and not gid:
        return []
    fs_group = whole.get("fsGroup")
    groups = [*(whole.get("supplementalGroups") or ()), *([] if fs_group is None else [fs_group])]
    strict = ":strict" if whole.get("supplementalGroupsPolicy") == "Strict" else ""
    ids = ("" if number is None else str(number) for number in (uid, gid))
    return [{"name": names.ENV_RUN_AS, "value": f"{':'.join(ids)}:{','.join(map(str, groups))}{strict}"}]


def problems(pod: Mapping[str, Any], container: Mapping[str, Any], where: str, inner: str) -> Iterator[Problem]:
    """`(field, value, what to do)` of what cannot be kept. `where`, `inner`: the fields of the two."""
    bad = list(malformed(pod, container, where, inner))
    yield from bad
    if bad:
        return
    if group_alone(pod):
        yield f"{where}.securityContext.runAsGroup", pod["securityContext"]["runAsGroup"], ALONE
    for path, within in ((where, False), (inner, True)):
        if unmet(pod, container, within):
            yield f"{path}.securityContext.runAsNonRoot", True, NEEDS_USER
    for name in not_kept(container):
        fix = f"cannot be set: CRIU needs the platform's; {', '.join(KEPT)} can"
        yield f"{inner}.securityContext.{name}", container["securityContext"][name], fix


def malformed(pod: Mapping[str, Any], container: Mapping[str, Any], where: str, inner: str) -> Iterator[Problem]:
    """What Kubernetes takes in no pod: a JobSet or a TrainJob is made with it, its pods never are."""
    for path, owner, ids in ((where, pod, (*KEPT[:2], "fsGroup")), (inner, container, KEPT[:2])):
        context = owner.get("securityContext")
        if context is not None and not isinstance(context, Mapping):
            yield f"{path}.securityContext", context, "must be a mapping"
            continue
        given = context or {}
        yield from ((f"{path}.securityContext.{n}", given[n], NEEDS_ID) for n in ids if not _is_id(given.get(n)))
        if not isinstance(given.get("runAsNonRoot", False), bool | None):
            yield f"{path}.securityContext.runAsNonRoot", given["runAsNonRoot"], "must be true or false"
        groups = given.get("supplementalGroups")
        listed = isinstance(groups, Sequence) and not isinstance(groups, str)
        if groups is not None and not (listed and all(g is not None and _is_id(g) for g in groups)):
            yield f"{path}.securityContext.supplementalGroups", groups, NEEDS_IDS


def rooted(pod: Mapping[str, Any], container: Mapping[str, Any], where: str, inner: str) -> Iterator[Problem]:
    """Wishes for root, in a pod that has none."""
    for path, owner in ((where, pod), (inner, container)):
        context = owner.get("securityContext")
        given = context if isinstance(context, Mapping) else {}
        if given.get("runAsUser") == 0:
            yield f"{path}.securityContext.runAsUser", 0, "pods of engine 'state' run without root; leave it out"
        if given.get("runAsNonRoot") is False:
            yield f"{path}.securityContext.runAsNonRoot", False, "pods of engine 'state' run without root; leave it out"


def not_kept(container: Mapping[str, Any]) -> list[str]:
    """What the container's security context has besides, without what the API server puts there."""
    given = container.get("securityContext") or {}
    return [n for n, v in given.items() if n not in KEPT and v is not None and (n, v) != ("procMount", "Default")]


def group_alone(pod: Mapping[str, Any]) -> bool:
    """Whether the pod itself names a group and no user: the sandbox, which has no container's ids, cannot be made."""
    given = pod.get("securityContext") or {}
    return given.get("runAsGroup") is not None and given.get("runAsUser") is None


def unmet(pod: Mapping[str, Any], container: Mapping[str, Any], inner: bool) -> bool:
    """Whether `runAsNonRoot` of the container (`inner`), or of the pod where the container has none, is not kept."""
    context, own = ((owner.get("securityContext") or {}).get("runAsNonRoot") for owner in (pod, container))
    asked = own if inner else (context if own is None else None)
    return asked is True and not _effective("runAsUser", pod, container)


def _is_id(value: object) -> bool:
    """Also None, which stands for nothing."""
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_ID)


def _effective(name: str, pod: Mapping[str, Any], container: Mapping[str, Any]) -> Any:
    own = (container.get("securityContext") or {}).get(name)
    return (pod.get("securityContext") or {}).get(name) if own is None else own
