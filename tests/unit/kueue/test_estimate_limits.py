"""What a checkpoint may take, told by the last one, against what the limits leave it; and which limit binds."""

from __future__ import annotations

import json
import logging

import controller_scene as scene
import pytest
from controller_scene import NS, T0
from kueue_samples import PLATFORM as EXAMPLE
from kueue_samples import cluster, spec

from kueue_integration.contract import job_names
from kueue_integration.jobs import lifecycle
from kueue_integration.jobs.status import summarise
from kueue_integration.kube.fake import FakeKube
from kueue_integration.requests import save_time_estimate
from kueue_integration.requests.save_time_estimate import Limits
from kueue_integration.spec.platform_config import PlatformConfig
from kueue_integration.spec.train_spec import TrainSpec
from singularity_proxy.protocol import names

PLATFORM = PlatformConfig("agent", "https://c:443", "pem", train_image="train", store="file:///s", max_budget_s=60)
SPEC = TrainSpec(name="train", queue="q", command=["python3", "x.py"], workers=2, namespace=NS, checkpoint_budget_s=40)


def saved(asked: float | None, barrier: float, committed: float):
    evicted = None if asked is None else T0 + asked
    return scene.record(evicted_at=evicted, barrier_at=T0 + barrier, committed_at=T0 + committed, checkpoint="c")


def job(*attempts, name="older", budget="40", grace=90, command=("python3", "x.py")):
    made = scene.job(
        name, annotations={job_names.ANN_BUDGET: budget, job_names.ANN_HOLD: "armed", **scene.history(*attempts)}
    )
    made["metadata"]["annotations"][job_names.ANN_WORLD_SIZE] = "2"
    env = [{"name": names.ENV_COMMAND, "value": json.dumps(list(command))}]
    containers = [{"name": job_names.CONTAINER_TRAIN, "env": env}]
    made["spec"]["template"] = {"spec": {"terminationGracePeriodSeconds": grace, "containers": containers}}
    return made


def test_the_newest_checkpoint_counts_from_its_request():
    assert save_time_estimate.of_attempts([]) is None
    assert save_time_estimate.of_attempts([scene.record()]) is None
    assert save_time_estimate.of_attempts([saved(10, 20, 95), saved(10, 15, 30), scene.record(3)]) == 20
    assert save_time_estimate.of_attempts([saved(None, 20, 95)]) == 75


@pytest.mark.parametrize(
    ("limits", "texts"),
    [
        (Limits(100, 100, 600), []),
        (Limits(50, 100, 600), ["for 50 s at most: the job's own budget binds (checkpoint_budget_s), set it to 121"]),
        (Limits(100, 100, 60), ["for 60 s at most: the platform's maximum binds (chart value budget.maxSeconds)"]),
        (Limits(50, 100, 60), ["set it to 121; the platform allows 60"]),
        (Limits(100, 30, 600), ["leaves the pods 30 s: the pods' grace period binds (grace_period_s), set it to 121"]),
        (Limits(50, 30), ["the job's own budget binds", "the pods' grace period binds"]),
        (Limits(0, 100, 600), []),
        (Limits(100, 0, 600), []),
    ],
)
def test_the_limit_that_binds_is_named(limits, texts):
    found = save_time_estimate.warnings(80.0, limits)
    assert len(found) == len(texts)
    for sentence, text in zip(found, texts, strict=True):
        assert "the last checkpoint took 80 s" in sentence
        assert text in sentence


def test_status_shows_estimate_and_warnings():
    status = summarise(job(saved(0, 5, 70)), None, [])
    assert status.estimated_save_s == 70
    assert len(status.warnings) == 1 and "set it to 106" in status.warnings[0]
    assert summarise(job(scene.record()), None, []).estimated_save_s is None


@pytest.mark.parametrize(("name", "command"), [("older", ("python3", "x.py")), ("train", ("python3", "y.py"))])
def test_submit_learns_from_a_job_of_the_same_program_or_name(name, command):
    kube = FakeKube(job(saved(0, 5, 50), name=name, command=command))
    (text,) = lifecycle.too_short(kube, SPEC, PLATFORM)
    assert "took 50 s" in text and "set it to 76; the platform allows 60" in text


def test_submit_learns_nothing_from_another_program():
    assert lifecycle.too_short(FakeKube(job(saved(0, 5, 50), command=("python3", "y.py"))), SPEC, PLATFORM) == []


def test_an_adopted_job_is_judged_by_its_own_limits():
    own = job(saved(0, 5, 70), budget="120")
    (text,) = lifecycle.too_short(FakeKube(), SPEC, PLATFORM, own)
    assert "for 60 s at most: the platform's maximum binds" in text


def test_submit_warns_and_goes_on(caplog):
    kube = cluster()
    mine = spec(identity=None, checkpoint_budget_s=40)
    older = job(saved(0, 5, 50), command=mine.command)
    older["metadata"]["namespace"] = mine.namespace
    older["metadata"]["labels"][job_names.KUEUE_QUEUE_LABEL] = mine.queue
    older["metadata"]["annotations"][job_names.ANN_WORLD_SIZE] = str(mine.ranks)
    kube.put(older)
    with caplog.at_level(logging.WARNING):
        assert not lifecycle.submit(kube, mine, EXAMPLE).adopted
    assert "the job's own budget binds" in caplog.text
