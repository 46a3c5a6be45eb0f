"""What a training job of another kind than Job goes through: adopted, seen, preempted, moved, paused, deleted."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml
from faults import PRIVILEGES, Faults
from rows import TIMEOUT_S, Rows, Training

from kueue_integration.cli.tables import WIDTH
from kueue_integration.contract import job_names, kinds
from kueue_integration.kube.resources import NODE, Kind, Object, annotation, label
from kueue_integration.spec.platform_config import USER_NAMESPACE
from localcluster.cache import Progress
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for
from singularity_proxy.protocol import names

QUOTA = {"ondemand": "100m", "spot": "100m"}
"""Of queue `own`: each flavor takes two pods."""


@contextlib.contextmanager
def rows_of(kind: Kind, start: Callable[[str, Progress], None], stage: Stage, say: Progress) -> Iterator[Rows]:
    """Rows with queue `own`, in a cluster that has the kind's controllers (`start`); no object of it is left behind.

    Pods have user namespaces: how a kind of job goes on the node is shown by Jobs.
    """
    start(stage.name, say)
    made = Rows(stage, kind.name.lower(), say)
    made.queue("own", QUOTA)
    Faults(stage, made.namespace).upgrade(pods__privileges=USER_NAMESPACE)
    try:
        yield made
    finally:
        Faults(stage, made.namespace).upgrade(pods__privileges=PRIVILEGES)
        for found in made.kube.list(kind, made.namespace):
            made.kube.delete(kind, made.namespace, found["metadata"]["name"])
        made.close()


def ctl(rows: Rows, *words: str, code: int = 0) -> str:
    """Output of `singularityctl WORDS` as a user runs it."""
    env = {**os.environ, "KUBECONFIG": str(rows.stage.cluster.kubeconfig)}
    command = [str(Path(sys.executable).with_name("singularityctl")), *words, "--namespace", rows.namespace]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=2 * TIMEOUT_S)
    rows.say(f"singularityctl {' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}".rstrip())
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def adopt(rows: Rows, manifest: Object, folder: Path) -> None:
    # What the test is about, not how fast a busy machine writes.
    meta = {**manifest["metadata"], "annotations": {job_names.ANN_BUDGET: "600"}}
    file = folder / "manifest.yaml"
    file.write_text(yaml.safe_dump({**manifest, "metadata": meta}))
    ctl(rows, "adopt", "-f", str(file))


def goes_through_everything(rows: Rows, training: Training, kind: Kind) -> None:
    """From its first steps to its end, each loss checked bit for bit. Its queue is `own` with QUOTA."""
    name = training.name
    key = kinds.owner_key(kind.name, name)
    training.until_steps(5)
    _is_seen(rows, key)
    assert "is fixed" in ctl(rows, "resize", name, "--workers", "1", code=2)
    assert "affinity" in ctl(rows, "migrate", name, "--away-from-node", _node(rows, key), code=2)
    ctl(rows, "checkpoint", name, "--wait")
    assert training.look().checkpoints and not training.look().attempts[0].ended_by

    rows.other("filler", "own", pods=2)  # takes spot, so that the next one has to preempt
    rows.until_admitted("filler")
    rows.other("urgent", "own", pods=2)
    ended = training.until_ended(1)
    assert ended.ended_by == "Preempted" and ended.checkpoint
    rows.until_admitted("urgent")
    made = rows.kube.get(kind, rows.namespace, name)
    assert made["spec"]["suspend"] is True and annotation(made, names.ANN_CHECKPOINT)
    rows.remove("filler")
    rows.remove("urgent")
    training.until_attempt(2)

    before = training.look().attempts[-1]
    other = next(flavor for flavor in QUOTA if flavor != before.flavor)
    ctl(rows, "migrate", name, "--flavor", other, "--wait")
    assert training.look().attempts[-1].flavor == other
    assert _flavors_of_nodes(rows, key) == {other}

    ctl(rows, "pause", name, "--wait")
    assert rows.kube.get(kind, rows.namespace, name)["spec"]["suspend"] is True
    wait_for(lambda: not _pods(rows, key), "the pods of the paused job are gone", TIMEOUT_S)
    assert key in ctl(rows, "status")
    ctl(rows, "resume", name, "--wait")
    training.until_attempt(4)
    last = training.finish()
    training.assert_exact(last)
    assert last.privileges == USER_NAMESPACE
    wait_for(
        lambda: any(
            c["type"] in ("Completed", "Complete") and c["status"] == "True"
            for c in rows.kube.get(kind, rows.namespace, name)["status"]["conditions"]
        ),
        f"the {kind.name} is complete",
        TIMEOUT_S,
    )
    ctl(rows, "delete", name, "--wait")
    assert rows.kube.find(kind, rows.namespace, name) is None
    wait_for(lambda: not _pods(rows, key), "the pods of the deleted job are gone", TIMEOUT_S)


def _is_seen(rows: Rows, key: str) -> None:
    table = ctl(rows, "status")
    assert key in table and max(map(len, table.splitlines())) <= WIDTH
    shown = json.loads(ctl(rows, "status", key, "-o", "json"))
    assert (shown["name"], shown["workers"], shown["phase"]) == (key, 2, "Running")
    assert "launcher" in ctl(rows, "logs", key)
    report = ctl(rows, "doctor")
    assert f"job {key}" in report and "hold armed" in report


def _pods(rows: Rows, key: str) -> list[Object]:
    return list(rows.kube.list_pods(rows.namespace, f"{job_names.LABEL_JOB}={key}"))


def _node(rows: Rows, key: str) -> str:
    return str(_pods(rows, key)[0]["spec"]["nodeName"])


def _flavors_of_nodes(rows: Rows, key: str) -> set[str | None]:
    """Where its pods really are."""
    alive = [pod for pod in _pods(rows, key) if not pod["metadata"].get("deletionTimestamp")]
    return {label(rows.kube.get(NODE, None, pod["spec"]["nodeName"]), "flavor") for pod in alive}
