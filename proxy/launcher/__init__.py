"""Pid 1 of the training container: slots, CRIU, logs, exit codes. Standard library only, Python 3.10 or newer.

`supervise`  the loop: ranks, commands of the sidecar, signals -> exit code     `client`   HTTP over the unix socket
`slot`       one rank's PID and mount namespace, seen from outside              `slotinit` pid 1 inside of it
`checkpoint` dump of the pod's ranks             `restore`  the way back        `criu`     the command lines, the errors
`image`      what travels with CRIU's images: work directory, sizes             `scan`     what /proc says about a rank
`sockets`    which of them can travel       `layer`    files of the container's own file system that travel
`mapped`     files of the image that the next pod must have
`halt`       everything in a slot stands still  `pagewords`  the barrier page of ranks without an agent
`torchrun`   ranks are started in its place
`rankenv`    environment and command of a rank   `tail`     logs to stdout      `signals`, `readout`, `mounts`, ...

Runs in the pod as `_singularity.launcher`. It knows nothing of the barrier, the store, the controller or Kubernetes:
the sidecar tells it what to do (`protocol.messages`: Plan, LauncherCommand), it tells the sidecar what happened.
"""
