"""Environment variables, paths and ports: every name that the proxy and another part have to agree on.

Names that only the parts outside `proxy` use are in `kueue_integration.contract.job_names`, and `proxy` imports none of
them. They are labels and annotations of Jobs and Workloads, Kueue's own names, the platform's objects, and containers
of the pod.
"""

from __future__ import annotations

from typing import Final

DOMAIN: Final = "singularity.dev"
ANN_CHECKPOINT: Final = f"{DOMAIN}/checkpoint"
"""On the Job: the committed checkpoint as JSON (`CheckpointRef`), the linearisation point. On pods: its id, or ""."""
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
ENV_WORLD_SIZE: Final = "SINGULARITY_WORLD_SIZE"
ENV_STORE: Final = "SINGULARITY_STORE"
ENV_STORE_KEYS: Final = "SINGULARITY_STORE_KEYS"
"""Folder with the namespace's keys: checkpoints are encrypted. Not set: they are not."""
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
SECRET_WORD: Final = "SINGULARITY_SECRET_"  # noqa: S105 - a name
"""... and a number: a word of the command that stands in a Secret, as part of the command's JSON text."""
ENV_RUN_AS: Final = "SINGULARITY_RUN_AS"
"""`uid:gid:group,group`, with `:strict` (of supplementalGroupsPolicy) behind it or without: whom the ranks run as, from
the pod's securityContext. An empty uid is root's, an empty gid the one that the image's passwd says."""
ENV_ENGINE: Final = "SINGULARITY_ENGINE"
"""How the job is saved: one of ENGINES. Not set: ENGINE_PROCESS. Also in the environment of a rank."""
ENGINE_PROCESS: Final = "process"
"""Whole processes, by CRIU."""
ENGINE_STATE: Final = "state"
"""What the script has given to `singularity_train`, in ranks that are plain processes of an ordinary container."""
ENGINE_BOTH: Final = "both"
"""Whole processes, and beside them in the same checkpoint what the script has given to `singularity_train`. A pod that
cannot take the processes goes on from the state."""
STATE_PART: Final = "state"
"""ENGINE_BOTH: folder in a rank's image with what the rank has saved itself."""
ENGINES: Final = (ENGINE_PROCESS, ENGINE_STATE, ENGINE_BOTH)
ENV_RANKS_PER_WORKER: Final = "SINGULARITY_RANKS_PER_WORKER"
"""State engine: the world of an attempt is its workers times this number."""
ENV_PROBE: Final = "SINGULARITY_PROBE"
"""The launcher examines its pod instead of training; only PROBE_GPUS is known."""
PROBE_GPUS: Final = "gpus"
ENV_IMAGE_ROOM: Final = "SINGULARITY_IMAGE_ROOM"
"""Bytes that the volume of the images may hold: with more, the kubelet evicts the pod. Not set: what the disk has."""
ENV_CHECKPOINT_MEMORY: Final = "SINGULARITY_CHECKPOINT_MEMORY"
"""Bytes of memory that the sidecar may use to take in a checkpoint after which the job trains on. Not set: none."""
ENV_REPRODUCIBLE_LAYOUT: Final = "SINGULARITY_REPRODUCIBLE_LAYOUT"
"""Not empty: ranks that start anew have addresses without randomness and one seed for Python's hashes."""
ENV_LOG_RATE: Final = "SINGULARITY_LOG_RATE"
"""Bytes per second of each rank's output that are shown; the rest is only counted. 0: all output is shown."""

OLDEST_TORCH: Final = (2, 6)
"""The first that was tried."""

# --- environment of a rank (besides torchrun's RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...) ----------------------
ENV_RANK_DIR: Final = "SINGULARITY_RANK_DIR"
"""`RUN_DIR/rank-<r>`; its presence switches the injected agent on."""
ENV_ALONE: Final = "SINGULARITY_ALONE"
"""`1` where the job has one rank and no devices. All processes that the rank starts live in its slot and are saved with
it, including connections. The agent counts steps and leaves communication alone."""
ENV_TRAIN_HOST: Final = "SINGULARITY_TRAIN_HOST"
"""`module:function`, for `singularity_train` in a rank: who makes its Host."""
ENV_STATE_TO: Final = "SINGULARITY_STATE_TO"
"""State engine, ENGINE_BOTH: below this folder the rank saves its state, in a folder named by the stop's generation."""
ENV_STATE_FROM: Final = "SINGULARITY_STATE_FROM"
"""State engine, ENGINE_BOTH: folder with the checkpoint that the rank begins with; not set: there is none."""
ENV_STATE_PARTS: Final = "SINGULARITY_STATE_PARTS"
"""State engine: socket to ask for what that folder lacks; not set: it has everything."""
ENV_RESULT: Final = "SINGULARITY_RESULT_FILE"
"""Where the program may leave a JSON object (`messages.RESULT_BYTES`) before it ends well. That of rank 0 is written on
the Job."""
ENV_OUTPUTS: Final = "OUTPUTS"
"""Folder whose files are stored at the job's URL for outputs once all ranks have ended well; not set: it has none."""
ENV_INPUTS: Final = "INPUTS"
"""Folder with a folder for each of the job's inputs, read-only; not set: it has none."""
ENV_DEVICE: Final = "SINGULARITY_DEVICE"
"""Name of the device that a rank is on, instead of its GPU's UUID: ranks with one name share a device, also without
any GPU. For all ranks of a job or for none."""

# --- paths in the pod ---------------------------------------------------------------------------------------------
ROOT: Final = "/singularity"
RUN_DIR: Final = f"{ROOT}/run"
"""Memory emptyDir shared by sidecar and launcher: barrier page, unix socket, one control directory per rank."""
AGENT_DIR: Final = f"{ROOT}/agent"
"""emptyDir filled by the init container from the agent image: `lib/` (the ranks' PYTHONPATH), `launcher/` (what runs
with capabilities: see `singularity_proxy.launcher.tools`). The training container mounts it read-only."""
WORK_DIR: Final = f"{ROOT}/work"
"""emptyDir: `rank-<r>/{cwd,tmp,stdout.log}`; each rank's directory travels with its image."""
IMAGE_DIR: Final = f"{ROOT}/images"
"""emptyDir shared by sidecar and launcher: `<checkpoint id>/rank-<r>/` while dumping, uploading, restoring."""
STATE_FROM: Final = ".from"
"""State engine: below IMAGE_DIR, the checkpoint that the ranks begin with, as `singularity_train.storage` reads it."""
STATE_BLOBS: Final = "blobs"
STATE_CHECKPOINTS: Final = "checkpoints"
"""This folder and the one before are all of it that ranks read."""
INPUTS_DIR: Final = f"{ROOT}/inputs"
"""emptyDir, where the job has inputs: a folder for each, which the sidecar fills before the ranks start. The training
container mounts it read-only."""
SOURCE_DIR: Final = f"{ROOT}/source"
"""ConfigMap with the user's files, copied into each rank's cwd at a fresh start."""
PAGE_FILE: Final = "page"
FROZEN_FILE: Final = "frozen.json"
"""This file and the next two lie in a rank's control directory (`agent.freeze`). Each stop replaces the files of the
stop before, because they lie in memory: a job is saved thousands of times."""
RESUME_FILE: Final = "resume.json"
RESUMED_FILE: Final = "resumed.json"
PROGRESS_FILE: Final = "progress.json"
"""In rank 0's control directory, state engine: `{"step", "steps", "loss"}` after a step; null if unknown."""
REFUSED_FILE: Final = "refused.json"
"""... `{"message"}`: why the rank cannot be saved; the generation stands in the page (`page.R_REFUSED`)."""
LOST_PEER_FILE: Final = "lost-peer"
"""In the control directory of a rank that ended because a connection to another rank broke."""
NOT_RESTORED_FILE: Final = "not-restored.json"
"""..., state engine: `{"message"}`: why a rank that has ended could not begin from the checkpoint that it was given."""
ENDED_FILE: Final = "ended.json"
"""The image of a rank that had ended when the others were saved; it has no other file."""
SOCKET_FILE: Final = "launcher/sidecar.sock"
"""In a folder of its own: ranks do not see it, and so cannot speak in their launcher's place."""
PAGES_FILE: Final = "launcher/pages.sock"
"""Beside it: where the sidecar takes pages of a dump."""

RESULT_FILE: Final = "result.json"
"""In a rank's working directory, so that it travels: what ENV_RESULT names."""
HANDED_RESULT_FILE: Final = "launcher/result.json"
"""In RUN_DIR: that of rank 0, once the rank has ended well; the sidecar brings it to the controller."""

OUTPUTS_DIR: Final = "outputs"
"""In a rank's working directory, so that it travels: what ENV_OUTPUTS names."""

OUTPUTS_TAR: Final = "outputs.tar"
"""In a rank's image: that folder, where the rank's working directory does not travel."""

OUTPUTS_FROM: Final = ".outputs"
"""Below IMAGE_DIR, state engine: `rank-<r>/OUTPUTS_TAR` of the checkpoint that the ranks begin with."""

PARTS_FILE: Final = "parts.sock"
"""In RUN_DIR, state engine: where ranks ask the sidecar for parts of the checkpoint that they begin with."""

HOLD_REWIND: Final = "-rewind"
"""In the store, the holder of a checkpoint that its own job is about to go back to. No job can be called so."""

MESH_PORT: Final = 9400
MASTER_PORT: Final = 29500
