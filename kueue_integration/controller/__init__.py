"""The controller: holds Kueue's preemption for a checkpoint, fences attempts, moves jobs back when quota is free.

The pure core decides and never touches the network. `snapshot` parses what one look sees. `decide` makes one action of
it, with the help of `hold`, `fence` and their like. `actions` says what guards each, `attempt_history` writes the
history. `checkpoint_fit` says which `machines` can go on. `planning` carries out what the planner's policies propose.

Around it: `informer`, `copies`, `cache`, `work_queue`, `reconciler` (events and workers), `look` (look, decide, read
again, apply), `apply` (writes), `lease` (who acts), `sidecar_api`.

All state lives in Kubernetes: annotations of the Job and the admission check of the Workload. A controller that is
killed at any line loses nothing. The program is `kueue_integration.serve`, which wires this package and `multikueue`.
Nothing else imports this package. A sentence for users never belongs here: it is made of values by who prints it.
"""
