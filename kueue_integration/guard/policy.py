"""`python -m kueue_integration.guard.policy` writes the chart's guard policies from `ownership` and `pods`.

An error in an expression refuses the request: whoever cannot be judged is not let in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from ..contract import job_names
from ..jobs.preflight import unguarded
from ..kube.resources import JOB, JOBSET, LEASE, POD, TRAINJOB, WORKLOAD, Kind, Object
from . import ownership, pods
from .cel import literal
from .names import ANNOTATIONS, EXEC, JOBS, NAMESPACES, PODS, RECOVERY

TEMPLATE = Path(__file__).resolve().parents[2] / "charts" / "singularity" / "templates" / "guard.yaml"
HEAD = "{{/* Generated: python -m kueue_integration.guard.policy (a test compares). Do not edit. */}}\n"
_GROUP = "admissionregistration.k8s.io/v1"
_LABELS = "@LABELS@"
_ACCOUNTS, _IMAGES, _HOST_PATHS, _ANY_EXEC = "@ACCOUNTS@", "@IMAGES@", "@HOST_PATHS@", "@ANY_EXEC@"
_ENV, _PRIVILEGES, _NAMESPACE = "@ENV@", "@PRIVILEGES@", "@NAMESPACE@"
_TRAINING = {"matchLabels": {job_names.LABEL_TRAINING: job_names.TRAINING_ENABLED}}
_MANAGED = {"matchLabels": {job_names.LABEL_MANAGED: "true"}}
# Without its parameter the guard would not ask: no pod is better than any pod. The controller makes it again.
_PARAMETER = {
    "name": job_names.TRUSTED_IMAGES_LEASE,
    "namespace": _NAMESPACE,
    "parameterNotFoundAction": "Deny",
}
FORGETTABLE = "kueue.x-k8s.io/safe-to-forcefully-delete"
"""Kueue's FailureRecoveryPolicy removes the object of a pod with it while the pod may still run."""
JOB_CONTROLLERS = ("system:serviceaccount:kube-system:job-controller", "system:kube-controller-manager")
"""Kubernetes' own, with an account for each controller (kubeadm and the clouds) and without."""
OURS = " is the platform's: "
"""Between the annotation and what to do instead."""


def rule(kind: Kind, *operations: str, subresources: tuple[str, ...] = ()) -> Object:
    """Of `matchConstraints.resourceRules`: the kind itself, with its subresources."""
    plurals = [kind.plural, *(f"{kind.plural}/{name}" for name in subresources)]
    return {
        "apiGroups": [kind.group],
        "apiVersions": [kind.version],
        "operations": [*operations],
        "resources": plurals,
    }


def annotation_policy() -> Object:
    """Whoever is not one of our accounts changes nothing that `ownership.TABLE` reserves."""
    ours = ownership.reserved(ownership.CONTROLLER, ownership.CREATION)
    free = "(k in variables.now ? variables.now[k] in variables.free[?k].orValue([]) : k in variables.removable)"
    lists = {
        "instead": {entry.name: entry.instead for entry in ours},
        "free": {entry.name: texts for entry in ours if (texts := [text for text in entry.free if text is not None])},
        "removable": [entry.name for entry in ours if ownership.REMOVED in entry.free],
        "creators": [entry.name for entry in ours if entry.whose == ownership.CREATION],
        "choices": {entry.name: entry.values for entry in ownership.TABLE if entry.values},
        "fixed": [*ownership.LABELS],
    }
    before = "oldObject == null ? {0} : oldObject.metadata.?{1}.orValue({{}})"
    found = {
        **{name: literal(value) for name, value in lists.items()},
        "now": "object.metadata.?annotations.orValue({})",
        "before": before.format("{}", "annotations"),
        "labels": "object.metadata.?labels.orValue({})",
        "labelsBefore": before.format("variables.labels", "labels"),
        "changed": "(variables.instead.map(k, k) + variables.choices.map(k, k))"
        ".filter(k, variables.now[?k] != variables.before[?k])",
        "taken": f"variables.changed.filter(k, k in variables.instead && !{free}"
        " && !(oldObject == null && k in variables.creators))",
        "strange": "variables.changed.filter(k, k in variables.choices && k in variables.now"
        " && !(variables.now[k] in variables.choices[k]))",
        "moved": "variables.fixed.filter(k, variables.labels[?k] != variables.labelsBefore[?k])",
    }
    annotation, choice, label = "variables.taken[0]", "variables.strange[0]", "variables.moved[0]"
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                rule(JOB, "CREATE", "UPDATE", subresources=("status",)),
                *(rule(kind, "CREATE", "UPDATE") for kind in (JOBSET, TRAINJOB, WORKLOAD)),
            ]
        },
        "matchConditions": [
            {"name": "none-of-ours-asks", "expression": f"!(request.userInfo.username in {_ACCOUNTS})"},
            {
                "name": "something-changes",
                "expression": "oldObject == null || oldObject.metadata.?annotations != object.metadata.?annotations"
                " || oldObject.metadata.?labels != object.metadata.?labels",
            },
        ],
        "variables": _variables(found),
        "validations": [
            _said(
                "size(variables.taken) == 0",
                f"'annotation ' + {annotation} + {literal(OURS)} + variables.instead[{annotation}]",
                "an annotation is the platform's",
            ),
            _said(
                "size(variables.strange) == 0",
                f"'annotation ' + {choice} + ' must be one of ' + variables.choices[{choice}].join(', ')",
                "an annotation cannot have this value",
            ),
            _said(
                "size(variables.moved) == 0",
                f"'label ' + {label} + ' stays as it was when the object was created'",
                "a label cannot be changed",
            ),
        ],
    }


# The template of a Job cannot be changed, and was held to what the chart said when the Job was made. Nobody but
# Kubernetes' own controller makes pods as this user: an owner in a pod of somebody else's is no proof.
_EARLIER = (
    f"request.userInfo.username in {literal(JOB_CONTROLLERS)} && object.metadata.?ownerReferences.orValue([])"
    f".exists(o, o.?controller.orValue(false) && o.apiVersion == '{JOB.api_version}' && o.kind == '{JOB.name}')"
)


def pod_policy(kind: Kind) -> Object:
    """`pods.RULES` for pods, or for the templates of Jobs, whose owner then reads the sentence at once."""
    if kind is POD:
        rules = [rule(POD, "CREATE", "UPDATE", subresources=("ephemeralcontainers",))]
        # A pod of before stays what it was: controllers still have to take their finalizers off it.
        conditions = [{"name": "its-spec-changes", "expression": "oldObject == null || object.spec != oldObject.spec"}]
    else:
        rules, conditions = [rule(JOB, "CREATE")], []
    given = {
        "spec": "object.spec" if kind is POD else "object.spec.template.spec",
        "configured": _IMAGES,
        # Those of earlier releases whose jobs still live: see controller.agent_images.
        "images": "variables.configured + params.metadata.?annotations"
        f"[?'{job_names.LEASE_TRUSTED_IMAGES}'].orValue('').split(' ')",
        "hostPaths": _HOST_PATHS,
        "env": _ENV,
        "privileges": _PRIVILEGES,
        "earlier": _EARLIER if kind is POD else "false",
    }
    found = {each.name: each.found for each in pods.RULES}
    return {
        "failurePolicy": "Fail",
        "paramKind": {"apiVersion": LEASE.api_version, "kind": LEASE.name},
        "matchConstraints": {"namespaceSelector": _TRAINING, "resourceRules": rules},
        **({"matchConditions": conditions} if conditions else {}),
        "variables": _variables({**given, **pods.VARIABLES, **found}),
        "validations": [
            _said(f"size(variables.{each.name}) == 0", each.message, each.sentence.format("(one of them)"))
            for each in pods.RULES
        ],
    }


def exec_policy() -> Object:
    """A shell beside the launcher would have its capabilities, one in the sidecar the keys of job and store.

    Whoever may reach every pod through its node may have both.
    """
    node = "authorizer.group('').resource('nodes').subresource('proxy').check('create').allowed()"
    into = literal(["", *pods.TRAINERS, job_names.CONTAINER_SIDECAR])
    named = " or ".join((*pods.TRAINERS, job_names.CONTAINER_SIDECAR))
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "namespaceSelector": _TRAINING,
            "resourceRules": [{**rule(POD, "CONNECT"), "resources": ["pods/exec", "pods/attach"]}],
        },
        "validations": [
            {
                "expression": f"{_ANY_EXEC} || !(object.?container.orValue('') in {into}) || {node}",
                "message": f"a program in container {named} would have the launcher's capabilities, which are as good"
                " as root on the node, or the sidecar's keys: use `kubectl debug POD --image=..."
                " --target=CONTAINER`, or name another container",
                "reason": "Forbidden",
            }
        ],
    }


def recovery_policy() -> Object:
    """No pod of ours lets itself be forgotten: the fence takes its object as the proof that it may still write."""
    key, of = literal(FORGETTABLE), "dyn({}).?metadata.?annotations.orValue({{}})"
    template = "dyn(object).?spec.?template.?metadata.?annotations.orValue({})"
    found = {
        "now": f"object.kind == 'Pod' ? {of.format('object')} : {template}",
        "before": f"oldObject == null ? {{}} : {of.format('oldObject')}",
    }
    sentence = (
        f"annotation {FORGETTABLE} must not be on a training pod: Kueue would remove the pod's object while the pod may"
        " still write, and the next attempt would start beside it. Taint the dead node with"
        " node.kubernetes.io/out-of-service instead"
    )
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "objectSelector": _MANAGED,
            "resourceRules": [rule(POD, "CREATE", "UPDATE"), rule(JOB, "CREATE")],
        },
        "variables": _variables(found),
        "validations": [
            {
                "expression": f"!({key} in variables.now) || {key} in variables.before",
                "message": sentence,
                "reason": "Forbidden",
            }
        ],
    }


def namespace_policy() -> Object:
    """No job of ours begins where the guard of pods is not in force: its namespace lets any pod have capabilities.

    A Job of a JobSet is not asked again: what began before this rule goes on.
    """
    marked = f"namespaceObject.metadata.?labels[?{literal(job_names.LABEL_TRAINING)}].orValue('')"
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "objectSelector": _MANAGED,
            "resourceRules": [rule(kind, "CREATE") for kind in (JOB, JOBSET, TRAINJOB)],
        },
        "matchConditions": [
            {"name": "nobody-owns-it", "expression": "size(object.metadata.?ownerReferences.orValue([])) == 0"}
        ],
        "validations": [
            _said(
                f"{marked} == {literal(job_names.TRAINING_ENABLED)}",
                literal(unguarded("@")).replace("@", '" + request.namespace + "'),
                unguarded("NAMESPACE"),
            )
        ],
    }


def _variables(found: Mapping[str, str]) -> list[Object]:
    return [{"name": name, "expression": expression} for name, expression in found.items()]


def _said(expression: str, message: str, otherwise: str) -> Object:
    """A validation: `message` is an expression, `otherwise` the sentence if that fails."""
    return {"expression": expression, "messageExpression": message, "message": otherwise, "reason": "Forbidden"}


def policies() -> list[Object]:
    """Every policy, followed by its binding; `@...@` is for Helm."""
    made: list[Object] = []
    specs = {
        ANNOTATIONS: annotation_policy(),
        PODS: pod_policy(POD),
        JOBS: pod_policy(JOB),
        EXEC: exec_policy(),
        RECOVERY: recovery_policy(),
        NAMESPACES: namespace_policy(),
    }
    for name, spec in specs.items():
        meta = {"name": name, "labels": _LABELS}
        made.append({"apiVersion": _GROUP, "kind": "ValidatingAdmissionPolicy", "metadata": meta, "spec": spec})
        bound = {"policyName": name, **({"paramRef": _PARAMETER} if "paramKind" in spec else {})}
        bound["validationActions"] = ["Deny"]
        made.append({"apiVersion": _GROUP, "kind": "ValidatingAdmissionPolicyBinding", "metadata": meta, "spec": bound})
    return made


_VALUES = {
    _ACCOUNTS: 'include "singularity.guard.accounts" . | fromJsonArray',
    _IMAGES: "concat (list .Values.images.agent) (.Values.images.trusted | default list)",
    _HOST_PATHS: 'include "singularity.guard.hostPaths" . | fromJson',
    _PRIVILEGES: '.Values.pods.privileges | default "node"',
    _ENV: "keys (.Values.pods.env | default dict) | sortAlpha",
    _ANY_EXEC: 'dig "anyExec" false (.Values.guard | default dict)',
}


def template() -> str:
    """`guard.yaml`."""
    text = yaml.safe_dump_all(policies(), sort_keys=False, width=110)
    text = text.replace(f"'{_NAMESPACE}'", "{{ .Release.Namespace }}")
    text = text.replace(f"'{_LABELS}'", '{{ include "singularity.labels" . | fromYaml | toJson }}')
    for mark, value in _VALUES.items():
        text = text.replace(mark, f'{{{{ {value} | toJson | replace "\'" "\\\\u0027" }}}}')
    return HEAD + text


def main() -> None:
    TEMPLATE.write_text(template())


if __name__ == "__main__":
    main()
