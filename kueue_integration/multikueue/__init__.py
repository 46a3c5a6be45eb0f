"""The manager's side of MultiKueue: a job keeps its checkpoint and its records when it moves between worker clusters.

Kueue copies the manager's Job into one worker cluster and deletes the copy when the job leaves it. The controller of
the worker does there what it does for every job, and writes what it knows on the copy. This package runs in the
manager's controller. It brings those records to the manager's Job, from where Kueue copies them into the next cluster.
It numbers the attempts, and lets one attempt at a time through the fences of the workers. See docs/multikueue.md.

`plan` decides and is pure; `clusters` are the connections; `reconciler` acts.

Nothing here decides about a job inside a worker cluster, or chooses the cluster: Kueue does.
"""
