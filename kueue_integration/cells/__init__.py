"""Affinity cells: each tenant's quota is whole cells (nodes, racks, rows), as in a private cluster. After HiveD.

Source: HiveD (Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees", OSDI 2020). A quota that
only counts devices may be spread over many racks. Then a job that needs one rack waits, though its tenant's quota is
free. Cells are parts of the topology, so that cannot happen.

`description` is what a platform team writes. `tree` makes cells out of nodes, `buddy` hands them out, `binding` gives
each tenant its cells. `objects` makes Kueue's objects of that. `replay` checks the promise from history.

Nothing here places a job: Kueue and the scheduler do, by the objects that are made here.
"""
