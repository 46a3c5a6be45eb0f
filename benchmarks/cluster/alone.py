"""An API server and Kueue and no more of a cluster: what a replay needs. Needs root, and parts of the local cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kueue_integration.kube.client import Kube
from kueue_integration.kube.credentials import connect
from kueue_integration.kube.resources import Object
from localcluster import cluster, registry
from localcluster.config import cache_dir
from localcluster.control_plane.kubectl import Kubectl, for_cluster
from localcluster.images import gobuild

Say = Callable[[str], None]


@dataclass(frozen=True)
class Alone:
    kube: Kube
    kubectl: Kubectl

    def apply(self, documents: Sequence[Object]) -> None:
        """Raises LocalClusterError."""
        self.kubectl.apply(documents)


@contextmanager
def kueue_alone(say: Say) -> Iterator[Alone]:
    """Gone afterwards. Its name is that of the benchmarks' cluster. Raises LocalClusterError."""
    name = os.environ.get("SINGULARITY_BENCH_CLUSTER", "bench")
    try:
        made = cluster.up(name, say, only="kueue")
        config = registry.find(name)
        assert config is not None  # `up` has just made it
        yield Alone(connect(str(made.kubeconfig)), for_cluster(config, gobuild.build_all(cache_dir(), say)))
    finally:
        cluster.down(name, say)
