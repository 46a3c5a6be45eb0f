"""Where jobs of a namespace may store their outputs. Pure.

The sidecar has the credentials of the store. A job that could name any place would write with them into another
tenant's, so the platform says which prefixes there are.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from . import store_access
from .platform_config import PlatformConfig
from .store_access import NAMESPACE

FOLDER = "outputs"
SCHEMES = ("file", "gs", "s3", "az")
MOST = 1000
"""Characters of a URL."""
_PART = re.compile(r"[^\x00-\x20\x7f\\\\?#*]+")


def allowed(platform: PlatformConfig, namespace: str) -> list[str]:
    """Prefixes below which jobs of the namespace may store: its own, else the platform's, else `outputs/NAMESPACE` in
    the namespace's store. Empty: nowhere."""
    own = platform.stores.get(namespace, {}).get("outputs")
    listed = [str(each).replace(NAMESPACE, namespace) for each in (platform.outputs if own is None else own)]
    if listed or own is not None:
        return [each.rstrip("/") for each in listed]
    url = store_access.of(platform, namespace).url
    return [f"{url.rstrip('/')}/{FOLDER}/{namespace}"] if url else []


def malformed(url: object) -> str:
    """Why this is no URL for outputs; "" if it is one."""
    if not isinstance(url, str):
        return "must be a URL, as gs://bucket/results/run-7 is"
    scheme, found, rest = url.partition("://")
    if not found or scheme not in SCHEMES:
        return f"must be a URL of {', '.join(f'{each}://' for each in SCHEMES)}"
    if len(url) > MOST:
        return f"must have at most {MOST} characters"
    path = urlsplit(url).path if scheme != "file" else rest
    bucket = urlsplit(url).netloc
    if (scheme == "file") == bool(bucket):
        return "must be file:/// with an absolute path" if scheme == "file" else f"must be {scheme}://BUCKET/path"
    parts = path.rstrip("/").split("/")[1:]
    if not parts or not all(_PART.fullmatch(part) and part not in (".", "..") for part in parts):
        return "must have a path below the bucket or the volume, without empty, '.' or '..' parts and without blanks"
    return ""


def problem(url: str, platform: PlatformConfig, namespace: str) -> str:
    """Why a job of the namespace may not store there; "" if it may."""
    text = malformed(url)
    if text:
        return text
    places = allowed(platform, namespace)
    if not places:
        return "the platform has no place for outputs; the chart's values outputs.prefixes and store.url give one"
    if not any(url.rstrip("/").startswith(f"{place}/") for place in places):
        return f"is not below a place for outputs of namespace {namespace}: {', '.join(places)}"
    return ""
