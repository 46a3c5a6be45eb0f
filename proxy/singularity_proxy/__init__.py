"""The device proxy: everything that runs inside a training pod.

`protocol`  names, messages and formats shared with the rest of the project (standard library only)
`agent`     injected into every rank's interpreter: step boundaries, communication teardown and rebuild
`launcher`  pid 1 of the training container: slots, CRIU, logs, exit codes (standard library only)
`sidecar`   the pod's coordinator: barrier, upload, download, commit; talks to the controller
`store`     content-addressed checkpoints in a folder or an object store

Nothing here may import airflow or kubernetes: pods have no Kubernetes API credentials.
"""
