"""A volume for the claim of a page, where there is no storage class. Nothing of it is left behind."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

from shell import Shell

from localcluster.demo.stage import Stage

VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {{name: results}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteMany]
  persistentVolumeReclaimPolicy: Retain
  hostPath: {{path: {path}, type: Directory}}
"""
"""What an administrator makes there."""


@contextlib.contextmanager
def claimed(stage: Stage, claim: str = "") -> Iterator[Shell]:
    """A shell, with the volume `results` in a folder of the nodes, and the PersistentVolumeClaim `claim` made."""
    folder = stage.cluster.shared / "results"
    folder.mkdir(mode=0o777, exist_ok=True)
    folder.chmod(0o777)
    shell = Shell(stage.cluster)
    objects = VOLUME.format(path=folder) + (f"---\n{claim}" if claim else "")
    shell.type(f"kubectl apply -f - <<'EOF'{objects}EOF")
    try:
        yield shell
    finally:
        shell.type("kubectl delete pvc,pv results --ignore-not-found --wait=false")
        shutil.rmtree(folder, ignore_errors=True)
