"""Queues: Kueue has the fields that the page shows, the sample queues admit the examples, the chart's notes work."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from rendered import CHART, HELM, NO_HELM, helm
from shell_blocks import PAGES, ROOT, words_after
from test_install_blocks import CRDS, NO_CRDS, schema_of, unknown
from test_shell_blocks import read

from kueue_integration.kube.quantities import parse

PAGE = ROOT / "docs/administration/queues.md"


def shown() -> list[dict[str, Any]]:
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [*yaml.safe_load_all(block)]


@pytest.mark.skipif(not CRDS, reason=NO_CRDS)
def test_kueue_has_the_fields_that_the_page_shows() -> None:
    kinds = [made["kind"] for made in shown()]
    assert set(kinds) == {"ResourceFlavor", "ClusterQueue", "LocalQueue", "WorkloadPriorityClass"}
    for made in shown():
        body = {key: value for key, value in made.items() if key not in ("apiVersion", "kind", "metadata")}
        assert not [*unknown(schema_of(made["kind"].lower()), body)], made


def test_the_page_and_the_chart_have_the_same_names() -> None:
    samples = yaml.safe_load((CHART / "values.yaml").read_text())["sampleQueues"]
    names = {(made["kind"], made["metadata"]["name"]) for made in shown()}
    assert {("LocalQueue", samples["name"]), ("ClusterQueue", samples["name"])} <= names
    assert {name for kind, name in names if kind == "WorkloadPriorityClass"} == set(samples["priorityClasses"])
    assert {name for kind, name in names if kind == "ResourceFlavor"} == {f["name"] for f in samples["flavors"]}


def examples() -> list[tuple[str, int, str]]:
    """(page, fewest pods, CPU of a pod) of the trainings that pages show with the queue `training`."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for words in words_after("singularityctl", text):
            if words[0] == "submit" and "training" in words and "--cpu" in words:
                given = dict(pairwise(words))
                pods = given.get("--min-workers") or given.get("--workers") or "1"
                found.append((page.name, int(pods), given["--cpu"]))
        for call in re.findall(r"SingularityTrainOperator\(\n(.*?)\n    \)", text, re.DOTALL):
            cpu = re.search(r'"cpu": "([^"]+)"', call)
            pods_of = re.search(r"min_workers=(\d+)", call) or re.search(r"workers=(\d+)", call)
            if '"training"' in call and cpu and pods_of:
                found.append((page.name, ast.literal_eval(pods_of[1]), cpu[1]))
    return found


def test_each_flavor_of_the_sample_queues_admits_the_examples() -> None:
    assert {page for page, _, _ in examples()} >= {"first-dag.md", "command-line.md", "first-job.md"}
    samples = yaml.safe_load((CHART / "values.yaml").read_text())["sampleQueues"]
    for page, pods, cpu in examples():
        for flavor in samples["flavors"]:
            assert pods * parse(cpu) <= parse(flavor["quota"]["cpu"]), (page, flavor["name"])


@pytest.mark.skipif(HELM is None, reason=NO_HELM)
@pytest.mark.parametrize(
    ("sets", "wanted"),
    [
        ((), ("--image", "--store")),
        (("images.train=i:1", "store.url=gs://b/c", "sampleQueues.enabled=true"), ("--queue", "training")),
    ],
)
def test_the_notes_of_the_chart_print_a_submit_that_is_read(
    sets: tuple[str, ...], wanted: tuple[str, ...], tmp_path: Path
) -> None:
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    notes = chart / "templates/NOTES.txt"  # which Helm shows to nobody without a cluster
    (chart / "templates/_notes.tpl").write_text('{{ define "notes" }}' + notes.read_text() + "{{ end }}")
    (chart / "templates/notes.yaml").write_text('kind: Notes\ntext: {{ include "notes" . | toJson }}\n')
    given = [word for item in sets for word in ("--set", item)]
    where = ["-n", "singularity-system", "--kube-version", "1.36.0", "--show-only", "templates/notes.yaml"]
    done = helm("template", "singularity", str(chart), *where, *given)
    assert done.returncode == 0, done.stderr
    told = yaml.safe_load(done.stdout)["text"].splitlines()
    (line,) = [line.strip() for line in told if line.strip().startswith("singularityctl submit ")]
    words = shlex.split(line)[1:]
    assert set(wanted) <= set(words)
    read(words)
