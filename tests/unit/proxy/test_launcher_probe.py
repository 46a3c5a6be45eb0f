"""A launcher that is asked for its GPUs (`singularityctl doctor --probe --gpus`), in a pod without any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pod_harness import Pod

from kueue_integration.manifests import criu_probe
from kueue_integration.spec.platform_config import NODE
from singularity_proxy.launcher.device import facts
from singularity_proxy.launcher.ranks import privileges
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import GpuProbe, from_json

pytestmark = [
    pytest.mark.criu,
    pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has a GPU"),
]
Make = Callable[..., Pod]
TORCH = """
from types import SimpleNamespace as New
words = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
__version__ = "2.99+" + words["CapEff"].strip()
version, cuda = New(cuda=None), New(is_available=lambda: False)
"""
"""Its version says with which capabilities it was imported."""


def test_it_answers_instead_of_training(tmp_path: Path, make_pod: Make, rootfs: Path, criu_bundle: Path) -> None:
    (tmp_path / "site/torch").mkdir(parents=True)
    (tmp_path / "site/torch/__init__.py").write_text(TORCH)
    env = {names.ENV_PROBE: names.PROBE_GPUS}
    with_pod = {"rootfs": rootfs, "torch": tmp_path / "site", "criu": criu_bundle}
    pod = make_pod("pod", plan=None, command=["false"], env=env, **with_pod)
    assert pod.start().wait() == 0, pod.log()
    told = from_json(GpuProbe, pod.log().splitlines()[-1])
    assert told.gpus == [] and told.size == 0 and told.error == ""
    # CRIU and the launcher's capabilities are as in training pods: only the GPU is missing.
    assert told.problems == ["There is no NVIDIA GPU here: no /dev/nvidia0"], told
    assert told.torch == f"2.99+{privileges.MASK:016x}", "torch is the image's: it has what ranks have, and no more"
    assert criu_probe.FEATURE[NODE] in facts.USED, "CRIU knows the feature that doctor asks it for"


def test_nothing_else_can_be_asked_for(make_pod: Make, rootfs: Path, criu_bundle: Path) -> None:
    env = {names.ENV_PROBE: "store"}
    pod = make_pod("pod", rootfs=rootfs, torch=None, plan=None, command=["false"], env=env, criu=criu_bundle)
    assert pod.start().wait(120) not in (0, None)
    assert f"{names.ENV_PROBE} = 'store': only 'gpus' can be probed" in pod.log()
