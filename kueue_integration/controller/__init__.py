"""The controller: holds Kueue's preemption for a checkpoint, fences attempts, moves jobs back when quota is free.

The pure core decides and never touches the network: `views` reads objects, `records` writes the history, `decide` the
hold and the fence, `planner` the regrowth, `inbox` what a pod's message does to its Job. Around it: `informer`,
`workqueue`, `reconciler` (acts), `lease` (who acts), `api` (answers the pods), `__main__`.

All state lives in Kubernetes: annotations of the Job and the admission check of the Workload. A controller that is
killed at any line loses nothing. Only `multikueue`, which runs in this process, imports this package.
"""
