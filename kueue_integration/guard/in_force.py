"""Whether a guard policy refuses what it finds, by its two objects. Pure."""

from __future__ import annotations

from typing import Any

from ..kube.resources import ADMISSION_POLICY, ADMISSION_POLICY_BINDING, Object


def problem(name: str, policy: Object | None, binding: Object | None) -> str:
    """Say what is wrong with a policy and its binding as the API server has them, "" if nothing is."""
    found = ((ADMISSION_POLICY, policy), (ADMISSION_POLICY_BINDING, binding))
    if missing := [kind.name for kind, obj in found if obj is None]:
        return f"no {' and no '.join(missing)} {name}"
    if "Deny" not in (_spec(binding).get("validationActions") or ()):
        return f"the binding of {name} does not Deny"
    if _spec(policy).get("failurePolicy") != "Fail":
        return f"failurePolicy of {name} is not Fail"
    return ""


def _spec(obj: Object | None) -> dict[str, Any]:
    return (obj or {}).get("spec") or {}
