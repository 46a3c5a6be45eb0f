"""Kueue side of the project: what a training job is, how it becomes Kubernetes objects, and the controller.

Pure: `spec` and its `rules`, `quantities`, `manifests` and `pod`, `resources`, `records`, `classify`. With I/O: `kube`
(the facade over the API; `k8s` is the real one, `fake` its twin for tests), `platform`, `checks`, `jobs`, `status`,
`controller`; `cli` is `singularityctl`. Nothing here may import airflow or torch, nor the proxy beyond
`proxy.protocol`.
"""
