"""Who acts: taking, renewing, losing and giving up the Lease."""

from __future__ import annotations

import itertools
import logging
import time
from types import SimpleNamespace

import pytest
from module_clock import set_clock
from waits import until

from kueue_integration.contract import job_names
from kueue_integration.controller import lease
from kueue_integration.controller.config import Config
from kueue_integration.controller.hold import Settings
from kueue_integration.controller.lease import LeaseKeeper
from kueue_integration.errors import Conflict, Unreachable
from kueue_integration.kube import server_time
from kueue_integration.kube.client import CONNECTS
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import LEASE

EMPTY = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": job_names.HOLD_LEASE, "namespace": "sys"},
}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A Lease of one second ends after a hundred looks at the clock, however long the machine takes for them."""
    looks = itertools.count()
    set_clock(monkeypatch, lease, monotonic=lambda: next(looks) / 100)


def keeper(kube, identity, alive=lambda: True, duration=1, log=None):
    changes = log if log is not None else []
    return LeaseKeeper(kube, "sys", job_names.HOLD_LEASE, identity, duration, 0.1, alive, changes.append)


def spec_of(kube):
    return kube.get(LEASE, "sys", job_names.HOLD_LEASE).get("spec", {})


def test_the_charts_empty_lease_is_taken_and_renewed():
    kube, changes = FakeKube(EMPTY), []
    one = keeper(kube, "a", log=changes)
    assert not one.leads
    one.tick()
    first = spec_of(kube)
    assert one.leads
    assert (first["holderIdentity"], first["leaseDurationSeconds"], first["leaseTransitions"]) == ("a", 1, 1)
    assert abs(server_time.parse(first["renewTime"]) - time.time()) < 60
    one.tick()
    assert spec_of(kube)["renewTime"] > first["renewTime"]
    assert (spec_of(kube)["acquireTime"], spec_of(kube)["leaseTransitions"]) == (first["acquireTime"], 1)
    assert changes == [True]


def test_a_lease_that_somebody_deleted_is_made_again():
    kube, repaired = FakeKube(EMPTY), []
    one = LeaseKeeper(
        kube, "sys", job_names.HOLD_LEASE, "a", 10, 0.1, lambda: True, [].append, on_repair=lambda: repaired.append(1)
    )
    one.tick()
    kube.delete(LEASE, "sys", job_names.HOLD_LEASE)
    one.tick()
    assert one.leads
    assert spec_of(kube)["holderIdentity"] == "a"
    assert kube.get(LEASE, "sys", job_names.HOLD_LEASE)["metadata"]["labels"], (
        "else the API server keeps no times of it"
    )
    one.tick()
    assert repaired == [1]


def test_a_second_replica_looks_on_until_the_first_is_silent():
    kube = FakeKube(EMPTY)
    one, two = keeper(kube, "a"), keeper(kube, "b")
    one.tick()
    two.tick()
    assert (one.leads, two.leads) == (True, False)
    until(lambda: (two.tick(), two.leads)[1], "the other takes over")
    assert not one.leads  # its own clock told it first
    assert spec_of(kube)["holderIdentity"] == "b"
    one.tick()
    assert (one.leads, two.leads) == (False, True)


def test_a_second_replica_takes_over_before_the_holds_are_void(monkeypatch):
    """A leader that dies costs no hold: the policy counts the whole duration, the replicas a part of it."""
    moment = [100.0]
    monkeypatch.setattr("kueue_integration.controller.lease.time.monotonic", lambda: moment[0])
    kube = FakeKube(EMPTY)
    one, two = (
        LeaseKeeper(kube, "sys", job_names.HOLD_LEASE, name, 10, 2.0, lambda: True, lambda leads: None) for name in "ab"
    )
    one.tick()  # and never again
    while not two.leads:
        moment[0] += 2.0
        assert moment[0] < 110.0
        assert not (one.leads and two.leads)
        two.tick()
    assert not one.leads


@pytest.mark.parametrize("late", [0.0, 0.3, 0.7])
def test_a_take_over_leaves_three_seconds_however_the_rounds_fall(monkeypatch, late):
    """By the rounds that it plans itself, begun at any time after the last renewal, and all of them `late`."""
    moment = [0.0]
    monkeypatch.setattr("kueue_integration.controller.lease.time.monotonic", lambda: moment[0])
    for tenth in range(20):
        kube = FakeKube(EMPTY)
        one, two = (
            LeaseKeeper(kube, "sys", job_names.HOLD_LEASE, name, 10, 2.0, lambda: True, lambda leads: None)
            for name in "ab"
        )
        moment[0] = 100.0
        one.tick()
        moment[0] += tenth / 10 * (1.0 + late) / 2
        while not two.leads:
            began = moment[0]
            two.tick()
            moment[0] = two.next_round(began) + late
        assert began - 100.0 < 7.1 + 2 * late, (tenth, began)
        assert not one.leads


def test_after_a_slow_answer_everything_is_looked_at_again():
    """While the Lease was not ours for certain, the worker dropped its tasks."""
    kube, changes = FakeKube(EMPTY), []
    one = keeper(kube, "a", log=changes)
    one.tick()
    answer = kube.get_lease

    def slow(namespace, name):
        until(lambda: not one.leads, "it leads no more")
        return answer(namespace, name)

    kube.get_lease = slow
    one.tick()
    assert one.leads
    assert changes == [True, False, True]


def test_clocks_of_replicas_need_not_agree():
    """A renewTime far in the past does not make a live holder look dead: what counts is that it changes."""
    kube = FakeKube(EMPTY)
    other = kube.get(LEASE, "sys", job_names.HOLD_LEASE)
    other["spec"] = {"holderIdentity": "a", "renewTime": server_time.to_micro(1000), "leaseDurationSeconds": 1}
    kube.update_lease(other)
    two = keeper(kube, "b")
    two.tick()
    assert not two.leads


def test_a_worker_that_hangs_stops_the_renewal():
    kube, alive, changes = FakeKube(EMPTY), [True], []
    one = keeper(kube, "a", alive=lambda: bool(alive), log=changes)
    one.tick()
    before = spec_of(kube)["renewTime"]
    alive.clear()
    until(lambda: (one.tick(), not one.leads)[1], "it leads no more")
    one.tick()
    assert spec_of(kube)["renewTime"] == before
    assert changes == [True, False]


def test_silence_before_the_first_life_is_no_error(caplog):
    caplog.set_level(logging.INFO)
    alive = []
    one = keeper(FakeKube(EMPTY), "a", alive=lambda: bool(alive))
    one.tick()
    assert not one.leads
    assert [record.levelname for record in caplog.records] == ["INFO"]
    alive.append(True)
    one.tick()
    alive.clear()
    one.tick()
    assert caplog.records[-1].levelname == "ERROR"


def test_giving_up_lets_the_next_one_in_at_once_and_keeps_the_time():
    kube = FakeKube(EMPTY)
    one, two = keeper(kube, "a"), keeper(kube, "b")
    began = time.time()
    one.start()
    until(lambda: one.leads, "it leads")
    one.stop()
    spec = spec_of(kube)
    assert spec["holderIdentity"] == ""
    assert server_time.parse(spec["renewTime"]) >= began  # running holds go on meanwhile
    two.tick()
    assert (one.leads, two.leads) == (False, True)


@pytest.mark.parametrize("error", [Conflict("raced", 409), Unreachable("gone")])
def test_a_failed_renewal_is_not_yet_the_end(error):
    kube, changes = FakeKube(EMPTY), []
    one = keeper(kube, "a", duration=30, log=changes)
    one.tick()
    kube.fail_next("replace", LEASE, error)
    one.tick()
    assert one.leads
    assert changes == [True]


class Stamping(FakeKube):
    """Writes its own time on what is replaced, as the API server does, `ahead` seconds ahead of this machine."""

    ahead = 0.0

    def replace(self, obj):
        written = super().replace(obj)
        stamp = {"manager": "x", "time": server_time.to_whole(time.time() + self.ahead)}
        written["metadata"]["managedFields"] = [{"manager": "old", "time": server_time.to_whole(0)}, stamp]
        return written


@pytest.mark.parametrize("ahead", [-30.0, 0.0, 1.0, 30.0])
def test_the_lease_is_renewed_in_the_api_servers_time_from_the_first_time_on(ahead):
    """A time of a wrong clock in between would void every hold, or keep those of a dead controller."""
    kube = Stamping(EMPTY)
    kube.ahead = ahead
    server = server_time.ServerClock()
    one = LeaseKeeper(kube, "sys", job_names.HOLD_LEASE, "a", 10, 0.1, lambda: True, [].append, server=server)
    one.tick()
    wanted = ahead if abs(ahead) > 2 else 0.0
    assert abs(server_time.parse(spec_of(kube)["renewTime"]) - time.time() - wanted) < 3
    assert (server.offset == 0.0) == (wanted == 0.0)


def test_a_slow_answer_is_no_other_clock():
    server = server_time.ServerClock(local=lambda: 1000.0)
    server.learn({"metadata": {"managedFields": [{"time": server_time.to_whole(1000)}]}}, before=1000.5, after=1030.0)
    assert server.offset == 0.0
    server.learn({"metadata": {}}, 0.0, 0.0)
    assert server.now() == 1000.0


def test_a_replica_that_took_over_after_a_slow_write_does_not_count_from_its_answer(monkeypatch):
    kube = FakeKube(EMPTY)
    moment = [100.0]
    monkeypatch.setattr("kueue_integration.controller.lease.time.monotonic", lambda: moment[0])
    one = keeper(kube, "a", duration=10)
    write = kube.replace

    def slow(obj):
        moment[0] += 11
        return write(obj)

    kube.replace = slow
    one.tick()
    assert not one.leads


def test_one_request_that_hangs_leaves_time_for_the_next_while_the_replica_may_act(tmp_path):
    found = Config("me", "ns", tmp_path, Settings())
    one = LeaseKeeper(
        FakeKube(), "ns", "lease", "me", found.lease_duration_s, found.lease_renew_s, lambda: True, lambda leads: None
    )
    assert found.lease_timeout_s + found.lease_renew_s < one._acts_s


def test_every_request_is_shorter_than_the_lease(tmp_path):
    """With all that it may take to connect."""
    found = Config("me", "ns", tmp_path, Settings())
    for longest in (found.lease_timeout_s, found.request_timeout_s):
        assert longest * (1 + CONNECTS / 4) < found.lease_duration_s


def test_a_slow_answer_takes_its_time_from_the_pause(monkeypatch):
    kube, now, pauses = FakeKube(EMPTY), [0.0], []
    set_clock(monkeypatch, lease, monotonic=lambda: now[0])
    write = kube.replace

    def late(obj):
        now[0] += 0.25
        return write(obj)

    kube.replace = late
    one = LeaseKeeper(kube, "sys", job_names.HOLD_LEASE, "a", 10, 1.0, lambda: True, lambda leads: None)
    monkeypatch.setattr(one, "_stop", SimpleNamespace(wait=pauses.append))
    for _ in range(3):
        one._round()
    assert pauses == [0.5, 0.75, 0.75], "the first round takes it, and writes twice"
