"""The planner: policies look at the cluster and propose moves of jobs; one arbiter holds the limits. Pure.

A policy is a function from a `ClusterSnapshot` to proposals, each with its reason and the gain that it expects. The
`Arbiter` allows some of them and says why it does not allow the others. Kueue stays the only scheduler: what is allowed
is carried out by the requests that users can make too, by the controller (`controller.planning`).

Nothing here asks the cluster or writes to it.
"""
