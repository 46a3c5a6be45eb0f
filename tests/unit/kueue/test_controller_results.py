"""What a job leaves behind: the value that rank 0 returned, and its stored outputs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from controller_scene import NS
from sidecar_scene import FORBIDDEN, HELLO, PLACE, WHERE
from waits import eventually

from kueue_integration.contract import job_names
from kueue_integration.jobs.status import summarise
from kueue_integration.kube.resources import annotation
from singularity_proxy.protocol.messages import (
    RESULT_BYTES,
)
from singularity_proxy.protocol.outputs import StoredOutputs


async def test_what_rank_0_has_returned_is_written_on_the_job(served):
    text = json.dumps({"value": ['\u00e9"', 1.5, "x" * (RESULT_BYTES - 40)]})
    assert len(text) <= RESULT_BYTES
    for _ in range(2):  # the answer was lost: brought again
        assert await served.post(WHERE, text) == (200, {})
    assert annotation(served.job(), job_names.ANN_RESULT) == text


@pytest.mark.parametrize(
    ("text", "where", "token", "status", "words"),
    [
        ("{}", WHERE, "follower", 403, "not the leader"),
        ("{}", WHERE, "stranger", 403, "is not a pod of Job"),
        ("{}", WHERE.replace("=1", "=2"), "leader", 409, "attempt 2 is not current"),
        ("{}", "/v1/result", "leader", 400, "query parameter namespace is missing"),
        ("[1]", WHERE, "leader", 400, "is no JSON object"),
        ("{", WHERE, "leader", 400, "is not valid JSON"),
        ('{"value": NaN}', WHERE, "leader", 400, "is "),
        ('{"value": "' + "x" * RESULT_BYTES + '"}', WHERE, "leader", 400, "longer than 48000 bytes"),
    ],
)  # fmt: skip
async def test_a_result_that_is_none_is_refused(served, text, where, token, status, words):
    got, body = await served.post(where, text, token)
    assert got == status and words in body["error"]
    assert annotation(served.job(), job_names.ANN_RESULT) is None


STORED = StoredOutputs(PLACE, files=3, bytes=17, sha256="0" * 64, attempt=1, step=40)
OUTPUTS = WHERE.replace("result", "outputs")


async def test_a_pod_hears_where_outputs_go_and_whether_they_may(served):
    status, body = await served.post("/v1/hello", HELLO, "follower")
    assert status == 200 and "outputs" not in body
    for place in (PLACE, FORBIDDEN):
        served.annotate(ANN_OUTPUTS=place)
        await eventually(lambda at=place: annotation(served.world.job(NS, "train"), job_names.ANN_OUTPUTS) == at)
        body = (await served.post("/v1/hello", HELLO, "follower"))[1]
        assert body.get("outputs") == (place if place == PLACE else None)
    assert body["outputs_refused"] == f"annotation singularity.dev/outputs = {FORBIDDEN}: {NS} may not"


async def test_a_pod_hears_its_inputs_and_whether_it_may_read_them(served):
    told = [
        ({"data": PLACE}, ""),
        ({"data": PLACE, "more": FORBIDDEN}, f"annotation singularity.dev/inputs, more = {FORBIDDEN}: {NS} may not"),
        ({"../up": PLACE}, "the name cannot be that of a folder"),
        (["data"], "not a JSON object whose values are texts"),
    ]
    for given, words in told:
        text = json.dumps(given)
        served.annotate(ANN_INPUTS=text)
        await eventually(lambda at=text: annotation(served.world.job(NS, "train"), job_names.ANN_INPUTS) == at)
        body = (await served.post("/v1/hello", HELLO, "follower"))[1]
        assert body.get("inputs", {}) == ({} if words else given) and words in body.get("inputs_refused", "")


async def test_stored_outputs_are_written_on_the_job_once(served):
    served.annotate(ANN_OUTPUTS=PLACE)
    written = []
    for _ in range(2):
        assert await served.post(OUTPUTS, STORED) == (200, {})
        written.append(annotation(served.job(), job_names.ANN_OUTPUTS_STORED))
    found = summarise(served.job(), None, ()).outputs
    assert written[0] == written[1] and found is not None and replace(found, stored_at=0.0) == STORED
    assert (await served.post(OUTPUTS, STORED, "follower"))[0] == 403
    assert (await served.post(OUTPUTS, replace(STORED, url="gs://other/x")))[0] == 400
    assert (await served.post(OUTPUTS.replace("=1", "=2"), STORED))[0] == 409
