"""What this machine has, and in sentences what will not work on it."""

from __future__ import annotations

from dataclasses import asdict

from singularity_proxy.launcher.device import nvml

from ..fake import fake_nvml
from ..kit import Kit, Result


def run(kit: Kit, result: Result) -> None:
    found = kit.facts()
    for name, value in asdict(found).items():
        if name != "problems":
            words = [f"{key}: {each}" for key, each in value.items()] if isinstance(value, dict) else [str(value)]
            result.figure(name, ", ".join(words))
    library = fake_nvml() if kit.fake else nvml.library()
    for number, each in enumerate(nvml.read(library) if library is not None else []):
        result.figure(f"NVML, GPU {number}", each.line())
    for sentence in found.problems:
        result.note(sentence)
    result.check("torch can be imported", bool(found.torch), found.torch.get("version", ""))
    result.check("CRIU runs here", found.criu.get("version") is not None, str(found.criu.get("version")))
    if not kit.fake:
        result.check("the driver has the checkpoint API", bool(found.gpus) and all(map(found.calls.get, _NEEDED)))
    result.sentence = (
        f"{len(found.gpus)} GPUs; {len(found.problems)} things will not work"
        if found.problems
        else (f"{len(found.gpus)} GPUs, driver {found.driver}, nothing is missing")
    )


_NEEDED = ("Lock", "Checkpoint", "Restore", "Unlock", "GetState")
