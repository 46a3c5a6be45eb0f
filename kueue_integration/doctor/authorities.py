"""The authorities that pods trust: do they last, and is there a job that trusts none of them?"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Sequence

from singularity_proxy.protocol import names

from ..contract import job_names, kinds
from ..kube.resources import Object, pod_spec
from ..spec.platform_config import PlatformConfig
from .check import FAIL, OK, WARN, Check, listing

SOON_DAYS = 90
_DAY = 86400.0
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----(.*?)-----END", re.DOTALL)
_KEYS = "docs/administration/keys.md"


def published(config: PlatformConfig, now: float) -> Iterator[Check]:
    """The authorities are certificates and do not end soon."""
    try:
        ends = _ends(config.controller_ca)
    except (ssl.SSLError, ValueError) as error:
        fix = f"Pods accept no controller with it. Mend tls.existingSecret, or {job_names.KEYS_SECRET}: {_KEYS}"
        yield Check("authorities", FAIL, f"controller_ca is no certificate ({error})", fix)
        return
    days = (min(ends) - now) / _DAY
    if days < SOON_DAYS:
        ended = f"ends in {days:.0f} days" if days > 0 else f"has ended {-days:.0f} days ago"
        fix = f"Jobs that trust it alone lose the controller then. Rotate the keys: {_KEYS}"
        yield Check("authorities", WARN if days > 0 else FAIL, f"one of {len(ends)} {ended}", fix)
    else:
        yield Check("authorities", OK, f"{len(ends)}, the first ends in {days:.0f} days")


def strangers(config: PlatformConfig, jobs: Sequence[Object]) -> Iterator[Check]:
    """Unfinished jobs of whose authorities none is the platform's: their pods accept no controller."""
    ours = set(_certificates(config.controller_ca))
    lost = [kinds.job_key(job) for job in jobs if (told := _told(job)) and not ours & set(_certificates(told))]
    if lost:
        fix = f"They cannot be saved. Restore the Secret with the keys of then, or submit them again: {_KEYS}"
        yield Check("authorities", FAIL, f"pods of {listing(lost)} trust none of the platform's authorities", fix)


def _told(job: Object) -> str:
    """What the sidecar of the job's pods trusts, PEM."""
    for container in pod_spec(job).get("initContainers") or ():
        if container.get("name") == job_names.CONTAINER_SIDECAR:
            for entry in container.get("env") or ():
                if entry.get("name") == names.ENV_CONTROLLER_CA:
                    return str(entry.get("value") or "")
    return ""


def _ends(bundle: str) -> list[float]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=bundle)
    found = [ssl.cert_time_to_seconds(str(one["notAfter"])) for one in context.get_ca_certs()]
    if not found:
        raise ValueError("it has no authority")
    return [float(end) for end in found]


def _certificates(bundle: str) -> list[str]:
    """The certificates of a PEM text, without the layout of their lines."""
    return ["".join(text.split()) for text in _CERTIFICATE.findall(bundle)]
