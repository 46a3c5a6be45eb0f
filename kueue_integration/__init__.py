"""Kueue side of the project: what a training job is, how it becomes Kubernetes objects, and the controller.

`spec`, `manifests`, `platform`, `classify` are pure; `jobs`, `status` and `controller` talk to Kubernetes; `cli` is
`singularityctl`. Nothing here may import airflow or torch, nor the proxy beyond `proxy.protocol`.
"""
