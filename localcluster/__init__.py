"""A real Kubernetes with Kueue on one Linux machine, without Docker: etcd, API server, controller manager, scheduler,
kube-proxy, CoreDNS, Kueue, and one containerd and kubelet per node, as plain processes.

`config`, `registry`, `pki`, `control_plane`, `node`, `addons`, `chart` say what a cluster is (mostly pure);
`cache`, `build`, `rootfs`, `images` make what it runs; `sandbox` and `processes` run it; `cluster` puts them in order.

Nothing here knows about training, checkpoints or Airflow: that is the Helm chart's business and the packages' beside
this one. Standard library only.
"""
