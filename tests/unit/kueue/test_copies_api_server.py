"""Copies of what a real API server has: parts of a list, events, and rights that are missing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from api_server import ApiServer
from waits import until

from kueue_integration.controller import kept
from kueue_integration.controller.informer import Informer
from kueue_integration.controller.machines.nodes import Nodes
from kueue_integration.errors import AlreadyExists, Forbidden
from kueue_integration.kube.resources import NODE, Kind, Object

LISTER = "tenant"
"""Who may list nodes, and no more."""
MANY, LARGE = 90, 200_000
"""Nodes, and the characters in an annotation of each: together more than one part of a list may have."""
RBAC = "rbac.authorization.k8s.io"


def node(name: str, padding: int = 0) -> Object:
    meta = {"name": name, "labels": {"copies": "yes"}, "annotations": {"example.com/padding": "x" * padding}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta}


@pytest.fixture(scope="module")
def nodes(server: ApiServer) -> Iterator[ApiServer]:
    kube, made = server.kube(), [f"copies-{n}" for n in range(MANY)]
    for name in made:
        kube.create(node(name, LARGE))
    yield server
    for name in made:
        kube.delete(NODE, None, name)


def test_a_list_of_large_objects_is_kept_small_and_followed(nodes: ApiServer) -> None:
    kube = nodes.kube()
    parts = [len(found) for found, _ in kube.pages(NODE, selector="copies=yes")]
    assert sum(parts) == MANY and len(parts) > 2 and max(parts) < MANY
    seen: list[tuple[str, bool]] = []
    copy = Informer(kube, NODE, lambda obj, gone: seen.append((obj["metadata"]["name"], gone)), keep=kept.node)
    copy.start()
    try:
        until(copy.synced.is_set, "the nodes are listed")
        names = {f"copies-{n}" for n in range(MANY)}
        assert names <= {n["metadata"]["name"] for n in copy.all()}
        assert all("example.com/padding" not in n["metadata"].get("annotations", {}) for n in copy.all())
        kube.patch(NODE, None, "copies-3", {"spec": {"unschedulable": True}})
        until(lambda: (copy.get("", "copies-3") or {})["spec"].get("unschedulable"), "a node is cordoned")
        kube.create(node("copies-late"))
        until(lambda: copy.get("", "copies-late"), "a node has come")
        kube.delete(NODE, None, "copies-late")
        until(lambda: ("copies-late", True) in seen and not copy.get("", "copies-late"), "it has gone")
    finally:
        copy.stop()


def test_who_may_list_nodes_and_not_watch_them_still_sees_them(nodes: ApiServer) -> None:
    """As in a cluster whose roles are those of the release before."""
    rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
    subject = {"kind": "User", "apiGroup": RBAC, "name": LISTER}
    about = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "lists-nodes"}
    lister = Nodes(nodes.kube(LISTER))
    with pytest.raises(Forbidden):
        lister.all()
    lister.stop()
    for kind, body in (
        ("ClusterRole", {"rules": [rule]}),
        ("ClusterRoleBinding", {"roleRef": about, "subjects": [subject]}),
    ):
        path = Kind(kind, RBAC, "v1", f"{kind.lower()}s", False).path(None)
        with contextlib.suppress(AlreadyExists):
            nodes.kube()._json("POST", path, body={"metadata": {"name": "lists-nodes"}, **body})
    until(lambda: nodes.kube().allowed("list", NODE, None, user=LISTER), "the role is in force")
    lister = Nodes(nodes.kube(LISTER))
    assert len(lister.all()) >= MANY
    until(lambda: lister._informer and isinstance(lister._informer.error, Forbidden), "the watch is refused")
    assert len(lister.all()) >= MANY
    lister.stop()
