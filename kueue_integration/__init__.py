"""Kueue side of the project: what a training job is, how it becomes Kubernetes objects, and the controller.

In layers, the lowest first: `kube` (the API), `contract` (what a Job carries), `spec` (what a user says), `manifests`
(the objects made from it). Then `requests` (what users ask of a job) and `jobs` (a job from outside). On them stand
`controller`, `multikueue`, `adoption`, `guard` and `doctor`. The programs are `cli` (`singularityctl`) and `serve` (the
controller). A layer imports those below it.
Nothing here may import airflow or torch, nor the proxy beyond `singularity_proxy.protocol`.
"""
