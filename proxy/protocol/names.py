"""Labels, annotations, environment variables, paths and ports: every name that two parts have to agree on."""

from __future__ import annotations

from typing import Final

DOMAIN: Final = "singularity.dev"

# --- labels on the Job and its pods -------------------------------------------------------------------------------
LABEL_MANAGED: Final = f"{DOMAIN}/managed"
"""`"true"` on every Job that the hold and the fence apply to, and on its pods."""
LABEL_JOB: Final = f"{DOMAIN}/job"
"""Name of the Job, on its pods, Service and ConfigMap."""
LABEL_TRAINING: Final = f"{DOMAIN}/training"
"""`enabled` on a namespace puts the guard of pods in force there."""
TRAINING_ENABLED: Final = "enabled"
LABEL_IDENTITY: Final = f"{DOMAIN}/identity"
"""Hash of whoever owns the Job (for Airflow: dag, run, task, map index, clear generation); search before create."""

# --- annotations on the Job ---------------------------------------------------------------------------------------
ANN_HOLD: Final = f"{DOMAIN}/hold"
"""`armed`: Kueue's suspend is denied until released; `released`; `off` or absent: plain Kueue behaviour.

A job that was held before and loses the annotation is held again: whoever means it writes `off`.
"""
HOLD_ARMED: Final = "armed"
HOLD_RELEASED: Final = "released"
HOLD_OFF: Final = "off"
ANN_HOLD_DEADLINE: Final = f"{DOMAIN}/hold-deadline"
"""RFC 3339 UTC time, written when the eviction is seen; the policy stops denying after it."""
ANN_BUDGET: Final = f"{DOMAIN}/checkpoint-budget-seconds"
ANN_ATTEMPT: Final = f"{DOMAIN}/attempt"
"""Current attempt number, 1 at the first admission; only grows. Also a pod annotation."""
ANN_CHECKPOINT: Final = f"{DOMAIN}/checkpoint"
"""On the Job: the committed checkpoint as JSON (`CheckpointRef`), the linearisation point. On pods: its id, or ""."""
ANN_CHECKPOINT_COPY: Final = f"{DOMAIN}/checkpoint-copy"
"""What ANN_CHECKPOINT is put back from when somebody removes it. To start from the beginning, set that one to ""."""
ANN_HISTORY: Final = f"{DOMAIN}/history"
"""JSON list of `AttemptRecord`, oldest first, bounded."""
ANN_PHASES: Final = f"{DOMAIN}/phases"
"""JSON list: seconds of each phase of the last attempts' starts and checkpoints, oldest first, bounded."""
ANN_PROGRESS: Final = f"{DOMAIN}/progress"
"""JSON `{"attempt", "step", "at"}`, rewritten at most every few seconds."""
ANN_RESHAPE: Final = f"{DOMAIN}/reshape"
"""On a Workload that our controller has taken out of the queue to give it another shape: what was wrong."""
ANN_PAUSED: Final = f"{DOMAIN}/paused"
"""On a Workload that `pause` has deactivated: the request's id. What somebody else has deactivated is theirs."""
ANN_CURVE: Final = f"{DOMAIN}/loss-curve"
"""JSON list of `[step, loss]` as rank 0 printed them, thinned out to a bounded number over the whole job."""
ANN_PODS: Final = f"{DOMAIN}/pods"
"""JSON `{"attempt", "uids"}`: the pods (first 8 characters of their UIDs) that the attempt took its first step with."""
ANN_WORKERS: Final = f"{DOMAIN}/workers"
"""On the Job: workers wanted. On pods: workers admitted for this attempt."""
ANN_MIN_WORKERS: Final = f"{DOMAIN}/min-workers"
ANN_WORLD_SIZE: Final = f"{DOMAIN}/world-size"
ANN_CHECKPOINTS: Final = f"{DOMAIN}/checkpoints"
"""JSON list of `CheckpointRef`, oldest first, bounded: what was committed, with what was found to be unusable since."""
ANN_PLACEMENT: Final = f"{DOMAIN}/placement"
"""JSON `Placement`: where the job may run, when a migration said so; absent: anywhere in its queue."""
ANN_REQUEST: Final = f"{DOMAIN}/request"
"""JSON `JobRequest`: resize, migrate, pause or resume, the last one that a user asked for. A later one replaces it."""
ANN_REQUEST_STATUS: Final = f"{DOMAIN}/request-status"
"""JSON `RequestStatus`: the controller's answer to ANN_REQUEST."""
ANN_CHECKPOINT_REQUEST: Final = f"{DOMAIN}/checkpoint-request"
"""JSON `JobRequest` with op checkpoint: it changes nothing about the job, so it has a place of its own."""
ANN_CHECKPOINT_STATUS: Final = f"{DOMAIN}/checkpoint-request-status"
"""JSON `RequestStatus`: the controller's answer to ANN_CHECKPOINT_REQUEST."""
ANN_CHECKPOINT_EVERY: Final = f"{DOMAIN}/checkpoint-every"
"""`300s`, `10m`, `500 steps` or `auto`: checkpoints after which the job trains on; absent or `off`: none by itself."""
ANN_CHECKPOINT_POLICY: Final = f"{DOMAIN}/checkpoint-policy"
"""JSON: what the controller has to remember between two of them (`Memory` of periodic_checkpoints)."""
ANN_INFRASTRUCTURE_RETRIES: Final = f"{DOMAIN}/infrastructure-retries"
"""How many attempts may be lost to the infrastructure; absent: no limit."""
ANN_BROKEN: Final = f"{DOMAIN}/broken-attempts"
"""JSON `{"attempt", "count"}`: the last attempt that was lost to the infrastructure, and how many were."""
ANN_FLAVOR: Final = f"{DOMAIN}/flavor"
"""Pod annotation: the ResourceFlavor of this attempt."""
ANN_STORE: Final = f"{DOMAIN}/store"
FINALIZER_RECORDS: Final = f"{DOMAIN}/records"
"""On a Job that MultiKueue has copied into this cluster: it stays until the manager has what is written on it."""

# --- Kueue --------------------------------------------------------------------------------------------------------
KUEUE_GROUP: Final = "kueue.x-k8s.io"
KUEUE_VERSION: Final = "v1beta2"
KUEUE_QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
KUEUE_PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
KUEUE_JOB_UID_LABEL: Final = "kueue.x-k8s.io/job-uid"
KUEUE_PREBUILT: Final = "kueue.x-k8s.io/prebuilt-workload-name"
"""Label, or annotation where the name is too long, of a Job whose Workload was there first: MultiKueue's copies."""
MULTIKUEUE_CONTROLLER: Final = "kueue.x-k8s.io/multikueue"
"""`spec.managedBy` of a Job that runs in another cluster."""
MULTIKUEUE_ORIGIN_LABEL: Final = "kueue.x-k8s.io/multikueue-origin"
"""On what MultiKueue has copied into this cluster."""
ADMISSION_CHECK_CONTROLLER: Final = f"{DOMAIN}/fence"
"""`spec.controllerName` of our AdmissionCheck objects; the object itself is named by the chart (default below)."""
ADMISSION_CHECK_NAME: Final = "singularity-fence"

# --- the platform's own objects (Helm chart) ----------------------------------------------------------------------
SYSTEM_NAMESPACE: Final = "singularity-system"
PLATFORM_CONFIGMAP: Final = "singularity-platform"
"""Readable by every authenticated user; key `platform.json` holds the `PlatformConfig`."""
CONTROLLER_NAME: Final = "singularity-controller"
HOLD_LEASE: Final = "singularity-hold"
ANN_OVERDUE: Final = f"{DOMAIN}/overdue"
"""On the Lease: `UID/SECONDS`, a space between two: Jobs whose suspend the policy lets through from that Unix time on,
whatever stands on them. On a Workload: when the controller last made Kueue ask again."""
TOKEN_AUDIENCE: Final = DOMAIN

# --- environment of the sidecar and the launcher ------------------------------------------------------------------
ENV_NAMESPACE: Final = "SINGULARITY_NAMESPACE"
ENV_JOB: Final = "SINGULARITY_JOB"
ENV_POD: Final = "SINGULARITY_POD"
ENV_POD_IP: Final = "SINGULARITY_POD_IP"
ENV_INDEX: Final = "SINGULARITY_INDEX"
"""Completion index of the pod, 0 .. workers-1; index 0 is the leader and hosts rank 0."""
ENV_ATTEMPT: Final = "SINGULARITY_ATTEMPT"
ENV_CHECKPOINT: Final = "SINGULARITY_CHECKPOINT"
"""Id of the checkpoint to restore, empty for a fresh start."""
ENV_WORKERS: Final = "SINGULARITY_WORKERS"
ENV_FLAVOR: Final = "SINGULARITY_FLAVOR"
ENV_WORLD_SIZE: Final = "SINGULARITY_WORLD_SIZE"
ENV_STORE: Final = "SINGULARITY_STORE"
ENV_CONTROLLER_URL: Final = "SINGULARITY_CONTROLLER_URL"
ENV_CONTROLLER_CA: Final = "SINGULARITY_CONTROLLER_CA"
"""PEM text (not a path) of the CA that signed the controller's certificate."""
ENV_TOKEN_FILE: Final = "SINGULARITY_TOKEN_FILE"  # noqa: S105 - a name, not a secret
ENV_GRACE: Final = "SINGULARITY_GRACE_SECONDS"
"""terminationGracePeriodSeconds of the pod: the deadline of a checkpoint that SIGTERM asks for."""
ENV_WORKDIR: Final = "SINGULARITY_WORKDIR"
"""Directory in the image to start the command in; "." is the container's own; empty: a per-rank directory that travels
with the checkpoint."""
ENV_COMMAND: Final = "SINGULARITY_COMMAND"
"""JSON list: the user's argv."""
ENV_RUN_AS: Final = "SINGULARITY_RUN_AS"
"""`uid:gid:group,group`, with `:strict` (of supplementalGroupsPolicy) behind it or without: whom the ranks run as, from
the pod's securityContext. An empty uid is root's, an empty gid the one that the image's passwd says."""
ENV_PROBE: Final = "SINGULARITY_PROBE"
"""The launcher looks at its pod instead of training; only PROBE_GPUS is known."""
PROBE_GPUS: Final = "gpus"
ENV_LOG_RATE: Final = "SINGULARITY_LOG_RATE"
"""Bytes per second of each rank's output that are shown; what is above is counted. 0: all of it."""

OLDEST_TORCH: Final = (2, 9)
"""For jobs of one rank without a GPU, which are saved as they stand."""
OLDEST_DISTRIBUTED: Final = (2, 14)
"""For all others: the first torch whose backends are made by plugins, which the agent can replace."""

# --- environment of a rank (besides torchrun's RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...) ----------------------
ENV_RANK_DIR: Final = "SINGULARITY_RANK_DIR"
"""`RUN_DIR/rank-<r>`; its presence switches the injected agent on."""
ENV_ALONE: Final = "SINGULARITY_ALONE"
"""`1` where the job has one rank and no devices: whatever processes it starts live in its slot and are saved with it,
connections and all. The agent counts steps and leaves communication alone."""
ENV_DEVICE: Final = "SINGULARITY_DEVICE"
"""Name of the device that a rank is on, instead of its GPU's UUID: ranks with one name share a device, also without
any GPU. For all ranks of a job or for none."""

# --- paths in the pod ---------------------------------------------------------------------------------------------
ROOT: Final = "/singularity"
RUN_DIR: Final = f"{ROOT}/run"
"""Memory emptyDir shared by sidecar and launcher: barrier page, unix socket, one control directory per rank."""
AGENT_DIR: Final = f"{ROOT}/agent"
"""emptyDir filled by the init container from the agent image: `lib/` (the ranks' PYTHONPATH), `launcher/` (what runs
with capabilities: see `proxy.launcher.tools`). The training container mounts it read-only."""
LAUNCHER: Final = f"{AGENT_DIR}/launcher/start"
"""The command of the training container, with the user's behind it or in ENV_COMMAND."""
WORK_DIR: Final = f"{ROOT}/work"
"""emptyDir: `rank-<r>/{cwd,tmp,stdout.log}`; each rank's directory travels with its image."""
IMAGE_DIR: Final = f"{ROOT}/images"
"""emptyDir shared by sidecar and launcher: `<checkpoint id>/rank-<r>/` while dumping, uploading, restoring."""
SOURCE_DIR: Final = f"{ROOT}/source"
"""ConfigMap with the user's files, copied into each rank's cwd at a fresh start."""
TOKEN_DIR: Final = f"{ROOT}/token"
PAGE_FILE: Final = "page"
FROZEN_FILE: Final = "frozen.json"
"""This file and the next two lie in a rank's control directory (`agent.freeze`). Each stop replaces the files of the
stop before, because they lie in memory: a job is saved thousands of times."""
RESUME_FILE: Final = "resume.json"
RESUMED_FILE: Final = "resumed.json"
REFUSED_FILE: Final = "refused.json"
"""... `{"message"}`: why the rank cannot be saved; the generation stands in the page (`page.R_REFUSED`)."""
LOST_PEER_FILE: Final = "lost-peer"
"""In the control directory of a rank that ended because a connection to another rank broke."""
SOCKET_FILE: Final = "launcher/sidecar.sock"
"""In a folder of its own: ranks do not see it, and so cannot speak in their launcher's place."""

CONTAINER_TRAIN: Final = "train"
CONTAINER_SIDECAR: Final = "device-proxy"
CONTAINER_INSTALL: Final = "install-agent"

MESH_PORT: Final = 9400
MASTER_PORT: Final = 29500
