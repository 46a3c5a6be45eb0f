"""OpenLineage events of a training: valid against the specification, and telling the true story."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow_fakes import make_attempt, make_job, make_workload
from jsonschema import Draft202012Validator
from openlineage.client.event_v2 import RunEvent
from openlineage.client.serde import Serde
from referencing import Registry, Resource

import airflow_provider
from airflow_provider import compat, openlineage, reporting
from airflow_provider.lineage import document
from airflow_provider.openlineage import Parent, attempt_events, checkpoint_datasets, split_url, training_facet
from airflow_provider.operators import SingularityTrainOperator
from kueue_integration.contract.record_types import Preemptor, Skipped
from kueue_integration.jobs.status import summarise
from singularity_proxy.protocol.messages import CheckpointRef

SPEC = Path(__file__).parent / "openlineage_spec"
OURS = Path(airflow_provider.__file__).parent / "openlineage_facets.json"
RUN = "0190d7c4-0000-7000-8000-000000000001"
PARENT = Parent("prod", "digits.train", RUN, ("prod", "digits", "0190d7c4-0000-7000-8000-000000000002"))


def registry() -> Registry[Any]:
    documents = [json.loads(path.read_text()) for path in [*SPEC.glob("*.json"), OURS]]
    return Registry().with_resources((doc["$id"], Resource.from_contents(doc)) for doc in documents)


SCHEMAS = registry()


def check(event: RunEvent) -> dict[str, Any]:
    """The event as it is sent, after the specification and the schema that each of its facets names agreed to it."""
    sent: dict[str, Any] = json.loads(Serde.to_json(event))
    Draft202012Validator({"$ref": sent["schemaURL"]}, registry=SCHEMAS).validate(sent)
    facets = [*sent["run"]["facets"].values(), *sent["job"]["facets"].values()]
    facets += [facet for data in (*sent["inputs"], *sent["outputs"]) for facet in data["facets"].values()]
    for facet in facets:
        Draft202012Validator({"$ref": kept(facet["_schemaURL"])}, registry=SCHEMAS).validate(facet)
    return sent


def kept(url: str) -> str:
    """The schema that a facet names. The client of an older Airflow may name an earlier version of one that is kept
    here: within the first number later ones only add."""
    place, _, rest = url.partition("#")
    if compat.AIRFLOW >= (3, 3) or place in SCHEMAS:
        return url
    *_, version, name = place.split("/")
    (later,) = (known for known in SCHEMAS if known.endswith(f"/{name}"))
    assert version.split("-")[0] == later.split("/")[-2].split("-")[0]
    return f"{later}#{rest}"


def lineage(**last: Any) -> dict[str, Any]:
    """Two attempts: the first was preempted and left a checkpoint, the second continues it; `last` changes that one."""
    first = make_attempt(
        1, first_step=0, first_step_at=1004.0, last_step=41, ended_by="Preempted", preempted_by="job-urgent",
        preemptor=Preemptor("job-urgent", "team-b", "Job"), evicted_at=1050.0, barrier_at=1050.3, committed_at=1055.0,
        released_at=1056.5, checkpoint="c1",
    )  # fmt: skip
    values = {"admitted_at": 1100.0, "queued_at": 1057.0, "flavor": "spot", "pods": 2, "restored_from": "c1", **last}
    saved = CheckpointRef("c1", 1, 1, 42, 4, "gs://bucket/checkpoints", 100, 10, 1055.0, "5" * 64)
    job = make_job(attempts=[first, make_attempt(2, **values)], checkpoint=saved, step=60)
    return document(summarise(job, make_workload(job), ()))


FINISHED: dict[str, Any] = {"first_step": 42, "last_step": 99, "ended_by": "Finished", "finished_at": 1200.0}


def test_every_attempt_is_a_child_run_with_a_start_and_an_end() -> None:
    events = [check(event) for event in attempt_events(lineage(**FINISHED), PARENT)]
    assert [event["eventType"] for event in events] == ["START", "ABORT", "START", "COMPLETE"]
    assert [event["eventTime"][11:19] for event in events] == ["00:16:40", "00:17:36", "00:18:20", "00:20:00"]
    assert {event["job"]["name"] for event in events} == {"digits.train.attempt"}
    for event in events:
        assert event["run"]["facets"]["parent"]["run"]["runId"] == RUN
        assert event["run"]["facets"]["parent"]["root"]["job"]["name"] == "digits"
    ids = [event["run"]["runId"] for event in events]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_the_facet_says_where_it_ran_and_who_preempted_it() -> None:
    events = [check(event) for event in attempt_events(lineage(**FINISHED), PARENT)]
    facet = events[1]["run"]["facets"]["singularity_attempt"]
    assert (facet["flavor"], facet["pods"], facet["ranks"], facet["queue"]) == ("ondemand", 4, 4, "training")
    assert (facet["endedBy"], facet["preemptedBy"]) == ("Preempted", "job-urgent")
    assert facet["preemptor"]["namespace"] == "team-b"
    assert (facet["firstStep"], facet["lastStep"]) == (0, 41)
    assert facet["job"] == {"namespace": "team-a", "name": "train", "uid": "u1"}
    started = events[0]["run"]["facets"]["singularity_attempt"]
    assert "endedBy" not in started and started["flavor"] == "ondemand"  # a start does not know its end


def test_a_checkpoint_is_the_output_of_one_attempt_and_the_input_of_the_next() -> None:
    events = [check(event) for event in attempt_events(lineage(**FINISHED), PARENT)]
    assert events[0]["inputs"] == events[0]["outputs"] == []
    [made] = events[1]["outputs"]
    [read] = events[2]["inputs"]
    assert (made["namespace"], made["name"]) == ("gs://bucket", "checkpoints/team-a/train")
    assert made["facets"]["version"]["datasetVersion"] == read["facets"]["version"]["datasetVersion"] == "c1"
    assert (read["namespace"], read["name"]) == (made["namespace"], made["name"])


def test_an_attempt_says_which_newer_checkpoints_it_could_not_start_from() -> None:
    found = lineage(skipped=[Skipped("c2", 90, "pack 00ff is missing")], **FINISHED)
    facets = [check(e)["run"]["facets"]["singularity_attempt"] for e in attempt_events(found, PARENT)]
    assert [facet.get("skipped") for facet in facets[::2]] == [
        None, [{"id": "c2", "step": 90, "why": "pack 00ff is missing"}],
    ]  # fmt: skip


def test_an_attempt_that_still_runs_has_no_end() -> None:
    assert [e.eventType.value for e in attempt_events(lineage(), PARENT)] == ["START", "ABORT", "START"]


def test_a_failed_attempt_has_the_error() -> None:
    found = lineage(ended_by="Failed", finished_at=1200.0, note="rank 1 ended with exit code 3")
    last = check(attempt_events(found, PARENT)[-1])
    assert last["eventType"] == "FAIL"
    assert last["run"]["facets"]["errorMessage"]["message"] == "rank 1 ended with exit code 3"


def test_the_same_document_gives_the_same_runs() -> None:
    first, second = (attempt_events(lineage(**FINISHED), PARENT) for _ in range(2))
    assert [event.run.runId for event in first] == [event.run.runId for event in second]


def test_the_sum_on_the_task_is_valid() -> None:
    facet = training_facet(lineage(**FINISHED))
    sent = json.loads(Serde.to_json(facet))
    Draft202012Validator({"$ref": sent["_schemaURL"]}, registry=SCHEMAS).validate(sent)
    assert (sent["attempts"], sent["preemptions"], sent["stepsLost"], sent["worldSize"]) == (2, 1, 0, 4)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("gs://bucket/a/b/", ("gs://bucket", "a/b")),
        ("s3://bucket", ("s3://bucket", "")),
        ("file:///shared/checkpoints", ("file", "/shared/checkpoints")),
        ("/shared/checkpoints/", ("file", "/shared/checkpoints")),
    ],
)
def test_datasets_are_named_as_the_specification_asks(url: str, expected: tuple[str, str]) -> None:
    assert split_url(url) == expected


def test_a_job_without_a_checkpoint_has_no_datasets() -> None:
    job = make_job(attempts=[make_attempt(1, ended_by="Finished", finished_at=1200.0)])
    found = document(summarise(job, None, ()))
    assert checkpoint_datasets(found) == []
    assert all(not event.outputs for event in attempt_events(found, PARENT))


class Recorder:
    """Takes the place of the provider's transport."""

    def __init__(self, error: Exception | None = None) -> None:
        self.events: list[RunEvent] = []
        self.error = error

    def send(self, ti: Any, found: Any) -> int:
        if self.error is not None:
            raise self.error
        self.events += attempt_events(found, PARENT)
        return len(self.events)


def operator() -> SingularityTrainOperator:
    return SingularityTrainOperator(task_id="train", queue_name="training", command=["true"])


def test_the_operator_sends_and_its_own_run_gets_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(openlineage, "send_attempts", recorder.send)
    task = operator()
    task.report({"ti": SimpleNamespace()}, lineage(**FINISHED), True)
    assert len(recorder.events) == 4
    mine = task.get_openlineage_facets_on_complete(None)
    assert mine.run_facets["singularity_training"].attempts == 2
    assert [data.namespace for data in mine.outputs] == ["gs://bucket"]


def test_inlets_and_outlets_are_datasets_beside_the_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider looks at them itself only for operators that name no dataset."""
    from airflow.sdk import Asset

    monkeypatch.setattr(openlineage, "send_attempts", Recorder().send)
    outlets = [Asset("model"), Asset("s3://models/digits"), Asset("file:///shared/report"), "no asset"]
    task = SingularityTrainOperator(
        task_id="train", queue_name="training", command=["true"], inlets=[Asset("images")], outlets=outlets
    )
    task.report({"ti": SimpleNamespace()}, lineage(**FINISHED), True)

    def named(datasets: Any) -> list[tuple[str, str]]:
        return [(data.namespace, data.name) for data in datasets]

    done = task.get_openlineage_facets_on_complete(None)
    assert named(done.inputs) == [("default", "images")]
    assert named(done.outputs)[1:] == [("default", "model"), ("s3://models", "digits"), ("file", "/shared/report")]
    failed = task.get_openlineage_facets_on_failure(None)
    assert named(failed.outputs) == named(done.outputs)[:1]  # the checkpoint
    assert failed.run_facets == done.run_facets


def test_a_broken_transport_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openlineage, "send_attempts", Recorder(OSError("no route")).send)
    task = operator()
    said: list[str] = []
    log = SimpleNamespace(warning=lambda text, *args: said.append(text % args), info=lambda *args: None)
    monkeypatch.setattr(SingularityTrainOperator, "log", log)
    task.report({"ti": SimpleNamespace()}, lineage(**FINISHED), False)
    assert said == ["OpenLineage: the attempts were not sent (OSError: no route)"]


def test_without_the_provider_nothing_is_sent_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.api", None)  # what an import then raises
    operator().report({"ti": SimpleNamespace()}, lineage(**FINISHED), True)


def test_facets_before_anything_is_known_are_empty() -> None:
    assert operator().get_openlineage_facets_on_failure(None).run_facets == {}


def test_the_events_of_assets_tell_how_the_model_was_made() -> None:
    from airflow.sdk import Asset

    model, other = Asset("model"), Asset("report")
    events: dict[Any, Any] = {a: SimpleNamespace(extra={"mine": 1}) for a in (model, other)}
    context = {"outlet_events": events}
    reporting.add_to_events(context, [model, "not an asset"], reporting.model_extra(lineage(**FINISHED)))
    extra = events[model].extra
    assert extra["mine"] == 1
    told = extra["training"]
    assert (told["attempts"], told["preemptions"], told["steps_lost"]) == (2, 1, 0)
    assert told["flavors"] == ["ondemand", "spot"]
    assert told["checkpoint"]["id"] == "c1"
    assert events[other].extra == {"mine": 1}
    assert json.loads(json.dumps(told)) == told


def test_outputs_are_a_dataset_and_the_asset_of_an_alias() -> None:
    from airflow.sdk import Asset, AssetAlias

    url = "gs://results/team/run-7"
    stored = {"url": url, "files": 2, "bytes": 17, "sha256": "0" * 64, "attempt": 2, "step": 40}
    done = {**lineage(**FINISHED), "outputs": stored}
    alias, added = AssetAlias("models"), list[tuple[Asset, dict[str, Any]]]()
    events = {alias: SimpleNamespace(add=lambda asset, extra: added.append((asset, extra)))}
    reporting.add_to_events({"outlet_events": events}, [alias], reporting.model_extra(done), url)
    ((asset, extra),) = added
    assert asset.uri == url and extra["training"]["outputs"] == stored and extra["training"]["step"] is not None
    added.clear()
    reporting.add_to_events({"outlet_events": events}, [alias], reporting.model_extra(done), None)
    assert added == []
    task = operator()
    task._reported = done
    names = {(each.namespace, each.name) for each in task.get_openlineage_facets_on_complete(None).outputs}
    assert ("gs://results", "team/run-7") in names


def test_a_failed_training_leaves_its_assets_alone() -> None:
    task = operator()
    task.report({"ti": SimpleNamespace(), "outlet_events": None}, None, True)
    assert task.get_openlineage_facets_on_complete(None).outputs == []
