"""A real Airflow on this machine: api-server, scheduler, dag-processor and triggerer as four processes of their own.

Everything it writes lies in its home folder. Its processes are guests of the cluster: they end with it at the latest.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from localcluster.namespaces import guests
from localcluster.shell import run

from .errors import AirflowApiError, AirflowStartError, StoryTimeoutError
from .rest import AirflowApi
from .wait import wait_for

PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")
HEALTH = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}
"""Part -> its name in the health report; the api-server is the one that reports."""
MIGRATE_TIMEOUT_S = 300.0
HEALTHY_TIMEOUT_S = 600.0
REAP_TIMEOUT_S = 30.0
PYTHON_TIMEOUT_S = 600.0


class Airflow:
    """One installation below `home`. `start` wipes it: every run begins with an empty history.

    `stop` may come from another thread while `start` runs: that ends with AirflowStartError, and nothing starts later.
    """

    def __init__(
        self,
        home: Path,
        dags: Path,
        kubeconfig: Path,
        extra_env: Mapping[str, str] | None = None,
        say: Callable[[str], None] = print,
        parts: Sequence[str] = PARTS,
        setup: Sequence[Sequence[str]] = (),
    ) -> None:
        """`parts`: which of PARTS to start. `setup`: arguments of `airflow` to run after the database is made."""
        self._parts = parts
        self._setup = (("db", "migrate"), *setup)
        self.home = home
        self._dags = dags
        self._kubeconfig = kubeconfig
        self._extra = dict(extra_env or {})
        self._say = say
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._env: dict[str, str] = {}
        self._starting = threading.Lock()
        self._stopped = False
        self.api = AirflowApi("http://127.0.0.1:0")

    @property
    def url(self) -> str:
        return self.api.base_url

    def start(self) -> None:
        """Start the four processes and wait until each says that it is healthy. Raises AirflowStartError."""
        guests.stop(self.home)
        self._processes.clear()
        shutil.rmtree(self.home, ignore_errors=True)
        (self.home / "logs").mkdir(parents=True)
        port, scheduler_logs, trigger_logs = free_ports(3)
        self._env = environment(self.home, self._dags, self._kubeconfig, port, scheduler_logs, trigger_logs)
        self._env |= self._extra
        self.api = AirflowApi(f"http://127.0.0.1:{port}")
        for arguments in self._setup:
            self._set_up(arguments)
        for part in self._parts:
            self.start_part(part)
        try:
            wait_for(self._healthy, "a healthy Airflow", HEALTHY_TIMEOUT_S)
        except StoryTimeoutError:
            raise AirflowStartError(
                f"Airflow was not healthy within {HEALTHY_TIMEOUT_S:g} s: {self._health_text()}; logs in {self.home}"
            ) from None

    def start_part(self, part: str) -> None:
        """Start one process (again)."""
        self._processes[part] = self._run(part, part)

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `airflow ARGUMENTS` as guest `name`. Raises AirflowStartError after `stop`."""
        with self._starting, open(self.log_file(name), "ab") as log:
            if self._stopped:
                raise AirflowStartError("Airflow was stopped while it was starting")
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", *arguments],
                env=self._env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            guests.register(self.home, name, process.pid)
        return process

    def pid(self, part: str) -> int:
        """Of a part that was started; what it has started itself is in the same session."""
        return self._processes[part].pid

    def python(self, *arguments: str) -> str:
        """Output of `python ARGUMENTS` in the environment of this installation. Raises CommandError."""
        return run([sys.executable, *arguments], env=self._env, cwd=self.home, timeout=PYTHON_TIMEOUT_S)

    def kill_part(self, part: str) -> None:
        """kill -9 of one process and of everything it started, as a crash of its machine would be."""
        process = self._processes[part]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(REAP_TIMEOUT_S)

    def log_file(self, part: str) -> Path:
        return self.home / f"{part}.out"

    def stop(self) -> None:
        """Stop every process of this home, and the start that may be under way. No error for what is gone already."""
        with self._starting:
            self._stopped = True
        guests.stop(self.home)
        for process in list(self._processes.values()):
            process.wait(REAP_TIMEOUT_S)

    def _set_up(self, arguments: Sequence[str]) -> None:
        name = "-".join(arguments[:2])
        process = self._run(name, *arguments)
        try:
            code = process.wait(MIGRATE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(REAP_TIMEOUT_S)
            code = process.returncode
        if code:
            what = " ".join(arguments)
            raise AirflowStartError(f"airflow {what} ended with {code}:\n{tail(self.log_file(name))}")

    def _healthy(self) -> bool:
        if self._stopped:
            raise AirflowStartError("Airflow was stopped while it was starting")
        for part, process in list(self._processes.items()):
            if process.poll() is not None:
                raise AirflowStartError(f"airflow {part} ended with {process.returncode}:\n{tail(self.log_file(part))}")
        try:
            health = self.api.health()
        except AirflowApiError:
            return False
        wanted = ("metadatabase", *(HEALTH[part] for part in self._parts if part in HEALTH))
        return all(health.get(part) == "healthy" for part in wanted)

    def _health_text(self) -> str:
        try:
            return str(self.api.health())
        except AirflowApiError as error:
            return str(error)


def environment(
    home: Path, dags: Path, kubeconfig: Path, port: int, scheduler_logs: int, trigger_logs: int
) -> dict[str, str]:
    """Environment of every process of the installation; no setting of the caller's own Airflow leaks in."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")}
    no_proxy = ",".join(filter(None, ["127.0.0.1,localhost", env.get("NO_PROXY") or env.get("no_proxy")]))
    connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubeconfig)}}
    return env | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}",
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(connection),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        # Its processes share one SQLite file, where a writer waits for the one before it: 5 s are short on busy cores.
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "120",  # 30 s are short where a cluster starts on the same cores
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "180",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",  # 5 s fail a task whose api-server has to wait for its turn
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_logs),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(scheduler_logs),
    }


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now; held all at once while choosing, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def tail(path: Path, lines: int = 30) -> str:
    """Last lines of a text file, "" when it is not there."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
