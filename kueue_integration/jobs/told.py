"""What the processes of a job were told when they started: command, folder, environment and files.

Saved processes (process engine) go on with that, whatever a new Job says.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from singularity_proxy.protocol import names

from ..contract import job_names
from ..kube.api import Kube
from ..kube.resources import CONFIG_MAP, SECRET, Object, pod_spec
from ..manifests.pod import SOURCE_VOLUME

OURS = "SINGULARITY_"
"""Variables with this prefix are for the launcher, which no rank reads them from."""


@dataclass(frozen=True)
class Told:
    """As it stands in a Job: values are those of the manifest, before Kubernetes expands them."""

    command: str
    workdir: str
    env: Mapping[str, str]


def told(job: Object, but: Collection[str] = ()) -> Told | None:
    """What a Job tells its ranks; None where another program than our launcher starts them.

    :param but: variables that do not count
    """
    containers = pod_spec(job).get("containers") or ()
    trains = next((c for c in containers if c.get("name") == job_names.CONTAINER_TRAIN), None)
    env = {str(e["name"]): str(e["value"]) for e in (trains or {}).get("env") or () if e.get("value") is not None}
    if names.ENV_COMMAND not in env:
        return None
    own = {name: value for name, value in env.items() if not name.startswith(OURS) and name not in ("PYTHONPATH", *but)}
    return Told(env[names.ENV_COMMAND], env.get(names.ENV_WORKDIR, ""), own)


def difference(one: Told, two: Told) -> str:
    """The first thing that is not the same, "" if all is."""
    if one.command != two.command:
        return "command"
    if one.workdir != two.workdir:
        return "workdir"
    other = (name for name in sorted({*one.env, *two.env}) if one.env.get(name) != two.env.get(name))
    return next((f"env {name}" for name in other), "")


def files(kube: Kube, job: Object) -> dict[str, str] | None:
    """Path -> text of the files that came with a Job; None if they are not to be had any more. Raises KubeError."""
    volume = next((v for v in pod_spec(job).get("volumes") or () if v.get("name") == SOURCE_VOLUME), None)
    if volume is None:
        return {}
    texts: dict[str, str] = {}
    for source in (volume.get("projected") or {}).get("sources") or [volume]:
        kind, given = (SECRET, source["secret"]) if source.get("secret") else (CONFIG_MAP, source["configMap"])
        found = kube.find(kind, str(job["metadata"]["namespace"]), str(given["name"]))
        if found is None:
            return None
        for item in given.get("items") or ():
            text = str((found.get("data") or {}).get(item["key"], ""))
            texts[str(item["path"])] = base64.b64decode(text).decode() if kind is SECRET else text
    return texts

