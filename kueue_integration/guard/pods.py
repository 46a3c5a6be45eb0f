"""What pods may be in namespaces that train, as CEL. The rules are the same for a pod and for the template of a Job.

Training needs a namespace without Pod Security: the launcher has capabilities that are as good as root on the node. So
everything else there gets fewer rights, and only our launcher may take the launcher's place. Its program comes from the
volume that our installer fills, and nobody else writes that volume.

Variables: `spec` (the pod spec), `images` (that our own containers may have), `hostPaths` (`paths` of the chart's
volumes, and `readOnly`, those that are only read), `env` (names of the variables that the chart sets), `privileges`
(where the chart lets capabilities count), `earlier` (whether Kubernetes makes the pod of a Job that was let in before).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from singularity_proxy.protocol import names

from ..contract import job_names
from ..contract.kinds import CONTAINER_NODE
from ..manifests import criu_probe
from ..manifests.pod import AGENT_VOLUME, INSTALL, LAUNCHER, LAUNCHER_CAPABILITIES, SIDECAR, SIDECAR_PATH
from ..spec import mount_paths
from ..spec.platform_config import AUTO, PRIVILEGES, USER_NAMESPACE
from ..spec.validation import VOLUME_PREFIX
from .cel import literal

ORDINARY = (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
)  # fmt: skip
"""Capabilities that every container has: those that Pod Security calls baseline."""
TRAINERS = (job_names.CONTAINER_TRAIN, CONTAINER_NODE)
LOADER_ENV = ("BASH", "GLIBC_", "LD_", "PYTHON")
"""Beginnings of variables that would have another program run in ours."""
SHELL_ENV = ("ENV", "IFS", "PATH")
SECRETS = "/var/run/secrets/"
"""Where webhooks of clouds mount a pod's identity, into every container."""
IMAGE_HOME = "/opt/singularity"
PROGRAMS = "^/(bin|sbin|usr|lib[^/]*)(/|$)|^/(etc|opt)/?$|^/etc/(ld[.]so|ssl)"
"""What else the programs of the agent image need of it."""
VARIABLES_OF_OURS = sorted(
    value for each in (names, job_names) for name, value in vars(each).items() if name.startswith("ENV_")
)
"""What the platform sets; `env` has what the chart sets besides (`pods.env`)."""


@dataclass(frozen=True)
class Rule:
    """`found` lists what breaks the rule; the sentence says `{}` for the first one's name."""

    name: str
    found: str
    sentence: str
    of: str = "variables.{0}[0].name"

    @property
    def message(self) -> str:
        """The sentence as CEL."""
        before, _, after = self.sentence.partition("{}")
        return f"{literal(before)} + {self.of.format(self.name)} + {literal(after)}"


def _starts(command: Sequence[str]) -> str:
    words = " && ".join(f"c.command[{n}] == {literal(word)}" for n, word in enumerate(command))
    return f"(size(c.?command.orValue([])) >= {len(command)} && {words})"


def _named(*listed: str) -> str:
    return f"c.name in {literal(listed)}"


def _mounts(condition: str) -> str:
    return f"c.?volumeMounts.orValue([]).exists(m, {condition})"


def _env(condition: str) -> str:
    return f"c.?env.orValue([]).exists(e, {condition})"


_AGENT, _INSTALL, _PREFIX = literal(AGENT_VOLUME), literal(job_names.CONTAINER_INSTALL), literal(VOLUME_PREFIX)
_OF_THE_NODE = ("hostNetwork", "hostPID", "hostIPC")
_ADDED = "c.?securityContext.?capabilities.?add.orValue([])"
_OURS = "(c.?image.orValue('') in variables.images)"
_IN_INIT = "variables.inits.exists(i, i.name == c.name)"
_HOOKS = " || ".join(f"has(c.{name})" for name in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"))
_LOADED = " || ".join(f"e.name.startsWith('{text}')" for text in LOADER_ENV)
_WHOLE = "!has(m.subPath) && !has(m.subPathExpr)"
_SET = "SINGULARITY_"
_STRANGE_ENV = f"e.name.startsWith('{_SET}') && !(e.name in {literal(VARIABLES_OF_OURS)} || e.name in variables.env)"
_OWN_PYTHON = (
    f"e.name == 'PYTHONUNBUFFERED' || e.name == 'PYTHONPATH' && e.?value.orValue('') == {literal(SIDECAR_PATH)}"
)
_ITS_PLACE = f"m.mountPath == {literal(names.AGENT_DIR)} && m.name == {_AGENT} && {_WHOLE}"
_OTHER_PLACE = f"{mount_paths.cel_below('m.mountPath', names.ROOT)} && !m.name.startsWith({_PREFIX})"
_OVER_AGENT = f"{mount_paths.cel_below('m.mountPath', names.AGENT_DIR)} && m.name != {_AGENT}"
_UNCLEAN = f"!m.mountPath.matches({literal(mount_paths.FORM)})"
_LINKED = f"m.mountPath.matches({literal(mount_paths.LINKED)})"
_LIKE_A_DRIVER = f"m.mountPath.matches({literal(mount_paths.DRIVER)})"
# A part of a claim, mounted read-only, looks to the launcher as a file of the node that the runtime has mounted.
_PART = "(has(m.subPath) || has(m.subPathExpr)) && m.name in variables.claims"
_READ_PART = f"{_PART} && (m.?readOnly.orValue(false) || m.name in variables.readClaims)"
_WRITTEN = "m.name in variables.readVolumes && !m.?readOnly.orValue(false)"
_FILLED = f"m.name == {_AGENT} && !m.?readOnly.orValue(false)"
_OVER_HOME = mount_paths.cel_below("m.mountPath", IMAGE_HOME)
_OVER_PROGRAMS = f"m.mountPath.matches({literal(PROGRAMS)})"
_NO_SECRET = f"!m.mountPath.startsWith({literal(SECRETS)})"
_MORE = f"m.name != {_AGENT} && {_NO_SECRET}"
_SHELL = f"{_LOADED} || e.name in {literal(SHELL_ENV)}"

_OWN_USERS = "!variables.spec.?hostUsers.orValue(true)"

VARIABLES: dict[str, str] = {
    "inits": "variables.spec.?initContainers.orValue([])",
    "volumes": "variables.spec.?volumes.orValue([])",
    "every": "variables.spec.containers + variables.inits + variables.spec.?ephemeralContainers.orValue([])",
    # Of the chart's own volumes those that no container of ours writes.
    "readVolumes": "variables.volumes.filter(v, has(v.hostPath) && v.hostPath.path in variables.hostPaths.readOnly)"
    ".map(v, v.name)",
    # Volumes whose content the kubelet does not make itself.
    "claims": "variables.volumes.filter(v, !(has(v.configMap) || has(v.secret) || has(v.projected)"
    " || has(v.downwardAPI) || has(v.emptyDir) || has(v.hostPath))).map(v, v.name)",
    "readClaims": "variables.volumes.filter(v, !(has(v.ephemeral) || has(v.persistentVolumeClaim)"
    " && !v.persistentVolumeClaim.?readOnly.orValue(false))).map(v, v.name)",
    "strong": f"variables.every.filter(c, {_ADDED}.exists(a, !(a in {literal(ORDINARY)})))",
    "launchers": f"variables.spec.containers.filter(c, {_named(*TRAINERS)} && {_starts(LAUNCHER)} && !({_HOOKS})"
    f" && {_mounts(_ITS_PLACE)})",
    "probes": f"variables.spec.containers.filter(c, {_named(criu_probe.CRIU)} && {_OURS}"
    f" && c.?command.orValue([]) in {literal([criu_probe.command(level) for level in PRIVILEGES])}"
    # CRIU reads settings below $HOME, and in a namespace of processes it sees what other containers have.
    f" && !(has(c.args) || has(c.env) || has(c.envFrom) || has(c.volumeMounts) || {_HOOKS})"
    " && !variables.spec.?shareProcessNamespace.orValue(false))",
    "installed": f"variables.inits.exists(c, {_named(job_names.CONTAINER_INSTALL)})",
}
"""In this order: CEL allows none before it was named."""

RULES = (
    # First: the others compare paths as texts.
    Rule(
        "unclean",
        f"variables.every.filter(c, {_mounts(_UNCLEAN)})",
        f"container {{}}: each mountPath {mount_paths.FIX}",
    ),
    Rule(
        "hostNamespaces",
        " + ".join(f"(variables.spec.?{n}.orValue(false) ? ['{n}'] : [])" for n in _OF_THE_NODE),
        "{} must not be set: pods here stay out of the node's namespaces",
        "variables.{0}[0]",
    ),
    Rule(
        "privileged",
        "variables.every.filter(c, c.?securityContext.?privileged.orValue(false)"
        " || c.?securityContext.?windowsOptions.?hostProcess.orValue(false)"
        f" || c.?securityContext.?procMount.orValue('Default') != 'Default' && !({_OWN_USERS}"
        " && (variables.launchers + variables.probes).exists(l, l.name == c.name)))",
        "container {}: privileged, hostProcess and procMount must not be set",
    ),
    Rule(
        "onNode",
        f"{_OWN_USERS} || variables.privileges != '{USER_NAMESPACE}' || variables.earlier ? [] : variables.strong",
        "container {}: only a pod with hostUsers: false may add capabilities here (chart value pods.privileges=userns)"
        ". Let the job be made by `singularityctl` or the operator. A JobSet of before goes on with: "
        f"{job_names.UPGRADE} --set pods.privileges={AUTO}",
    ),
    Rule(
        "hostVolumes",
        "variables.volumes.filter(v, has(v.hostPath) && !(v.hostPath.path in variables.hostPaths.paths))",
        "volume {}: a hostPath must be one of the platform's own volumes (chart value pods.volumes)",
    ),
    Rule(
        "writers",
        f"variables.every.filter(c, {_mounts(_WRITTEN)})",
        "container {}: a hostPath that the platform mounts read-only must be mounted with readOnly: true",
    ),
    Rule(
        "capable",
        "variables.strong.filter(c, !((variables.probes.exists(p, p.name == c.name)"
        " || variables.installed && variables.launchers.exists(l, l.name == c.name))"
        f" && {_ADDED}.all(a, a in {literal((*ORDINARY, *LAUNCHER_CAPABILITIES))})))",
        f"container {{}}: only the platform's launcher ({LAUNCHER[0]} in container {' or '.join(TRAINERS)}) may add"
        f" capabilities, and only {', '.join(LAUNCHER_CAPABILITIES)}; without lifecycle and probes, and"
        f" with {job_names.CONTAINER_INSTALL} beside it. Let the job be made by `singularityctl`, the operator or the"
        " adoption",
    ),
    Rule(
        "unconfined",
        "variables.every.filter(c, c.?securityContext.?appArmorProfile.?type"
        ".or(variables.spec.?securityContext.?appArmorProfile.?type).orValue('') == 'Unconfined'"
        " && !variables.launchers.exists(l, l.name == c.name) && !variables.probes.exists(p, p.name == c.name))",
        "container {}: appArmorProfile must not be Unconfined: only the platform's launcher may be",
    ),
    Rule(
        "strangers",
        f"variables.every.filter(c, {_named(job_names.CONTAINER_INSTALL, job_names.CONTAINER_SIDECAR)}"
        f" && !({_IN_INIT} && {_OURS} && !has(c.args) && !{_mounts(_OVER_HOME)}"
        f" && c.?command.orValue([]) == (c.name == {_INSTALL}"
        f" ? {literal(INSTALL)} : {literal(SIDECAR)})))",
        "init container {}: the name is the platform's: it must have the platform's image and command"
        " (chart value images.agent; images.trusted for further ones)",
    ),
    Rule(
        "installers",
        f"variables.inits.filter(c, {_named(job_names.CONTAINER_INSTALL)} && (has(c.envFrom) || has(c.lifecycle)"
        f" || {_env(_SHELL)} || {_mounts(_MORE)}))",
        "init container {}: must have nothing but the platform's: no envFrom, no variables of a loader or shell, no"
        f" mounts but {AGENT_VOLUME}",
    ),
    Rule(
        "fillers",
        f"variables.every.filter(c, !({_named(job_names.CONTAINER_INSTALL)})"
        f" && {_mounts(_FILLED)})",
        f"container {{}}: volume {AGENT_VOLUME} must be mounted with readOnly: true: the launcher comes from it",
    ),
    Rule(
        "covers",
        f"variables.every.filter(c, {_mounts(_OTHER_PLACE)} || {_mounts(_OVER_AGENT)})",
        f"container {{}}: nothing but the platform's volumes may be mounted at {names.ROOT}",
    ),
    # The runtime follows links of what is mounted already, in the order of depth.
    Rule(
        "beneath",
        f"variables.every.filter(c, ({_named(job_names.CONTAINER_INSTALL, job_names.CONTAINER_SIDECAR)}"
        f" || variables.launchers.exists(l, l.name == c.name)) && ({_mounts(_LINKED)}"
        f" || [c.?volumeMounts.orValue([]).map(m, m.mountPath)].exists(p, {mount_paths.cel_nested('p')})))",
        f"container {{}}: a mountPath {mount_paths.APART}; nor be below /proc or /dev/shm",
    ),
    Rule(
        "agentVolumes",
        f"variables.volumes.filter(v, v.name == {_AGENT} && !has(v.emptyDir))",
        "volume {}: must be an emptyDir: the launcher comes from it",
    ),
    Rule(
        "drivers",
        "variables.every.filter(c, variables.launchers.exists(l, l.name == c.name)"
        f" && {_mounts(f'{_LIKE_A_DRIVER} || {_READ_PART}')})",
        "container {}: a mountPath must not look like NVIDIA's driver, which the container runtime mounts, and a"
        " subPath of a claim must not be mounted with readOnly: use another path, or mount the whole claim",
    ),
    Rule(
        "settings",
        f"variables.every.filter(c, {_named(*TRAINERS, job_names.CONTAINER_SIDECAR)} && {_env(_STRANGE_ENV)})",
        f"container {{}}: variables that start with {_SET} are the platform's (chart value pods.env for further ones)",
    ),
    Rule(
        "sidecars",
        f"variables.inits.filter(c, {_named(job_names.CONTAINER_SIDECAR)} && (has(c.workingDir) || {_HOOKS}"
        f" || {_env(f'({_LOADED}) && !({_OWN_PYTHON})')} || {_mounts(_OVER_PROGRAMS)}))",
        "init container {}: must have no workingDir, no lifecycle and probes, no variables of a loader or of Python but"
        " the platform's, and nothing mounted over its programs (/usr, /lib, /bin, /etc/ssl)",
    ),
    Rule(
        "borrowers",
        f"variables.every.filter(c, size(variables.launchers) > 0 && {_mounts(f'm.name.startsWith({_PREFIX})')}"
        " && !variables.launchers.exists(l, l.name == c.name)"
        f" && !({_named(job_names.CONTAINER_INSTALL, job_names.CONTAINER_SIDECAR)}))",
        "container {}: the platform's volumes are for its own containers: what comes from them is restored with"
        " capabilities",
    ),
)  # fmt: skip
