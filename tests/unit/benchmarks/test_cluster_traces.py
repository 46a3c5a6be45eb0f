"""The reader of traces: small files that are made here, and what it says of bad ones."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from benchmarks.cluster import compare, derive, traces
from benchmarks.cluster.generator import PARAMETERS
from benchmarks.cluster.model import DEVICES_PER_NODE

JOBS = """virtual_cluster,job_type,steps,arrival_s,gpus
b,LM (batch size 5),200,7.5,8
a,A3C,100,1,1
"""
SPEEDS = """gpu,placement,job_type,gpus,steps_per_s
v100,consolidated,A3C,1,4.0
v100,unconsolidated,A3C,2,0.0
"""
PODS = """name,num_gpu,qos,scheduled_time,deletion_time
p0,1,LS,10,70
p1,0,BE,,70
"""


def write(folder: Path, text: str, name: str = "file.csv") -> Path:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.csv.gz"])
def test_jobs_come_in_the_order_of_arrival(tmp_path: Path, name: str) -> None:
    first, second = traces.read_jobs(write(tmp_path, JOBS, name))
    assert first == traces.TraceJob("a", "A3C", 100, 1, 1)
    assert (second.tenant, second.gpus, second.arrival_s) == ("b", 8, 7.5)


def test_speeds_that_were_not_measured_are_left_out(tmp_path: Path) -> None:
    assert traces.read_throughputs(write(tmp_path, SPEEDS)) == [traces.Throughput("v100", "consolidated", "A3C", 1, 4)]


def test_nodes_and_pods_of_a_production_cluster(tmp_path: Path) -> None:
    nodes = traces.read_nodes(write(tmp_path, "sn,cpu_milli,memory_mib,gpu,model\nn0,1,2,8,G2\nn1,1,2,0,\n"))
    assert nodes == [traces.TraceNode("n0", 8, "G2"), traces.TraceNode("n1", 0, "")]
    assert traces.read_pods(write(tmp_path, PODS)) == [traces.TracePod(1, "LS", 60), traces.TracePod(0, "BE", None)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (JOBS.replace("7.5,8", "7.5,0"), ["file.csv:2", "gpus = '0'", "at least 1"]),
        (JOBS.replace("7.5,8", "7.5,1.5"), ["file.csv:2", "gpus = '1.5'", "whole number"]),
        (JOBS.replace(",100,", ",nan,"), ["file.csv:3", "steps = 'nan'", "more than 0"]),
        (JOBS.replace(",100,", ",0,"), ["file.csv:3", "steps = '0'", "more than 0"]),
        (JOBS.replace("a,A3C,100,1,1", "a,A3C,100,-1,1"), ["file.csv:3", "arrival_s = '-1'"]),
        (JOBS.replace("arrival_s", "when"), ["no column arrival_s"]),
        (JOBS.replace("a,A3C,100,1,1", "a,A3C"), ["file.csv:3", "fewer cells"]),
        ("", ["no column virtual_cluster"]),
    ],
)
def test_a_bad_file_is_told_with_line_column_and_value(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ValueError) as error:
        traces.read_jobs(write(tmp_path, text))
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_placement_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"placement = 'near'.*consolidated"):
        traces.read_throughputs(write(tmp_path, SPEEDS.replace(",consolidated", ",near")))


@pytest.mark.parametrize(
    "content",
    # The time is in what gzip writes: a test's name must not depend on it.
    [b"\x1f\x8b\x08 cut off", b"plain text", gzip.compress(b"a,b\n1,2\n" * 999, mtime=0)[:-9]],
    ids=["header", "text", "cut"],
)
def test_a_file_that_is_no_gzip(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"jobs\.csv\.gz"):
        traces.read_jobs(path)


TRACES = os.environ.get("SINGULARITY_TRACES", "")
"""A folder with philly-jobs, throughputs, alibaba-2023-nodes and alibaba-2023-pods, each `.csv.gz`."""
needs_traces = pytest.mark.skipif(not TRACES, reason="SINGULARITY_TRACES names no folder with the published traces")


@needs_traces
def test_the_shipped_parameters_are_those_of_the_published_trace():
    jobs = traces.read_jobs(Path(TRACES) / "philly-jobs.csv.gz")
    speeds = traces.read_throughputs(Path(TRACES) / "throughputs.csv.gz")
    made = derive.parameters(jobs, speeds)
    assert derive.dumped(made) == PARAMETERS.read_text()
    # Columns: what is compared, least, mean, largest of five seeds.
    rows = [line.strip("| ").split(" | ") for line in compare.report(jobs, speeds, made).splitlines()[2:]]
    far = {what: float(largest) for what, _, _, largest in rows}
    assert len(far) == 7 and far.pop("number of jobs, relative") < 0.2 and max(far.values()) < 0.1, far


@needs_traces
def test_most_devices_of_the_published_cluster_are_in_nodes_of_the_size_that_is_played():
    nodes = traces.read_nodes(Path(TRACES) / "alibaba-2023-nodes.csv.gz")
    there = sum(node.gpus for node in nodes if node.gpus == DEVICES_PER_NODE)
    assert (there, sum(node.gpus for node in nodes)) == (4936, 6212)
    assert traces.read_pods(Path(TRACES) / "alibaba-2023-pods.csv.gz")
