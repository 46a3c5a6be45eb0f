"""The objects that a TrainSpec becomes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kueue_samples import PLATFORM, spec

from kueue_integration.contract import job_names
from kueue_integration.errors import SpecError
from kueue_integration.manifests.job_manifests import render
from kueue_integration.spec.platform_config import USER_NAMESPACE
from singularity_proxy.protocol import names

GOLDEN = Path(__file__).parent / "golden" / "digits.yaml"


def rendered(**changes: Any) -> dict[str, Any]:
    return {obj["kind"]: obj for obj in render(spec(**changes), PLATFORM)}


def pod(objects: dict[str, Any]) -> Any:
    return objects["Job"]["spec"]["template"]["spec"]


def env(container: Any) -> dict[str, str]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container["env"]}


def test_golden_file() -> None:
    """Set SINGULARITY_REWRITE_GOLDEN=1 to accept a change, then read the diff."""
    text = yaml.safe_dump_all(render(spec(), PLATFORM), sort_keys=False)
    if os.environ.get("SINGULARITY_REWRITE_GOLDEN") == "1":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_an_invalid_spec_renders_nothing() -> None:
    with pytest.raises(SpecError):
        render(spec(queue=""), PLATFORM)


def test_the_platform_rules_hold_too() -> None:
    with pytest.raises(SpecError, match="at most 600"):
        render(spec(checkpoint_budget_s=601), PLATFORM)


def test_without_files_there_is_no_config_map_and_no_mount() -> None:
    objects = rendered(files={})
    assert list(objects) == ["Service", "Job"]
    assert "singularity-source" not in json.dumps(objects)


def test_a_pod_whose_capabilities_count_in_its_own_user_namespace() -> None:
    """All else is as in a pod whose capabilities count on the node; the state engine has neither."""
    platform = replace(PLATFORM, privileges=USER_NAMESPACE)
    plain, own = (pod({o["kind"]: o for o in render(spec(), each)}) for each in (PLATFORM, platform))
    assert own.pop("hostUsers") is False
    assert own["containers"][0]["securityContext"].pop("procMount") == "Unmasked"
    assert own == plain
    elastic = render(spec(engine="state"), platform)
    assert "hostUsers" not in json.dumps(elastic) and "procMount" not in json.dumps(elastic)


def test_files_keep_their_paths() -> None:
    objects = rendered(files={"a/b.py": "B", "c.py": "C"})
    (source,) = [v for v in pod(objects)["volumes"] if v["name"] == "singularity-source"]
    back = {item["path"]: objects["ConfigMap"]["data"][item["key"]] for item in source["configMap"]["items"]}
    assert back == {"a/b.py": "B", "c.py": "C"}
    assert source["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]


def test_partial_admission_only_where_it_is_wanted() -> None:
    assert rendered()["Job"]["metadata"]["annotations"][job_names.MIN_PARALLELISM] == "2"
    assert job_names.MIN_PARALLELISM not in rendered(min_workers=None)["Job"]["metadata"]["annotations"]
    assert job_names.MIN_PARALLELISM not in rendered(min_workers=4)["Job"]["metadata"]["annotations"]


def test_hold_is_armed_unless_switched_off() -> None:
    assert rendered()["Job"]["metadata"]["annotations"][job_names.ANN_HOLD] == job_names.HOLD_ARMED
    assert job_names.ANN_HOLD not in rendered(hold=False)["Job"]["metadata"]["annotations"]


def test_values_that_look_like_references_stay_literal() -> None:
    train = pod(rendered(command=["sh", "-c", "echo $(HOME) $X"], env={"A": "$(B)"}))["containers"][0]
    assert env(train)["A"] == "$$(B)"
    assert env(train)[names.ENV_COMMAND].replace("$$", "$") == json.dumps(["sh", "-c", "echo $(HOME) $X"])


def test_the_agent_comes_first_on_the_path_then_the_user_then_the_platform() -> None:
    train = pod(rendered(env={"PYTHONPATH": "/mine"}))["containers"][0]
    assert env(train)["PYTHONPATH"] == "/singularity/agent/lib:/mine:/opt/torch"
    assert env(pod(rendered())["containers"][0])["PYTHONPATH"] == "/singularity/agent/lib:/opt/torch"


def test_the_sidecar_has_no_python_of_the_user_and_no_capability() -> None:
    _, sidecar = pod(rendered(env={"PYTHONPATH": "/mine", "LD_PRELOAD": "x"}))["initContainers"]
    assert env(sidecar)["PYTHONPATH"] == "/opt/singularity/app"
    assert "LD_PRELOAD" not in env(sidecar) and env(sidecar)["OMP_NUM_THREADS"] == "1"
    assert sidecar["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert sidecar["restartPolicy"] == "Always" and "resources" not in sidecar


def test_only_the_sidecar_can_talk_to_the_controller() -> None:
    spec_ = pod(rendered())
    train = json.dumps(spec_["containers"])
    for word in (names.ENV_CONTROLLER_URL, names.ENV_TOKEN_FILE, "singularity-token"):
        assert word not in train and word in json.dumps(spec_["initContainers"][1])
    assert spec_["automountServiceAccountToken"] is False


def test_resources_are_the_training_containers() -> None:
    train = pod(rendered(resources={"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": 1}))["containers"][0]
    assert train["resources"] == {
        "requests": {"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "1"},
        "limits": {"memory": "2Gi", "nvidia.com/gpu": "1"},
    }


@given(
    st.integers(1, 32), st.integers(1, 4), st.booleans(), st.booleans(),
    st.dictionaries(st.sampled_from(["a.py", "b/c.py", "d e.txt"]), st.text(max_size=5)),
)  # fmt: skip
def test_what_every_job_has(workers: int, per_pod: int, hold: bool, identity: bool, files: dict[str, str]) -> None:
    objects = rendered(
        workers=workers, min_workers=1, world_size=workers * per_pod, hold=hold, files=files,
        identity="me" if identity else None,
    )  # fmt: skip
    job, template = objects["Job"], objects["Job"]["spec"]["template"]
    assert job["spec"]["suspend"] and job["spec"]["parallelism"] == job["spec"]["completions"] == workers
    assert job["spec"]["podReplacementPolicy"] == "Failed" and template["spec"]["restartPolicy"] == "Never"
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    assert len(volumes) == len(template["spec"]["volumes"])
    for container in (*template["spec"]["initContainers"], *template["spec"]["containers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        variables = [item["name"] for item in container.get("env", [])]
        assert len(variables) == len(set(variables)), "a variable that is set twice means the last one, silently"
    selector = objects["Service"]["spec"]["selector"]
    assert selector.items() <= template["metadata"]["labels"].items()
    assert template["spec"]["subdomain"] == objects["Service"]["metadata"]["name"]
    injected = (job_names.ANN_ATTEMPT, names.ANN_CHECKPOINT, job_names.ANN_WORKERS, job_names.ANN_FLAVOR)
    assert not set(injected) & set(template["metadata"]["annotations"]), "the fence could not set them any more"
    assert job_names.KUEUE_QUEUE_LABEL not in template["metadata"]["labels"]


def test_periodic_checkpoints_are_an_annotation_in_one_spelling() -> None:
    def wish(value: Any) -> Any:
        job = next(o for o in render(spec(checkpoint_every=value), PLATFORM) if o["kind"] == "Job")
        return job["metadata"]["annotations"].get(job_names.ANN_CHECKPOINT_EVERY)

    assert [wish(v) for v in (None, "off", 300, "10m", "500 steps", "auto")] == [
        None, None, "300s", "600s", "500 steps", "auto",
    ]  # fmt: skip
