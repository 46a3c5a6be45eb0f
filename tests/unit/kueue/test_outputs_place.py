"""Where a job may store its outputs: URLs, places, and what a Job is made with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kueue_samples import PLATFORM, spec

from kueue_integration.contract import job_names
from kueue_integration.errors import SpecError
from kueue_integration.manifests import job_manifests, live_job
from kueue_integration.spec import outputs_place
from kueue_integration.spec.validate import validate
from singularity_proxy.protocol import names
from singularity_proxy.protocol.messages import Origin

CLOUD = replace(PLATFORM, store="gs://bucket/checkpoints")
PREFIXES = replace(CLOUD, outputs=("s3://results/{namespace}/", "gs://shared/all"))


@pytest.mark.parametrize(
    ("platform", "url", "words"),
    [
        (CLOUD, "gs://bucket/checkpoints/outputs/team-a/run-7", ""),
        (CLOUD, "gs://bucket/checkpoints/outputs/team-a/run-7/", ""),
        (CLOUD, "gs://bucket/checkpoints/outputs/team-a", "is not below a place for outputs of namespace team-a: gs://"),
        (CLOUD, "gs://bucket/checkpoints/outputs/team-b/run-7", "is not below"),
        (CLOUD, "gs://bucket/checkpoints/jobs/team-a/train/x", "is not below"),
        (CLOUD, "gs://bucket/checkpoints/outputs/team-a/../team-b/x", "without empty, '.' or '..' parts"),
        (CLOUD, "gs://bucket/checkpoints/outputs/team-a//x", "without empty"),
        (PREFIXES, "s3://results/team-a/x", ""),
        (PREFIXES, "gs://shared/all/x", ""),
        (PREFIXES, "s3://results/team-abc/x", "s3://results/team-a, gs://shared/all"),
        (PREFIXES, "gs://bucket/checkpoints/outputs/team-a/x", "is not below"),
        (replace(PREFIXES, stores={"team-a": {"outputs": []}}), "s3://results/team-a/x", "has no place for outputs"),
        (replace(PREFIXES, stores={"team-a": {"outputs": ["gs://own"]}}), "gs://own/x", ""),
        (replace(CLOUD, stores={"team-a": {"url": "gs://own/c"}}), "gs://own/c/outputs/team-a/x", ""),
        (replace(CLOUD, store=""), "gs://bucket/x", "outputs.prefixes and store.url"),
        (CLOUD, "http://server/x", "must be a URL of file://, gs://, s3://, az://"),
        (CLOUD, "run-7", "must be a URL of"),
        (CLOUD, "gs://bucket", "must have a path"),
        (CLOUD, "gs:///x", "must be gs://BUCKET/path"),
        (CLOUD, "file://host/x", "must be file:/// with an absolute path"),
        (CLOUD, "gs://bucket/checkpoints/outputs/team-a/a b", "without blanks"),
        (CLOUD, "gs://bucket/checkpoints/outputs/team-a/" + "x" * 1000, "at most 1000 characters"),
    ],
)  # fmt: skip
def test_a_job_stores_only_where_the_platform_lets_its_namespace(platform, url, words):
    said = outputs_place.problem(url, platform, "team-a")
    assert words in said and bool(words) == bool(said)


def test_a_submission_is_refused_with_field_value_and_fix():
    with pytest.raises(SpecError) as error:
        validate(spec(outputs="gs://bucket/x", env={names.ENV_OUTPUTS: "/x"}), CLOUD)
    assert [field for field, _, _ in error.value.problems] == ["outputs", "env['OUTPUTS']"]
    with pytest.raises(SpecError, match="is not writable: no writable volume of the sidecar is mounted"):
        validate(spec(outputs="file:///nowhere/x"), replace(PLATFORM, outputs=("file:///nowhere",)))
    with pytest.raises(SpecError, match="must be a URL of"):
        validate(spec(outputs="results"))


def test_a_fork_stores_beside_the_job_that_it_was_forked_from():
    url = f"gs://bucket/checkpoints/outputs/{spec().namespace}/run-7"
    source = job_manifests.job(spec(outputs=url), CLOUD)
    stored = {job_names.ANN_OUTPUTS_STORED: "{}"}
    source["metadata"]["annotations"] |= stored
    fork = live_job.Fork("twin", "q", None, Origin("train", "train-a1-g1"))
    made = live_job.forked(source, None, fork)
    annotations = made["metadata"]["annotations"]
    assert annotations[job_names.ANN_OUTPUTS] == f"{url}.twin" and job_names.ANN_OUTPUTS_STORED not in annotations
    assert outputs_place.problem(f"{url}.twin", CLOUD, spec().namespace) == ""
    plain = live_job.forked(job_manifests.job(spec(), CLOUD), None, fork)
    assert job_names.ANN_OUTPUTS not in plain["metadata"]["annotations"]


@pytest.mark.parametrize("wanted", [True, False])
def test_the_sidecar_reads_the_ranks_folders_only_where_a_job_has_outputs(wanted):
    url = f"gs://bucket/checkpoints/outputs/{spec().namespace}/run-7"
    job = job_manifests.job(spec(outputs=f"{url}/" if wanted else None), CLOUD)
    (sidecar,) = [c for c in job["spec"]["template"]["spec"]["initContainers"] if c["name"] == "device-proxy"]
    mounted = [mount for mount in sidecar["volumeMounts"] if mount["mountPath"] == names.WORK_DIR]
    assert mounted == ([{"name": "singularity-work", "mountPath": names.WORK_DIR, "readOnly": True}] if wanted else [])
    assert job["metadata"]["annotations"].get(job_names.ANN_OUTPUTS) == (url if wanted else None)
