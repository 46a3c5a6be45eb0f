"""Affinity cells: buddy allocation is never worse than private cells, and what it makes for Kueue."""

from __future__ import annotations

import itertools

import pytest
from cells_scene import LEVELS, TEXT, hall, node
from hypothesis import given, settings
from hypothesis import strategies as st

from kueue_integration.cells import binding, description, look, objects
from kueue_integration.cells.binding import LABEL, SPARE, Binding
from kueue_integration.cells.buddy import Buddy
from kueue_integration.cells.tree import Cell, grown
from kueue_integration.errors import SpecError
from kueue_integration.kube.resources import Object


def cells(rows: int, racks: int, nodes: int) -> list[Cell]:
    labels = {n["metadata"]["name"]: n["metadata"]["labels"] for n in hall(rows, racks, nodes)}
    return grown(labels, LEVELS)[0]


def bound(nodes: list[Object], text: str = TEXT) -> Binding:
    there = look.read(nodes)
    return binding.bound(description.read(text), there.labels, there.broken)


# --- buddies --------------------------------------------------------------------------------------------------------
def test_a_cell_comes_from_the_smallest_one_and_large_ones_stay_whole():
    free = Buddy(cells(1, 3, 2))
    first = free.take(2)
    assert first is not None and first.path == ("r0", "k0", "r0-k0-n0")
    assert [cell.path[1:] for cell in free.free] == [("k0", "r0-k0-n1"), ("k1",), ("k2",)]
    assert free.take(2).node == "r0-k0-n1", "the other half of the rack that is split already"
    assert free.take(1).path == ("r0", "k1") and free.take(0) is None
    free.give(first)
    with pytest.raises(ValueError, match="is free already"):
        free.give(first)


def test_buddies_merge_when_all_of_them_are_back():
    free = Buddy(cells(2, 2, 2))
    taken = [free.take(2) for _ in range(4)]
    assert free.take(0) is not None and free.take(0) is None
    for cell in taken:
        assert cell is not None
        free.give(cell)
    assert [cell.path for cell in free.free] == [("r0",)] and free.take(0) is not None


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_tenants_within_their_cells_always_get_one_whatever_was_taken_and_given_back(data: st.DataObject):
    """HiveD, theorem 1: private cells that once fitted together can be had in any order, at any time."""
    shape = [data.draw(st.integers(1, 3)) for _ in range(3)]
    whole = Buddy(cells(*shape))
    quota: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for level in sorted(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))):
        if whole.take(level) is not None:  # it fits beside the others, the largest first
            quota[data.draw(st.sampled_from("abc"))].append(level)
    shared = Buddy(cells(*shape))
    held: dict[tuple[str, int], Cell] = {}
    private = [(tenant, number) for tenant, levels in quota.items() for number in range(len(levels))]
    for who in data.draw(st.lists(st.sampled_from(private), max_size=40)) if private else ():
        if who in held:
            shared.give(held.pop(who))
            continue
        got = shared.take(quota[who[0]][who[1]])
        assert got is not None, f"{who} would have had its cell in a private cluster"
        held[who] = got
    names = [name for cell in held.values() for name in cell.nodes]
    assert len(names) == len(set(names)), "no node is in two cells"
    for cell in held.values():
        shared.give(cell)
    assert [cell.path for cell in shared.free] == [cell.path for cell in cells(*shape)]


# --- binding --------------------------------------------------------------------------------------------------------
def test_each_tenant_gets_its_cells_and_the_rest_is_spare():
    made = bound(hall())
    assert [cell.path for cell in made.cells["vision"]] == [("r0", "k0")]
    assert sorted(made.nodes["speech"]) == ["r0-k1-n0", "r0-k1-n1"], "both of one rack: the third stays whole"
    assert [cell.path for cell in made.spare] == [("r0", "k2")]


def test_cells_that_a_tenant_has_stay_its_own_and_broken_nodes_are_left():
    nodes = hall()
    for one in nodes:
        if one["metadata"]["name"].startswith("r0-k2"):
            one["metadata"]["labels"][LABEL] = "lab-vision"
    assert bound(nodes).nodes["vision"] == ["r0-k2-n0", "r0-k2-n1"]
    nodes[-1]["spec"]["unschedulable"] = True
    moved = bound(nodes)
    assert moved.nodes["vision"] == ["r0-k0-n0", "r0-k0-n1"] and moved.left_out == {"r0-k2-n1": "it is cordoned"}
    assert "r0-k2-n0" in moved.nodes["speech"], "what is left of the rack serves single nodes first"


@pytest.mark.parametrize("also", ["node", "rack"])
def test_all_cells_of_a_tenant_stay_its_own_whatever_they_are_asked_with(also: str):
    """The nodes of its rack are no cells that it has beside the rack, and a rack is not had twice."""
    text = TEXT.replace("count: 1}", f"count: 1}}, {{level: {also}, count: 1}}", 1)
    nodes = hall(1, 4)
    own = ["r0-k0-n0", "r0-k0-n1", "r0-k3-n1", *(["r0-k3-n0"] if also == "rack" else [])]
    for one in nodes:
        if one["metadata"]["name"] in own:
            one["metadata"]["labels"][LABEL] = "lab-vision"
    again = bound(nodes, text)
    assert sorted(again.nodes["vision"]) == sorted(own)


def test_nodes_without_a_label_are_named():
    stray = node("stray", "r0", "")
    assert bound([*hall(), stray]).left_out == {"stray": "it has no label example.com/rack"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("count: 1", "count: 3"), "more node needed than there are; left: nothing"),
        (("level: rack", "level: hall"), "is no level; choose one of row, rack, node"),
        (("count: 2", "count: 0"), "count"),
        (("kubernetes.io/hostname", "example.com/node"), "the last level must have the label kubernetes.io/hostname"),
        (("name: speech", "name: vision"), "has the same one twice"),
        (("name: speech", "name: spare"), "is the name for cells of nobody"),
        (("cells: [{level: node, count: 2}]", "cells: []"), "name one cell at least"),
        (("resources: [cpu, nvidia.com/gpu]", "resources: []"), "name each resource once"),
        (("name: lab", "name: The Lab"), "a DNS label"),
        (("name: lab", "nmae: lab"), "nmae"),
        (("name: lab", "name: [lab"), "is not YAML"),
        (("level: rack, count: 1", "level: rack, count: 1, nodes: 7"), "no rack has so many nodes; there are [2]"),
    ],
)
def test_bad_descriptions_are_named_before_anything_is_made(change: tuple[str, str], words: str):
    with pytest.raises(SpecError) as found:
        bound(hall(), TEXT.replace(*change, 1))
    assert words in str(found.value)


def test_cells_of_several_sizes_must_be_told_apart():
    uneven = [*hall(1, 1, 2), node("big-0", "r0", "k9"), node("big-1", "r0", "k9"), node("big-2", "r0", "k9")]
    with pytest.raises(SpecError, match=r"cells of level rack have \[2, 3\] nodes; say which are meant"):
        bound(uneven)
    made = bound(uneven, TEXT.replace("count: 1", "count: 1, nodes: 3"))
    assert made.nodes["vision"] == ["big-0", "big-1", "big-2"]


# --- objects --------------------------------------------------------------------------------------------------------
def manifests(text: str = TEXT) -> dict[tuple[str, str], Object]:
    there = look.read(hall())
    said = description.read(text)
    made = objects.manifests(said, bound(hall(), text), there.capacity)
    return {(m["kind"], f"{m['metadata'].get('namespace', '')}/{m['metadata']['name']}"): m for m in made}


def test_a_tenant_s_queue_has_its_cells_first_and_borrows_the_others():
    made = manifests()
    spec = made["ClusterQueue", "/lab-speech"]["spec"]
    (group,) = spec["resourceGroups"]
    quota = {f["name"]: {r["name"]: r["nominalQuota"] for r in f["resources"]} for f in group["flavors"]}
    assert [*quota] == ["lab-speech", "lab-spare", "lab-vision"]
    assert quota["lab-speech"] == {"cpu": "128", "nvidia.com/gpu": "16"}
    assert quota["lab-vision"] == quota["lab-spare"] == {"cpu": "0", "nvidia.com/gpu": "0"}
    assert spec["flavorFungibility"]["whenCanPreempt"] == "MayStopSearch"
    assert spec["preemption"]["reclaimWithinCohort"] == "Any" and spec["cohortName"] == "lab"
    spare = made["Cohort", "/lab"]["spec"]["resourceGroups"][0]["flavors"][0]
    assert spare["name"] == "lab-spare" and spare["resources"][0]["nominalQuota"] == "128"
    levels = made["Topology", "/lab"]["spec"]["levels"]
    assert [level["nodeLabel"] for level in levels] == [*LEVELS]
    assert made["ResourceFlavor", "/lab-vision"]["spec"] == {
        "nodeLabels": {LABEL: "lab-vision"}, "topologyName": "lab",
    }  # fmt: skip
    assert made["Node", "/r0-k0-n1"]["metadata"]["labels"] == {LABEL: "lab-vision"}
    assert {key for key in made if key[0] == "LocalQueue"} == {
        ("LocalQueue", "vision/vision"), ("LocalQueue", "vision-dev/vision"),
    }  # fmt: skip


def test_without_lending_there_is_no_cohort_and_only_the_own_flavor():
    made = manifests(TEXT.replace("resources:", "lend: false\nresources:"))
    assert not [key for key in made if key[0] == "Cohort" or key[1].endswith("spare")]
    for name in ("vision", "speech"):
        spec = made["ClusterQueue", f"/lab-{name}"]["spec"]
        assert "cohortName" not in spec and len(spec["resourceGroups"][0]["flavors"]) == 1


def test_no_node_is_in_two_cells_and_all_quota_is_on_nodes():
    made = bound(hall(2, 3, 4), TEXT.replace("count: 1", "count: 4"))
    names = list(itertools.chain.from_iterable(made.nodes.values()))
    assert len(names) == len(set(names)) == 24 and {*made.nodes} == {"vision", "speech", SPARE}
