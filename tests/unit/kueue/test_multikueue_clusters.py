"""A manager between real API servers, of which one is slow, silent or not there: the jobs of the others go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_proxy import FaultyProxy

from benchmarks.federation import KUEUE, Federation, ca, federation, kubeconfig, until
from kueue_integration.contract import attempt_records
from kueue_integration.kube.resources import CLUSTER_PROFILE, MULTIKUEUE_CLUSTER
from kueue_integration.multikueue import access
from localcluster.api_server import started_again

pytestmark = pytest.mark.long
AT_ONCE_S = 4.0
"""Well below the 10 s for which a silent API server is waited for. A loaded machine needs some of it."""
WAITERS = 12
"""Jobs that wait for the faulty cluster meanwhile: more than there are threads for it."""
PLUGIN = "gives-token"


@pytest.fixture(scope="module")
def land(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, FaultyProxy]]:
    """Clusters `good` and `bad`, the latter behind a proxy. `good` is reached by a ClusterProfile."""
    programs = [os.environ.get(f"SINGULARITY_{name}") for name in ("APISERVER", "ETCD")]
    if not all(programs):
        pytest.skip("no API server: `python -m localcluster.prepare --env` says where to find it")
    folder = tmp_path_factory.mktemp("federation")
    text = json.dumps([
        {"name": "elsewhere", "execConfig": {"apiVersion": "client.authentication.k8s.io/v1", "command": "none"}},
        {"name": "ours", "execConfig": {"apiVersion": "client.authentication.k8s.io/v1",
                                        "command": str(plugin(folder)), "args": ["admin"]}},
    ])  # fmt: skip
    with federation(folder, *map(str, programs), ["good", "bad"], access.providers(text)) as made:
        proxy = FaultyProxy(int(made.workers["bad"].url.rpartition(":")[2]))
        made.by_secret("bad", kubeconfig(made.workers["bad"], proxy.url.replace("http:", "https:")))
        good = made.workers["good"]
        cluster = {"server": good.url, "certificate-authority-data": ca(good)}
        meta = {"name": "fleet-good", "namespace": KUEUE}
        status = {"accessProviders": [{"name": "theirs", "cluster": {}}, {"name": "ours", "cluster": cluster}]}
        made.here.create({"apiVersion": CLUSTER_PROFILE.api_version, "kind": CLUSTER_PROFILE.name, "metadata": meta,
                          "status": status})  # fmt: skip
        made.declare("good", {"clusterProfileRef": {"name": "fleet-good"}})
        made.start()
        until(lambda: made.fresh("good", "bad"), "both clusters are known")
        yield made, proxy
        proxy.close()


def plugin(folder: Path) -> Path:
    """Make a program that gives the token of an API server, as those of the clouds do."""
    made = folder / PLUGIN
    made.write_text(
        '#!/bin/sh\necho "{\\"apiVersion\\": \\"client.authentication.k8s.io/v1\\", \\"kind\\": \\"ExecCredential\\", '
        '\\"status\\": {\\"token\\": \\"token-of-$1\\"}}"\n'
    )
    made.chmod(made.stat().st_mode | stat.S_IXUSR)
    assert shutil.which(str(made))
    return made


def waiters(land: Federation, prefix: str) -> list[str]:
    """Jobs that have been in `bad`, and now have quota in `good`: their next attempt needs the word of `bad`."""
    names = [f"{prefix}-{n}" for n in range(WAITERS)]
    for name in names:
        land.admitted("bad", name)
    return names


@pytest.mark.parametrize("fault", [pytest.param("slow", marks=pytest.mark.full), "silence", "cut"])
def test_a_cluster_that_fails_holds_up_the_jobs_that_need_its_word_and_no_other(
    land: tuple[Federation, FaultyProxy], fault: str
) -> None:
    here, proxy = land
    names = waiters(here, fault)
    before = max(here.admitted("good", f"before-{fault}-{n}") for n in range(3))
    if fault == "slow":
        proxy.rate = 400.0  # a TLS handshake alone takes more than five seconds
    else:
        proxy.fail(fault)
    try:
        for name in names:
            here.reserve("good", name)
        if fault != "slow":
            proxy.wait_fired(fault)
        times = [here.admitted("good", f"during-{fault}-{n}") for n in range(6)]
        assert max(times) < before + AT_ONCE_S, (before, times)
        assert all(here.check("good", name)["state"] == "Pending" for name in names)
        if fault != "slow":
            said = "cluster bad does not answer"
            until(lambda: said in here.check("good", names[0])["message"], "the waiting job says why")
        assert [r.cluster for r in attempt_records.history(here.job(names[0]))] == ["bad"]
    finally:
        proxy.rate = 0.0
        proxy.heal()
    # It is back, and nothing of the jobs is left there.
    for name in names:
        here.leave("bad", name)
    here.let_in("good", names)
    assert attempt_records.history(here.job(names[0]))[-1].cluster == "good"


def test_a_cluster_that_was_never_there_costs_nothing(land: tuple[Federation, FaultyProxy]) -> None:
    """Nothing listens at its address; and a fleet's cluster whose program gives nothing is named in the log."""
    here, _ = land
    here.by_secret("nowhere", kubeconfig(here.workers["bad"], "https://127.0.0.1:9"))
    here.declare("unknown", {"clusterProfileRef": {"name": "no-such-profile"}})
    try:
        assert here.reconciler is not None
        until(lambda: "unknown" in here.reconciler.fleet.unconnected(), "it cannot even be tried")  # type: ignore[union-attr]
        assert max(here.admitted("good", f"beside-{n}") for n in range(3)) < AT_ONCE_S
    finally:
        for name in ("nowhere", "unknown"):
            here.here.delete(MULTIKUEUE_CLUSTER, None, name)


def test_a_cluster_that_was_killed_is_used_again_when_it_is_back(land: tuple[Federation, FaultyProxy]) -> None:
    here, _ = land
    server, names = here.workers["bad"], waiters(here, "killed")
    before = max(here.admitted("good", f"before-killed-{n}") for n in range(3))
    os.kill(server.pid, signal.SIGKILL)
    for name in names:
        here.reserve("good", name)
    times = [here.admitted("good", f"during-killed-{n}") for n in range(6)]
    assert max(times) < before + AT_ONCE_S, (before, times)
    said = "cluster bad does not answer"
    until(lambda: said in here.check("good", names[0])["message"], "the waiting job says why")
    with started_again(server):
        for name in names:
            here.leave("bad", name)
        here.let_in("good", names)
        here.admitted("bad", "returner")
        assert attempt_records.history(here.job("returner"))[-1].cluster == "bad"
