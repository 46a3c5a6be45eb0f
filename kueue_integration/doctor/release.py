"""What an administrator may have deleted, forgotten or cut off: keys, a certificate, and an operation of Helm's.

A tenant may read neither, and is told nothing.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator

from cryptography import x509

from ..contract import job_names
from ..errors import Forbidden
from ..kube.api import Kube
from ..kube.resources import DEPLOYMENT, SECRET, label, pod_spec, selector
from .check import FAIL, OK, REPAIR, WARN, Check

_SYSTEM = job_names.SYSTEM_NAMESPACE
_PENDING = ("pending-install", "pending-upgrade", "pending-rollback")
SOON_S = 7 * 86400.0
"""Before its end a certificate of somebody else should have been renewed."""
_RUNBOOK = "docs/administration/keys.md#backup-and-restore"


def keys(kube: Kube) -> Iterator[Check]:
    """The Secret is there, and a controller has filled it."""
    try:
        found = kube.find(SECRET, _SYSTEM, job_names.KEYS_SECRET)
    except Forbidden:
        return
    where = f"Secret {_SYSTEM}/{job_names.KEYS_SECRET}"
    if found is None:
        fix = (
            "A controller that runs has them in memory: do not restart it, make the Secret again, and it writes them. "
            f"If none runs, restore the content from a backup afterwards ({_RUNBOOK}):\n{REPAIR}"
        )
        yield Check("keys", FAIL, f"{where} is gone: the next controller that starts has no keys", fix)
    elif not found.get("data"):
        fix = f"See why no controller fills it, or restore it from a backup ({_RUNBOOK}):\n{_log()}"
        yield Check("keys", WARN, f"{where} is empty: no controller has filled it yet", fix)
    else:
        yield Check("keys", OK, f"{where} is filled")


def certificate(kube: Kube, now: float) -> Iterator[Check]:
    """The certificate of somebody else's Secret (`tls.existingSecret`, cert-manager) is there and lasts."""
    try:
        deployment = kube.find(DEPLOYMENT, _SYSTEM, job_names.CONTROLLER_NAME)
        volumes = pod_spec(deployment or {}).get("volumes") or ()
        name = next((v["secret"]["secretName"] for v in volumes if v.get("name") == "secret" and v.get("secret")), None)
        if name is None:
            return
        found = kube.find(SECRET, _SYSTEM, name)
    except Forbidden:
        return
    files = " ".join(f"--from-file={file}" for file in ("ca.crt", "tls.crt", "tls.key"))
    fix = (
        "The controller takes new files within a minute or two. cert-manager renews its own; of yours make it so:\n"
        f"kubectl -n {_SYSTEM} create secret generic {name} {files} \\\n"
        f"  --dry-run=client -o yaml | kubectl apply --server-side --force-conflicts -f -"
    )
    try:
        text = b64decode(((found or {}).get("data") or {}).get("tls.crt") or "")
        left = x509.load_pem_x509_certificate(text).not_valid_after_utc.timestamp() - now
    except ValueError as error:
        yield Check("certificate", FAIL, f"Secret {_SYSTEM}/{name} has no certificate in tls.crt ({error})", fix)
        return
    if left <= 0:
        gone = f"the one in Secret {name} has ended {-left / 3600:.1f} hours ago: no pod accepts the controller"
        yield Check("certificate", FAIL, gone, fix)
    elif left < SOON_S:
        yield Check("certificate", WARN, f"the one in Secret {name} ends in {left / 3600:.0f} hours", fix)
    else:
        yield Check("certificate", OK, f"the one in Secret {name} ends in {left / 86400:.0f} days")


def interrupted(kube: Kube) -> Iterator[Check]:
    """No operation of Helm's was killed in the middle, which would refuse each one after it."""
    try:
        asked = [selector({"owner": "helm", "status": state}) for state in _PENDING]
        pending = [secret for query in asked for secret in kube.list(SECRET, _SYSTEM, query)]
    except Forbidden:
        return
    for secret in pending:
        name, state = label(secret, "name") or "singularity", label(secret, "status")
        fix = (
            "Where no Helm runs any more, have it forget that operation, and upgrade again:\n"
            f"kubectl -n {_SYSTEM} delete secret -l owner=helm,name={name},status={state}\n{REPAIR}"
        )
        yield Check("release", WARN, f"an operation of Helm's has not ended: {name} is {state}", fix)


def _log() -> str:
    return f"kubectl -n {_SYSTEM} logs deployment/{job_names.CONTROLLER_NAME} --tail=50"
