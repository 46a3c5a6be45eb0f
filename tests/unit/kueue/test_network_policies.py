"""Who reaches which port by the chart's NetworkPolicies: the rules of Kubernetes, applied to the rendered objects.

The local cluster's network does not enforce policies, so this is what a plugin that does would let through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from rendered import HELM, NO_HELM, rendered

from kueue_integration.contract import job_names
from kueue_integration.kube.resources import Object
from singularity_proxy.protocol import names

pytestmark = pytest.mark.skipif(HELM is None, reason=NO_HELM)
SYSTEM = job_names.SYSTEM_NAMESPACE
MANAGED = {job_names.LABEL_MANAGED: "true"}
NAMESPACES = {SYSTEM: {}, "ml": {}, "research": {}, "monitoring": {"kubernetes.io/metadata.name": "monitoring"}}
PORTS = {9443: "api", 8080: "health"}
"""The names of the controller's."""


@dataclass(frozen=True)
class Peer:
    namespace: str
    labels: dict[str, str] = field(default_factory=dict)


TRAINS, OTHER_TRAINS = Peer("ml", MANAGED), Peer("research", MANAGED)
PLAIN, SCRAPES = Peer("ml", {"app": "any"}), Peer("monitoring", {"app": "prometheus"})


def selects(selector: Object | None, labels: dict[str, str]) -> bool:
    """A selector of labels; an empty one selects everything, and the chart has no expressions."""
    assert not (selector or {}).keys() - {"matchLabels"}, "not understood here"
    return ((selector or {}).get("matchLabels") or {}).items() <= labels.items()


def from_here(rule: Object, peer: Peer, namespace: str) -> bool:
    sources = rule.get("from")
    if not sources:
        return True
    return any(
        selects(each.get("podSelector"), peer.labels)
        and (
            selects(each["namespaceSelector"], NAMESPACES[peer.namespace])
            if "namespaceSelector" in each
            else peer.namespace == namespace
        )
        for each in sources
    )


def reaches(objects: Sequence[Object], peer: Peer, target: Peer, port: int) -> bool:
    """Whether some policy that selects `target` lets the connection through, or none selects it."""
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    here = [each["spec"] for each in policies if each["metadata"]["namespace"] == target.namespace]
    selecting = [spec for spec in here if selects(spec["podSelector"], target.labels)]
    assert all(spec["policyTypes"] == ["Ingress"] for spec in selecting)
    ports: list[Any] = [port, PORTS.get(port)]
    return not selecting or any(
        from_here(rule, peer, target.namespace)
        and (not rule.get("ports") or any(each["port"] in ports for each in rule["ports"]))
        for spec in selecting
        for rule in spec.get("ingress") or ()
    )


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    scrape = "controller.networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name"
    return rendered(
        "controller.networkPolicy.enabled=true", f"{scrape}=monitoring", "pods.networkPolicy.namespaces={ml,research}"
    )


def controller(objects: Sequence[Object]) -> Peer:
    (found,) = [each for each in objects if each["kind"] == "Deployment"]
    return Peer(SYSTEM, found["spec"]["template"]["metadata"]["labels"])


@pytest.mark.parametrize(
    ("port", "may"), [(9443, {TRAINS.namespace, OTHER_TRAINS.namespace}), (8080, {SCRAPES.namespace}), (22, set())]
)
def test_the_controllers_ports(objects: list[Object], port: int, may: set[str]) -> None:
    target = controller(objects)
    for peer in (TRAINS, OTHER_TRAINS, PLAIN, SCRAPES):
        wanted = peer.namespace in may and peer is not PLAIN
        assert reaches(objects, peer, target, port) == wanted, (peer, port)


@pytest.mark.parametrize("port", [names.MESH_PORT, names.MASTER_PORT, 41234], ids=["sidecar", "rendezvous", "gloo"])
def test_the_ports_of_training_pods(objects: list[Object], port: int) -> None:
    assert reaches(objects, TRAINS, TRAINS, port)
    for peer in (OTHER_TRAINS, PLAIN, SCRAPES, controller(objects)):
        assert not reaches(objects, peer, TRAINS, port), peer


def test_other_pods_are_left_alone(objects: list[Object]) -> None:
    assert reaches(objects, OTHER_TRAINS, PLAIN, 80) and reaches(objects, PLAIN, SCRAPES, 9090)


def test_every_port_of_the_chart_and_of_the_pods_is_looked_at(objects: list[Object]) -> None:
    containers = [
        c for each in objects if each["kind"] == "Deployment" for c in each["spec"]["template"]["spec"]["containers"]
    ]
    assert {port["containerPort"]: port["name"] for c in containers for port in c["ports"]} == PORTS


def test_without_the_values_nothing_is_closed() -> None:
    assert not [each for each in rendered() if each["kind"] == "NetworkPolicy"]
