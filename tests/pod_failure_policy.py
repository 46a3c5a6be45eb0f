"""What Kubernetes does with a failed pod by a Job's `podFailurePolicy`: the rules of its API reference, evaluated.

https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy: the first rule that matches counts,
else the pod is counted. An exit code of 0 never matches, nor does a container of another name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def action(rules: Sequence[Mapping[str, Any]], code: int, container: str = "train", disrupted: bool = False) -> str:
    """`Complete`, `Ignore`, `Count` or `FailJob` for a pod whose `container` ended with `code`.

    :param disrupted: the pod has condition DisruptionTarget (a drain, a taint, the kubelet's eviction)
    """
    if code == 0:
        return "Complete"
    for rule in rules:
        codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
        if conditions and disrupted and any(c["type"] == "DisruptionTarget" for c in conditions):
            return str(rule["action"])
        here = codes and codes.get("containerName", container) == container
        if here and (code in codes["values"]) == (codes["operator"] == "In"):
            return str(rule["action"])
    return "Count"
