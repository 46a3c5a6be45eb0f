"""What the pods of a copied Job need beside it: MultiKueue copies the Job alone."""

from __future__ import annotations

from ..errors import AlreadyExists, Conflict
from ..kube.api import Kube
from ..kube.resources import CONFIG_MAP, RESOURCE_CLAIM_TEMPLATE, SERVICE, Kind, Object, kind_of, pod_spec


def needed(job: Object) -> list[tuple[Kind, str]]:
    """Kind and name of what the pods of `job` need beside secrets and volumes of the cluster."""
    pod = pod_spec(job)
    maps = [str(v["configMap"].get("name", "")) for v in pod.get("volumes") or () if v.get("configMap")]
    claims = [str(c.get("resourceClaimTemplateName") or "") for c in pod.get("resourceClaims") or ()]
    found = [(CONFIG_MAP, name) for name in maps if name]
    found += [(RESOURCE_CLAIM_TEMPLATE, name) for name in claims if name]
    return [*found, (SERVICE, str(pod["subdomain"]))] if pod.get("subdomain") else found


def made_for(obj: Object, copy: Object) -> Object:
    """`obj` of the manager as it is made in the cluster of `copy`, which owns it there. Pure."""
    meta = obj["metadata"]
    owner = {
        "apiVersion": copy["apiVersion"],
        "kind": copy["kind"],
        "name": copy["metadata"]["name"],
        "uid": copy["metadata"]["uid"],
    }
    made = {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": dict(meta.get("labels") or {}),
            "ownerReferences": [owner],
        },
    }
    if obj["kind"] == SERVICE.name:
        own = ("clusterIPs", "ipFamilies", "ipFamilyPolicy")
        spec = {key: value for key, value in (obj.get("spec") or {}).items() if key not in own}
        if spec.get("clusterIP") != "None":
            spec.pop("clusterIP", None)
        return {**made, "spec": spec}
    if obj["kind"] == RESOURCE_CLAIM_TEMPLATE.name:
        return {**made, "spec": obj["spec"]}
    return {**made, **{key: obj[key] for key in ("data", "binaryData", "immutable") if key in obj}}


def create(kube: Kube, obj: Object) -> None:
    """Raises Conflict while something of that name is there that an earlier copy owned: it is about to go."""
    meta = obj["metadata"]
    try:
        kube.create(obj)
    except AlreadyExists:
        there = kube.find(kind_of(obj), meta["namespace"], meta["name"])
        owners = (there or {}).get("metadata", {}).get("ownerReferences") or ()
        ours = meta["ownerReferences"][0]
        if there is None or (owners and all(o.get("uid") != ours["uid"] for o in owners)):
            raise Conflict(f"{obj['kind']} {meta['name']} of an earlier copy is still there", 409, "Conflict") from None
