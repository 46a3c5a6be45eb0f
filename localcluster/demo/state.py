"""The story with `engine="state"`: pods without a privilege, as many ranks as there are pods, a user who resizes.

The training runs in a namespace that enforces Pod Security `restricted`, so a pod that asks for more is never made. It
goes 4 -> 2 -> 4 -> 3 pods. The nodes of one flavor announce other machines, where no saved process could go on. The
reference is one worker that nobody disturbs: virtual ranks give both the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kueue_integration.jobs import lifecycle
from kueue_integration.kube.resources import LOCAL_QUEUE
from kueue_integration.requests import verbs
from kueue_integration.spec.train_spec import TrainSpec
from localcluster import machines
from localcluster.addons import restricted
from localcluster.addons.chart import SHARED_MOUNT
from singularity_proxy.protocol.manifest import loads

from . import samples
from .compare import compare, read_output
from .errors import StoryError
from .follow import ENDED, Follower, runs
from .model import Expectation, Machines, Outcome, StoryRecord
from .quickstart import INTRUDER, clear_the_way
from .reference import host_path, with_option
from .stage import DAGS, NAMESPACE, Stage, unstamped
from .story import CPU_PER_POD, MOVE_TIMEOUT_S, QUEUE, drive, record

RESTRICTED = "demo-restricted"
"""Namespace of the training. The job with high priority comes from the usual one, where pods may be as they like."""
SCRIPTS = DAGS / "scripts"
SCRIPT, NETWORK = SCRIPTS / "train_digits_state.py", SCRIPTS / "train_digits.py"
VIRTUAL_RANKS, MICRO_BATCH = 4, 32
STEPS, PAUSE_S = 500, 0.1
"""As in `quickstart`."""
REFERENCE_TIMEOUT_S = 900.0


def expectation(steps: int) -> Expectation:
    """Four workers, moved with two of them, grown back, and resized to three."""
    return Expectation(
        steps=steps, ranks=VIRTUAL_RANKS, workers=4, min_workers=2, flavor="ondemand", other_flavor="spot",
        intruder=INTRUDER, elastic=True, last_workers=3,
    )  # fmt: skip


def spec(name: str, expect: Expectation, folder: str) -> TrainSpec:
    """The job as a user would write it; `folder`: below the shared one, with the data, and writable."""
    place = f"{SHARED_MOUNT}/{folder}"
    options = {"data": f"{place}/digits.npz", "output": f"{place}/output", "steps": expect.steps, "pause": PAUSE_S}
    words = [str(word) for key, value in options.items() for word in (f"--{key}", value)]
    return TrainSpec(
        name=name,
        namespace=RESTRICTED,
        queue=QUEUE,
        priority_class="low",
        command=["python3", SCRIPT.name, *words, "--batch-size", str(MICRO_BATCH)],
        files={path.name: path.read_text() for path in (SCRIPT, NETWORK)},
        workers=expect.workers,
        min_workers=expect.min_workers,
        resources={"cpu": CPU_PER_POD},
        engine="state",
    )


def play_and_judge(stage: Stage, steps: int = STEPS) -> tuple[Expectation, Outcome]:
    """The story, and the sentences about it. Raises StoryError, SingularityError, LocalClusterError, OSError."""
    flavor = expectation(steps).other_flavor
    with machines.different(stage.name, flavor, lambda text: stage.say(unstamped(text))) as lacking:
        expect, measured, job = play(stage, steps)
    outcome = judge(stage, expect, measured, job)
    return expect, replace(outcome, machines=Machines(flavor, lacking, seen(stage, measured)))


def seen(stage: Stage, measured: StoryRecord) -> dict[str, str]:
    """Flavor -> digest of the processor's features, as its first checkpoint has them. Raises OSError, ValueError."""
    # Where the store keeps manifests; the store's own code is nothing that this program may import.
    store = host_path(stage.platform, stage.platform.store.removeprefix("file://"))
    found: dict[str, str] = {}
    for attempt in measured.attempts:
        manifest = store / "jobs" / RESTRICTED / measured.job / f"{attempt.checkpoint}.json"
        if attempt.flavor not in found and manifest.exists():
            found[attempt.flavor] = loads(manifest.read_text()).requirements.cpu_flags_digest
    return found


def play(stage: Stage, steps: int) -> tuple[Expectation, StoryRecord, TrainSpec]:
    """Submit the job and play the story to its end. Raises StoryError, SingularityError, LocalClusterError."""
    expect, say = expectation(steps), stage.say
    clear_the_way(stage.kube, RESTRICTED)
    restricted.make(stage.kubectl, RESTRICTED, stage.platform.volumes)
    stage.kubectl.apply([local_queue()])
    name = f"digits-{int(time.time())}"
    job = spec(name, expect, f"runs/demo/{name}")
    _make_room(stage, job)
    say(f"namespace {RESTRICTED} enforces Pod Security {restricted.LEVEL}; {name}: {' '.join(job.command)}")
    started_at = time.time()
    follower = submit(stage, job)

    def resize() -> None:
        workers = expect.last_workers or expect.workers
        say(f"--> singularityctl resize {name} --workers {workers}")
        verbs.resize(stage.kube, RESTRICTED, name, workers)
        follower.until(
            lambda s: runs(s, expect.flavor, workers, 1),
            f"{workers} pods on {expect.flavor} (if the training ended first, give it more steps)",
            MOVE_TIMEOUT_S,
        )

    image = stage.platform.train_image
    last = drive(stage.kube, RESTRICTED, follower, expect, image, say, intruder_from=NAMESPACE, then=resize)
    return expect, record(follower, started_at, last), job


def submit(stage: Stage, job: TrainSpec, say: Callable[[str], None] | None = None) -> Follower:
    """Submit a job to the restricted namespace, whose volumes are claims; who looks at it."""
    claims = restricted.claimed(RESTRICTED, stage.platform.volumes)
    lifecycle.submit(stage.kube, job, replace(stage.platform, volumes=claims))
    return Follower(stage.kube, RESTRICTED, job.name, say or stage.say)


def local_queue() -> dict[str, Any]:
    """The chart's ClusterQueue for the restricted namespace, too."""
    meta = {"name": QUEUE, "namespace": RESTRICTED}
    return {
        "apiVersion": LOCAL_QUEUE.api_version, "kind": LOCAL_QUEUE.name, "metadata": meta,
        "spec": {"clusterQueue": QUEUE},
    }  # fmt: skip


def judge(stage: Stage, expect: Expectation, measured: StoryRecord, job: TrainSpec) -> Outcome:
    """Train with one worker that nobody disturbs, and compare. Raises StoryError, OSError, ValueError."""
    output = job.command[list(job.command).index("--output") + 1]
    alone = f"{output}-one-worker"
    command = with_option(with_option(job.command, "--output", alone), "--pause", "0")
    plain = replace(job, name=f"{job.name}-one-worker", workers=1, min_workers=None, command=command)
    _make_room(stage, plain)
    stage.say(f"reference: {SCRIPT.name} with one worker, uninterrupted")
    follower = submit(stage, plain, lambda text: stage.say(f"reference: {text}"))
    last = follower.until(lambda s: s.phase in ENDED, "the end of the reference", REFERENCE_TIMEOUT_S)
    if last.phase != "Succeeded" or len(last.attempts) != 1:
        raise StoryError(f"the reference {last.phase.lower()} in {len(last.attempts)} attempts: {last.message or ''}")
    mine, wanted = (host_path(stage.platform, path) for path in (output, alone))
    same = compare(read_output(mine, expect.logs), read_output(wanted, expect.logs))
    given = samples.wrong(samples.read(mine), expect.steps, VIRTUAL_RANKS * MICRO_BATCH)
    return Outcome(measured, same, given)


def _make_room(stage: Stage, job: TrainSpec) -> None:
    """The data, and an empty folder for what the job's pods write: they do not run as root."""
    places = _options(job.command)
    data, output = (host_path(stage.platform, places[name]) for name in ("--data", "--output"))
    output.mkdir(parents=True)
    output.chmod(0o777)
    write_digits(data)


def _options(command: Sequence[str]) -> Mapping[str, str]:
    return dict(zip(command[2::2], command[3::2], strict=True))


def write_digits(path: Path) -> None:
    """scikit-learn's handwritten digits, as the scripts of the examples read them."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    np.savez(path, x_train=(digits.images / 16.0).astype(np.float32), y_train=digits.target.astype(np.int64))
