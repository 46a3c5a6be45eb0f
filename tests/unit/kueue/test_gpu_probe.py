"""`doctor --probe --gpus`: which flavors, what pod, and what is made of its answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from kueue_samples import PLATFORM

from kueue_integration.cli import main
from kueue_integration.contract import job_names
from kueue_integration.doctor import FAIL, OK, WARN, gpu_probe, run_gpu_probe
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import KUEUE_GROUP, KUEUE_VERSION, POD
from kueue_integration.manifests.pod import LAUNCHER, LAUNCHER_CAPABILITIES
from kueue_integration.spec import platform_config
from singularity_proxy.launcher.device import cycle, probe
from singularity_proxy.launcher.device.driver import Device, DriverError
from singularity_proxy.launcher.device.facts import Facts
from singularity_proxy.launcher.device.fake import FakeDriver, FakeProcess
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import GpuProbe, to_json

H100 = Device("GPU-00000000-0000-0000-0000-000000000000", "NVIDIA H100", 80 << 30)
CHART = {
    "apiVersion": "v1", "kind": "ConfigMap",
    "metadata": {"name": "singularity-platform", "namespace": "singularity-system"},
    "data": {"platform.json": platform_config.to_json(PLATFORM)},
}  # fmt: skip


def flavor(name: str) -> Any:
    spec = {"nodeLabels": {"flavor": name}, "tolerations": [{"key": name, "operator": "Exists"}]}
    version = f"{KUEUE_GROUP}/{KUEUE_VERSION}"
    return {"apiVersion": version, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}


def queue(**quota: dict[str, str]) -> Any:
    """Flavor -> resource -> nominalQuota."""
    flavors = [
        {"name": name, "resources": [{"name": r, "nominalQuota": n} for r, n in resources.items()]}
        for name, resources in quota.items()
    ]
    version = f"{KUEUE_GROUP}/{KUEUE_VERSION}"
    spec = {"resourceGroups": [{"coveredResources": ["cpu", "nvidia.com/gpu"], "flavors": flavors}]}
    return {"apiVersion": version, "kind": "ClusterQueue", "metadata": {"name": "q"}, "spec": spec}


QUEUE = queue(
    h100={"cpu": "8", "nvidia.com/gpu": "4"}, spot={"cpu": "8", "nvidia.com/gpu": "0"},
    mig={"nvidia.com/mig-1g.10gb": "1"},
)  # fmt: skip


def answers(problems: list[str] | None = None, **process: Any) -> list[str]:
    """What the pod prints, by the code that it runs, over the fake driver."""
    found = Facts(gpus=[{"uuid": H100.uuid, "name": H100.name, "memory_gb": 85.9}], driver="580.1")
    found.torch, found.problems = {"version": "2.15"}, problems or []
    driver = FakeDriver([H100], {7: FakeProcess({H100.uuid: b"weights"}, **process)})

    class Hold:
        pid, size = 7, probe.SIZE

        def __init__(self, size: int) -> None:
            assert size == min(probe.SIZE, int(cycle.host_memory() / cycle.HOST_FACTOR))

        def __enter__(self) -> Hold:
            return self

        def __exit__(self, *_: object) -> None:
            return

        def wrong(self) -> int:
            return int(driver.processes[7].memory != {H100.uuid: b"weights"})

    return ["[launcher] whatever", to_json(probe.answer(found, lambda: driver, Hold))]


def test_flavors_with_gpus_are_those_that_a_queue_has_quota_of() -> None:
    assert gpu_probe.of_queues([QUEUE, queue(a100={"nvidia.com/gpu": "1"})]) == {
        "h100": "nvidia.com/gpu", "mig": "nvidia.com/mig-1g.10gb", "a100": "nvidia.com/gpu",
    }  # fmt: skip


def test_the_pod_is_that_of_a_training_job_with_one_gpu() -> None:
    made = gpu_probe.pod("default", PLATFORM, flavor("h100"), "nvidia.com/gpu", "example/torch:1", 60)["spec"]
    (container,), (installer,) = made["containers"], made["initContainers"]
    assert (container["name"], container["image"]) == (job_names.CONTAINER_TRAIN, "example/torch:1")
    assert container["command"] == [*LAUNCHER] and installer["name"] == job_names.CONTAINER_INSTALL
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert container["securityContext"]["capabilities"]["add"] == [*LAUNCHER_CAPABILITIES]
    assert {"name": names.ENV_PROBE, "value": names.PROBE_GPUS} in container["env"]
    assert made["nodeSelector"] == {"flavor": "h100"} and made["tolerations"][0]["key"] == "h100"
    assert made["restartPolicy"] == "Never" and made["activeDeadlineSeconds"] == 60
    assert not any("serviceAccountToken" in json.dumps(volume) for volume in made["volumes"])


def with_pods(monkeypatch: pytest.MonkeyPatch, kube: FakeKube, lines: list[str], phase: str = "Succeeded") -> list[Any]:
    """Every pod ends at once and has printed `lines`; the pods that were made."""
    create, made = kube.create, []

    def and_run(obj: Any, dry_run: bool = False) -> Any:
        made.append(obj)
        done = create(obj, dry_run)
        kube.logs["default", obj["metadata"]["name"], job_names.CONTAINER_TRAIN] = lines
        kube.set_status(POD, "default", obj["metadata"]["name"], {"phase": phase})
        return done

    monkeypatch.setattr(kube, "create", and_run)
    return made


def test_each_flavor_is_probed_once_and_no_pod_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = FakeKube(QUEUE, flavor("h100"), flavor("spot"), CHART)
    made = with_pods(monkeypatch, kube, answers())
    missing, found = run_gpu_probe(kube, "default", "", 10)
    assert (missing.status, missing.message) == (WARN, "not probed: there is no ResourceFlavor mig")
    assert (found.name, found.status) == ("GPUs of h100", OK)
    assert found.message.startswith("NVIDIA H100, driver 580.1, torch 2.15; 1.00 GB: checkpoint 0.0")
    assert found.message.endswith("every bit is back")
    (pod,) = made
    assert pod["spec"]["containers"][0]["image"] == PLATFORM.train_image
    assert kube.list(POD, "default") == []


@pytest.mark.parametrize(
    ("lines", "status", "words"),
    [
        (answers(["The driver is 560"]), WARN, "every bit is back; but: The driver is 560"),
        (answers(busy=True), FAIL, "DriverError: cuCheckpointProcessLock: CUDA_ERROR_NOT_READY"),
        ([to_json(GpuProbe(problems=["There is no NVIDIA GPU here: no /dev/nvidia0"]))], FAIL, "no /dev/nvidia0"),
        ([to_json(GpuProbe(["H100"], size=8, wrong=3))], FAIL, "3 words of a GPU's memory were not what"),
        (["python3: No module named _singularity"], FAIL, "'python3: No module named _singularity'"),
        (["{}"], FAIL, "it has measured nothing"),
        (['{"gpus": 7, "torch": 7}'], FAIL, "no answer"),
        ([answers()[-1][:40]], FAIL, "no answer"),
        ([], FAIL, "it said nothing"),
    ],
)  # fmt: skip
def test_what_is_made_of_an_answer(lines: list[str], status: str, words: str) -> None:
    found = gpu_probe.finding("h100", lines)
    assert found.status == status and words in found.message and found.fix


def test_the_probe_of_a_node_without_gpus_asks_no_driver() -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("there is no GPU")

    told = probe.answer(Facts(problems=["There is no NVIDIA GPU here"]), never, never)
    assert told == GpuProbe(problems=["There is no NVIDIA GPU here"])


def test_a_process_that_cannot_hold_memory_is_a_finding() -> None:
    def hold(size: int) -> Any:
        raise RuntimeError("the process that holds memory on the GPU has ended: CUDA out of memory")

    def driver() -> Any:
        raise DriverError("libcuda", "no driver")

    found = Facts(gpus=[{"name": "NVIDIA H100"}])
    check = gpu_probe.finding("h100", [to_json(probe.answer(found, driver, hold))])
    assert check.status == FAIL and "CUDA out of memory" in check.message


@pytest.mark.parametrize("arguments", [("--gpus",), ("--probe", "--image", "x"), ("--image", "x")])
def test_flags_that_mean_nothing_alone_are_refused(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.setattr("kueue_integration.cli.doctor.open_cluster", lambda *_: FakeKube())
    done = CliRunner().invoke(main, ["doctor", *arguments])
    assert done.exit_code == 2 and "doctor --probe --gpus --image IMAGE" in done.output


@pytest.mark.parametrize(("queues", "train_image", "words"), [
    ([], "x", "no ClusterQueue has quota for a resource nvidia.com/*"),
    ([QUEUE], "", "the platform has no training image"),
])  # fmt: skip
def test_nothing_to_probe_is_said(queues: list[Any], train_image: str, words: str) -> None:
    from dataclasses import replace

    config = replace(PLATFORM, train_image=train_image)
    (found,) = gpu_probe.flavors(FakeKube(*queues), "default", config, "", 10)
    assert found.status == WARN and words in found.message
