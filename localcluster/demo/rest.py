"""Airflow's public REST API: the few calls that the demo and the end-to-end tests make, on plain dicts."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from .errors import AirflowApiError
from .wait import wait_for

TIMEOUT_S = 20.0
PATIENCE_S = 120.0


class AirflowApi:
    """`base_url` is the API server's, for example http://127.0.0.1:8080. Raises AirflowApiError."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url.rstrip("/")
        # The server is on this machine: a proxy of the environment must not be asked.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def call(self, method: str, path: str, body: object = None) -> Any:
        """One request below /api/v2; the decoded answer."""
        request = urllib.request.Request(  # noqa: S310 (the scheme is ours)
            f"{self.base_url}/api/v2/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            detail = error.read()[:300].decode("utf-8", "replace")
            raise AirflowApiError(f"{method} {path}: HTTP {error.code}: {detail}", status=error.code) from None
        except (OSError, urllib.error.URLError) as error:
            raise AirflowApiError(f"{method} {path}: no answer from Airflow: {error}") from None
        return json.loads(text) if text else None

    def health(self) -> dict[str, str | None]:
        """Component -> status, "healthy" when it is."""
        answer = self.call("GET", "monitor/health")
        return {name: (part or {}).get("status") for name, part in answer.items() if isinstance(part, dict)}

    def import_errors(self) -> list[str]:
        """One text per DAG file that could not be parsed."""
        answer = self.call("GET", "importErrors")
        return [f"{e['filename']}: {e['stack_trace']}" for e in answer["import_errors"]]

    def dag_exists(self, dag_id: str) -> bool:
        try:
            self.call("GET", f"dags/{quote(dag_id)}")
        except AirflowApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def unpause(self, dag_id: str) -> None:
        """Asked again while something else writes: SQLite takes one writer."""
        path = f"dags/{quote(dag_id)}"
        wait_for(lambda: self.call("PATCH", path, {"is_paused": False}) is not None, f"{dag_id} unpaused", PATIENCE_S)

    def trigger(self, dag_id: str, run_id: str, conf: dict[str, Any] | None = None) -> None:
        body = {"logical_date": None, "dag_run_id": run_id, "conf": conf or {}}
        self.call("POST", f"dags/{quote(dag_id)}/dagRuns", body)

    def dag_run_state(self, dag_id: str, run_id: str) -> str:
        return str(self.call("GET", f"dags/{quote(dag_id)}/dagRuns/{quote(run_id)}")["state"])

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.call("GET", self._task(dag_id, run_id, task_id))
        return answer

    def tasks(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """Task id -> task instance, of the first hundred."""
        answer = self.call("GET", f"dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances?limit=100")
        return {t["task_id"]: t for t in answer["task_instances"]}

    def clear(self, dag_id: str, run_id: str, task_id: str) -> None:
        """What the button Clear does for one task instance."""
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task_id], "only_failed": False}
        self.call("POST", f"dags/{quote(dag_id)}/clearTaskInstances", body)

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """What the buttons `Mark as failed` and `Mark as success` do for one task instance."""
        self.call("PATCH", self._task(dag_id, run_id, task_id), {"new_state": state})

    def mark_run(self, dag_id: str, run_id: str, state: str) -> None:
        """What the buttons `Mark as failed` and `Mark as success` do for a whole Dag run."""
        self.call("PATCH", f"dags/{quote(dag_id)}/dagRuns/{quote(run_id)}", {"state": state})

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str, map_index: int = -1) -> Any:
        """The deserialised value, None when there is none."""
        path = f"{self._task(dag_id, run_id, task_id)}/xcomEntries/{quote(key)}"
        path += f"?deserialize=true&map_index={map_index}"
        try:
            return self.call("GET", path)["value"]
        except AirflowApiError as error:
            if error.status == 404:
                return None
            raise

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        """The task's log, trigger's lines included, as text: one event per line, then its exceptions."""
        path = f"{self._task(dag_id, run_id, task_id)}/logs/{try_number}?full_content=true&map_index={map_index}"
        answer = self.call("GET", path)
        return "\n".join(_event(e) for e in answer.get("content") or [])

    @staticmethod
    def _task(dag_id: str, run_id: str, task_id: str) -> str:
        return f"dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances/{quote(task_id)}"


def _event(entry: Any) -> str:
    if not isinstance(entry, dict):
        return str(entry)
    line = " ".join(str(entry[key]) for key in ("timestamp", "level", "event") if entry.get(key))
    errors = [f"{error.get('exc_type')}: {error.get('exc_value')}" for error in entry.get("error_detail") or ()]
    return "\n".join([line, *errors])
