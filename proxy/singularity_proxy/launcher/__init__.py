"""Pid 1 of the training container: slots, CRIU, logs, exit codes. Standard library only; runs in a Python of our own.

`supervise`  the loop: ranks, commands of the sidecar, signals -> exit code     `client`  HTTP over the unix socket
`tools`      what runs with capabilities, and where it comes from               `verdict` when it ends, with which code
`pagewords`  the barrier page of ranks without an agent                         `paths`   where things lie in the pod

ranks/       slots: a rank's namespaces, environment, user, rights              `slot_init` is pid 1 in a slot
snapshot/    `rank_dump`, `restore`: CRIU, and what travels beside its images
output/      what ranks print: copied, limited, read for progress
device/      what ranks hold on GPUs

Runs in the pod as `_singularity.launcher`. It knows nothing of the barrier, the store, the controller or Kubernetes:
the sidecar sends it commands (`protocol.messages`: Plan, LauncherCommand), and it reports events to the sidecar.
"""
