"""`make matrix-torch`: the programs' suite with several versions of torch, and a table of what each program did.

A program is stopped, dumped by CRIU, its pod deleted and restored in a new one, and has to end with the same bits; real
gloo ranks, no GPU. All versions run in a Debian 12 root file system: old torches have no wheels for a newer Python.
Beside the programs: every collective, and the stores. The folders with torch, 5 GB each, links into uv's cache where
that is on the same disk, stay in the cache; what the tests said is in `build/torch-matrix`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from localcluster.config import cache_dir
from localcluster.images import rootfs

NEWEST = rootfs.TORCH_PACKAGES[0].partition("==")[2]
VERSIONS = ("2.6.0", "2.8.0", "2.9.1", "2.11.0", "2.13.0", NEWEST)
"""The oldest; the ones that people have; the last whose groups are ours; the newest, whose backends are."""
ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "torch-matrix"
FOLDER = "tests/unit/proxy"
TESTS = (
    "test_programs.py::test_stopped_and_restored_it_ends_as_if_nothing_had_happened", "test_agent_torch.py",
    "test_agent_store.py", "test_shared_device.py", "test_early_end.py", "test_agent_threads.py",
)  # fmt: skip
NOT_PLAYED = "not played"
Outcomes = dict[str, str]
"""Row -> "passed", "FAILED", or "skipped: why"."""


def environment(version: str) -> dict[str, str]:
    """Make what is missing; the variables that the tests' fixtures read."""
    cache = cache_dir()
    root = rootfs.debian(cache, print, *rootfs.DEBIAN_12)
    torch = rootfs.torch(cache, print, (f"torch=={version}", "numpy"), root, rootfs.DEBIAN_12_PYTHON)
    return {
        "SINGULARITY_TEST_ROOTFS": str(root),
        "SINGULARITY_TEST_TORCH": str(torch),
        "SINGULARITY_TEST_AGENT_ROOTFS": str(rootfs.debian(cache, print)),
    }


def tested(version: str, words: Sequence[str]) -> Outcomes:
    """Play the suite with this version. What it printed is in `build`.

    :param words: more for pytest, to play a part
    """
    env = {**os.environ, **environment(version)}
    BUILD.mkdir(parents=True, exist_ok=True)
    report = BUILD / f"{version}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", f"--junitxml={report}", *words]
    with (BUILD / f"{version}.txt").open("w") as file:
        command += [f"{FOLDER}/{test}" for test in TESTS]
        subprocess.run(command, cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT, check=False)
    return outcomes(report.read_text()) if report.exists() else {}


def outcomes(report: str) -> Outcomes:
    """What a report of pytest (JUnit's XML) says of each test; of a second try, what that gave."""
    found: Outcomes = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        name = case.get("name", "")
        row = name.partition("[")[2].rstrip("]") or name.removeprefix("test_").replace("_", " ")
        skipped = case.find("skipped")
        failed = case.find("failure") is not None or case.find("error") is not None
        found[row] = "FAILED" if failed else "passed" if skipped is None else f"skipped: {skipped.get('message')}"
    return found


def table(columns: Mapping[str, Outcomes]) -> str:
    """A row for each that any version has played: none is silent."""
    rows: Iterable[str] = dict.fromkeys(row for column in columns.values() for row in column)
    lines = [["program", *columns], *([row, *(each.get(row, NOT_PLAYED) for each in columns.values())] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], ["---"] * len(lines[0]), *lines[1:]])


def main(words: Sequence[str]) -> int:
    chosen = [word for word in words if word[:1].isdigit()]
    unknown = sorted(set(chosen) - set(VERSIONS))
    if unknown:
        sys.exit(f"make: ONLY={unknown[0]}: must be one of {', '.join(VERSIONS)}")
    columns: dict[str, Outcomes] = {}
    for version in chosen or VERSIONS:
        columns[version] = tested(version, [word for word in words if word not in chosen])
        counts = {each: list(columns[version].values()).count(each) for each in ("passed", "FAILED")}
        print(f"torch {version}: {counts['passed']} passed, {counts['FAILED']} failed", flush=True)
    (BUILD / "table.md").write_text(table(columns) + "\n")
    print(table(columns), f"Details: {BUILD.relative_to(ROOT)}/VERSION.txt", sep="\n\n")
    played = [set(column.values()) for column in columns.values()]
    return 0 if all(each and "FAILED" not in each for each in played) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
