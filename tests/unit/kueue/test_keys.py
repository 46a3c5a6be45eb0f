"""The platform's keys: made, taken over, renewed, rotated, while jobs with earlier ones live. Handshakes are real."""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waits import until

from kueue_integration.contract import job_names
from kueue_integration.controller import certificates, keys
from kueue_integration.controller.errors import ConfigError
from kueue_integration.controller.key_keeper import KeyKeeper, Terms, server_names
from kueue_integration.controller.keys import LINGER_S, SOON_S, Keys
from kueue_integration.controller.metrics import Metrics
from kueue_integration.errors import Conflict
from kueue_integration.keep_keys import keep
from kueue_integration.kube import server_time
from kueue_integration.kube.fake import FakeKube
from kueue_integration.kube.resources import SECRET, Object

SYSTEM, NAME = job_names.SYSTEM_NAMESPACE, job_names.KEYS_SECRET
NAMES = server_names(SYSTEM)
DAY = 86400.0
NOW = time.time() // 1 - 30 * DAY
"""Handshakes go by the machine's own clock, which is in the life of each certificate that a test makes until today."""


def secret(name: str = NAME, **data: str) -> Object:
    meta = {"name": name, "namespace": SYSTEM}
    encoded = {key.replace("_", "."): b64encode(value.encode()).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "data": encoded}


class Replica:
    """A keeper, its clock, and the age of the oldest live job."""

    def __init__(self, kube: FakeKube, leads: bool = True, folder: Path | None = None, now: float = NOW) -> None:
        self.now, self.leads, self.oldest = now, leads, None
        self.told: list[Keys] = []
        self.metrics = Metrics()
        terms = Terms(SYSTEM, NAMES, 3650, folder)
        self.keeper = KeyKeeper(
            kube, terms, self.metrics, lambda: self.oldest, lambda: self.leads, lambda: self.now, self.told.append
        )

    oldest: float | None

    def look(self) -> Keys:
        self.keeper.look()
        assert self.keeper.keys is not None
        return self.keeper.keys


@pytest.fixture
def kube() -> FakeKube:
    return FakeKube(secret())


def rotate(kube: FakeKube, text: str) -> None:
    kube.patch(SECRET, SYSTEM, NAME, {"metadata": {"annotations": {job_names.KEYS_ROTATE: text}}})


def handshake(trusted: str, context: ssl.SSLContext, name: str = NAMES[0]) -> str:
    """ "" when a pod that trusts `trusted` accepts the server, else what it says."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            with context.wrap_socket(theirs, server_side=True) as connection:
                connection.recv(1)
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ssl.create_default_context(cadata=trusted).wrap_socket(ours, server_hostname=name) as connection:
            connection.send(b"x")
        return ""
    except ssl.SSLError as error:
        return str(error)
    finally:
        ours.close()
        thread.join(timeout=120)


# --- a new installation -----------------------------------------------------------------------------------------------
def test_an_empty_secret_is_filled_and_every_replica_uses_the_same(kube: FakeKube) -> None:
    first, second = Replica(kube), Replica(kube, leads=False)
    with pytest.raises(ConfigError, match="is empty: the replica that leads fills it"):
        second.look()
    made = first.look()
    assert second.look() == made
    assert first.told == [made] and len(made.peer(0)) == 64
    for name in NAMES:
        assert handshake(made.bundle, second.keeper.server_context(), name) == ""
    assert "not valid for" in handshake(made.bundle, second.keeper.server_context(), "other.svc")
    assert "unable to get local issuer" in handshake(keys.fresh(NAMES, NOW, 10).bundle, second.keeper.server_context())


def test_a_replica_that_lost_the_race_reads(kube: FakeKube) -> None:
    loser = Replica(kube)
    kube.fail_next("patch", SECRET, Conflict("somebody was faster", 409))
    with pytest.raises(Conflict):
        loser.look()
    assert not loser.keeper.known.is_set()
    assert Replica(kube).look() == loser.look()


def test_nothing_is_written_while_nothing_changes(kube: FakeKube) -> None:
    replica = Replica(kube)
    replica.look()
    version = kube.get(SECRET, SYSTEM, NAME)["metadata"]["resourceVersion"]
    for _ in range(5):
        replica.now += DAY
        replica.look()
    assert kube.get(SECRET, SYSTEM, NAME)["metadata"]["resourceVersion"] == version


def test_the_server_accepts_strict_verification(kube: FakeKube) -> None:
    made = Replica(kube).look()
    client = ssl.create_default_context(cadata=made.bundle)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    replica = Replica(kube)
    replica.look()
    ours, theirs = socket.socketpair()
    thread = threading.Thread(
        target=lambda: replica.keeper.server_context().wrap_socket(theirs, server_side=True).close()
    )
    thread.start()
    with client.wrap_socket(ours, server_hostname=NAMES[0]) as connection:
        assert connection.getpeercert()
    thread.join(timeout=120)


# --- a release before, somebody else ----------------------------------------------------------------------------------
def classic() -> tuple[Keys, dict[str, str]]:
    made = keys.fresh(NAMES, NOW, 3650)
    one = made.authorities[0]
    return made, {"ca_crt": one.ca, "tls_crt": one.cert, "tls_key": one.key, "peer-key": "s" * 64}


def test_keys_that_the_chart_of_before_made_are_taken_over_and_go_on_serving(kube: FakeKube) -> None:
    made, data = classic()
    kube.put(secret(job_names.CONTROLLER_NAME, **data))
    assert "is kept" in keep(kube, SYSTEM)
    kept = kube.get(SECRET, SYSTEM, job_names.CONTROLLER_NAME)["metadata"]["annotations"]
    assert kept["helm.sh/resource-policy"] == "keep"
    replica = Replica(kube)
    taken = replica.look()
    assert (taken.bundle, taken.peer(NOW)) == (made.bundle, b"s" * 64)
    assert handshake(made.bundle, replica.keeper.server_context()) == ""
    kube.delete(SECRET, SYSTEM, job_names.CONTROLLER_NAME)
    assert Replica(kube).look() == taken


def test_jobs_of_a_release_0_1_0_that_was_installed_over_our_keys_are_heard(kube: FakeKube) -> None:
    """A rollback: `singularity-keys` outlasts it, and 0.1.0 makes an authority of its own."""
    ours = Replica(kube).look()
    theirs, data = classic()
    later = secret(job_names.CONTROLLER_NAME, **data)
    later["metadata"]["creationTimestamp"] = server_time.to_text(NOW + DAY)
    kube.put(later)
    replica = Replica(kube)
    replica.now = NOW + 2 * DAY
    replica.oldest = NOW + DAY + 60
    both = replica.look()
    assert handshake(theirs.bundle, replica.keeper.server_context()) == ""
    assert both.bundle == theirs.bundle + ours.bundle, "new jobs trust both"
    assert both.peer(NOW + DAY + 60) == b"s" * 64 and both.peer(NOW + 3 * DAY) == ours.peer(NOW)
    assert replica.look() == both == Replica(kube).look()
    replica.now = NOW + 3 * DAY
    replica.oldest = replica.now
    after = replica.look()
    assert (after.bundle, after.peer(NOW + 3 * DAY)) == (ours.bundle, ours.peer(NOW))
    again = Replica(kube)
    again.now = NOW + 4 * DAY
    again.oldest = again.now
    assert again.look() == after, "an authority that nobody needs does not come back"


def test_beside_a_leader_of_the_release_before_its_keys_serve_and_nothing_is_written(kube: FakeKube) -> None:
    """Its replicas go only when ours are ready, and fill no Secret of ours."""
    made, data = classic()
    kube.put(secret(job_names.CONTROLLER_NAME, **data))
    replicas = [Replica(kube, leads=False) for _ in range(2)]
    for replica in replicas:
        assert replica.look().bundle == made.bundle and replica.keeper.known.is_set()
        assert handshake(made.bundle, replica.keeper.server_context()) == ""
    assert not kube.get(SECRET, SYSTEM, NAME).get("data")
    replicas[0].leads = True
    taken = replicas[0].look()
    assert (taken.bundle, taken.peer(NOW)) == (made.bundle, b"s" * 64)
    assert replicas[1].look() == taken


def test_there_is_nothing_to_keep_in_a_new_release(kube: FakeKube) -> None:
    assert "nothing to keep" in keep(kube, SYSTEM)


def test_a_mounted_secret_is_used_and_read_again(kube: FakeKube, tmp_path: Path) -> None:
    made, data = classic()
    for name, text in data.items():
        (tmp_path / name.replace("_", ".")).write_text(text)
    replica = Replica(kube, folder=tmp_path)
    assert replica.look().bundle == made.bundle and replica.look().peer(NOW) == b"s" * 64
    told = {job_names.KEYS_SCRAPES: b64encode(replica.keeper.scrapes().encode()).decode()}
    assert kube.get(SECRET, SYSTEM, NAME)["data"] == told, "the token of the metrics, and no key"
    context = replica.keeper.server_context()
    other = keys.fresh(NAMES, NOW, 3650).authorities[0]
    for name, text in (("ca.crt", other.ca), ("tls.crt", other.cert), ("tls.key", other.key)):
        (tmp_path / name).write_text(text)
    replica.look()
    assert handshake(other.ca, context) == ""  # the same socket shows the new certificate
    (tmp_path / "tls.crt").write_text("")
    with pytest.raises(ConfigError, match=r"tls\.crt is empty"):
        replica.look()
    assert handshake(other.ca, context) == ""


def test_a_certificate_of_cert_manager_has_peers_of_ours(kube: FakeKube, tmp_path: Path) -> None:
    made, data = classic()
    for name in ("ca_crt", "tls_crt", "tls_key"):
        (tmp_path / name.replace("_", ".")).write_text(data[name])
    first, second = Replica(kube, folder=tmp_path), Replica(kube, folder=tmp_path)
    assert first.look().bundle == made.bundle
    assert second.look().peer(NOW) == first.look().peer(NOW) != b"s" * 64


# --- by hand ----------------------------------------------------------------------------------------------------------
def test_a_secret_that_is_deleted_is_written_again_from_memory(kube: FakeKube) -> None:
    replica, other = Replica(kube), Replica(kube, leads=False)
    before = replica.look()
    assert other.look() == before
    kube.delete(SECRET, SYSTEM, NAME)
    assert replica.look() == before
    assert "singularity_keys_missing 1.0" in replica.metrics.text()
    with pytest.raises(ConfigError, match=f"Secret {SYSTEM}/{NAME} does not exist: restore it"):
        Replica(kube).look()
    kube.put(secret())
    assert other.look() == before
    with pytest.raises(ConfigError, match="is empty"):
        Replica(kube, leads=False).look()  # it has just started: new keys of its own would cut jobs off
    assert replica.look() == before
    assert Replica(kube).look() == before
    assert replica.look() == before and "singularity_keys_missing 0.0" in replica.metrics.text()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"authorities":[],"peers":[],"rotation":""}', "\x00"])
def test_a_secret_that_is_edited_is_put_back_and_never_replaced_by_new_keys(kube: FakeKube, text: str) -> None:
    replica = Replica(kube)
    before = replica.look()
    kube.patch(SECRET, SYSTEM, NAME, {"data": {keys.KEY: b64encode(text.encode()).decode()}})
    if text:
        with pytest.raises(ConfigError, match="restore the Secret from a backup"):
            Replica(kube).look()
    assert replica.look() == before
    assert Replica(kube).look() == before


def test_keys_of_a_backup_are_used_at_once(kube: FakeKube) -> None:
    replica = Replica(kube)
    saved, before = kube.get(SECRET, SYSTEM, NAME)["data"], replica.look()
    saved = kube.get(SECRET, SYSTEM, NAME)["data"]
    rotate(kube, "1")
    assert replica.look() != before
    context = replica.keeper.server_context()
    kube.patch(SECRET, SYSTEM, NAME, {"data": saved, "metadata": {"annotations": {job_names.KEYS_ROTATE: None}}})
    assert replica.look() == before
    assert handshake(before.bundle, context) == ""


# --- rotation ---------------------------------------------------------------------------------------------------------
def test_a_rotation_cuts_no_job_off(kube: FakeKube) -> None:
    """One job from before it, one submitted with settings read before it, one after it."""
    replica, follower = Replica(kube), Replica(kube, leads=False)
    old = replica.look()
    before = replica.oldest = replica.now
    context, second = replica.keeper.server_context(), (follower.look(), follower.keeper.server_context())[1]
    replica.now += DAY
    rotate(kube, "1")
    new = replica.look()
    assert follower.look() == new
    assert len(new.authorities) == 2 and new.bundle.startswith(old.bundle)
    assert replica.look() == new, "it is asked for once"
    for trusted in (old.bundle, new.bundle):
        assert handshake(trusted, context) == handshake(trusted, second) == ""
    assert new.peer(before) == old.peer(before)
    assert new.peer(replica.now) == old.peer(before), "replicas may not have read the new key yet"
    assert new.peer(replica.now + SOON_S) != old.peer(before)

    replica.now += 9 * DAY
    assert replica.look() == new, "the job from before still lives"
    replica.oldest = replica.now - 9 * DAY + LINGER_S
    done = replica.look()
    assert follower.look() == done
    assert done.authorities == new.authorities[1:] and done.peers == new.peers[1:]
    for trusted in (new.bundle, done.bundle):
        assert handshake(trusted, context) == handshake(trusted, second) == ""
    assert handshake(old.bundle, context) != ""


def test_what_was_read_before_a_rotation_is_good_for_an_hour(kube: FakeKube) -> None:
    replica = Replica(kube)
    old = replica.look()
    rotate(kube, "1")
    for passed in (0.0, LINGER_S - 1):
        replica.now = NOW + passed
        assert replica.look().serves == old.serves
    replica.now = NOW + LINGER_S
    assert replica.look().serves != old.serves


def test_a_replica_that_has_not_read_a_rotation_does_not_undo_it(kube: FakeKube) -> None:
    replica, behind = Replica(kube), Replica(kube, leads=False)
    before = replica.look()
    assert behind.look() == before
    rotate(kube, "1")
    after = replica.look()
    kube.delete(SECRET, SYSTEM, NAME)
    kube.put(secret())
    behind.look()
    assert replica.look() == behind.look() == after


def test_only_the_one_that_acts_rotates(kube: FakeKube) -> None:
    Replica(kube).look()
    follower = Replica(kube, leads=False)
    before = follower.look()
    rotate(kube, "1")
    assert follower.look() == before
    follower.leads = True
    assert follower.look() != before


def test_two_clocks_apart_rotate_once(kube: FakeKube) -> None:
    first, second = Replica(kube), Replica(kube, now=NOW - DAY)
    before = first.look()
    assert second.look() == before
    rotate(kube, "1")
    assert first.look() == second.look()
    assert len(first.look().authorities) == 2


# --- expiry -----------------------------------------------------------------------------------------------------------
def test_a_certificate_is_renewed_in_time_by_the_same_authority(kube: FakeKube) -> None:
    replica = Replica(kube)
    made = replica.look()
    end = certificates.expires(made.serves.cert)
    (line,) = re.findall(r"^singularity_certificate_expires_seconds (.*)$", replica.metrics.text(), re.MULTILINE)
    assert float(line) == end
    replica.now = end - 100 * DAY
    later = replica.look()
    assert later.bundle == made.bundle and certificates.expires(later.serves.cert) > end
    assert later.peers == made.peers


def test_an_authority_that_ends_gets_a_successor_in_time() -> None:
    made = keys.fresh(NAMES, NOW, 3650)
    at = NOW + 3650 * DAY * 0.7
    after = keys.kept(made, NAMES, at, 3650, oldest_job=at - 300 * DAY, request="")
    assert len(after.authorities) == 2 and after.serves.ca == made.serves.ca
    taken = replace(made, authorities=[replace(made.serves, ca_key="")])
    assert len(keys.kept(taken, NAMES, NOW + 300 * DAY, 3650, None, "").authorities) == 2, "nothing else can renew it"


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_job_can_always_reach_the_controller(data: st.DataObject) -> None:
    """Jobs come and go over years, keys are rotated at any time: who was told of authorities is served by one of them,
    and no job's peers ever get another key."""
    now, serial = NOW, 0
    found = keys.fresh(NAMES, now, 3650)
    jobs: list[tuple[float, list[str], float, bytes]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        act = data.draw(st.sampled_from(["submit", "end", "rotate", "wait", "wait"]))
        if act == "submit":
            read = data.draw(st.sampled_from([0.0, LINGER_S - 120]))  # settings that were read so long ago
            told = [one.ca for one in found.authorities if one.made <= now - read] or [found.serves.ca]
            jobs.append((now, told, now, found.peer(now)))
        elif act == "end" and jobs:
            jobs.pop(data.draw(st.integers(0, len(jobs) - 1)))
        elif act == "rotate":
            serial += 1
        else:
            now += data.draw(st.sampled_from([5.0, SOON_S, LINGER_S, 30 * DAY, 200 * DAY]))
        for _ in range(2):
            oldest = min((made for made, *_ in jobs), default=None)
            found = keys.kept(found, NAMES, now, 3650, oldest, str(serial) if serial else "")
        for made, trusted, _, peer in jobs:
            assert found.serves.ca in trusted
            assert found.peer(made) == peer
        assert certificates.expires(found.serves.cert) > now


def test_a_keeper_that_runs_looks_again_at_once_when_it_takes_over(kube: FakeKube) -> None:
    Replica(kube).look()
    replica = Replica(kube, leads=False)
    replica.keeper.start()
    try:
        assert replica.keeper.known.wait(120)
        rotate(kube, "1")
        replica.leads = True
        until(lambda: replica.keeper.look_again() or len(replica.told[-1].authorities) == 2)
    finally:
        replica.keeper.stop()
