"""The verbs for DAGs and for buttons: what `kueue_integration.requests.verbs` does, through an Airflow connection.

    from airflow_provider.verbs import JobVerbs

    verbs = JobVerbs("kubernetes_default")
    result = verbs.migrate("digits", flavor="spot")      # returns when it is asked for
    result = verbs.wait(result)                          # returns when it is done, or says why it is not

Every method returns a `Result` (a frozen dataclass: op, state, message, ...) and raises the errors of
`kueue_integration.errors`: RequestRefusedError and JobNotFoundError for what cannot be, KubeError for the cluster.
The name of the Job of a task is in its XCom `lineage`, and in its log.
"""

from __future__ import annotations

from collections.abc import Sequence

from kueue_integration.jobs import export, time_travel
from kueue_integration.jobs.export import Exported
from kueue_integration.jobs.time_travel import Forked
from kueue_integration.kube.api import Kube
from kueue_integration.requests import verbs
from kueue_integration.requests.verbs import Result

from . import cluster

__all__ = ["Exported", "Forked", "JobVerbs", "Result"]


class JobVerbs:
    """Blocking; for workers and the API server's threads.

    :param conn_id: Airflow connection of the cluster
    :param namespace: of the jobs; None: the connection's
    :param by: who asks, shown to users
    """

    def __init__(self, conn_id: str = "kubernetes_default", namespace: str | None = None, by: str = "airflow") -> None:
        self._conn_id = conn_id
        self._namespace = namespace
        self._by = by
        self._connected: tuple[Kube, str] | None = None

    def _where(self) -> tuple[Kube, str]:
        if self._connected is None:
            kube, default = cluster.connect(self._conn_id)
            self._connected = kube, self._namespace or default
        return self._connected

    def resize(self, job: str, workers: int, min_workers: int | None = None, lose_work: bool = False) -> Result:
        """Change the number of pods; see `kueue_integration.requests.verbs.resize`."""
        return verbs.resize(*self._where(), job, workers, min_workers, by=self._by, lose_work=lose_work)

    def migrate(
        self,
        job: str,
        flavor: str | None = None,
        away_from_node: str | None = None,
        anywhere: bool = False,
        lose_work: bool = False,
    ) -> Result:
        """Move to a flavor or away from a node; see `kueue_integration.requests.verbs.migrate`."""
        kube, namespace = self._where()
        return verbs.migrate(kube, namespace, job, flavor, away_from_node, anywhere, self._by, lose_work)

    def checkpoint(self, job: str, timeout_s: float | None = None) -> Result:
        """Save a checkpoint of a running job, which goes on."""
        return verbs.checkpoint(*self._where(), job, timeout_s, by=self._by)

    def pause(self, job: str, lose_work: bool = False) -> Result:
        """Stop with a checkpoint and give the quota back; see `kueue_integration.requests.verbs.pause`."""
        return verbs.pause(*self._where(), job, by=self._by, lose_work=lose_work)

    def resume(self, job: str) -> Result:
        """Queue a paused job again."""
        return verbs.resume(*self._where(), job, by=self._by)

    def rewind(self, job: str, checkpoint: str) -> Result:
        """Go on from an older checkpoint of the job; see `kueue_integration.jobs.time_travel.rewind`."""
        return time_travel.rewind(*self._where(), job, checkpoint, by=self._by)

    def fork(
        self,
        job: str,
        new: str,
        checkpoint: str | None = None,
        queue: str | None = None,
        priority_class: str | None = None,
        command: Sequence[str] = (),
    ) -> Forked:
        """Create job `new`, which goes on from a checkpoint of `job`; see `kueue_integration.jobs.time_travel.fork`.

        :param command: what its ranks run instead of the command of `job`; for the state engine alone
        """
        return time_travel.fork(*self._where(), job, new, checkpoint, queue, priority_class, command=command)

    def export(
        self,
        job: str,
        output: str,
        format: str,
        checkpoint: str | None = None,
        only: str = "",
        in_pod: bool = True,
        store: str | None = None,
        python: str = "",
        timeout_s: float = export.TIMEOUT_S,
    ) -> Exported:
        """Write a checkpoint of the state engine for another program, while the job goes on; see
        `kueue_integration.jobs.export`.

        :param output: a new path; of the pod, below one of the job's volumes, or of this machine
        :param format: `safetensors`, `torch`, `dcp`, `trainer` or `lightning`
        :param checkpoint: its id; None: the newest
        :param only: a first key of the state, such as `models`
        :param in_pod: in a pod with the job's image and volumes; else here, where `store` is reached
        :param python: a program that has torch, there
        :raises SpecError: bad input, or no such checkpoint; StoreSaidNo, PlatformError, KubeError
        """
        kube, namespace = self._where()
        found = export.stored(kube, namespace, job, checkpoint, store)
        wanted = export.Wanted(format, output, only, python)
        return export.in_pod(kube, found, wanted, timeout_s) if in_pod else export.here(found, wanted, timeout_s)

    def look(self, asked: Result) -> Result:
        """How far a request is now."""
        return verbs.look(self._where()[0], asked)

    def wait(self, asked: Result, timeout_s: float = 600.0) -> Result:
        """The end of a request. Raises RequestTimeoutError; the controller then goes on with it."""
        return verbs.wait(self._where()[0], asked, timeout_s)
