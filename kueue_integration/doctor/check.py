"""`Check`, a finding with its fix, and `guarded`, which turns what the API server refuses into one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from singularity_proxy.protocol.decode import Unreadable, moment

from ..contract import job_names
from ..errors import Forbidden, KubeError

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"
"""Training jobs cannot run, or preemption is not what the platform promises."""

IMAGES: Final = (
    "docker build -f images/agent.Dockerfile -t REGISTRY/singularity-agent:TAG .\n"
    "docker build -f images/controller.Dockerfile -t REGISTRY/singularity-controller:TAG .\n"
    "docker push REGISTRY/singularity-agent:TAG\n"
    "docker push REGISTRY/singularity-controller:TAG"
)
"""In a checkout of this project, as is `HELM`."""
HELM: Final = (
    f"helm upgrade --install singularity charts/singularity -n {job_names.SYSTEM_NAMESPACE} \\\n"
    "  --create-namespace \\\n"
    "  --set images.agent=REGISTRY/singularity-agent:TAG \\\n"
    "  --set images.controller=REGISTRY/singularity-controller:TAG \\\n"
    "  --set store.url=gs://BUCKET/checkpoints"
)
REPAIR: Final = job_names.UPGRADE


@dataclass(frozen=True)
class Check:
    """One finding. `fix`: empty when `status` is ok; a sentence, then commands to copy on lines of their own."""

    name: str
    status: str
    message: str
    fix: str = ""


def guarded(name: str, checks: Iterable[Check]) -> list[Check]:
    """The findings of `checks`; where the API server stops them, that is the last finding."""
    found: list[Check] = []
    try:
        found.extend(iter(checks))
    except Forbidden as error:
        found.append(
            Check(name, WARN, f"not checked: {error}", "Let somebody who may read it run `singularityctl doctor`.")
        )
    except KubeError as error:
        found.append(Check(name, FAIL, f"not checked: {error}", "Run it again when the API server answers."))
    except Exception as error:  # an object that nobody expected must not hide what the other checks find
        found.append(unexpected(name, error))
    return found


def unexpected(name: str, error: Exception) -> Check:
    """The finding for an object that could not be looked at."""
    text = f"not checked: an object is not what it should be: {shown(repr(error))}"
    return Check(name, WARN, text, "See what is unusual about it; please report this with the object.")


def shown(text: str, most: int = 80) -> str:
    """`text` of somebody else, quoted, in one line, and cut."""
    return ascii(text if len(text) <= most else text[: most - 3] + "...")


def listing(items: Iterable[object], most: int = 3) -> str:
    """`a, b, c and 7 more`."""
    texts = [str(item) for item in items]
    rest = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + rest


def unix(text: str) -> float:
    """Unix seconds of an RFC 3339 time. Raises ValueError."""
    found = moment(text)
    if isinstance(found, Unreadable):
        raise ValueError(f"{shown(text)} is {found.why}")
    return found
