"""What one tenant's objects do to the controller's memory: suspended Jobs of a megabyte each, which need no quota.

A real API server has them. A process with the controller's copies lists them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kueue_integration.contract import job_names
from localcluster.api_server import ADMIN, api_server
from localcluster.prepare import prepare

from .model import Group, Measured, Options, Say, Spec

JOBS = 300
BYTES = 1_000_000
CHILD = """
import json, sys
import kueue_integration.serve
from kueue_integration.controller.cache import World
from kueue_integration.kube.credentials import connect

def megabytes(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1000 for line in file if line.startswith(field))

world, rest = World(connect(sys.argv[1])), megabytes("VmRSS")
world.jobs.start()
if not world.jobs.synced.wait(300):
    raise SystemExit(f"the Jobs were not listed within 300 s: {world.jobs.problem}")
found = {"jobs": len(world.jobs.all()), "rest": rest, "now": megabytes("VmRSS"), "peak": megabytes("VmHWM")}
world.jobs.stop()
print(json.dumps(found))
"""


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    count = JOBS // 10 if options.quick else JOBS
    made = prepare(say)
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        api_server(Path(folder), str(made.apiserver), str(made.etcd), ["tenant"], ["jobs"]) as server,
    ):
        tenant = server.kube("tenant")
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda n: tenant.create(_job(n)), range(count)))
        words = [sys.executable, "-c", CHILD, str(server.kubeconfig(ADMIN))]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    found = json.loads(done.stdout.splitlines()[-1])
    if found["jobs"] != count:
        raise RuntimeError(f"{found['jobs']} of {count} Jobs were listed")
    about = f"{count} Jobs of 1 MB: at rest {found['rest']:.0f} MB, peak {found['peak']:.0f}, then {found['now']:.0f}"
    say(about)
    runs = [[found["peak"]], [found["rest"]]]
    return {"hostile_objects_rss_mb": Measured(found["peak"] - found["rest"], runs, about)}


def _job(number: int) -> dict[str, object]:
    large = {"name": "LARGE", "value": f"{number}{'x' * BYTES}"}
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example/none:1", "env": [large]}]}
    labels = {job_names.LABEL_MANAGED: "true"}
    meta = {"name": f"large-{number}", "namespace": "default", "labels": labels}
    spec = {"suspend": True, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


GROUP = Group(
    "hostile_objects",
    "kube-apiserver and etcd",
    (Spec("hostile_objects_rss_mb", "MB", "<= 200", "peak of the controller over rest: a tenant's 300 Jobs of 1 MB"),),
    measure,
)
