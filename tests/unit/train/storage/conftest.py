"""Real ranks over gloo: a nursery process with torch forks them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from state_ranks import HERE, Run, command


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the nursery sees too."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def run(shared: Path) -> Iterator[Run]:
    """`run(world, program, **arguments)`: what each rank returned, or raised. A rank that raises fails the test, unless
    `raises` is true."""
    words, env = command(shared)
    log = shared / "log"
    with log.open("wb") as errors:
        nursery = subprocess.Popen(
            [*words, str(HERE / "state_nursery.py"), str(shared)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert nursery.stdin is not None and nursery.stdout is not None

        def make(world: int, program: str, raises: bool = False, **arguments: Any) -> list[dict[str, Any]]:
            nursery.stdin.write(json.dumps({"world": world, "program": program, "arguments": arguments}) + "\n")
            nursery.stdin.flush()
            line = nursery.stdout.readline()
            assert line, log.read_text(errors="replace")
            found = json.loads(line)
            bad = [each for each in found if each["code"]]
            assert raises or not bad, "\n".join(each.get("trace", str(each)) for each in bad)
            return found if raises else [each["returned"] for each in found]

        yield make
        nursery.kill()  # it has no more ranks, and nothing of its own
        nursery.wait(30)


@pytest.fixture
def root(shared: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Of the checkpoints of one test."""
    path = shared / request.node.name.replace("/", "-")
    yield path
    shutil.rmtree(path, ignore_errors=True)
