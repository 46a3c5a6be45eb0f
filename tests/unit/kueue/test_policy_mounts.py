"""Generated mounts: what a real API server with the guard admits cannot take the place of a program with capabilities.

What the kubelet and the runtime make of a path is computed here: absolute, clean, mounted in the order of depth, and
led anywhere by a link in a folder that others have written. No policy sees the links of an image (SECURITY.md).
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Sequence

import pytest
from api_server import TENANT, Policies
from kueue_samples import PLATFORM
from pod_variants import GOOD, Pod
from test_policy_pods import pod, said

from kueue_integration.contract import job_names
from kueue_integration.manifests import criu_probe
from kueue_integration.manifests.pod import AGENT_VOLUME
from kueue_integration.spec import mount_paths
from singularity_proxy.protocol import names

PARTS = ("singularity", "agent", "launcher", "opt", "bin", "run", "secrets", "var", "usr", "x", "nvidia")
PLACES = (
    "/singularity", names.AGENT_DIR, f"{names.AGENT_DIR}/launcher", "/opt/singularity/bin", "/opt/singularity/launcher",
    "/var/run/secrets/mine", "/data/sets", "/data", "/home/me/.cache", "/",
    "/data/sets/agent", "/dev/shm/agent", "/proc/self/root/singularity/agent",
)  # fmt: skip
ODD = ("", ".", "..", "...", "..x", ".x", " ", "singularity ", "\u00e9", "a\nb", "libcuda.so.1")
IMAGE_HOME = "/opt/singularity"
"""Of the agent image."""
HOMES = {
    job_names.CONTAINER_TRAIN: names.AGENT_DIR, job_names.CONTAINER_INSTALL: IMAGE_HOME,
    job_names.CONTAINER_SIDECAR: IMAGE_HOME, criu_probe.CRIU: IMAGE_HOME,
}  # fmt: skip
"""Container -> the folder that its program comes from."""


def path(chosen: random.Random) -> str:
    """One that may hit a program: its parts, with what a runtime cleans away between them."""
    words = chosen.choice(PLACES).split("/")[1:]
    if chosen.random() < 0.2:
        words = [chosen.choice(PARTS) for _ in range(chosen.randint(1, 4))]
    for _ in range(chosen.choice([0, 0, 0, 1, 1, 2])):
        at, odd = chosen.randint(0, len(words)), chosen.choice(ODD)
        words[at:at] = [chosen.choice(PARTS), ".."] if odd == ".." and chosen.random() < 0.8 else [odd]
    begin = chosen.choice(["/", "/", "/", "/", "/", "", "//", "./", "/../"])
    return begin + "/".join(words) + chosen.choice(["", "", "", "", "/", "//"])


def serves(mounts: Sequence[Pod], folder: str) -> set[str]:
    """Names of the volumes that some file of `folder` comes from; "" for the image."""
    placed = [("/" + posixpath.normpath("/" + m["mountPath"]).lstrip("/"), str(m["name"])) for m in mounts]
    written = [each for each, _ in placed] + ["/proc", "/dev/shm"]
    led = {name for where, name in placed if any(where.startswith(f"{each}/") for each in written)}
    found = {""}
    for where, name in sorted(placed, key=lambda each: each[0].count("/")):  # stable, as containerd and CRI-O sort
        if f"{folder}/".startswith(f"{where.rstrip('/')}/"):
            found = {name}  # it hides what was there
        elif where.startswith(f"{folder}/"):
            found.add(name)
    return found | led


def containers(spec: Pod) -> list[Pod]:
    return [*spec["containers"], *spec.get("initContainers", ())]


def hit(spec: Pod) -> list[str]:
    """Containers part of whose program would be another one."""
    return [
        c["name"]
        for c in containers(spec)
        if (home := HOMES.get(c["name"]))
        and serves(c.get("volumeMounts", ()), home) != {AGENT_VOLUME if home == names.AGENT_DIR else ""}
    ]


def generated(seed: int) -> tuple[Pod, list[str]]:
    """A pod with volumes of the user's, and where they were to be mounted."""
    chosen = random.Random(seed)
    spec = GOOD[chosen.choice(["a training job", "a training job", "a training job", "doctor's probe"])](PLATFORM)
    spec.setdefault("volumes", []).append({"name": "mine", "configMap": {"name": "mine", "defaultMode": 0o755}})
    paths = []
    for _ in range(chosen.randint(1, 2)):
        mounts = chosen.choice(containers(spec)).setdefault("volumeMounts", [])
        added = path(chosen)
        if added not in {m["mountPath"] for m in mounts}:
            mounts.insert(chosen.randint(0, len(mounts)), {"name": "mine", "mountPath": added})
            paths.append(added)
    return spec, paths


def test_no_admitted_pod_has_another_program_in_the_place_of_ours(policies: Policies) -> None:
    tenant = policies.server.kube(TENANT)
    admitted, dangerous = 0, 0
    for seed in range(250):
        spec, paths = generated(seed)
        refused = said(lambda spec=spec: tenant.create(pod(spec), dry_run=True))
        dangerous += bool(hit(spec))
        if refused:
            assert "'singularity-guard-pods'" in refused or "mountPath: Required" in refused, (refused, paths)
            continue
        admitted += 1
        assert hit(spec) == [], paths
        assert all(mount_paths.clean(each) for each in paths), paths
    assert admitted > 20 and dangerous > 40, (admitted, dangerous)


def test_python_and_the_policy_mean_the_same_by_a_clean_path(policies: Policies) -> None:
    """`clean` for the operator and the adoption, RE2 for the guard."""
    tenant = policies.server.kube(TENANT)
    message = f"container main: each mountPath {mount_paths.FIX}"
    seen = {True: 0, False: 0}
    for seed in range(120):
        chosen = random.Random(seed)
        given = path(chosen)
        if not given:
            continue
        spec = GOOD["an ordinary pod"](PLATFORM)
        spec["volumes"] = [{"name": "mine", "emptyDir": {}}]
        spec["containers"][0]["volumeMounts"] = [{"name": "mine", "mountPath": given}]
        refused = said(lambda spec=spec: tenant.create(pod(spec), dry_run=True))
        assert mount_paths.clean(given) == (message not in refused), (given, refused)
        seen[mount_paths.clean(given)] += 1
        if mount_paths.clean(given):
            assert posixpath.normpath(given) == given.rstrip("/"), given
    assert min(seen.values()) > 20


@pytest.mark.parametrize(
    ("given", "words"),
    [("/data", ""), ("/data/", ""), ("/..data/.x/...", ""), ("", "absolute"), ("data", "absolute"), ("/", "absolute"),
     ("//data", "absolute"), ("/data//", "absolute"), ("/a/./b", "absolute"), ("/a/..", "absolute"), ("/a\n", ""),
     ("/singularity", "platform"), ("/singularity/", "platform"), ("/singularity/x", "platform"), ("/singularityx", ""),
     ("/x/nvidia", "driver"), ("/nvidia/x", ""), ("/x/libcuda.so", "driver"), ("/x/my-nvidia-set/", "driver"),
     ("/proc", "/proc"), ("/proc/self/root/x", "/proc"), ("/process", ""), ("/dev/shm", ""), ("/dev/shm/", ""),
     ("/dev/shm/x", "/dev/shm"), ("/dev/shmx", ""), ("/dev/fuse", "")],
)  # fmt: skip
def test_where_a_user_may_mount(given: str, words: str) -> None:
    found = mount_paths.problem(given)
    assert words in found and bool(words) == bool(found)
