"""`python -m kueue_integration.keep_keys`: the keys of release 0.1.0 survive the upgrade from it.

Its chart made the Secret `singularity-controller`; ours has it no more, so Helm would delete it before our controller
has read it, and all jobs that run would lose the controller. The chart's hook runs this before each upgrade.
"""

from __future__ import annotations

import os
import sys

from singularity_proxy.protocol import names

from .contract import job_names
from .errors import SingularityError
from .kube.api import Kube
from .kube.credentials import connect
from .kube.resources import SECRET

KEEP = {"helm.sh/resource-policy": "keep", "argocd.argoproj.io/sync-options": "Prune=false"}


def keep(kube: Kube, namespace: str) -> str:
    """Have Helm and Argo CD leave the Secret alone, if it is there. What was done, in words. Raises KubeError."""
    name = job_names.CONTROLLER_NAME
    if kube.find(SECRET, namespace, name) is None:
        return f"there is no Secret {namespace}/{name}: nothing to keep"
    kube.patch(SECRET, namespace, name, {"metadata": {"annotations": KEEP}})
    return f"Secret {namespace}/{name} is kept"


def main() -> int:
    try:
        print(keep(connect(), os.environ.get(names.ENV_NAMESPACE) or job_names.SYSTEM_NAMESPACE))
    except SingularityError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
