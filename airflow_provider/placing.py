"""The placing of a task's Job: the one that is there is adopted, or a new one is made. Blocking, in a worker."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kueue_integration.contract.progress_objects import shown
from kueue_integration.errors import KubeError
from kueue_integration.jobs import preflight
from kueue_integration.jobs.status import summarise
from kueue_integration.jobs.time_travel import Start
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import JOB, is_true
from kueue_integration.spec import engine, platform_config

from . import cluster, compat, ending, start_point, submission
from .compat import AirflowException, AirflowRescheduleException
from .exceptions import ClusterUnreachableError, KilledError, SingularityProviderError
from .identity import DEPLOYMENT, Claim, Decision, Look, TaskKey, Try
from .lineage import document
from .logplace import PLACE_KEY, START
from .memory import (
    MANIFEST_KEY,
    OUTAGE_KEY,
    STORE_KEY,
    Remembered,
    add_past,
    cleared_try,
    lasts,
    outcome,
    remember,
    remembered,
    server_id,
    store_of,
    write_down,
)
from .outcome import for_good
from .triggers import USER_STATES

RETRY_AFTER_S = 30.0
REMOVE_WAIT_S = 60.0
ORIGIN_WAIT_S = 20.0
"""How long the controller may take to see with what a new Job begins; it looks within a second or two."""
_GONE_FOR_GOOD = (
    f"that cluster is gone for good, remove {STORE_KEY!r} from the task's state store (tab Storage) and clear the task"
)


class Placing:
    """Mixin of the operator: what happens before its task defers."""

    log: Any
    name: str | None
    namespace: str | None
    task_id: str
    kubernetes_conn_id: str
    start_from: str | None
    checkpoint_every: str | float | None
    wait: bool
    get_logs: bool
    preemption_alert: int | None
    api_outage_tolerance: datetime.timedelta
    manifest: str | None
    shown_job: dict[str, str] | None
    get_dag: Any
    _kill_requested: bool

    def _failure(self, event: Mapping[str, Any]) -> AirflowException:
        raise NotImplementedError

    def _place(self, context: Any) -> tuple[Claim, dict[str, Any] | None]:
        """The claim on a Job that is there to be waited for, and its last event if an adopted one has succeeded
        already."""
        ti = context["ti"]
        key = TaskKey.of(ti)
        store = store_of(context)
        now = Try(ti.try_number, ti.max_tries, compat.clear_number(context), cleared_try(store))
        past = remembered(store, key)
        record = past.claim
        goes_on = self._goes_on and (record is None or not now.cleared_since(record.made_by))
        kept = self._kept(store, now, record)
        if record is not None and kept is not None:
            return record, kept
        keep = bool(start_point.asked(self.start_from)) and not self._goes_on
        look = Look(
            key, now, self.name or self.task_id, self._deployment() if record is None else record.deployment,
            remembers=lasts(store), at=compat.due_at(context), keeps=keep, detached=not self.wait,
        )  # fmt: skip
        kube, default_namespace = cluster.connect(self.kubernetes_conn_id)
        namespace = self.namespace or default_namespace
        away = []
        made_with = past.conn_id or self.kubernetes_conn_id
        if record is not None and (made_with, record.namespace) != (self.kubernetes_conn_id, namespace):
            away = self._leave(store, look, record, made_with, namespace)
            past = past._replace(server="")  # it has been looked for where it was made
            kube, default_namespace = cluster.connect(self.kubernetes_conn_id)
            namespace = self.namespace or default_namespace
        owned = submission.owned_jobs(kube, namespace, key, {look.deployment})
        if not owned:
            self._require_same_server(store, past, kube.server)
        decision = look.decide(namespace, owned, record)
        self.log.info("%s", decision.why[0].upper() + decision.why[1:])
        for former in owned:
            if not decision.adopt or former["metadata"]["uid"] != decision.claim.uid:
                add_past(store, document(summarise(shown(kube, former), kube.get_workload_for_job(former), ())))
        # An earlier try that died before it wrote the uid down may have left the Job without its Service and files.
        # Where nothing is written down that lasts, every Job that is adopted may be such a one.
        unfinished = record is not None and record.uid is None
        if store is not None and not lasts(store) and decision.adopt:
            unfinished = not any(each["metadata"]["uid"] == decision.claim.uid and ending.over(each) for each in owned)
        spec = None
        if unfinished or not decision.adopt:
            spec = submission.build_spec(self, decision.claim, self._dag_file())
        self._make_room(kube, decision, keep or goes_on)
        claim = decision.claim
        if spec is not None:
            config = preflight.of_queue(kube, platform_config.load(kube), spec.namespace, spec.queue)
            self.manifest = submission.manifest(spec, config)
            start = None
            if not decision.adopt:
                start, told = start_point.choose(kube, store, self.start_from, claim, spec, config, away)
                for line in told:
                    self.log.info("%s", line)
                remember(store, claim, self.kubernetes_conn_id, kube.server)  # not before: it leads to `away`
            done = submission.submit(kube, spec, config, None if start is None else start.origin)
            claim = replace(claim, namespace=done.namespace, name=done.name, uid=done.uid)
            size = (
                f"{spec.workers} pods"
                if spec.fewest_workers == spec.workers
                else (f"{spec.fewest_workers} to {spec.workers} pods")
            )
            given = engine.chosen(spec)
            self.log.info(
                "Job %s/%s submitted to queue %s: %s, %s ranks; engine %s: %s",
                claim.namespace,
                claim.name,
                spec.queue,
                size,
                spec.ranks,
                given.name,
                given.why,
            )
        remember(store, claim, self.kubernetes_conn_id, kube.server)
        for name in submission.tidy(kube, claim, owned, ORIGIN_WAIT_S):
            self.log.info("Job %s stays until the controller has seen that Job %s begins with it", name, claim.name)
        if store is not None:
            store.delete(OUTAGE_KEY)
            if self.manifest is None:
                self.manifest = store.get(MANIFEST_KEY)
            else:
                self.manifest = compat.masked(self.manifest)  # every viewer of the task may read the store
                write_down(store, MANIFEST_KEY, self.manifest)
        self._end_if_unwanted(kube, ti, claim)
        self.shown_job = {"namespace": claim.namespace, "name": claim.name, "uid": str(claim.uid)}
        ti.xcom_push(key="job", value=dict(self.shown_job))
        if self.get_logs:
            ti.xcom_push(key=PLACE_KEY, value=START)
        job = kube.find(JOB, claim.namespace, claim.name) if decision.adopt else None
        if job is not None and is_true(job, "Complete"):
            lineage = document(summarise(shown(kube, job), kube.get_workload_for_job(job), ()), self.preemption_alert)
            reference = {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid}
            return claim, {"status": "success", "message": "finished already", "job": reference, "lineage": lineage}
        return claim, None

    def _kept(self, store: Any, now: Try, record: Claim | None) -> dict[str, Any] | None:
        """The event that ended the current Job in a try whose worker was lost afterwards. Not if a retry is to train
        again, as after a failure, or if a user wants that, by a clear."""
        if record is None or record.uid is None or now.cleared_since(record.made_by):
            return None
        event = outcome(store, record.uid)
        if event is None or (event["status"] != "success" and not for_good(self._failure(event))):
            return None
        self.log.info("An earlier try has seen the end of Job %s already, and was lost afterwards", record.name)
        return event

    def _deployment(self) -> str:
        found = compat.variable(DEPLOYMENT) or ""
        if not found:
            self.log.warning(
                "There is no Variable %s, which Airflow's scheduler makes when it is started with this package: an "
                "Airflow without it that has a Dag, run and task of these names would take the Job for its own",
                DEPLOYMENT,
            )
        return found

    @property
    def _goes_on(self) -> bool:
        """Whether a retry begins with a checkpoint of the try before."""
        return start_point.of_the_last_try(self.start_from, self.checkpoint_every)

    def _dag_file(self) -> str | None:
        dag = self.get_dag()
        return None if dag is None else dag.fileloc

    def _leave(self, store: Any, look: Look, record: Claim, made_with: str, namespace: str) -> list[Start]:
        """Connection or namespace is another one than that of the try before: what runs there is adopted there, or ends
        there. Returns what it came to, with the checkpoints that it leaves there.

        Raises SingularityProviderError: that cluster cannot be asked, and may run the Job.
        """
        wanted = self.kubernetes_conn_id
        name = f"{record.namespace}/{record.name}"
        where = f"Job {name} was made with connection {made_with!r}, the task has {wanted!r} now"
        if made_with == wanted:
            where = f"Job {record.name} is in namespace {record.namespace}, the task has {namespace} now"
        fix = f"make it answer, or, if {_GONE_FOR_GOOD}"
        try:
            kube, _ = cluster.connect(made_with)
            owned = submission.owned_jobs(kube, record.namespace, look.key, {look.deployment})
            decision = look.decide(record.namespace, owned, record)
            if decision.adopt:
                self.log.warning("%s: the Job is there, and is adopted there", where)
                self.kubernetes_conn_id, self.namespace = made_with, record.namespace
                return []
            for former in owned:
                add_past(store, document(summarise(shown(kube, former), kube.get_workload_for_job(former), ())))
            self._make_room(kube, decision, look.keeps)
            kept = start_point.left(submission.owned_jobs(kube, record.namespace, look.key, {look.deployment}))
        except KubeError as error:
            text = f"{where}, and the cluster of {made_with!r} does not say whether it runs there: {error}"
            if error.transient:
                raise type(error)(f"{text}; {fix}", error.status, error.reason) from error
            raise SingularityProviderError(f"{text}; {fix}") from error
        except AirflowRescheduleException:
            raise
        except Exception as error:  # of the hook: the connection is gone, or cannot be read
            raise SingularityProviderError(f"{where}, and {made_with!r} cannot be used: {error}; {fix}") from error
        self.log.info("%s: nothing of the task runs there any more", where)
        return kept

    def _require_same_server(self, store: Any, past: Remembered, url: str) -> None:
        """The Job is not there: raises SingularityProviderError if that may be because the connection leads elsewhere
        now, and nobody has seen the Job's end."""
        job, here = past.claim, server_id(url)
        if job is None or job.uid is None or past.server in ("", here) or not here or outcome(store, job.uid):
            return
        raise SingularityProviderError(
            f"Job {job.namespace}/{job.name} was made at another API server than the one to which connection "
            f"{self.kubernetes_conn_id!r} leads now, and may run there: make the connection lead there again, or, if "
            f"{_GONE_FOR_GOOD}"
        )

    def _make_room(self, kube: Kube, decision: Decision, keep: bool) -> None:
        """Give up what this try replaces, and come back later if that takes long.

        :param keep: the new Job may begin with a checkpoint of it, so that it must stay to be found
        """
        for name, _ in decision.remove:
            self.log.info("Ending Job %s, which this try replaces, and waiting for its pods to end", name)
        namespace = decision.claim.namespace
        left = submission.remove(kube, namespace, decision.remove, REMOVE_WAIT_S, lambda: self._kill_requested, keep)
        if left:
            self.log.info("Still ending: %s; trying again in %.0f s", ", ".join(left), RETRY_AFTER_S)
            raise _later()

    def _ride_out(self, context: Any, error: KubeError) -> None:
        """Raise AirflowRescheduleException, which uses no retry, unless the outage has lasted too long."""
        store = store_of(context)
        if store is None:
            return
        known = store.get(OUTAGE_KEY) if lasts(store) else compat.first_look(context)
        since = float(known or time.time())
        if time.time() - since > self.api_outage_tolerance.total_seconds():
            store.delete(OUTAGE_KEY)
            raise ClusterUnreachableError(
                f"The Kubernetes API has not answered for {self.api_outage_tolerance}: {error}"
            ) from error
        if lasts(store):
            store.set(OUTAGE_KEY, since)
        self.log.warning("The Kubernetes API does not answer, trying again in %.0f s: %s", RETRY_AFTER_S, error)
        raise _later() from error

    def _end_if_unwanted(self, kube: Kube, ti: Any, claim: Claim) -> None:
        """Delete the Job and raise KilledError if a user has ended or cleared the task while it was submitted.

        Airflow tells a worker of that with its next heartbeat, seconds later. It does not accept a deferral before
        that, because nobody would be left to delete the Job.
        """
        try:
            state = compat.task_state(ti)
        except Exception as error:
            self.log.warning("Airflow does not say whether the task is still wanted (%s): it is", error)
            return
        cleared = state == "restarting" or (state is None and self._kill_requested)
        if state not in USER_STATES and not cleared:
            if self._kill_requested:
                self.log.info("The worker is being stopped, the task is %s: Job %s goes on", state, claim.name)
            return
        became = ending.give_up(kube, claim.namespace, claim.name, str(claim.uid)) or "over"
        raise KilledError(
            f"The task was ended by a user (state {state}) while it was submitted: Job {claim.name} is {became}"
        )


def _later() -> AirflowRescheduleException:
    """What ends a look of a try that comes back, and uses no retry."""
    return AirflowRescheduleException(datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=RETRY_AFTER_S))
