"""What pods and records tell of nodes, and what the controller does with it: log, Event, taint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import controller_scene as scene
import pytest
from controller_scene import NS, T0
from test_planner_rounds import KEY, Stage
from waits import until

from kueue_integration.contract import job_names
from kueue_integration.controller.planning import symptoms
from kueue_integration.controller.snapshot import Pod
from kueue_integration.errors import Forbidden
from kueue_integration.kube.resources import EVENT, JOB, NODE, POD
from kueue_integration.planner.settings import Health, PlannerSettings
from kueue_integration.requests import user_requests
from singularity_proxy.protocol.messages import Gpus, PodGpus, last_words

NOW = T0 + 500
TRACE = "rank 0 ended with code 1: ValueError: bad (train.py:1 in main)"


def failed(index: int, code: int, message: str = "", node: str = "n1", attempt: int = 1, **more: Any) -> Any:
    pod = scene.pod(index, phase="Failed", attempt=attempt, **more)
    pod["spec"]["nodeName"] = node
    ended = {"exitCode": code, "message": message, "finishedAt": scene.at(90)}
    pod["status"]["containerStatuses"] = [{"name": "train", "state": {"terminated": ended}}]
    return pod


def told(*pods: Any) -> list[tuple[str, str, float]]:
    found = symptoms.failures(KEY, [Pod.parse(pod) for pod in pods], NOW)
    return [(s.node, s.kind, s.at) for _, s in found]


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (1, TRACE, "program"), (2, "", "program"), (139, "", "program"), (137, "", "machine"), (70, "", "program"),
        (71, "no permission", "machine"), (137, last_words("the kernel ...", "memory"), "memory"),
        (75, last_words("rank 1 ended with code 75: CUDA out of memory", "program"), "program"),
        (143, "", None), (81, "store is away", None), (82, "", None), (0, "", None),
    ],
)  # fmt: skip
def test_exit_codes_say_whose_failure_it_may_be(code, message, kind):
    assert told(failed(0, code, message)) == ([("n1", kind, T0 + 90)] if kind else [])


def test_pods_that_were_asked_to_end_tell_nothing():
    evicted = failed(0, 137)
    evicted["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaint"}]
    running = scene.pod(1)
    running["spec"]["nodeName"] = "n1"
    assert told(evicted, failed(1, 137, deleting=True), running) == []


def test_the_other_nodes_of_the_attempt_are_known():
    pods = [failed(0, 1, TRACE), failed(1, 143, node="n2"), failed(1, 1, node="n3", attempt=2)]
    (first, _) = symptoms.failures(KEY, [Pod.parse(pod) for pod in pods], NOW)
    assert first[1].beside == {"n2"}


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (PodGpus(1, [79, 13]), ["Xid 79 (the GPU has fallen off the bus)"]),
        (PodGpus(1, [13, 31, 43]), []),
        (PodGpus(1, [], 2), ["memory errors that could not be corrected"]),
        (PodGpus(1, [], 0, 61.0), ["slowed down by heat or power for 61 % of the time"]),
        (PodGpus(1, [], 0, 59.0), []),
        (PodGpus(7, [79]), []),  # a pod that is not there any more
    ],
)
def test_what_nvml_told_belongs_to_the_node_of_the_pod(of, words):
    pods = []
    for index in range(2):
        pod = scene.pod(index)
        pod["spec"]["nodeName"] = f"n{index}"
        pods.append(Pod.parse(pod))
    record = scene.record(gpus=Gpus(2, pods=[of]))
    found = [s for _, s in symptoms.of_gpus(KEY, "uid", record, pods, NOW, 60.0)]
    assert [(s.node, s.words, s.kind) for s in found] == [("n1", text, "gpu") for text in words]


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def start(mode: Any = "act", **more: Any) -> Stage:
        made.append(Stage(PlannerSettings(health=Health(mode, failures=2, **more))))
        play = made[-1]
        for attempt in (1, 2):
            play.kube.put(failed(7, 137, attempt=attempt, created=11 + attempt))
        until(lambda: len(play.world.pods.all()) == 4)
        return play

    yield start
    for one in made:
        one.world.stop()


def of_node(play: Stage) -> list[str]:
    events = [e for e in play.kube.objects() if e["kind"] == EVENT.name]
    return [e["message"] for e in events if e["involvedObject"]["kind"] == "Node"]


def taints(play: Stage) -> list[Any]:
    return list(play.kube.get(NODE, None, "n1")["spec"].get("taints") or ())


WHY = "health: node n1 alone has lost 2 attempts, the last so: it ended with code 137: it was killed (SIGKILL)"


def test_a_sick_node_is_told_once_left_and_tainted(stage: Callable[..., Stage]) -> None:
    play = stage(taint=True)
    play.round()
    assert of_node(play) == [f"{WHY}; it is tainted"]
    assert taints(play) == [{"key": job_names.TAINT_UNHEALTHY, "value": "true", "effect": "NoSchedule"}]
    assert play.count("health taint done") == 1
    save = play.asked(user_requests.CHECKPOINT)
    assert save.by.startswith("policy/health: node n1 alone has lost 2 attempts")
    play.answer(user_requests.CHECKPOINT)
    play.round()
    assert play.asked().placement.avoid_nodes == ["n1"]
    assert len(of_node(play)) == len(taints(play)) == 1


@pytest.mark.parametrize(
    ("mode", "taint", "said"),
    [("propose", True, "it would be tainted"), ("act", False, "taints are off (planner.health.taint)")],
)
def test_a_dry_run_and_a_chart_without_taints_only_tell(
    stage: Callable[..., Stage], mode: str, taint: bool, said: str
) -> None:
    play = stage(mode, taint=taint)
    play.round()
    play.round()
    assert of_node(play) == [f"{WHY}; {said}"] and taints(play) == []
    assert (play.asked(user_requests.CHECKPOINT) is None) == (mode == "propose")


def test_a_taint_that_is_refused_is_tried_again(stage: Callable[..., Stage]) -> None:
    play = stage(taint=True)
    play.kube.fail_next("patch", NODE, Forbidden("nodes", 403, "Forbidden"))
    play.round()
    assert taints(play) == [] and of_node(play) == [f"{WHY}; it could not be tainted"]
    assert play.asked(user_requests.CHECKPOINT) is not None  # jobs leave all the same
    play.round()
    assert len(taints(play)) == 1


@pytest.mark.parametrize("restart", [False, True])
def test_whoever_removes_the_taint_has_looked_after_the_node(stage: Callable[..., Stage], restart: bool) -> None:
    """Pods that have failed there may stay for days."""
    play = stage(taint=True)
    play.round()
    play.kube.patch(NODE, None, "n1", {"spec": {"taints": None}})
    if restart:
        play.rounds = play.again()
    play.answer(user_requests.CHECKPOINT)
    play.round()
    play.round()
    assert taints(play) == [] and len(of_node(play)) == 1
    assert play.asked() is None  # nobody has to leave any more


def test_failures_outlive_their_pods(stage: Callable[..., Stage]) -> None:
    play = stage("propose")
    play.kube.delete(POD, NS, "train-7-a2")
    until(lambda: len(play.world.pods.all()) == 3)
    play.round()
    assert of_node(play) == []  # one failure is not enough
    play.kube.delete(POD, NS, "train-7-a1")
    play.kube.put(failed(7, 137, attempt=4, created=40))
    until(lambda: {p["metadata"]["name"] for p in play.world.pods.all()} >= {"train-7-a4"})
    play.round()
    assert of_node(play) == [f"{WHY}; taints are off (planner.health.taint)"]


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "has failed by it"])
def test_an_error_of_the_program_is_told_on_its_job(stage: Callable[..., Stage], ends: bool) -> None:
    play = stage("propose")
    for index, node in enumerate(("n1", "n2")):
        play.kube.put(failed(20 + index, 1, TRACE.replace("rank 0", f"rank {index}"), node=node, attempt=3))
    until(lambda: len(play.world.pods.all()) == 6)
    if ends:
        play.kube.set_status(JOB, *KEY, {"conditions": [{"type": "Failed", "status": "True"}]})
    play.round()
    play.round()
    (message,) = [m for reason, m in play.events() if reason == job_names.EVENT_OWN_ERROR]
    assert message.startswith("health: the same error on nodes n1, n2: the program's own. rank ")
    assert play.count("health program told") == 1
