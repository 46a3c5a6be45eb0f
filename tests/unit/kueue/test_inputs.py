"""What a job reads: names, places, and what a Job and its pods are made with."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from kueue_samples import PLATFORM, spec

from kueue_integration.contract import job_names
from kueue_integration.errors import SpecError
from kueue_integration.manifests import job_manifests, live_job
from kueue_integration.spec.train_spec import from_mapping
from kueue_integration.spec.validate import validate
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import Origin

CLOUD = replace(PLATFORM, store="gs://bucket/checkpoints")
PLACE = f"gs://bucket/checkpoints/outputs/{spec().namespace}"
GOOD = {"data": f"{PLACE}/data/", "tokens_2": f"{PLACE}/tokens"}


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"data": "gs://bucket/else"}, r"inputs\['data'\] = 'gs://bucket/else': is not below a place for outputs"),
        ({"data": "http://server/x"}, "must be a URL of file://, gs://, s3://, az://"),
        ({"data": 5}, "must be a URL"),
        ({"../up": f"{PLACE}/x"}, "names a folder: use 1-63"),
        ({"": f"{PLACE}/x"}, "names a folder: use 1-63"),
        ({"a b": f"{PLACE}/x"}, "names a folder: use 1-63"),
        ({f"n{number}": f"{PLACE}/x" for number in range(21)}, "more than 20; put them below one URL"),
        ([f"{PLACE}/x"], "must be a mapping"),
    ],
)
def test_a_submission_is_refused_with_field_value_and_fix(inputs, words):
    with pytest.raises(SpecError, match=words):
        validate(spec(inputs=inputs), CLOUD)


def test_the_variable_is_ours_where_a_job_has_inputs():
    validate(spec(inputs=GOOD), CLOUD)
    validate(spec(env={names.ENV_INPUTS: "/mine"}), CLOUD)
    with pytest.raises(SpecError, match="is set where a job has inputs; leave it out"):
        validate(spec(inputs=GOOD, env={names.ENV_INPUTS: "/mine"}), CLOUD)


def test_they_come_as_json_too():
    values = {"name": "a", "queue": "q", "command": ["x"]}
    assert from_mapping({**values, "inputs": json.dumps(GOOD)}).inputs == GOOD
    with pytest.raises(SpecError, match="must be a mapping, or the JSON text of one"):
        from_mapping({**values, "inputs": "gs://bucket/x"})


@pytest.mark.parametrize("engine", ["process", "state"])
def test_the_sidecar_fills_a_volume_that_the_ranks_can_only_read(engine):
    made = job_manifests.job(spec(inputs=GOOD, engine=engine), CLOUD)
    assert json.loads(made["metadata"]["annotations"][job_names.ANN_INPUTS]) == {
        name: url.rstrip("/") for name, url in GOOD.items()
    }
    pod = made["spec"]["template"]["spec"]
    mounted = {
        c["name"]: mount.get("readOnly", False)
        for c in (*pod["initContainers"], *pod["containers"])
        for mount in c["volumeMounts"]
        if mount["mountPath"] == names.INPUTS_DIR
    }
    assert mounted == {"device-proxy": False, "train": True}
    env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert env[names.ENV_INPUTS] == names.INPUTS_DIR
    assert PLACE not in json.dumps(pod), "the sidecar hears the URL from the controller"


def test_a_job_without_has_neither_volume_nor_variable():
    made = job_manifests.job(spec(), CLOUD)
    assert job_names.ANN_INPUTS not in made["metadata"]["annotations"]
    assert names.INPUTS_DIR not in json.dumps(made) and names.ENV_INPUTS not in json.dumps(made)


def test_a_fork_reads_the_same():
    fork = live_job.Fork("twin", "q", None, Origin("train", "train-a1-g1"))
    made = live_job.forked(job_manifests.job(spec(inputs=GOOD), CLOUD), None, fork)
    assert "tokens_2" in made["metadata"]["annotations"][job_names.ANN_INPUTS]
