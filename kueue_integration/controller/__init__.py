"""The controller: holds Kueue's preemption for a checkpoint, fences attempts, moves jobs back when quota is free.

The pure core decides and never touches the network: `views` reads objects, `attempt_history` writes the history,
`decide` the hold and the fence, `regrow` what may grow again, `fit` which nodes can go on. Around it: `informer`,
`cache`, `work_queue`, `reconciler` (looks and acts), `apply` (writes), `lease` (who acts), `sidecar_api`, `__main__`.

All state lives in Kubernetes: annotations of the Job and the admission check of the Workload. A controller that is
killed at any line loses nothing. Only `multikueue`, which runs in this process, imports this package.
"""
