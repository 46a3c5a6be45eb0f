"""The rules of a TrainSpec: each violation names field, value and fix."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kueue_samples import PLATFORM, spec

from kueue_integration.errors import SpecError
from kueue_integration.spec.train_spec import TrainSpec, from_mapping
from kueue_integration.spec.validate import validate

MOUNT = {"name": "shared", "mountPath": "/shared"}


def problems(**changes: Any) -> dict[str, str]:
    try:
        validate(spec(**changes), PLATFORM)
    except SpecError as error:
        return {field: text for field, _, text in error.problems}
    return {}


def test_the_sample_is_valid() -> None:
    assert problems() == {}
    assert validate(spec(), PLATFORM) is None


@pytest.mark.parametrize(
    ("field", "changes", "fix"),
    [
        ("name", {"name": "Digits"}, "lower-case"),
        ("name", {"name": "1st"}, "start with a letter"),
        ("name", {"name": "a" * 53}, "at most 52"),
        ("queue", {"queue": ""}, "name the Kueue LocalQueue"),
        ("queue", {"queue": "no queue"}, "LocalQueue can have"),
        ("namespace", {"namespace": "a.b"}, "namespace can have"),
        ("priority_class", {"priority_class": "UP"}, "WorkloadPriorityClass"),
        ("identity", {"identity": "a b"}, "label value"),
        ("identity", {"identity": ""}, "label value"),
        ("command", {"command": []}, "give the program"),
        ("command", {"command": "python3 train.py"}, "list of words"),
        ("command", {"command": ["python3", None]}, "list of texts"),
        ("command", {"command": ["accelerate", "launch", "t.py"], "workers": 2}, "name the script instead"),
        ("command", {"command": ["deepspeed", "t.py"], "world_size": 8}, "so 8 ranks would each start"),
        ("workers", {"workers": 0}, "1 or more"),
        ("workers", {"workers": True}, "whole number"),
        ("workers", {"workers": 1024}, "1023"),
        ("min_workers", {"min_workers": 0}, "1 or more"),
        ("min_workers", {"min_workers": 5}, "lower it or raise workers"),
        ("world_size", {"world_size": 6}, "use 4 or 8"),
        ("world_size", {"world_size": 3}, "use 4"),
        ("world_size", {"world_size": 0}, "1 or more"),
        ("world_size", {"world_size": 1024}, "more than 1023"),
        ("image", {"image": "a b"}, "image reference"),
        ("resources['cpu']", {"resources": {"cpu": "lots"}}, "quantity"),
        ("resources['memory']", {"resources": {"memory": "0"}}, "more than 0"),
        ("resources['nvidia.com/gpu']", {"resources": {"nvidia.com/gpu": "0.5"}}, "whole number"),
        ("resources['c p u']", {"resources": {"c p u": "1"}}, "resource name"),
        ("resume_on_exit_codes", {"resume_on_exit_codes": [0]}, "1 to 255"),
        ("resume_on_exit_codes", {"resume_on_exit_codes": [143]}, "stopped on request"),
        ("resume_on_exit_codes", {"resume_on_exit_codes": 75}, "a list of exit codes"),
        ("infrastructure_retries", {"infrastructure_retries": -1}, "0 to 10000, or None"),
        ("reproducible_layout", {"reproducible_layout": "yes"}, "true or false"),
        ("reproducible_layout", {"reproducible_layout": True, "engine": "state"}, "saves no processes"),
        ("env['A-B']", {"env": {"A-B": "1"}}, "environment variable"),
        ("env['RANK']", {"env": {"RANK": "1"}}, "set by the launcher"),
        ("env['SINGULARITY_X']", {"env": {"SINGULARITY_X": "1"}}, "set by the launcher"),
        ("env['N']", {"env": {"N": None}}, "quote it"),
        ("files['/etc/x']", {"files": {"/etc/x": ""}}, "relative"),
        ("files['a/../b']", {"files": {"a/../b": ""}}, "plain relative path"),
        ("files['..data']", {"files": {"..data": ""}}, "plain relative path"),
        ("files['a/b']", {"files": {"a": "", "a/b": ""}}, "itself a file"),
        ("files['a']", {"files": {"a": b"\0"}}, "must be text"),
        ("files", {"files": {"a": "x" * 900_001}}, "900000"),
        ("workdir", {"workdir": "src", "files": {}}, "absolute"),
        ("workdir", {"workdir": "/src"}, "leave workdir out or files"),
        ("store", {"store": "ftp://x/y"}, "no library for"),
        ("store", {"store": "memory://x"}, "vanish"),
        ("store", {"store": "simplecache::gs://x/y"}, "no library for"),
        ("store", {"store": "gs://x/y::http://z"}, "no library for"),
        ("store", {"store": "gs://"}, "no bucket"),
        ("store", {"store": "s3:///path"}, "no bucket"),
        ("store", {"store": "file://host/x"}, "absolute path"),
        ("store", {"store": "file:///tmp/x"}, "not writable"),
        ("store", {"store": "file:///opt/torch/x"}, "not writable"),
        ("store", {"store": "file:///shared/../tmp"}, "absolute path"),
        ("checkpoint_budget_s", {"checkpoint_budget_s": 0}, "1 or more"),
        ("checkpoint_budget_s", {"checkpoint_budget_s": 601}, "at most 600"),
        ("grace_period_s", {"grace_period_s": -1}, "1 or more"),
        ("checkpoint_disk", {"checkpoint_disk": "much"}, "must be a quantity of at least 1Mi, as '50Gi' is"),
        ("checkpoint_disk", {"checkpoint_disk": "5k"}, "at least 1Mi"),
        ("checkpoint_disk", {"checkpoint_disk": "-5Gi"}, "at least 1Mi"),
        ("checkpoint_disk", {"checkpoint_disk": ""}, "at least 1Mi"),
        ("checkpoint_disk", {"checkpoint_disk": 10**12}, "at least 1Mi"),
        ("checkpoint_memory", {"checkpoint_memory": "some"}, "must be a quantity of at least 16Mi, as '4Gi' is"),
        ("checkpoint_memory", {"checkpoint_memory": "1Mi"}, "at least 16Mi"),
        ("checkpoint_memory", {"checkpoint_memory": 2**33}, "at least 16Mi"),
        ("checkpoint_every", {"checkpoint_every": "often"}, "use '300s', '10m'"),
        ("checkpoint_every", {"checkpoint_every": "5 epochs"}, "'500 steps', 'auto' or 'off'"),
        ("checkpoint_every", {"checkpoint_every": "0 steps"}, "from 1 to"),
        ("checkpoint_every", {"checkpoint_every": "9s"}, "from 10 seconds to 7 days"),
        ("checkpoint_every", {"checkpoint_every": "-300s"}, "not an interval"),
        ("checkpoint_every", {"checkpoint_every": float("nan")}, "not an interval"),
        ("checkpoint_every", {"checkpoint_every": True}, "not an interval"),
        ("checkpoint_every", {"checkpoint_every": ["10m"]}, "not an interval"),
        ("engine", {"engine": "magic"}, "'auto', 'process', 'state' or 'both'"),
        ("hold", {"hold": "yes"}, "true or false"),
        ("volumes[0].name", {"volumes": [{"name": "shared"}]}, "taken"),
        ("volumes[0].name", {"volumes": [{"name": "singularity-run"}]}, "reserved"),
        ("volumes[0].name", {"volumes": [{}]}, "volume can have"),
        ("volume_mounts[0].name", {"volume_mounts": [{"name": "x", "mountPath": "/x"}]}, "add it to volumes"),
        ("volume_mounts[0].mountPath", {"volume_mounts": [{**MOUNT, "mountPath": "x"}]}, "absolute"),
        ("volume_mounts[0].mountPath", {"volume_mounts": [{**MOUNT, "mountPath": "/singularity/run"}]}, "another path"),
        ("volume_mounts[0].mountPath", {"volume_mounts": [MOUNT]}, "twice"),
        ("volume_mounts[0].mountPath", {"volume_mounts": [{**MOUNT, "mountPath": "/shared/a"}]}, "below another"),
        ("volume_mounts[0].mountPath", {"volume_mounts": [{**MOUNT, "mountPath": "/opt"}]}, "below another"),
        ("volume_mounts[0].mountPath", {"volume_mounts": [{**MOUNT, "mountPath": "/dev/shm/a"}]}, "a link could lead"),
        ("labels['singularity.dev/job']", {"labels": {"singularity.dev/job": "x"}}, "set by the platform"),
        ("annotations['kueue.x-k8s.io/x']", {"annotations": {"kueue.x-k8s.io/x": "x"}}, "set by the platform"),
        (
            "labels['kueue.x-k8s.io/max-exec-time-seconds']",
            {"labels": {"kueue.x-k8s.io/max-exec-time-seconds": "1h"}},
            "whole number of seconds",
        ),
        ("labels['a']", {"labels": {"a": "not a label value"}}, "not a valid one"),
    ],
)
def test_each_problem_is_named_by_field(field: str, changes: dict[str, Any], fix: str) -> None:
    found = problems(**changes)
    assert list(found) == [field]
    assert fix in found[field]


def test_all_problems_at_once_with_their_values() -> None:
    with pytest.raises(SpecError) as raised:
        validate(spec(name="A", queue="", command=[], workers=3, min_workers=4, world_size=4), PLATFORM)
    assert [field for field, _, _ in raised.value.problems] == ["name", "queue", "command", "min_workers", "world_size"]
    assert "world_size = 4: cannot be divided among 3 workers; use 3 or 6" in str(raised.value)


def test_without_a_platform_its_defaults_are_not_asked_for() -> None:
    validate(spec(store="file:///anywhere", checkpoint_budget_s=10_000))


@pytest.mark.parametrize("field", ["image", "store"])
def test_missing_and_no_default(field: str) -> None:
    from dataclasses import replace

    bare = replace(PLATFORM, train_image="", store="")
    with pytest.raises(SpecError, match=f"{field} = None: is missing"):
        validate(spec(), bare)
    validate(spec(image="example/x", store="gs://bucket/x"), bare)


def test_a_store_on_the_users_own_volume() -> None:
    own = {"volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "c"}}]}
    mounts = [{"name": "disk", "mountPath": "/disk"}]
    assert problems(store="file:///disk/ckpt", volume_mounts=mounts, **own) == {}
    locked = [{**mounts[0], "readOnly": True}]
    assert list(problems(store="file:///disk/ckpt", volume_mounts=locked, **own)) == ["store"]


def test_sequences_become_tuples_so_that_two_equal_specs_are_equal() -> None:
    assert spec(command=["a"]).command == ("a",)
    assert spec(command=["a"]) == spec(command=("a",))


def test_from_mapping_reads_what_templates_render() -> None:
    text = {"name": "d", "queue": "q", "command": ["x"], "workers": "4", "hold": "False", "min_workers": None}
    found = from_mapping({**text, "grace_period_s": None})
    assert (found.workers, found.hold, found.min_workers, found.grace_period_s) == (4, False, None, 90)


def test_from_mapping_refuses_by_name() -> None:
    with pytest.raises(SpecError) as raised:
        from_mapping({"name": "d", "quue": "q", "command": ["x"], "workers": "four"})
    assert [(f, v) for f, v, _ in raised.value.problems] == [("quue", "q"), ("workers", "four"), ("queue", None)]
    assert "did you mean queue?" in str(raised.value)


@given(st.integers(1, 64), st.integers(-2, 70), st.integers(0, 200))
def test_sizes_are_valid_exactly_when_every_worker_count_can_hold_the_ranks(
    workers: int, least: int, world: int
) -> None:
    good = 1 <= least <= workers and world >= 1 and world % workers == 0
    assert (problems(workers=workers, min_workers=least, world_size=world) == {}) == good


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=20), max_size=4))
def test_no_path_that_passes_leaves_the_directory(files: dict[str, str]) -> None:
    import posixpath

    if not problems(files=files):
        for path in files:
            assert not posixpath.normpath("/cwd/" + path).startswith(("/..", "/cwd/..")) and path[0] != "/"
            assert posixpath.normpath("/cwd/" + path).startswith("/cwd/")


def test_the_dataclass_alone_accepts_anything() -> None:
    assert TrainSpec("x", "q", "not a list").command == "not a list"
