"""singularityctl and the commands that it advises, as a person at a shell runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from localcluster.cluster import Cluster
from localcluster.config import cache_dir
from localcluster.images import gobuild

PROGRAM = Path(sys.executable).parent / "singularityctl"
TIMEOUT_S = 300.0


class Shell:
    """singularityctl as a process of its own, with the cluster's kubeconfig."""

    def __init__(self, cluster: Cluster) -> None:
        helm = gobuild.folder(gobuild.HELM, cache_dir())
        path = f"{PROGRAM.parent}:{cluster.kubectl.parent}:{helm}:{os.environ['PATH']}"
        self._env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "COLUMNS": "200", "PATH": path}

    @property
    def environment(self) -> dict[str, str]:
        """Of all that it starts."""
        return {**self._env}

    def run(self, *arguments: str, code: int = 0) -> str:
        """Standard output; fails unless the exit code is `code`."""
        done = self._execute(PROGRAM, *arguments)
        assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, output: Path, *arguments: str) -> subprocess.Popen[bytes]:
        """As in the foreground of a shell: SIGINT ends it, also where these tests run in the background."""
        interruptible = ["env", "--default-signal=INT", PROGRAM]
        with output.open("wb") as out, output.with_suffix(".err").open("wb") as err:
            return subprocess.Popen([*interruptible, *arguments], env=self._env, stdout=out, stderr=err)

    def doctor(self, *arguments: str, code: int) -> dict[str, dict[str, str]]:
        """Findings by name of the check."""
        return {c["name"]: c for c in json.loads(self.run("doctor", "-o", "json", *arguments, code=code))}

    def doctor_whatever_it_exits_with(self, *arguments: str) -> dict[str, dict[str, str]]:
        done = self._execute(PROGRAM, "doctor", "-o", "json", *arguments)
        assert done.returncode in (0, 3), done.stderr
        return {c["name"]: c for c in json.loads(done.stdout)}

    def follow(self, fix: str) -> str:
        """Type the commands of a finding's fix, indented as they are shown; what they print."""
        _, *commands = fix.splitlines()
        script = "\n".join(f"           {line}" for line in commands)
        done = self._execute("bash", "-euc", script)
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def type(self, line: str, codes: tuple[int, ...] = (0,)) -> str:
        """A line as a person types it, with `singularityctl`, `kubectl` and `helm` on the PATH; what it prints."""
        done = self._execute("bash", "-euc", line)
        assert done.returncode in codes, f"{line}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _execute(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
