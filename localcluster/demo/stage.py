"""A cluster with an Airflow on it: what the demo and the end-to-end tests play on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from kueue_integration.kube.client import Kube
from kueue_integration.kube.credentials import connect
from kueue_integration.spec.platform_config import NODE, PlatformConfig, load
from localcluster import cluster as local
from localcluster import host, registry
from localcluster.addons.chart import QUOTAS
from localcluster.control_plane.kubectl import Kubectl
from localcluster.namespaces import sandbox

from .airflow import Airflow
from .evidence import collect, show
from .wait import wait_for

CHECKOUT = Path(__file__).resolve().parents[2]
DAGS = CHECKOUT / "dags"
NAMESPACE = "default"
SEEN_S = 120.0

T = TypeVar("T")


class Stage:
    """Cluster `name` and one Airflow. What was up before `up` is left up by `close`.

    `privileges`: the chart's `pods.privileges`; "": its default."""

    def __init__(
        self,
        name: str,
        say: Callable[[str], None],
        dags: Path = DAGS,
        airflow_env: Mapping[str, str] = MappingProxyType({}),
        privileges: str = "",
    ) -> None:
        self.name = name
        self.say = say
        self._privileges = privileges
        self._dags = dags
        self._airflow_env = dict(airflow_env)
        self._cluster: local.Cluster | None = None
        self._was_up = False
        self._started = False
        self._airflow: Airflow | None = None
        self._kube: Kube | None = None
        self._platform: PlatformConfig | None = None

    def up(self, with_airflow: bool = True) -> None:
        """Cluster (idempotent) and, if wanted, a fresh Airflow, side by side. Raises LocalClusterError."""
        host.check_root()
        known = registry.find(self.name)
        self._was_up = known is not None and sandbox.find(known) is not None
        self._started = True
        place = local.describe(registry.allocate(self.name))
        with ThreadPoolExecutor(max_workers=1) as pool:
            booting = pool.submit(self._start, place) if with_airflow else None
            try:
                self._cluster = local.up(
                    self.name, progress=lambda text: self.say(unstamped(text)), privileges=self._privileges
                )
                if booting is not None:
                    booting.result()
            except BaseException:
                self.stop_airflow()  # at whatever point of its start it is
                raise
        self._kube = connect(str(self._cluster.kubeconfig))
        # Until the controller has seen the nodes, `auto` gives no user namespace.
        wait_for(lambda: self._settled(), "the controller has published what the nodes can", SEEN_S)

    def _settled(self) -> bool:
        self.look_again()
        return self.platform.privileges == NODE or QUOTAS.keys() <= self.platform.user_namespaces.keys()

    def look_again(self) -> None:
        """Read what the platform says of itself: also after another release of it was there, which has other keys."""
        self._platform = load(self.kube)

    def _start(self, place: local.Cluster) -> None:
        started = time.monotonic()
        airflow = self._airflow = Airflow(
            home=place.root / "airflow",
            dags=self._dags,
            kubeconfig=place.kubeconfig,
            extra_env={"SINGULARITY_SHARED_DIR": str(place.shared), **self._airflow_env},
        )
        self.say("Airflow: starting api-server, scheduler, dag-processor, triggerer")
        airflow.start()
        self.say(f"Airflow: healthy after {time.monotonic() - started:.1f} s, {airflow.url}")

    @property
    def cluster(self) -> local.Cluster:
        return _there(self._cluster)

    @property
    def kube(self) -> Kube:
        return _there(self._kube)

    @property
    def kubectl(self) -> Kubectl:
        """For kinds that `kube` does not know."""
        return Kubectl(_there(registry.find(self.name)), str(self.cluster.kubectl))

    @property
    def platform(self) -> PlatformConfig:
        return _there(self._platform)

    @property
    def airflow(self) -> Airflow:
        return _there(self._airflow)

    def where(self) -> str:
        """Where a person can look while it runs."""
        command = f"KUBECONFIG={self.cluster.kubeconfig} {self.cluster.kubectl} get workloads,jobs,pods -A"
        if self._airflow is None:
            return f"look at the cluster: {command}"
        return (
            f"look at Airflow: {self.airflow.url} (no login is asked for, it listens on this machine only)\n"
            f"look at the cluster: {command}"
        )

    def save_evidence(self, target: Path, namespace: str = NAMESPACE) -> None:
        """Copy the logs of everything that is up to `target` and print the useful ends."""
        known = registry.find(self.name)
        collect(self._kube, self._airflow, namespace, known.logs if known else None, target)
        show(target, self.say)

    def stop_airflow(self) -> None:
        if self._airflow is not None:
            self._airflow.stop()
            self._airflow = None

    def close(self, keep: bool = False) -> None:
        """Take down what `up` started; with `keep` say how to do it later."""
        if keep:
            if self._kube is not None:
                self.say(f"{self.where()}\nit stays up; stop it with: singularityctl local down --name {self.name}")
            return
        try:
            self.stop_airflow()
        finally:
            if self._started and not self._was_up:
                local.down(self.name, progress=lambda text: self.say(unstamped(text)))
        self._cluster = None


def unstamped(text: str) -> str:
    """A line of the local cluster without its own clock."""
    return "cluster: " + re.sub(r"^\[ *[0-9.]+ s\] ", "", text)


def _there(value: T | None) -> T:
    if value is None:
        raise RuntimeError("Stage.up() comes first, with what is asked for here")
    return value
