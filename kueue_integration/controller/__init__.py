"""The controller: holds Kueue's preemption for a checkpoint, fences attempts, moves jobs back when quota is free.

The pure core decides and never touches the network. `snapshot` parses what one look sees. `decide` makes one action of
it, with the help of `hold`, `fence` and their like. `actions` says what guards each, `attempt_history` writes the
history. `planning` carries out what the planner's policies propose, `fit` which nodes can go on.

Around it: `informer`, `copies`, `cache`, `work_queue`, `reconciler` (events and workers), `look` (look, decide, read
again, apply), `apply` (writes), `lease` (who acts), `sidecar_api`, `__main__`.

All state lives in Kubernetes: annotations of the Job and the admission check of the Workload. A controller that is
killed at any line loses nothing. Only `multikueue`, which runs in this process, imports this package.
"""
