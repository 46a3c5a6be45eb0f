"""`python -m ...admission_policy` writes the chart's adoption objects, from `patch` and `eligibility`.

Our parts travel as a PodTemplate, which is the mutating policy's parameter. The controller writes it, with the
platform's values; what differs between Jobs is computed in CEL. The mutating policy leaves a Job that breaks a rule
alone, and the validating policy refuses it with the rule's sentence.

Only labelled Jobs that lack our parts are ever refused. The API server asks a binding's parameter before it looks at
match conditions. So a binding that denies without its parameter would also refuse Jobs that need no adoption. Therefore
the mutating policy does nothing without its parameter. The validating policy, which has no parameter, says why the Job
was not adopted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from singularity_proxy.protocol import names

from ..contract import job_names
from ..kube.resources import Object
from ..manifests.job_manifests import failure_rules
from ..manifests.pod import LAUNCHER, UNMASKED
from ..spec import privileges, store_access
from ..spec.platform_config import AUTO, NODE, PRIVILEGES, USER_NAMESPACE, PlatformConfig
from . import eligibility, patch

TEMPLATES = Path(__file__).resolve().parents[2] / "charts" / "singularity" / "templates"
NAME = "singularity-adoption"
HEAD = "{{/* Generated: python -m kueue_integration.adoption.admission_policy (a test compares). Do not edit. */}}\n"
_GROUP = "admissionregistration.k8s.io"
_LABELS = "@LABELS@"
_NAMESPACE = "@NAMESPACE@"
_ANNOTATIONS = "object.metadata.?annotations"


def literal(value: Any) -> str:
    """JSON-like data as a CEL literal; values of maps and lists may be of different types."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: dyn({literal(v)})" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(f"dyn({literal(v)})" for v in value) + "]"
    return json.dumps(value)


_LEVEL = f"params.metadata.?annotations[?'{job_names.ANN_PRIVILEGES}']"
_WHY = f"params.metadata.?annotations[?'{job_names.ANN_PRIVILEGES_WHY}']"
_UNMAPPED = f"!({' || '.join(f'has(v.{kind})' for kind in privileges.MAPPED)})"
_UNMAPPED += " || v.?emptyDir.?medium.orValue('').startsWith('HugePages')"
_DEVICES = " || ".join(
    f"has(c.resources) && has(c.resources.{kind}) && c.resources.{kind}.exists(k, k.contains('{privileges.DEVICE}'))"
    for kind in ("requests", "limits")
)
_HERE = f".replace('{store_access.NAMESPACE}', request.namespace)"
EVERYWHERE = "*"
_ID = "?securityContext.?{0}.or(variables.pod.?securityContext.?{0}).optMap(i, string(i)).orValue('')"


def _given(name: str, default: str) -> str:
    return f"{_ANNOTATIONS}[?'{name}'].orValue({default})"


def _variables() -> list[Object]:
    entry = '{{"name": "{}", "value": string({})}}'
    per_job = {
        names.ENV_JOB: "object.metadata.name",
        names.ENV_WORLD_SIZE: "variables.ranks",
        names.ENV_STORE: "variables.store",
        names.ENV_GRACE: "variables.grace",
    }
    lib = patch.AGENT_LIB
    least = eligibility.GRACE_LEAST
    path = "variables.ours.containers[0].env.filter(e, e.name == 'PYTHONPATH')[0].value"
    env = (
        '[{"name": "PYTHONPATH", "value": string(variables.path)}]'
        " + variables.ours.containers[0].env.filter(e, e.name != 'PYTHONPATH'"
        " && !variables.env.exists(t, t.name == e.name))"
        " + variables.perJob + variables.runAs + variables.env.filter(e, e.name != 'PYTHONPATH')"
    )
    mounts = (
        f"variables.ours.containers[0].volumeMounts.filter(m, m.mountPath != '{patch.SHM}'"
        f" || !variables.mounts.exists(t, t.mountPath == '{patch.SHM}')) + variables.mounts"
    )
    before, _, after = privileges.UNMAPPED.partition("{}")
    found = {
        "ours": "params.template.spec",
        "pod": "object.spec.template.spec",
        "user": "variables.pod.containers[0]",
        "env": "variables.user.?env.orValue([])",
        "mounts": "variables.user.?volumeMounts.orValue([])",
        "ranks": _given(job_names.ANN_WORLD_SIZE, "string(object.spec.parallelism)"),
        "store": _given(job_names.ANN_STORE, f"params.metadata.annotations['{job_names.ANN_STORE}']{_HERE}"),
        "encrypted": f"params.metadata.?annotations[?'{job_names.ANN_ENCRYPTED}'].orValue('').split(',')"
        f".exists(n, n in ['{EVERYWHERE}', request.namespace])",
        "keys": "variables.encrypted ? [" + entry.format(names.ENV_STORE_KEYS, f"'{store_access.KEYS_DIR}'") + "] : []",
        "wish": _given(job_names.ANN_PRIVILEGES, "''"),
        "asked": f"variables.wish in {list(PRIVILEGES)}",
        # During an upgrade the parts are for a moment those of a release that knew no levels.
        "given": f"{_LEVEL}.orValue('{NODE}')",
        "unmapped": f"variables.pod.?volumes.orValue([]).filter(v, {_UNMAPPED}).map(v, v.name)",
        "devices": f"size(variables.pod.?resourceClaims.orValue([])) > 0 || (variables.pod.containers"
        f" + variables.pod.?initContainers.orValue([])).exists(c, {_DEVICES})",
        "untried": f"variables.asked || variables.given == '{NODE}' || {eligibility.MARK_PRIVILEGES} != '{AUTO}' ? ''"
        " : size(variables.unmapped) > 0"
        f" ? {literal(before)} + variables.unmapped[0] + {literal(after + privileges.TRY)}"
        f" : variables.devices ? {literal(privileges.NO_DEVICES + privileges.TRY)} : ''",
        "level": f"variables.asked ? variables.wish : variables.untried == '' ? variables.given : '{NODE}'",
        "why": f"variables.asked ? '{privileges.ASKED}' : variables.untried != '' ? variables.untried"
        f" : {_WHY}.orValue('the platform has no level yet')",
        "grace": f"[int(variables.pod.?terminationGracePeriodSeconds.orValue(30)), {least}].max()",
        "perJob": "[" + ", ".join(entry.format(k, v) for k, v in per_job.items()) + "]",
        "theirPath": "variables.env.filter(e, e.name == 'PYTHONPATH' && e.?value.orValue('') != '').map(e, e.value)",
        "path": f"size(variables.theirPath) == 0 ? {path}"
        f" : {path}.replace('{lib}', '{lib}:' + variables.theirPath[0], 1)",
        "uid": f"variables.user.{_ID.format('runAsUser')}",
        "gid": f"variables.user.{_ID.format('runAsGroup')}",
        "groups": "(variables.pod.?securityContext.?supplementalGroups.orValue([])"
        " + variables.pod.?securityContext.?fsGroup.optMap(g, [g]).orValue([])).map(g, string(g)).join(',')"
        " + (variables.pod.?securityContext.?supplementalGroupsPolicy.orValue('') == 'Strict' ? ':strict' : '')",
        "runAs": f"variables.uid in ['', '0'] && variables.gid in ['', '0'] ? [] : [{entry}]".format(
            names.ENV_RUN_AS, "variables.uid + ':' + variables.gid + ':' + variables.groups"
        ),
        "allEnv": env,
        "allMounts": mounts,
    }
    return [{"name": name, "expression": expression} for name, expression in found.items()]


def _configuration() -> str:
    """Labels, annotations: maps that are merged."""
    labels = f'{{"{job_names.LABEL_MANAGED}": "true", "{job_names.LABEL_JOB}": string(object.metadata.name)}}'
    annotations = {
        job_names.ANN_BUDGET: _given(job_names.ANN_BUDGET, f"'{eligibility.BUDGET_DEFAULT}'"),
        job_names.ANN_WORLD_SIZE: "variables.ranks",
        job_names.ANN_STORE: "variables.store",
        job_names.ANN_WORKERS: "string(object.spec.parallelism)",
        job_names.ANN_MIN_WORKERS: _given(job_names.MIN_PARALLELISM, "string(object.spec.parallelism)"),
        job_names.COMPLETIONS_EQUAL_PARALLELISM: "'true'",
        job_names.ANN_HOLD: f"'{job_names.HOLD_ARMED}'",
        job_names.ANN_PRIVILEGES_WHY: "variables.why",
    }
    text = "{" + ", ".join(f'"{k}": string({v})' for k, v in annotations.items()) + "}"
    template = f"Object.spec.template{{metadata: Object.spec.template.metadata{{labels: {labels}}}}}"
    return (
        f"Object{{metadata: Object.metadata{{labels: {labels}, annotations: {text}}}, "
        f"spec: Object.spec{{suspend: true, podReplacementPolicy: 'Failed', template: {template}}}}}"
    )


def _json_patch() -> str:
    """Lists: replaced as a whole, so that the order is ours to say."""
    pod, train = "/spec/template/spec", "/spec/template/spec/containers/0"
    changes = {
        f"{pod}/initContainers": "variables.ours.initContainers + variables.pod.?initContainers.orValue([])",
        f"{pod}/initContainers/1/env": "variables.ours.initContainers[1].env + variables.perJob + variables.keys",
        f"{pod}/volumes": "variables.pod.?volumes.orValue([]) + variables.ours.volumes",
        f"{pod}/terminationGracePeriodSeconds": "variables.grace",
        f"{pod}/automountServiceAccountToken": "variables.pod.?automountServiceAccountToken.orValue(false)",
        f"{pod}/enableServiceLinks": "variables.pod.?enableServiceLinks.orValue(false)",
        f"{train}/name": f"'{job_names.CONTAINER_TRAIN}'",
        f"{train}/command": f"{json.dumps(list(LAUNCHER))} + variables.user.command",
        f"{train}/env": "variables.allEnv",
        f"{train}/volumeMounts": "variables.allMounts",
        f"{train}/securityContext": "variables.ours.containers[0].securityContext",
        "/spec/podFailurePolicy": literal({"rules": failure_rules()}),
    }
    own = {f"{pod}/hostUsers": "false", **{f"{train}/securityContext/{k}": f"'{v}'" for k, v in UNMASKED.items()}}
    return f"{_added(changes)} + (variables.level == '{USER_NAMESPACE}' ? {_added(own)} : [])"


def _added(changes: Mapping[str, str]) -> str:
    return "[" + ", ".join(f'JSONPatch{{op: "add", path: "{p}", value: {v}}}' for p, v in changes.items()) + "]"


def _match() -> Object:
    return {
        "objectSelector": {"matchLabels": {job_names.LABEL_MANAGED: "true"}},
        "resourceRules": [
            {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
        ],
    }


def _lacks_our_parts() -> Object:
    sidecar = f"exists(c, c.name == '{job_names.CONTAINER_SIDECAR}')"
    expression = f"!object.spec.template.spec.?initContainers.orValue([]).{sidecar}"
    return {"name": "lacks-our-parts", "expression": expression}


def _common(kind: str, version: str, spec: Object) -> Object:
    meta = {"name": NAME, "labels": _LABELS}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}


def _binding(kind: str, version: str, **more: Any) -> Object:
    return _common(kind, version, {"policyName": NAME, **more})


def policies() -> list[Object]:
    """The mutating and the validating policy with their bindings; `@...@` is for Helm."""
    base = {"failurePolicy": "Fail", "matchConstraints": _match()}
    fits = [{"name": f"rule-{n}", "expression": rule.cel} for n, rule in enumerate(eligibility.RULES)]
    mutating = {
        **base,
        "paramKind": {"apiVersion": "v1", "kind": "PodTemplate"},
        "reinvocationPolicy": "Never",
        "matchConditions": [_lacks_our_parts(), *fits],
        "variables": _variables(),
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": _configuration()}},
            {"patchType": "JSONPatch", "jsonPatch": {"expression": _json_patch()}},
        ],
    }
    said = [{"expression": r.cel, "message": f"{r.field}: {r.fix}", "reason": "Invalid"} for r in eligibility.RULES]
    missing = f"PodTemplate {_NAMESPACE}/{NAME} or MutatingAdmissionPolicy {NAME} is missing"
    fix = f"upgrade the chart, or remove the Job's label {job_names.LABEL_MANAGED} to run it unmanaged"
    last = {"expression": "false", "message": f"the Job was not adopted: {missing}; {fix}"}
    param = {"name": NAME, "namespace": _NAMESPACE, "parameterNotFoundAction": "Allow"}
    validating = {**base, "matchConditions": [_lacks_our_parts()], "validations": [*said, last]}
    return [
        _common("MutatingAdmissionPolicy", "@API@", mutating),
        _binding("MutatingAdmissionPolicyBinding", "@API@", paramRef=param),
        _common("ValidatingAdmissionPolicy", f"{_GROUP}/v1", validating),
        _binding("ValidatingAdmissionPolicyBinding", f"{_GROUP}/v1", validationActions=["Deny"]),
    ]


def pod_template(platform: PlatformConfig, namespace: str) -> Object:
    """Our parts, as the controller publishes them, and the level of a Job that wishes none."""
    ours = patch.parts(platform)
    level = privileges.chosen(None, platform, ours)
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {
            "name": NAME,
            "namespace": namespace,
            "annotations": {
                job_names.ANN_STORE: platform.store,
                job_names.ANN_ENCRYPTED: _encrypted(platform),
                job_names.ANN_PRIVILEGES: level.name,
                job_names.ANN_PRIVILEGES_WHY: level.why,
            },
        },
        "template": {"spec": ours},
    }


def _encrypted(platform: PlatformConfig) -> str:
    """Namespaces whose checkpoints are, with commas, or `EVERYWHERE`."""
    if not store_access.encrypted(platform, ""):
        return ""
    return ",".join(platform.store_keys.get("namespaces") or (EVERYWHERE,))


_EACH_NAME = (
    'include "singularity.listed" (dict "of" (concat .Values.pods.{0} (.Values.store.{0} | default list)) "key" "{1}")'
    " | fromJsonArray"
)
_RULE_VALUES = {
    eligibility.MARK_MOUNT_PATHS: _EACH_NAME.format("volumeMounts", "mountPath"),
    eligibility.MARK_VOLUME_NAMES: _EACH_NAME.format("volumes", "name"),
    eligibility.MARK_STORE: '.Values.store.url | default ""',
    eligibility.MARK_BUDGET: "int .Values.budget.maxSeconds",
    eligibility.MARK_PRIVILEGES: '.Values.pods.privileges | default "node"',
}


def policies_template() -> str:
    """`adoption.yaml`."""
    text = yaml.safe_dump_all(policies(), sort_keys=False, width=110)
    text = text.replace(f"'{_LABELS}'", '{{ include "singularity.labels" . | fromYaml | toJson }}')
    text = text.replace(_NAMESPACE, "{{ .Release.Namespace }}")
    for mark, value in _RULE_VALUES.items():
        text = text.replace(mark, f'{{{{ {value} | toJson | replace "\'" "\\\\u0027" }}}}')
    text = text.replace("'@API@'", '{{ include "singularity.adoption.api" . }}')
    return f"{HEAD}{{{{- if .Values.adoption.enabled }}}}\n{text}{{{{- end }}}}\n"


def main() -> None:
    (TEMPLATES / "adoption.yaml").write_text(policies_template())


if __name__ == "__main__":
    main()
