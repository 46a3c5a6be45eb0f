"""The device proxy's sidecar: one per pod, `python -m proxy.sidecar` in a pod.

This package connects the controller, the launcher of this pod, the sidecars of the other pods, and the store. It has
the barrier's coordinator, the checkpoint state machine, upload and restore. Not here: code that runs in a rank
(`agent`) or needs the training container's privileges (`launcher`), and calls of the Kubernetes API.

    state_machine   pure: the checkpoint's state machine in the leader (pod 0)
    leader          its I/O shell; mesh: how followers reach it; pod: what every pod does with a directive
"""
