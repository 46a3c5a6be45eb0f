"""Labels, annotations, finalizers, objects and containers: names on which the parts outside `proxy` have to agree.

Controller, `singularityctl`, provider, chart and tests write and read them, code in `proxy` none. A name that code in
`proxy` uses too is in `proxy.protocol.names`, such as `ANN_CHECKPOINT`. What a request to Kueue's API takes is in
`kube.resources`.
"""

from __future__ import annotations

from typing import Final

from proxy.protocol import names

# --- labels on the Job and its pods -------------------------------------------------------------------------------
LABEL_MANAGED: Final = f"{names.DOMAIN}/managed"
"""`"true"` on every Job to which the hold and the fence apply, and on its pods."""
LABEL_JOB: Final = f"{names.DOMAIN}/job"
"""Name of the Job, on its pods, Service and ConfigMap."""
LABEL_TRAINING: Final = f"{names.DOMAIN}/training"
"""`enabled` on a namespace puts the guard of pods in force there."""
TRAINING_ENABLED: Final = "enabled"
LABEL_PLANNER: Final = f"{names.DOMAIN}/planner"
"""On an Event about an action of the planner: the policy."""
EVENT_PLANNER_DONE: Final = "PlannerAction"
EVENT_PLANNER_PROPOSAL: Final = "PlannerProposal"
"""Reasons of such Events: it was done, or would have been (a dry run)."""
EVENT_NODE_SICK: Final = "TrainingNodeSick"
"""Reason of an Event on a node that the planner's policy health has found to be sick."""
EVENT_OWN_ERROR: Final = "ProgramError"
"""Reason of an Event on a job whose error no node is to blame for."""
TAINT_UNHEALTHY: Final = f"{names.DOMAIN}/unhealthy"
"""Key of the taint (NoSchedule) of such a node."""
NODE_TAINTED_AT: Final = f"{names.DOMAIN}/unhealthy-since"
"""On the node: when it got the taint. Without the taint, what was before is forgiven."""
LABEL_IDENTITY: Final = f"{names.DOMAIN}/identity"
"""Hash of the Job's owner (for Airflow: dag, run, task, map index, clear generation); search before create."""

# --- annotations on the Job ---------------------------------------------------------------------------------------
ANN_HOLD: Final = f"{names.DOMAIN}/hold"
"""`armed`: Kueue's suspend is denied until released; `released`; `off` or absent: plain Kueue behaviour.

A job that was held before and loses the annotation is held again: to switch the hold off, write `off`.
"""
HOLD_ARMED: Final = "armed"
HOLD_RELEASED: Final = "released"
HOLD_OFF: Final = "off"
ANN_HOLD_DEADLINE: Final = f"{names.DOMAIN}/hold-deadline"
"""RFC 3339 UTC time, written when the eviction is seen; the policy stops denying after it."""
ANN_BUDGET: Final = f"{names.DOMAIN}/checkpoint-budget-seconds"
ANN_ATTEMPT: Final = f"{names.DOMAIN}/attempt"
"""Current attempt number, 1 at the first admission; only grows. Also a pod annotation."""
ANN_CHECKPOINT_COPY: Final = f"{names.DOMAIN}/checkpoint-copy"
"""The copy from which a removed ANN_CHECKPOINT is restored. To start from the beginning, set ANN_CHECKPOINT to ""."""
ANN_HISTORY: Final = f"{names.DOMAIN}/history"
ANN_HISTORY_ASIDE: Final = f"{names.DOMAIN}/history-unreadable"
"""Text of a history that this version could not read. Nothing reads it but people."""
"""JSON list of `AttemptRecord`, oldest first, bounded."""
ANN_PHASES: Final = f"{names.DOMAIN}/phases"
"""JSON list: seconds of each phase of the last attempts' starts and checkpoints, oldest first, bounded."""
ANN_SAVEABLE: Final = f"{names.DOMAIN}/saveable"
"""JSON `Saveable`: whether the attempt can be saved, as its last checkpoint or trial has shown, and why not."""
ANN_PROGRESS: Final = f"{names.DOMAIN}/progress"
"""JSON `{"attempt", "step", "at"}`, rewritten at most every few seconds."""
ANN_RESHAPE: Final = f"{names.DOMAIN}/reshape"
"""On a Workload that our controller has taken out of the queue to give it another shape: what was wrong."""
ANN_PAUSED: Final = f"{names.DOMAIN}/paused"
"""On a Workload that `pause` has deactivated: the request's id. Without it, somebody else has deactivated the
Workload."""
ANN_PRIORITY: Final = f"{names.DOMAIN}/planned-priority"
"""On a Workload whose priority a policy of the planner has changed: JSON `Mark` (which policy, from what, to what)."""
ANN_CURVE: Final = f"{names.DOMAIN}/loss-curve"
"""JSON list of `[step, loss]` as rank 0 printed them, thinned out to a bounded number over the whole job."""
ANN_PODS: Final = f"{names.DOMAIN}/pods"
"""JSON `{"attempt", "uids"}`: the pods (first 8 characters of their UIDs) that the attempt took its first step with."""
ANN_WORKERS: Final = f"{names.DOMAIN}/workers"
"""On the Job: workers wanted. On pods: workers admitted for this attempt."""
ANN_MIN_WORKERS: Final = f"{names.DOMAIN}/min-workers"
ANN_WORLD_SIZE: Final = f"{names.DOMAIN}/world-size"
ANN_ENGINE: Final = f"{names.DOMAIN}/engine"
"""`state` on a Job of the state engine, `both` where processes are saved with their state; absent: `process`."""
ANN_RANKS_PER_WORKER: Final = f"{names.DOMAIN}/ranks-per-worker"
"""State engine: an attempt has its workers times as many ranks, whatever ANN_WORLD_SIZE says."""
ANN_CHECKPOINTS: Final = f"{names.DOMAIN}/checkpoints"
"""JSON list of `CheckpointRef`, oldest first, bounded: the committed checkpoints, with those marked that were found to
be unusable since."""
ANN_START_FROM: Final = f"{names.DOMAIN}/start-from"
"""JSON `Origin`, by whoever creates the Job: the checkpoint of another job of the namespace that it begins with."""
ANN_ORIGIN: Final = f"{names.DOMAIN}/origin"
"""JSON `Origin` as the controller has found it on that job. ANN_CHECKPOINTS then begins with the checkpoint."""
ANN_REWINDS: Final = f"{names.DOMAIN}/rewinds"
"""JSON list of `Rewind`, oldest first, bounded: which attempts were given up for an older checkpoint."""
ANN_PLACEMENT: Final = f"{names.DOMAIN}/placement"
"""JSON `Placement`: where the job may run, when a migration said so; absent: anywhere in its queue."""
ANN_REQUEST: Final = f"{names.DOMAIN}/request"
"""JSON `JobRequest`: resize, migrate, pause or resume, the last one that a user asked for. A later one replaces it."""
ANN_REQUEST_STATUS: Final = f"{names.DOMAIN}/request-status"
"""JSON `RequestStatus`: the controller's answer to ANN_REQUEST."""
ANN_SHAPE_BEFORE: Final = f"{names.DOMAIN}/shape-before"
"""JSON `Shape`: size and placement before the request that changes them. They come back if it fails."""
ANN_LEAVE: Final = f"{names.DOMAIN}/leave"
"""JSON `Leave`: how far a voluntary stop of an attempt is, which is saved first."""
ANN_CHECKPOINT_REQUEST: Final = f"{names.DOMAIN}/checkpoint-request"
"""JSON `JobRequest` with op checkpoint: it changes nothing about the job, so it has a place of its own."""
ANN_CHECKPOINT_STATUS: Final = f"{names.DOMAIN}/checkpoint-request-status"
"""JSON `RequestStatus`: the controller's answer to ANN_CHECKPOINT_REQUEST."""
ANN_CHECKPOINT_EVERY: Final = f"{names.DOMAIN}/checkpoint-every"
"""`300s`, `10m`, `500 steps` or `auto`: checkpoints after which the job trains on; absent or `off`: none by itself."""
ANN_CHECKPOINT_POLICY: Final = f"{names.DOMAIN}/checkpoint-policy"
"""JSON: what the controller has to remember between two of them (`Memory` of periodic_checkpoints)."""
ANN_INFRASTRUCTURE_RETRIES: Final = f"{names.DOMAIN}/infrastructure-retries"
"""How many attempts may be lost to the infrastructure; absent: no limit."""
ANN_BROKEN: Final = f"{names.DOMAIN}/broken-attempts"
"""JSON `{"attempt", "count"}`: the last attempt that was lost to the infrastructure, and how many were."""
ANN_FLAVOR: Final = f"{names.DOMAIN}/flavor"
"""Pod annotation: the ResourceFlavor of this attempt."""
ANN_STORE: Final = f"{names.DOMAIN}/store"
FINALIZER_RECORDS: Final = f"{names.DOMAIN}/records"
"""On a Job that MultiKueue has copied into this cluster: it stays until the manager has what is written on it."""

# --- Kueue --------------------------------------------------------------------------------------------------------
KUEUE_QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
KUEUE_PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
KUEUE_PREBUILT: Final = "kueue.x-k8s.io/prebuilt-workload-name"
"""Label, or annotation where the name is too long, of a Job whose Workload was there first: MultiKueue's copies."""
MULTIKUEUE_CONTROLLER: Final = "kueue.x-k8s.io/multikueue"
"""`spec.managedBy` of a Job that runs in another cluster."""
MULTIKUEUE_ORIGIN_LABEL: Final = "kueue.x-k8s.io/multikueue-origin"
"""On what MultiKueue has copied into this cluster."""
ADMISSION_CHECK_CONTROLLER: Final = f"{names.DOMAIN}/fence"
"""`spec.controllerName` of our AdmissionCheck objects; the object itself is named by the chart (default below)."""
ADMISSION_CHECK_NAME: Final = "singularity-fence"

# --- the platform's own objects (Helm chart) ----------------------------------------------------------------------
SYSTEM_NAMESPACE: Final = "singularity-system"
PLATFORM_CONFIGMAP: Final = "singularity-platform"
"""Readable by every authenticated user; key `platform.json` holds the `PlatformConfig`."""
CONTROLLER_NAME: Final = "singularity-controller"
HOLD_LEASE: Final = "singularity-hold"
ANN_OVERDUE: Final = f"{names.DOMAIN}/overdue"
"""On the Lease: `UID/SECONDS`, a space between two: Jobs whose suspend the policy lets through from that Unix time on,
whatever stands on them. On a Workload: when the controller last made Kueue ask again."""

# --- environment of the sidecar and the launcher ------------------------------------------------------------------
ENV_FLAVOR: Final = "SINGULARITY_FLAVOR"

# --- paths in the pod ---------------------------------------------------------------------------------------------
LAUNCHER: Final = f"{names.AGENT_DIR}/launcher/start"
"""The command of the training container, with the user's behind it or in ENV_COMMAND."""
TOKEN_DIR: Final = f"{names.ROOT}/token"

CONTAINER_TRAIN: Final = "train"
CONTAINER_SIDECAR: Final = "device-proxy"
CONTAINER_INSTALL: Final = "install-agent"
