"""A real Kubernetes with Kueue on one Linux machine, without Docker. Etcd, API server, controller manager, scheduler,
kube-proxy, CoreDNS, Kueue, and one containerd and kubelet per node run as plain processes.

`images` makes what a cluster runs, `namespaces` is where its processes live, `control_plane` and `nodes` say what they
are, `addons` what is installed afterwards. `start` puts them in order; `cluster` is what commands and tests call;
`demo` is the story that `make demo` plays.

Nothing here knows about training, checkpoints or Airflow, but `demo`: that is the Helm chart's business and the
packages' beside this one. Standard library only.
"""
