"""Checkpoints of the adapters, exported from the store of a job by the command; the frameworks load them themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from torch_nursery import Nursery

from kueue_integration import cli
from kueue_integration.cli import checkpoints
from kueue_integration.kube.fake import FakeKube
from singularity_proxy.protocol.manifest import Manifest, Requirements
from singularity_proxy.store import Store

pytestmark = [pytest.mark.criu]  # root and the torch environment
AT = 4
ID = "tiny-a1-g1"


def trained(ranks: Nursery, place: Path, framework: str) -> str:
    """URL of a store with the checkpoint that two ranks have made after AT steps."""
    words = {"train_program": f"{framework}_programs:train", "place": str(place), "at": AT}
    ranks.run(2, "hosted_programs:train", **words)
    url = f"file://{place}/store"
    folders = {rank: place / f"images/rank-{rank}" for rank in (0, 1)}
    images = Store(url).put_ranks("team", "tiny", ID, folders).images
    made = Manifest(
        id=ID, namespace="team", job="tiny", attempt=1, generation=1, step=AT, world_size=2, engine="state",
        created_at=1e9, ranks=images, requirements=Requirements("x86_64", ""),
    )  # fmt: skip
    Store(url).write_manifest(made)
    return url


@pytest.fixture
def export(ranks: Nursery, place: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(checkpoints, "open_cluster", lambda kubeconfig, context: FakeKube())

    def made(url: str, format: str, name: str, *more: str) -> Result:
        words = ["checkpoints", "export", "tiny", ID, str(place / name), "--format", format, *more]
        words += ["-n", "team", "--store", url, "--where", "here", "--python", str(ranks.python())]
        return CliRunner().invoke(cli.main, words)

    return made


def test_the_trainer_torch_dcp_and_safetensors(ranks: Nursery, place: Path, export) -> None:  # type: ignore[no-untyped-def]
    url = trained(ranks, place, "trainer")
    for format, name, only in (
        ("torch", "all.pt", ()), ("dcp", "dcp", ()), ("safetensors", "model.safetensors", ("--only", "models")),
        ("trainer", "checkpoint-4", ()),
    ):  # fmt: skip
        done = export(url, format, name, *only)
        assert done.exit_code == 0 and f"{ID} (step {AT}): " in done.stdout, done.output
    whole = str(place / "all.pt")
    assert ranks.run(1, "export_programs:trainer", folder=str(place / "checkpoint-4"), whole=whole) == [
        [AT, True, True, 6]
    ]
    assert ranks.run(1, "export_programs:plain", folder=str(place), whole=whole) == [[False, True, True]]

    again = export(url, "torch", "all.pt")
    assert again.exit_code == 2 and "it is there already" in again.stderr
    wrong = export(url, "torch", "other.pt", "--only", "model")
    assert wrong.exit_code == 3 and "only = 'model': the checkpoint has" in wrong.stderr
    assert not [path.name for path in place.iterdir() if "fetched" in path.name or path.name.startswith(".")]


def test_lightning(ranks: Nursery, place: Path, export) -> None:  # type: ignore[no-untyped-def]
    url = trained(ranks, place, "lightning")
    for format, name in (("torch", "all.pt"), ("lightning", "last.ckpt")):
        done = export(url, format, name)
        assert done.exit_code == 0, done.output
    found = ranks.run(1, "export_programs:lightning", folder=str(place / "last.ckpt"), whole=str(place / "all.pt"))
    assert found == [[AT, True, True, 6]]
