"""Thirty Jobs whose owners write whatever they like on them, and a job of somebody else that is preempted meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping

import garbage
import pytest
from rows import CPU, TIMEOUT_S, Rows
from shell import Shell

from kueue_integration.contract import job_names
from kueue_integration.errors import Conflict, Invalid, KubeError
from kueue_integration.kube import server_time
from kueue_integration.kube.client import MERGE_PATCH, ApiKube, Credentials
from kueue_integration.kube.credentials import connect
from kueue_integration.kube.resources import JOB, LEASE, POD
from localcluster.demo.stage import Stage
from localcluster.demo.wait import wait_for
from singularity_proxy.protocol import names

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1800)]
HOSTILE = 30
ROOM = 200_000
"""Bytes of one Job's annotations: the API server takes 256 KiB."""
CONTROLLER = f"system:serviceaccount:{job_names.SYSTEM_NAMESPACE}:{job_names.CONTROLLER_NAME}"
OURS = [value for name, value in {**vars(names), **vars(job_names)}.items() if name.startswith("ANN_")]
TEXTS = [text for text in garbage.EXTREMES if not garbage.halved(text) and len(text) <= ROOM // 2]
FIRST = {job_names.ANN_HISTORY: "[" * 100_000, job_names.ANN_BUDGET: "9" * 400}
"""What once took a controller down, and kept it down."""
DEEP = 1500
"""Levels: Python's parser takes fewer than 1,000. 5,000 cost the API server 6 s of its own for one patch."""


def sets(turn: int) -> Iterator[dict[str, str]]:
    """One set of annotations for each hostile Job; each turn gives every Job another one."""
    for number in range(HOSTILE):
        left, found = ROOM, {}
        for name, text in zip(OURS, itertools.islice(itertools.cycle(TEXTS), number * 7 + turn, None), strict=False):
            if len(text.encode()) <= left:
                found[name] = text
                left -= len(text.encode())
        found[job_names.ANN_HOLD] = job_names.HOLD_ARMED
        yield found


class Impersonating:
    """Credentials of an administrator who speaks as our controller."""

    def __init__(self, own: Credentials) -> None:
        self._own, self.server, self.pool = own, own.server, own.pool

    def headers(self) -> Mapping[str, str]:
        return {**self._own.headers(), "Impersonate-User": CONTROLLER}


class Guarded:
    """A client that may write what the guard policies keep for the controller: the readers alone must be enough."""

    def __init__(self, stage: Stage, namespace: str) -> None:
        self._kube: ApiKube = connect(str(stage.cluster.kubeconfig))
        self._kube.credentials = Impersonating(self._kube.credentials)
        self._namespace = namespace

    def spoil(self, turn: int) -> int:
        """Write the sets; how many Jobs took theirs."""
        done = 0
        for number, notes in enumerate(sets(turn)):
            body = {"metadata": {"annotations": FIRST if (turn, number) == (0, 0) else notes}}
            with contextlib.suppress(Conflict, Invalid):
                self._kube.patch_job(self._namespace, f"hostile-{number}", body)
                done += 1
        return done

    def nest(self) -> None:
        """Fields of thousands of levels, of which every list of all Jobs has its copy."""
        deep = '{"f:metadata":' + '{"f:a":' * DEEP + "{}" + "}" * DEEP + "}"
        entry = (
            '{"manager":"x","operation":"Update","apiVersion":"batch/v1","time":"2020-01-01T00:00:00Z",'
            f'"fieldsType":"FieldsV1","fieldsV1":{deep}}}'
        )
        answer = self._kube.credentials.pool.request(
            "PATCH",
            self._kube.server + JOB.path(self._namespace, "hostile-1"),
            body=f'{{"metadata":{{"managedFields":[{entry}]}}}}'.encode(),
            headers={**self._kube.credentials.headers(), "Content-Type": MERGE_PATCH},
        )
        assert answer.status == 200, answer.data[:500]
        assert answer.data.count(b'"f:a"') == DEEP


class Watch:
    """Looks at the Lease and at /metrics twice a second, until it is left."""

    def __init__(self, stage: Stage) -> None:
        self._kube = stage.kube
        self._over = threading.Event()
        self.ages: list[float] = []
        self.numbers: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._over.wait(0.5):
            try:
                spec = self._kube.get(LEASE, job_names.SYSTEM_NAMESPACE, job_names.HOLD_LEASE)["spec"]
                self.ages.append(time.time() - server_time.parse(spec["renewTime"]))
                self.numbers.append(self._metrics())
            except (KubeError, OSError):
                self.numbers.append(0)

    def _metrics(self) -> int:
        pods = self._kube.list(POD, job_names.SYSTEM_NAMESPACE, "app.kubernetes.io/component=controller")
        told = set[int]()
        for ip in filter(None, (pod["status"].get("podIP") for pod in pods)):
            with urllib.request.urlopen(f"http://{ip}:8080/metrics", timeout=10) as answer:
                told.add(int(answer.status))
        return max(told)


@pytest.fixture
def namespaces(stage: Stage, say: Callable[[str], None]) -> Iterator[tuple[Rows, Rows]]:
    """That of the hostile Jobs and that of the other job."""
    made = Rows(stage, "rows-hostile", say), Rows(stage, "rows-victim", say)
    yield made
    for rows in made:
        rows.close()


def test_nobody_else_notices_what_is_written_on_thirty_jobs(
    stage: Stage, namespaces: tuple[Rows, Rows], say: Callable[[str], None]
) -> None:
    theirs, ours = namespaces
    theirs.queue("hostile", {"ondemand": CPU})
    for number in range(HOSTILE):
        theirs.train(f"hostile-{number}", "hostile")  # the first one runs, the others wait for quota
    ours.queue("victim", {"ondemand": CPU})
    ours.queue("newcomer", {"ondemand": CPU})
    job = ours.train("victim", "victim")
    job.until_steps(5)
    restarts = _restarts(stage)
    writer, over, turns = Guarded(stage, "rows-hostile"), threading.Event(), []

    def spoil() -> None:
        for turn in itertools.count():
            if over.is_set():
                return
            turns.append(writer.spoil(turn))

    writer.nest()  # before the other writes, which would meet it in a conflict
    thread = threading.Thread(target=spoil, daemon=True)
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(Watch(stage))
        stack.callback(thread.join, 120)
        stack.callback(over.set)
        thread.start()
        wait_for(lambda: turns, "the first hostile sets are written", TIMEOUT_S)
        began = time.monotonic()
        ours.train("newcomer", "newcomer")
        ours.until_admitted("newcomer")
        took = time.monotonic() - began
        ours.other("urgent", "victim")
        ended = job.until_ended(1)
        assert (ended.ended_by, ended.checkpoint is not None) == ("Preempted", True), ended
        shell = Shell(stage.cluster)
        findings = shell.doctor_whatever_it_exits_with("-n", "rows-hostile")
        assert any("cannot be read" in finding["message"] for finding in findings.values()), findings
        assert f"hostile-{HOSTILE - 1}" in shell.run("status", "-n", "rows-hostile")
        ours.remove("urgent")
        job.until_attempt(2)
    say(f"{len(turns)} turns, {sum(turns)} sets written; the newcomer was admitted after {took:.1f} s; "
        f"the Lease was {max(watch.ages):.1f} s old at most")  # fmt: skip
    assert sum(turns) >= HOSTILE, "the fault did not fire"
    assert took < 5
    assert watch.ages and max(watch.ages) < 10
    assert watch.numbers and set(watch.numbers) == {200}
    assert _restarts(stage) == restarts
    job.assert_exact(job.finish())


def _restarts(stage: Stage) -> int:
    """Of the controller's containers."""
    pods = stage.kube.list(POD, job_names.SYSTEM_NAMESPACE, "app.kubernetes.io/component=controller")
    return sum(s.get("restartCount", 0) for pod in pods for s in pod["status"].get("containerStatuses") or ())
