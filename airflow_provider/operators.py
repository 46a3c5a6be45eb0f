"""`SingularityTrainOperator`: one training job on Kueue as one Airflow task."""

from __future__ import annotations

import datetime
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, get_args

from kueue_integration.errors import KubeError, SingularityError, SpecError
from kueue_integration.jobs import lifecycle
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import JOB

from . import cluster, ending, parameters, pod_words, start_point, submission, waiting
from .compat import AirflowException
from .exceptions import (
    InvalidTrainingError,
    SingularityProviderError,
    TrainingResultError,
)
from .identity import Claim
from .lineage import headline, outputs_url
from .links import LINKS
from .memory import (
    MANIFEST_KEY,
    add_past,
    keep_outcome,
    lasts,
    store_of,
)
from .outcome import codes, failure
from .placing import Placing
from .reporting import TrainingReporter
from .triggers import SingularityJobTrigger

DeletionPolicy = Literal["never", "on_success", "always"]
TTL = datetime.timedelta(days=7)


class SingularityTrainOperator(Placing, TrainingReporter, pod_words.PodWords):
    """Train on Kueue-managed Kubernetes; preemption, migration and resizing do not end the task nor cost a retry.

    The task submits one Indexed Job and defers; a worker slot is held only for the seconds of submitting and ending.
    If a worker, scheduler or triggerer dies, the next try adopts the existing Job and never makes a second one. A
    clear, or a retry after a failure of the training itself, starts a new Job. A clear, mark failed or mark success
    deletes the running Job, or ends it and leaves its record where `start_from` may begin with its checkpoints.

    Results are the XComs `job` (`{"namespace", "name", "uid"}`) and `lineage` (attempts, checkpoints, timings; kept
    current while the task is deferred). The event of every asset in `outlets` gets `extra["training"]`: job, steps,
    preemptions, last checkpoint. With the openlineage provider every attempt is a run below the task's.

    :param queue_name: Kueue LocalQueue in `namespace` (templated). Airflow's own `queue` stays the worker's queue
    :param command: argv of the program, one process per rank (templated). Several ranks have torchrun's variables. A
        single rank has them only if the command begins with `torchrun`
    :param script: instead of `command`: path of a Python file, relative to the DAG file (templated). The file is
        shipped with the job, and run like the command `python3 <script> <script_args>`
    :param script_args: arguments of `script` (templated)
    :param name: readable beginning of the Job's name, default the task id; a hash of the task instance is appended
        (templated)
    :param namespace: namespace of the job; default: the connection's, else `default` (templated)
    :param workers: pods wanted (templated)
    :param min_workers: fewest pods to run with, default `workers` (templated)
    :param world_size: ranks, constant over the life of the job, default `workers` (templated). With engine `state` the
        ranks per worker are constant
    :param image: training image, default the platform's (templated)
    :param priority_class: Kueue WorkloadPriorityClass (templated)
    :param pod_resources: per pod, `{"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "1"}` (templated)
    :param topology: place of the pods: `{"required": LABEL}` puts all into one domain of the level with this node
        label; or `{"preferred": LABEL}`, or `"unconstrained"`; default: the queue's choice (templated)
    :param node_selector: node labels that every pod needs, besides the labels of the flavor (templated)
    :param tolerations: taints that the pods accept, as in a Pod, besides the tolerations of the flavor (templated)
    :param resource_claims: devices by DRA, per pod: `{"name": "gpu", "device_class": "gpu.nvidia.com", "count": 1}`, or
        `{"name": "gpu", "template": ResourceClaimTemplate}` (templated)
    :param env: environment of every rank (templated)
    :param files: texts by relative path, copied into each rank's working directory as they are
    :param render_files: whether `files` are templates of Airflow's, too
    :param workdir: directory in the image to start in (templated)
    :param store: URL of the checkpoint store, default the platform's (templated)
    :param inputs: name -> URL of a folder that lies in `$INPUTS/NAME` of each pod before the ranks start, read-only:
        below a place that the platform allows, as for `outputs` (templated)
    :param outputs: URL to which the files that ranks write to `$OUTPUTS` are stored once all ranks have ended well,
        below a place that the platform allows. The task succeeds only with all of them there. The URL is the task's
        return value if there is no other (templated)
    :param engine: `process`, or `state` for a script with `singularity_train`: no privileges, any machine and number of
        workers. `both` saves processes with that state beside them, for nodes that cannot take processes. `auto` is
        `state` if the script, or a shipped file that it imports, imports `singularity_train`, else `process`
    :param checkpoint_budget_s: how long a preemption may be held for a checkpoint, seconds (templated)
    :param grace_period_s: grace period of the pods, seconds (templated)
    :param checkpoint_every: interval of checkpoints after which the job trains on: `"300s"`, `"10m"`, a number of
        seconds, `"500 steps"` or `"auto"`; default off (templated)
    :param start_from: checkpoint to begin with. `"last try"`, the default with `checkpoint_every`, takes this task's
        newest checkpoint before a failure or a timeout, and none after a clear. `"step 0"`, else the default, is none.
        `"earlier run"` takes this task's newest checkpoint before a clear or a failure, else the newest of the latest
        earlier Dag run (by logical date) that has ended; `"JOB"` takes the newest of another job of the namespace;
        `"JOB/CHECKPOINT"`, or an id alone, names one. With the process engine another command or environment is refused
        (templated)
    :param checkpoint_disk: most disk that checkpoint images may take in a pod, as `"50Gi"`, or `"unlimited"`. Default:
        the platform's, else twice the memory limit and 10 GiB per rank. No limit in pods with devices (templated)
    :param checkpoint_memory: memory of each pod, beside that of the ranks, into which a checkpoint goes from which the
        job trains on, as `"4Gi"`; what is larger goes to the disk. Default: the platform's, else none (templated)
    :param reproducible_layout: whether processes have no random addresses and one PYTHONHASHSEED, so that ranks with
        the same content share more in the store. A fault of memory is then easier to attack, and hashes can be known:
        not for programs that read what strangers send (templated)
    :param privileges: where the launcher's capabilities count: `userns` (in a user namespace of the pod, where they
        give nothing on the node), `node`, or `auto`. Default: the platform's, which also says what a job may have
        (templated)
    :param hold: whether preemptions wait for a checkpoint. False: plain Kueue, and the checkpoint has to fit into the
        grace period
    :param volumes, volume_mounts: added to the pods, as in a Pod manifest (templated)
    :param pod_override: a Pod (`V1Pod` or plain data) merged into the training pods: service account, affinity,
        environment from secrets, init containers, ... The training container is `train` or `base`. Fields that a
        checkpoint depends on are refused by name (templated)
    :param pod_template_file: YAML file with a Pod, relative to the DAG file, below everything that the other parameters
        say, as in KubernetesPodOperator (templated). More of that operator's parameters are taken, see the guide
    :param labels, annotations: added to Job and pods (templated)
    :param kubernetes_conn_id: Airflow connection of type `kubernetes`; tasks of one Dag may use several clusters
        (templated)
    :param infrastructure_retries: attempts that may be lost to nodes, pods and kills; one more fails the task. The job
        continues from its last checkpoint and uses none of Airflow's retries. Default: lost pods and nodes without
        limit, 6 killed pods (templated)
    :param resume_on_exit_codes: exit codes of the program that count like a lost pod, so that the job continues
        (templated)
    :param skip_on_exit_code: exit code, or several, that marks the task skipped
    :param fail_on_exit_codes: exit codes that fail the task for good, whatever `retries` says
    :param max_preemptions: number of preemptions after which one more fails the task for good and deletes the Job;
        default: no limit
    :param get_logs: copy the output of rank 0 to the task log while the task is deferred
    :param logging_interval: seconds between two looks at this output
    :param log_max_lines: largest number of these lines in the task log; the last line says how to read the rest
    :param deletion_policy: whether the ended Job is deleted at once: `never`, `on_success`, `always`
    :param ttl: how long an ended Job stays otherwise, with the record of its checkpoints; `"never"` for ever. Default:
        7 days, and for ever with `start_from="earlier run"`
    :param deferrable: whether the task defers while it waits. False: it holds its worker slot
    :param wait: False: the task ends when the Job is submitted, and its value is `{"namespace", "name", "uid"}`. Then
        nobody deletes the Job when the task is marked or its run is deleted; a clear does
    :param queue_timeout: longest time in the queue before the first admission; one that takes longer fails the try, and
        its Job is ended. Default: no limit
    :param preemption_alert: number of preemptions after which the task log has a warning and `lineage` has
        `preemption_alert: true`; default: never. Preemptions are unlimited and use no retry
    :param api_outage_tolerance: how long an unreachable Kubernetes API is ridden out without using a retry
    """

    template_fields: Sequence[str] = (
        "queue_name", "command", "script", "script_args", "name", "namespace", "workers", "min_workers", "world_size",
        "image", "priority_class", "pod_resources", "topology", "node_selector", "tolerations", "resource_claims",
        "env", "workdir", "store", "inputs", "outputs", "checkpoint_budget_s", "grace_period_s", "checkpoint_every",
        "volumes", "volume_mounts", "labels", "annotations", "kubernetes_conn_id", "checkpoint_disk",
        "checkpoint_memory", "engine", "start_from",
        "hold", "pod_override", "pod_template_file", "infrastructure_retries", "resume_on_exit_codes", "privileges",
        "reproducible_layout",
        "manifest",
    )  # fmt: skip
    template_fields_renderers = {  # noqa: RUF012
        **dict.fromkeys(("pod_resources", "env", "files", "command", "volumes", "pod_override"), "json"),
        **dict.fromkeys(("topology", "node_selector", "tolerations", "resource_claims"), "json"),
        "manifest": "yaml",
    }
    operator_extra_links = tuple(link() for link in LINKS)
    overwrite_rtif_after_execution = True
    """For `manifest`, which is known only then."""
    manifest: str | None = None
    idle_words: Sequence[str] = ()
    """Parameters of other operators that were given, and change nothing here."""
    shown_job: dict[str, str] | None = None
    """Namespace, name, uid and Workload of the Job, for the links."""
    ui_color = "#d5e8d4"

    def __init__(
        self,
        *,
        queue_name: str,
        command: Sequence[str] | None = None,
        script: str | None = None,
        script_args: Sequence[str] = (),
        name: str | None = None,
        namespace: str | None = None,
        workers: int | str = 1,
        min_workers: int | str | None = None,
        world_size: int | str | None = None,
        image: str | None = None,
        priority_class: str | None = None,
        pod_resources: Mapping[str, str] | None = None,
        topology: Mapping[str, str] | str | None = None,
        node_selector: Mapping[str, str] | None = None,
        tolerations: Sequence[Mapping[str, Any]] = (),
        resource_claims: Sequence[Mapping[str, Any]] = (),
        env: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        render_files: bool = False,
        workdir: str | None = None,
        store: str | None = None,
        inputs: Mapping[str, str] | None = None,
        outputs: str | None = None,
        engine: str = "auto",
        checkpoint_budget_s: int | str = 120,
        grace_period_s: int | str = pod_words.GRACE_S,
        checkpoint_every: str | float | None = None,
        start_from: str | None = None,
        checkpoint_disk: str | None = None,
        checkpoint_memory: str | None = None,
        reproducible_layout: bool | str = False,
        privileges: str | None = None,
        hold: bool | str = True,
        volumes: Sequence[Mapping[str, Any]] = (),
        volume_mounts: Sequence[Mapping[str, Any]] = (),
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        pod_override: Any = None,
        pod_template_file: str | None = None,
        kubernetes_conn_id: str = "kubernetes_default",
        infrastructure_retries: int | str | None = None,
        resume_on_exit_codes: Sequence[int] = (),
        skip_on_exit_code: int | Collection[int] | None = None,
        fail_on_exit_codes: Collection[int] = (),
        max_preemptions: int | None = None,
        get_logs: bool = True,
        logging_interval: float = 10.0,
        log_max_lines: int = 10_000,
        deletion_policy: DeletionPolicy = "never",
        ttl: datetime.timedelta | Literal["never"] | None = None,
        deferrable: bool = True,
        wait: bool = True,
        queue_timeout: datetime.timedelta | None = None,
        preemption_alert: int | None = None,
        api_outage_tolerance: datetime.timedelta = datetime.timedelta(hours=1),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.command = command
        self.script = script
        self.script_args = script_args
        self.name = name
        self.namespace = namespace
        self.workers = workers
        self.min_workers = min_workers
        self.world_size = world_size
        self.image = image
        self.priority_class = priority_class
        self.pod_resources = pod_resources
        self.topology = topology
        self.node_selector = node_selector
        self.tolerations = tolerations
        self.resource_claims = resource_claims
        self.env = env
        self.files = files
        self.render_files = render_files
        if not render_files and parameters.is_rendered(files):
            raise ValueError(f"files = {files!r}: has values that are known only at run time: give render_files=True")
        if render_files:
            self.template_fields = (*type(self).template_fields, "files")
        self.workdir = workdir
        self.store = store
        self.inputs = inputs
        self.outputs = outputs
        self.engine = engine
        self.checkpoint_budget_s = checkpoint_budget_s
        self.grace_period_s = grace_period_s
        self.checkpoint_every = checkpoint_every
        self.start_from = start_from
        self.checkpoint_disk = checkpoint_disk
        self.checkpoint_memory = checkpoint_memory
        self.reproducible_layout = reproducible_layout
        self.privileges = privileges
        self.hold = hold
        self.volumes = volumes
        self.volume_mounts = volume_mounts
        self.labels = labels
        self.annotations = annotations
        self.kubernetes_conn_id = kubernetes_conn_id
        self.pod_override = pod_override
        self.pod_template_file = pod_template_file
        self.infrastructure_retries = infrastructure_retries
        self.resume_on_exit_codes = resume_on_exit_codes
        self.skip_on_exit_code = skip_on_exit_code
        self.fail_on_exit_codes = fail_on_exit_codes
        self.max_preemptions = max_preemptions
        self.get_logs = get_logs
        self.logging_interval = logging_interval
        self.log_max_lines = log_max_lines
        self.deletion_policy = deletion_policy
        self.ttl = ttl
        self.deferrable = deferrable
        self.wait = wait
        self.queue_timeout = queue_timeout
        self.preemption_alert = preemption_alert
        self.api_outage_tolerance = api_outage_tolerance
        self._kill_requested = False
        for name in parameters.SPEC_FIELDS:
            setattr(self, name, parameters.plain(getattr(self, name)))
        pod_words.settle(self)
        if deletion_policy not in get_args(DeletionPolicy):
            raise ValueError(
                f"deletion_policy = {deletion_policy!r}: must be one of {', '.join(get_args(DeletionPolicy))}"
            )
        for name in ("deferrable", "wait"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} = {getattr(self, name)!r}: must be True or False")
        if self.queue_timeout is not None:
            parameters.duration("queue_timeout", self.queue_timeout)
        if self.ttl not in (None, "never"):
            parameters.duration("ttl", self.ttl)
        parameters.number("preemption_alert", preemption_alert, 0, "")
        parameters.number("max_preemptions", max_preemptions, 0, " for no limit")
        parameters.exit_codes(resume_on_exit_codes, skip_on_exit_code, fail_on_exit_codes)
        parameters.words("script_args", script_args)
        parameters.text("start_from", start_from)
        parameters.duration("api_outage_tolerance", api_outage_tolerance)
        if not isinstance(get_logs, bool):
            raise ValueError(f"get_logs = {get_logs!r}: must be True or False")
        if not isinstance(log_max_lines, int) or log_max_lines < 1:
            fix = "must be a whole number, 1 or more; get_logs=False for none"
            raise ValueError(f"log_max_lines = {log_max_lines!r}: {fix}")
        if not isinstance(logging_interval, (int, float)) or logging_interval < 1:
            raise ValueError(f"logging_interval = {logging_interval!r}: must be a number of seconds, 1 or more")
        if self.command is None and script is None and pod_template_file is None:
            raise ValueError("command = None: give command or script")
        if self.command is not None and script is not None:
            raise ValueError(f"script = {script!r}: give either command or script, not both")
        parameters.check_known(self)

    # --- first part: submit, then defer ---------------------------------------------------------------------------
    def execute(self, context: Any) -> Any:
        """Create or adopt the Job and defer. Raises InvalidTrainingError (never retried), SingularityProviderError."""
        try:
            self._take_template()
            claim, finished = self._place(context)
        except SpecError as error:
            raise parameters.refusal(error) from None
        except KubeError as error:
            if error.transient:
                self._ride_out(context, error)
            raise SingularityProviderError(str(error)) from error
        except SingularityError as error:
            raise SingularityProviderError(str(error)) from error
        if finished is not None:
            return self.execute_complete(context, finished)
        if not self.wait:
            return dict(self.shown_job or {})
        trigger = self._trigger(claim)
        if self.deferrable:
            self.defer(trigger=trigger, method_name="execute_complete")
        return self.execute_complete(context, waiting.here(trigger, context["ti"], lambda: self._look(context, claim)))

    def _trigger(self, claim: Claim) -> SingularityJobTrigger:
        now = time.time()
        # Airflow does not enforce execution_timeout while a task is deferred, and knows of no queue.
        limits = (self.execution_timeout, self.queue_timeout)
        whole, queue = (None if limit is None else now + limit.total_seconds() for limit in limits)
        return SingularityJobTrigger(
            conn_id=self.kubernetes_conn_id,
            namespace=claim.namespace,
            name=claim.name,
            uid=str(claim.uid),
            deadline=whole,
            preemption_alert=self.preemption_alert,
            max_preemptions=self.max_preemptions,
            get_logs=self.get_logs,
            logging_interval=self.logging_interval,
            log_max_lines=self.log_max_lines,
            queue_deadline=queue,
        )

    def _look(self, context: Any, claim: Claim) -> None:
        """Whether the task that waits in a worker is still wanted, once somebody has sent a signal."""
        if self._kill_requested:
            self._end_if_unwanted(cluster.connect(self.kubernetes_conn_id)[0], context["ti"], claim)
            self._kill_requested = False

    @property
    def ttl_s(self) -> int | None:
        """Of the Job, seconds."""
        if self.ttl == "never" or (self.ttl is None and start_point.of_an_earlier_run(self.start_from)):
            return None
        return round((self.ttl or TTL).total_seconds())

    def _take_template(self) -> None:
        if self.idle_words:
            self.log.info("Without effect here: %s", ", ".join(self.idle_words))
        if self.pod_template_file is None:
            return
        try:
            pod = pod_words.read(submission.script_path(self.pod_template_file, self._dag_file()))
            pod_words.under(self, "pod_template_file", pod)
        except ValueError as error:
            raise InvalidTrainingError(f"The training job was refused before anything was created: {error}") from None

    def _failure(self, event: Mapping[str, Any]) -> AirflowException:
        skip, fail = codes(self.skip_on_exit_code), codes(self.fail_on_exit_codes)
        return failure(event, skip, fail, self.infrastructure_retries)

    # --- kill -----------------------------------------------------------------------------------------------------
    def on_kill(self) -> None:
        """SIGTERM. It may come from a user or from a worker that is being drained. A signal handler cannot ask Airflow
        which, so this only notes it; `execute`, which goes on after this, asks. Also called when `execution_timeout`
        ends `execute`."""
        self._kill_requested = True

    # --- second part: after the trigger's event ---------------------------------------------------------------------
    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> Any:
        """Report what became of the Job. Raises TrainingFailedError, TrainingDeletedError, TrainingTimeoutError."""
        job, status, message = event["job"], event["status"], event["message"]
        where = f"Job {job['namespace']}/{job['name']}"
        store = store_of(context)
        if store is not None:
            self.manifest = store.get(MANIFEST_KEY)
        self.shown_job = {**job, "workload": (event["lineage"] or {}).get("workload") or ""}
        self.shown_job["outputs"] = outputs_url(event["lineage"]) or ""
        self._push(context, job, event["lineage"])
        self.report(context, event["lineage"], status == "success")
        if status != "success":
            add_past(store, event["lineage"])
        value = event.get("result")
        if status == "success" and "result" not in event:
            value = self._read_result(context, job)
            if value is None:
                value = outputs_url(event["lineage"])
        self._clean_up(job, status, bool(event.get("output_shown")), self._keep(store, event, value))
        if status == "success":
            self.log.info("%s succeeded: %s", where, message)
            return value
        raise self._failure(event)

    def _keep(self, store: Any, event: Mapping[str, Any], value: Any) -> bool:
        """Whether the outcome is known without the Job. `dag.test()` has no store, and no second try."""
        if store is not None and not lasts(store):
            return False
        try:
            if "result" not in event:
                keep_outcome(store, event, value)
        except Exception as error:  # Airflow does not answer, or takes no such value
            self.log.warning("The outcome was not stored (%s: %s)", type(error).__name__, error)
            return False
        return True

    def _read_result(self, context: Any, job: Mapping[str, Any]) -> Any:
        """Before anything is deleted. An API server that is away costs time: a Job that is there has succeeded, whoever
        looks at it next."""
        if type(self)._result is SingularityTrainOperator._result:
            return None
        try:
            return self._result(cluster.connect(self.kubernetes_conn_id)[0], job["namespace"], job["name"])
        except KubeError as error:
            if error.transient:
                self._ride_out(context, error)
            raise TrainingResultError(f"The training succeeded, its return value cannot be read: {error}") from error

    def _result(self, kube: Kube, namespace: str, name: str) -> Any:
        """Return value of the task once its Job has succeeded. Raises KubeError."""
        return None

    def _push(self, context: Any, job: Mapping[str, Any], lineage: Mapping[str, Any] | None) -> None:
        context["ti"].xcom_push(key="job", value=dict(job))
        if lineage is not None:
            context["ti"].xcom_push(key="lineage", value=dict(lineage))
            self.log.info("%s", headline(lineage))

    def _clean_up(self, job: Mapping[str, Any], status: str, shown: bool, kept: bool) -> None:
        """Show the last output unless it is `shown`, and delete what must go. Only what `kept` says to be known
        without the Job is deleted by `deletion_policy`.

        The outcome stands already: trouble here is only told.
        """
        namespace, name, uid = job["namespace"], job["name"], job["uid"]
        ended = status in ("success", "failed")
        goes_on = self._goes_on and status in ("failed", "timeout")
        unwanted = self.deletion_policy == "always" or (self.deletion_policy == "on_success" and status == "success")
        try:
            kube, _ = cluster.connect(self.kubernetes_conn_id)
            if status == "failed" or (ended and not shown):
                for line in submission.log_tails(kube, namespace, name, failed=status == "failed"):
                    self.log.info("%s", line)
            if status in ("timeout", "preempted"):
                self.log.info("Job %s is %s", name, ending.give_up(kube, namespace, name, uid, goes_on) or "over")
            job_now = kube.find(JOB, namespace, name)
            claim = None if job_now is None or job_now["metadata"]["uid"] != uid else Claim.of_job(job_now)
            owned = [] if claim is None else submission.owned_jobs(kube, namespace, claim.key, {claim.deployment})
            if claim is not None:
                submission.tidy(kube, claim, owned)
            if not (ended and unwanted and kept):
                return
            if job_now is None or claim is None or not ending.leaves_record(job_now, goes_on):
                lifecycle.delete(kube, namespace, name, uid=uid)
                if self._goes_on and self.deletion_policy == "always":
                    for older in owned:
                        if older["metadata"]["uid"] != uid and (ending.over(older) or ending.quiet(older)):
                            lifecycle.delete(kube, namespace, older["metadata"]["name"], uid=older["metadata"]["uid"])
                return
            self.log.info("Job %s stays until a later one has ended, which may begin with its checkpoints", name)
            for older in start_point.older(kube, claim, job_now):
                lifecycle.delete(kube, namespace, older["metadata"]["name"], uid=older["metadata"]["uid"])
        except Exception as error:
            self.log.warning(
                "Job %s/%s could not be looked after (%s: %s); if it is still there and not wanted: "
                "singularityctl delete %s --namespace %s",
                namespace, name, type(error).__name__, error, name, namespace,
            )  # fmt: skip
