"""What ranks do in the tests of contents: mismatches, damage, objects, ranges, torch's own calls."""

from __future__ import annotations

import collections
import copy
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from singularity_train.storage import BlobReader, BlobWriter, Checkpoints, StateStorageError


def said(call: Callable[[], object]) -> list[str]:
    """Class and sentence of what it raises."""
    try:
        call()
    except StateStorageError as error:
        return [type(error).__name__, str(error)]
    return ["", ""]


def mismatches(rank: int, world: int, root: str) -> dict[str, list[str]]:
    checkpoints = Checkpoints(root)

    def model(**changed: Any) -> dict[str, Any]:
        made = {"weight": torch.ones(4, 2), "bias": torch.ones(4), "epoch": 3, **changed}
        return {"model": {name: value for name, value in made.items() if value is not None}, "lr": 0.1}

    saved = checkpoints.get(checkpoints.save(model(), {}, step=0))
    wrong = {
        "missing": model(gate=torch.ones(1)),
        "extra": model(bias=None),
        "reshaped": model(weight=torch.ones(4, 3)),
        "dtype": model(bias=torch.ones(4, dtype=torch.float64)),
        "object": model(epoch=torch.ones(1)),
        "tensor": model(bias=7),
    }
    found = {name: said(lambda state=state: checkpoints.load(saved, state)) for name, state in wrong.items()}
    optional = model(gate=torch.ones(1), bias=None)
    found["optional"] = said(lambda: checkpoints.load(saved, optional, optional=["model"]))
    found["a part"] = said(lambda: checkpoints.load(saved, {"lr": 0.0}))
    return found


def mismatch_of_one_rank(rank: int, world: int, root: str) -> list[list[str]]:
    """All ranks get the error of the one; then all load well."""
    checkpoints = Checkpoints(root, timeout_s=20)
    saved = checkpoints.get(checkpoints.save({"w": torch.ones(2), f"own{rank}": torch.ones(1)}, {"who": rank}, step=0))
    first = said(lambda: checkpoints.load(saved, {"w": torch.ones(2 + rank), f"own{rank}": torch.ones(1)}))
    unsavable = said(lambda: checkpoints.save({"w": torch.ones(2), "o": random.Random() if rank else 1}, {}, step=1))
    differs = said(lambda: checkpoints.save({"w": torch.ones(2), "o": {"who": rank}}, {}, step=1))
    steps = said(lambda: checkpoints.save({"w": torch.ones(2)}, {}, step=rank))
    state: dict[str, Any] = {"w": torch.zeros(2), f"own{rank}": torch.zeros(1)}
    checkpoints.load(saved, state)
    assert state["w"].sum() == 2 and state[f"own{rank}"].item() == 1 and saved.meta == {"who": 0}
    return [first, unsavable, differs, steps]


def bad_calls(rank: int, world: int, root: str) -> dict[str, list[str]]:
    checkpoints = Checkpoints(root)
    state = {"w": torch.ones(2)}

    def save(state: Any = state, meta: Any = (), step: Any = 0) -> Callable[[], object]:
        return lambda: checkpoints.save(state, dict(meta), step=step)

    found = {
        "keep": said(lambda: Checkpoints(root, keep=0)),
        "timeout": said(lambda: Checkpoints(root, timeout_s=0)),
        "step": said(save(step=-1)),
        "meta": said(save(meta={"when": object()})),
        "nan": said(save(meta={"loss": float("nan")})),
        "object": said(save({"w": {"hook": [lambda: 0]}})),
        "sparse": said(save({"w": torch.eye(2).to_sparse()})),
        "meta tensor": said(save({"w": torch.empty(2, device="meta")})),
        "same name": said(save({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}})),
        "no such id": said(lambda: checkpoints.get("00000009-step-9-none")),
    }
    assert checkpoints.latest() is None
    stock = Path(root) / "stock"
    dcp.save(state, checkpoint_id=stock, no_dist=True)
    found["stock"] = said(lambda: Checkpoints(stock).save(state, {}, step=0))
    file = Path(root) / "file"
    file.write_text("")
    found["file"] = said(lambda: Checkpoints(file).save(state, {}, step=0))
    return found


def damage(rank: int, world: int, root: str) -> dict[str, Any]:
    """Each blob and the manifest, with a flipped bit and cut short. Each is put right again."""
    torch.manual_seed(0)
    checkpoints = Checkpoints(root)
    state = {"big": torch.randn(700_000), "small": torch.randn(10), "text": "x" * 100}
    older = checkpoints.get(checkpoints.save({**state, "big": torch.zeros(700_000)}, {}, step=1))
    saved = checkpoints.get(checkpoints.save(state, {}, step=2))
    found: dict[str, Any] = {"blobs": {}, "manifest": {}}
    for path in sorted((Path(root) / "blobs").iterdir()):
        whole = path.read_bytes()
        if path.name not in saved.path.read_text():
            continue
        for place in (0, len(whole) // 2, len(whole) - 1):
            found["blobs"][f"{path.name} {place}"] = _spoiled(checkpoints, state, path, _flip(whole, place))
        found["blobs"][f"{path.name} cut"] = _spoiled(checkpoints, state, path, whole[:-1])
        found["blobs"][f"{path.name} gone"] = _spoiled(checkpoints, state, path, None)
    whole = saved.path.read_bytes()
    for place in (0, len(whole) // 3, len(whole) // 2, len(whole) - 5):
        found["manifest"][f"flip {place}"] = _spoiled(checkpoints, state, saved.path, _flip(whole, place))
    found["manifest"]["cut"] = _spoiled(checkpoints, state, saved.path, whole[: len(whole) // 2])
    other = json.dumps({**json.loads(whole), "engine": "process"}).encode()
    found["engine"] = _spoiled(checkpoints, state, saved.path, other)
    newer = json.dumps({**json.loads(whole), "version": 2}).encode()
    found["version"] = _spoiled(checkpoints, state, saved.path, newer)
    found["format"] = _spoiled(checkpoints, state, saved.path, b'{"format": "another"}')
    filled = {"big": torch.ones(700_000), "small": torch.zeros(10), "text": ""}
    checkpoints.load(older, filled)
    found["older"] = bool((filled["big"] == 0).all()) and torch.equal(filled["small"], state["small"])
    # A blob that was cut short is not taken for the content that it has the name of.
    path = Path(root) / "blobs" / json.loads(whole)["tensors"]["big"]["pieces"][0]["blob"]
    os.truncate(path, 1000)
    checkpoints.save(state, {}, step=3)
    checkpoints.save(state, {}, step=4)
    newest = checkpoints.latest()
    assert newest is not None
    found["newest"] = said(lambda: checkpoints.load(newest, dict(state)))
    path.write_bytes(_flip(path.read_bytes(), 9))
    another = Checkpoints(root)
    another.save(state, {}, step=4)
    mended = another.latest()
    assert mended is not None
    found["mended"] = said(lambda: another.load(mended, dict(state)))
    half = Path(root) / "checkpoints" / "00000099-step-9-half"
    half.mkdir()
    (half / "manifest.json.1234.tmp").write_text("{")
    again = checkpoints.latest()
    found["half"] = [again and again.step, checkpoints.save(state, {}, step=5)]
    found["folders"] = sorted(path.name for path in (Path(root) / "checkpoints").iterdir())
    return found


def _flip(whole: bytes, place: int) -> bytes:
    return whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]


def _spoiled(checkpoints: Checkpoints, state: dict[str, Any], path: Path, data: bytes | None) -> list[str]:
    whole = path.read_bytes()
    path.unlink()
    if data is not None:
        path.write_bytes(data)

    def load() -> None:
        newest = checkpoints.latest()
        assert newest is not None
        # A load that fails may have filled a part of what it was given.
        checkpoints.load(newest, copy.deepcopy(state))

    answer = said(load)
    path.write_bytes(whole)
    return answer


Pair = collections.namedtuple("Pair", "a b")


def objects(rank: int, world: int, root: str) -> dict[str, Any]:
    """Each value comes back as it was, of the same type."""
    values: dict[str, Any] = {
        "none": None, "true": True, "one": 1, "large": 2**80, "float": 0.1, "inf": float("inf"),
        "text": "\u00e9\ud800\n", "bytes": b"\x00\xff", "array": bytearray(b"12"), "tuple": (1, (2, [3])),
        "set": {1, 2}, "frozen": frozenset({"a"}), "complex": 1 + 2j, "nothing": [],
        "keys": ({1: "a", (2, 3): "b", None: {"float": "nan"}}, {}), "python": random.Random(3).getstate(),
        "numpy": numpy.random.RandomState(3).get_state(), "scalar": numpy.float32(1.5),
        "generator": (numpy.random.default_rng(3).bit_generator.state,), "zero": numpy.array(2, dtype="i8"),
        "torch": torch.float16, "size": torch.Size([1, 2]), "mixed": (torch.ones(2), 1),
    }  # fmt: skip
    checkpoints = Checkpoints(root)
    saved = checkpoints.get(checkpoints.save({"all": values}, {}, step=0))
    kinds = {name: each["kind"] for name, each in json.loads(saved.path.read_text())["objects"].items()}
    state: dict[str, Any] = {"all": dict.fromkeys(values)}
    checkpoints.load(saved, state)
    wrong = []
    for name, value in values.items():
        found = state["all"][name]
        if type(found) is not type(value) or repr(found) != repr(value):
            wrong.append(f"{name}: {value!r} became {found!r}")
    assert numpy.array_equal(values["numpy"][1], state["all"]["numpy"][1])
    nan = {"nan": float("nan")}
    checkpoints.load(checkpoints.get(checkpoints.save({"all": nan}, {}, step=0)), state := {"all": {"nan": 0}})
    assert state["all"]["nan"] != state["all"]["nan"]
    numbered: dict[str, Any] = {"rng": {0: "zero", 1: "one"}, "list": [{"a": 1}, torch.ones(1)]}
    saved = checkpoints.get(checkpoints.save(numbered, {}, step=0))
    found = {"rng": {1: "", 0: ""}, "list": [{"a": 0}, torch.zeros(1)]}
    checkpoints.load(saved, found)
    assert found == numbered
    named = said(lambda: checkpoints.save({"p": Pair(1, object())}, {}, step=0))
    return {"wrong": wrong, "kinds": kinds, "named": named}


def placed(world: int, placement: int | None, rows: int, columns: int) -> Any:
    """The tensor of the test of ranges: each element is its place."""
    whole = torch.arange(rows * columns, dtype=torch.int32).reshape(rows, columns)
    mesh = init_device_mesh("cpu", (world,))
    return distribute_tensor(whole, mesh, [Replicate() if placement is None else Shard(placement)])


def save_placed(rank: int, world: int, root: str, placement: int | None, rows: int, columns: int) -> int:
    checkpoints = Checkpoints(root, keep=9, timeout_s=30)
    checkpoints.save({"t": placed(world, placement, rows, columns)}, {}, step=0)
    return checkpoints.figures.written if checkpoints.figures else -1


def load_placed(rank: int, world: int, root: str, placement: int | None, rows: int, columns: int) -> dict[str, int]:
    """Bytes that are this rank's, bytes that it read; the values are compared."""
    checkpoints = Checkpoints(root, timeout_s=30)
    wanted = placed(world, placement, rows, columns)
    state = {"t": torch.zeros_like(wanted)}
    saved = checkpoints.latest()
    assert saved is not None
    got = checkpoints.load(saved, state)
    assert torch.equal(state["t"].to_local(), wanted.to_local())
    dist.barrier()
    return {"got": got, "own": wanted.to_local().numel() * 4}


def as_documented(rank: int, world: int, root: str, code: str) -> str:
    """The function of the documentation, on tensors in pieces and in shared blobs; what the manifest has for a blob."""
    import hashlib

    names: dict[str, Any] = {}
    exec(code, names)
    state = {"big": placed(world, 0, 301, 400), "small": torch.arange(7), "flag": torch.tensor(True)}
    checkpoint = Checkpoints(root, timeout_s=30).save(state, {}, step=0)
    whole = torch.arange(301 * 400, dtype=torch.int32).reshape(301, 400)
    assert torch.equal(names["tensor"](root, checkpoint, "big"), whole)
    assert torch.equal(names["tensor"](root, checkpoint, "small"), torch.arange(7))
    assert torch.equal(names["tensor"](root, checkpoint, "flag"), torch.tensor(True))
    text = (Path(root) / "checkpoints" / checkpoint / "manifest.json").read_bytes()
    manifest = json.loads(text)
    body = text[: text.rindex(b', "digest"')]
    assert manifest["digest"] == hashlib.sha256(body).hexdigest()
    for name, blob in manifest["blobs"].items():
        data = (Path(root) / "blobs" / name).read_bytes()
        blocks = [hashlib.sha256(data[at : at + 1048576]) for at in range(0, len(data), 1048576)]
        assert [each.hexdigest() for each in blocks] == blob["blocks"]
        assert hashlib.sha256(b"".join(each.digest() for each in blocks)).hexdigest() == name
    return checkpoint


def with_torchs_own_calls(rank: int, world: int, root: str) -> dict[str, Any]:
    """`dcp.save` with our writer, `dcp.load` with our reader, and each with Checkpoints."""
    values = {"model": {"w": torch.arange(300_000.0), "b": torch.ones(3)}, "lr": 0.25, "list": (1, 2)}
    own = BlobWriter(root, step=4, meta={"by": "dcp"})
    dcp.save(values, storage_writer=own, no_dist=True)
    checkpoints = Checkpoints(root)
    saved = checkpoints.latest()
    assert saved is not None and saved.id == own.id and saved.meta == {"by": "dcp"}

    def empty() -> dict[str, Any]:
        return {"model": {"w": torch.zeros(300_000), "b": torch.zeros(3)}, "lr": 0.0, "list": ()}

    by_ours, by_torch = empty(), empty()
    checkpoints.load(saved, by_ours)
    second = checkpoints.get(checkpoints.save(values, {}, step=5))
    dcp.load(by_torch, storage_reader=BlobReader(root, second.id), no_dist=True)
    for each in (by_ours, by_torch):
        assert torch.equal(each["model"]["w"], values["model"]["w"]) and each["model"]["b"].sum() == 3
    return {"lr": [by_ours["lr"], by_torch["lr"]], "list": [list(by_ours["list"]), list(by_torch["list"])]}
