"""Nodes in racks and rows for the tests of affinity cells, and a description of two tenants."""

from __future__ import annotations

from kueue_integration.kube.resources import Object

ROW, RACK, HOST = "example.com/row", "example.com/rack", "kubernetes.io/hostname"
LEVELS = (ROW, RACK, HOST)
TEXT = """
name: lab
levels:
  - {name: row, label: example.com/row}
  - {name: rack, label: example.com/rack}
  - {name: node, label: kubernetes.io/hostname}
resources: [cpu, nvidia.com/gpu]
tenants:
  - {name: vision, namespaces: [vision, vision-dev], cells: [{level: rack, count: 1}]}
  - {name: speech, cells: [{level: node, count: 2}]}
"""


def node(name: str, row: str, rack: str, *, ready: bool = True, cordoned: bool = False, **labels: str) -> Object:
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {ROW: row, RACK: rack, HOST: name, **labels}},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "allocatable": {"cpu": "64", "nvidia.com/gpu": "8", "memory": "1Ti"},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }  # fmt: skip


def hall(rows: int = 1, racks: int = 3, nodes: int = 2) -> list[Object]:
    """`r0-k1-n0` is the first node of the second rack of the first row."""
    return [
        node(f"r{row}-k{rack}-n{n}", f"r{row}", f"k{rack}")
        for row in range(rows) for rack in range(racks) for n in range(nodes)
    ]  # fmt: skip
