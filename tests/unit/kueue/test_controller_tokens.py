"""Who is heard by the pods' API, and what those who are not cost the others."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time

import pytest
from sidecar_scene import COMMIT, HELLO, jwt
from waits import eventually

from kueue_integration.controller.sidecar_api.shares import SHARE, Shares
from kueue_integration.kube.resources import TOKEN_REVIEW


@pytest.mark.parametrize(
    ("token", "status", "text"),
    [
        ("", 401, "no bearer token"),
        ("unknown", 401, "not valid for audience"),
        ("audience", 401, "not valid for audience"),
        ("unbound", 401, "not bound to a pod"),
        ("stranger", 403, "is not a pod of Job team/train"),
        ("imposter", 403, "is not a pod of Job team/train"),
        ("unmarked", 403, "is not a pod of Job team/train"),
        ("foreign", 403, "is not a pod of Job team/train"),
        ("extra", 403, "is not a pod of Job team/train"),
        ("elsewhere", 403, "is not a pod of Job team/train"),
        ("old", 403, "was started for attempt 0, not for 1"),
    ],
)
async def test_only_the_jobs_own_pods_are_heard(served, token, status, text):
    before = served.job()
    got, body = await served.post("/v1/commit", COMMIT, token)
    assert got == status
    assert text in body["error"]
    assert served.job() == before


def reviews(served):
    return sum(kind == TOKEN_REVIEW.name for _, kind, _ in served.kube.requests)


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ("x", "not a service account token"),
        ("a.b", "not a service account token"),
        ("a.!!!.c", "not a service account token"),
        ("a." + "W" * 5000 + ".c", "not a service account token"),
        ("a.e30.c", "not valid for audience"),
        ("a.bnVsbA.c", "not a service account token"),
        (jwt("x", audience="https://kubernetes.default.svc"), "not valid for audience"),
        (jwt("x", expires_in=-120), "has expired"),
        (jwt("x", exp="9" * 400), "has expired"),
        (jwt("x", aud={"a": 1}), "not valid for audience"),
    ],
    # A token has the time in it: two processes that share the tests have to call them the same.
    ids=["word", "two parts", "no base64", "long", "empty", "null", "audience", "expired", "digits", "object"],
)
async def test_a_token_that_cannot_be_for_us_costs_no_review(served, token, text):
    status, body = await served.post("/v1/commit", COMMIT, token)
    assert (status, text in body["error"]) == (401, True)
    assert reviews(served) == 0


async def test_a_refusal_is_remembered(served):
    for _ in range(3):
        assert (await served.post("/v1/commit", COMMIT, "unknown"))[0] == 401
    assert reviews(served) == 1
    assert served.metrics.value("singularity_tokens_refused_total", "again") == 2


async def test_one_token_is_reviewed_once_however_many_ask(served):
    served.kube.review_s = 0.2
    answers = await asyncio.gather(*(served.post("/v1/hello", HELLO, "follower") for _ in range(10)))
    assert {status for status, _ in answers} == {200}
    assert reviews(served) == 1


async def test_a_body_is_read_of_those_only_who_may_speak(served):
    status, _ = await served.post("/v1/commit", "[" * 60_000, "unknown")
    assert status == 401
    status, body = await served.post("/v1/commit", "[" * 60_000)
    assert (status, "nested deeper" in body["error"]) == (400, True)
    status, _ = await served.post("/v1/commit", "x" * 70_000)
    assert status == 413


async def flood(served, seconds, rate):
    """`rate` bad requests each second, of every kind; how long commits of the leader took meanwhile.

    On a busy machine it takes longer than `seconds` to send them all.
    """
    numbers, statuses, took, over = itertools.count(), [], [], asyncio.Event()

    async def bad():
        number = next(numbers)
        theirs, expired = jwt(f"b{number}", audience="other"), jwt(f"c{number}", expires_in=-99)
        kinds = (f"x{number}", jwt(f"a{number}"), theirs, expired)
        statuses.append((await served.post("/v1/commit", COMMIT, kinds[number % 4]))[0])

    async def commits():
        while not over.is_set():
            began = time.monotonic()
            assert (await served.post("/v1/commit", COMMIT))[0] == 200
            took.append(time.monotonic() - began)
            await asyncio.sleep(0.05)

    leader, sent = asyncio.ensure_future(commits()), []
    for _ in range(round(seconds * rate)):
        sent.append(asyncio.ensure_future(bad()))
        await asyncio.sleep(1 / rate)
    await asyncio.gather(*sent)
    over.set()
    await leader
    assert set(statuses) <= {401, 429}
    return took


@pytest.mark.parametrize("seconds", [2.0, pytest.param(30.0, marks=pytest.mark.full)])
async def test_a_flood_of_bad_tokens_does_not_delay_commits(served, seconds):
    """Each review takes half a second here: with sixteen threads for all, 200 requests a second left none."""
    await served.post("/v1/commit", COMMIT)
    served.kube.review_s = 0.5
    before = reviews(served)
    began = time.monotonic()
    took = await flood(served, seconds, rate=200)
    assert max(took) < 2.5, "a commit waited for the flood"  # 15 s when reviews had no pool of their own
    assert reviews(served) - before <= 11 + (time.monotonic() - began) / 6, "every bad token is reviewed"


async def test_who_was_heard_before_is_heard_again_in_a_flood_from_its_address(served, monkeypatch):
    """Behind a NAT all pods of a node have one address."""
    monkeypatch.setattr("kueue_integration.controller.sidecar_api.tokens.CACHE_S", 0.5)
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    for number in range(30):
        await served.post("/v1/commit", COMMIT, jwt(f"z{number}"))
    assert (await served.post("/v1/commit", COMMIT, jwt("z")))[0] == 429
    await asyncio.sleep(0.6)
    assert (await served.post("/v1/commit", COMMIT))[0] == 200


async def test_who_was_heard_waits_for_no_review(served, monkeypatch):
    """Two thousand leaders are reviewed again each minute: an API server that is slow must not silence them."""
    monkeypatch.setattr("kueue_integration.controller.sidecar_api.tokens.CACHE_S", 0.0)
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    served.kube.may_review.clear()
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    assert (await served.post("/v1/hello", HELLO, "leader"))[0] in (200, 202, 400)
    served.kube.may_review.set()
    await eventually(lambda: reviews(served) == 2)


@pytest.mark.parametrize("stale_s", [0.0, 60.0])
async def test_a_token_that_is_no_longer_good_is_refused_once_that_is_known(served, monkeypatch, stale_s):
    monkeypatch.setattr("kueue_integration.controller.sidecar_api.tokens.CACHE_S", 0.0)
    monkeypatch.setattr("kueue_integration.controller.sidecar_api.tokens.STALE_S", stale_s)
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    served.kube.tokens[served.tokens["leader"]] = {"authenticated": False}
    first, _ = await served.post("/v1/commit", COMMIT)
    assert first == (200 if stale_s else 401), "nobody is believed for longer than STALE_S without a review"
    await eventually(lambda: served.metrics.value("singularity_tokens_refused_total", "review") == 1)
    assert (await served.post("/v1/commit", COMMIT))[0] == 401


async def test_unknown_tokens_leave_places_to_those_that_were_heard(served, monkeypatch):
    for name, value in (("CACHE_S", 0.0), ("STALE_S", 0.0), ("WAITING", 4), ("KEPT", 2)):
        monkeypatch.setattr(f"kueue_integration.controller.sidecar_api.tokens.{name}", value)
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    served.kube.review_s = 1.0
    flood = [asyncio.ensure_future(served.post("/v1/commit", COMMIT, jwt(f"y{number}"))) for number in range(6)]
    await eventually(lambda: served.metrics.value("singularity_tokens_refused_total", "limit") == 4)
    assert (await served.post("/v1/commit", COMMIT))[0] == 200
    assert sorted([(await each)[0] for each in flood]) == [401, 401, 429, 429, 429, 429]


async def test_no_namespace_takes_all_threads(served):
    shares = Shares()
    running, most, lock = 0, 0, threading.Lock()

    def slow():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1

    await asyncio.gather(*(shares.run("hello", "a", slow) for _ in range(30)))
    assert most == SHARE
