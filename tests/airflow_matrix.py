"""`make matrix-airflow`: the provider's unit tests on several versions of Airflow, and a table of what passed.

Each version gets an environment with the packages that were the newest on the day of its release, as its constraints
file has them: with a newer `kubernetes` or SQLAlchemy a test would show little. Downloads are in uv's cache, outside of
the checkout; the environments, links into it, are in `build/airflow-matrix`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

RELEASED = {"3.0.6": "2025-08-29", "3.1.8": "2026-03-11", "3.2.2": "2026-05-29", "3.3.2": "2026-09-17"}
"""The newest of each minor version, and its day."""
ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "airflow-matrix"
UV = Path(sys.executable).parent / "uv"
PROVIDER = ("apache-airflow-providers-cncf-kubernetes", "apache-airflow-providers-openlineage", "PyYAML")
TOOLS = (
    "pytest>=8.4", "pytest-asyncio>=1.1", "pytest-timeout>=2.4", "pytest-rerunfailures>=16", "pytest-xdist>=3.8",
    "hypothesis>=6.130", "aiohttp", "prometheus-client", "click", "cryptography", "scikit-learn", "jsonschema",
    "playwright",
)  # fmt: skip
COUNTED = ("passed", "failed", "errors", "skipped")


def environment(version: str) -> Path:
    """Make the environment of this version unless it is there."""
    place = BUILD / version
    whole = place / ".whole"
    if whole.exists():
        return place
    python = place / "bin" / "python"
    _run(UV, "venv", "-q", "--clear", "--python", sys.executable, place)
    install = (UV, "pip", "install", "-q", "--python", python)
    _run(*install, "--exclude-newer", RELEASED[version], f"apache-airflow=={version}", *PROVIDER)
    known = _run(UV, "pip", "freeze", "--python", python)
    constraints = place / "constraints.txt"
    constraints.write_text(known)
    _run(*install, "-c", constraints, *TOOLS)
    # Our own requirements name what we support: here we look whether that could be more.
    _run(*install, "--no-deps", "-e", ROOT, "-e", ROOT / "localcluster")
    whole.touch()
    return place


def tested(version: str) -> dict[str, int]:
    """Run the tests with this version; how many passed, failed and so on. Their output is in `build`."""
    place = environment(version)
    command = [place / "bin" / "pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "not full", "tests/unit/airflow"]
    output = BUILD / f"{version}.txt"
    with output.open("w") as file:
        subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False)
    last = output.read_text().rstrip().rpartition("\n")[2]
    found = {word if word != "error" else "errors": int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", last)}
    return {word: found.get(word, 0) for word in COUNTED}


def _run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"make: {' '.join(str(word) for word in command)}: {done.stderr.strip()}")
    return done.stdout


def main(chosen: list[str]) -> int:
    unknown = sorted(set(chosen) - set(RELEASED))
    if unknown:
        sys.exit(f"make: ONLY={unknown[0]}: must be one of {', '.join(RELEASED)}")
    print(f"{'airflow':10}" + "".join(f"{word:>9}" for word in COUNTED), flush=True)
    wrong = 0
    for version in chosen or RELEASED:
        found = tested(version)
        wrong += found["failed"] + found["errors"] + (not found["passed"])
        print(f"{version:10}" + "".join(f"{found[word]:9}" for word in COUNTED), flush=True)
    print(f"Which ones, and the reasons of the skipped: {BUILD.relative_to(ROOT)}/VERSION.txt")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
