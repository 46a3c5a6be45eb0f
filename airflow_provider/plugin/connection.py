"""Which connection the api-server and the scheduler use for a task, and what such a connection may not make them do.

A task can write what Airflow's state store says of it. So a connection id from there is used only when the Dag's file
names it for this very task. The serialised Dag has that name, and no task can write it. A server that all users share
runs no program that a kubeconfig names; workers and triggerers do.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
from kubernetes.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION, KubeConfigMerger
from sqlalchemy import select
from sqlalchemy.orm import Session

from kueue_integration.kube.client import Kube

from .. import cluster
from ..compat import conf
from ..exceptions import SingularityProviderError
from ..identity import TaskKey
from .data import of_task

FIELD = "kubernetes_conn_id"
SECTION, EXTRA_CONNECTIONS, EXEC_PLUGINS = "singularity", "server_connections", "server_exec_plugins"
"""Section of airflow.cfg and its options; described in `get_provider_info`."""
RUNS_PROGRAMS = ("exec", "auth-provider")
"""Entries of a user in a kubeconfig for which a client starts a program."""
MAX_KNOWN = 1000

_lock = threading.Lock()
_known: dict[tuple[Any, str, str], frozenset[str]] = {}
"""Connections by version and hash of a serialised Dag, and by task."""


class RefusedError(SingularityProviderError):
    """A server may not use this connection. The message says what to do instead."""


def of(session: Session, key: TaskKey, stored: object) -> str:
    """The connection id that the state store has for the task. Raises RefusedError when the Dag does not name it."""
    extra = {word.strip() for word in conf.get(SECTION, EXTRA_CONNECTIONS, fallback="").split(",")}
    if isinstance(stored, str) and stored and (stored in named(session, key) or stored in extra):
        return stored
    raise RefusedError(
        f"connection {stored!r:.100} is not one that the Dag names for task {key.task_id}: Airflow's servers use a "
        f"{FIELD} that stands in the Dag's file as a plain word. For one that is a template, or another task's result, "
        f"an administrator lists it in [{SECTION}] {EXTRA_CONNECTIONS}; singularityctl works without"
    )


def named(session: Session, key: TaskKey) -> frozenset[str]:
    """Every connection id that the Dag's file has as a plain word for this task."""
    version = session.scalar(select(TaskInstance.dag_version_id).where(*of_task(TaskInstance, key)))
    rows = SerializedDagModel
    query = select(rows.dag_version_id, rows.dag_hash).where(rows.dag_id == key.dag_id)
    if version is not None:
        query = query.where(rows.dag_version_id == version)
    row = session.execute(query.order_by(rows.created_at.desc()).limit(1)).first()
    if row is None:
        return frozenset()
    place = (row.dag_version_id, row.dag_hash, key.task_id)
    with _lock:
        known = _known.get(place)
    if known is None:
        dag = session.scalar(select(rows).where(rows.dag_version_id == row.dag_version_id))
        data = (dag.data if dag is not None else None) or {}
        known = frozenset(_words(_task(data, key.task_id), _plain((data.get("dag") or {}).get("default_args")) or {}))
        with _lock:
            if len(_known) >= MAX_KNOWN:
                _known.clear()
            _known[place] = known
    return known


def _task(dag: Mapping[str, Any], task_id: str) -> Mapping[str, Any]:
    for task in (dag.get("dag") or {}).get("tasks") or ():
        found = task.get("__var") or {}
        if found.get("task_id") == task_id:
            return found
    return {}


def _words(task: Mapping[str, Any], default_args: Mapping[str, Any]) -> Iterator[str]:
    """Of a serialised operator, mapped or not. `default_args`: of its Dag; those of a task group are not serialised."""
    expanded = (_plain(task.get(task.get("_expand_input_attr") or "expand_input")) or {}).get("value")
    given = [task.get(FIELD), (_plain(task.get("partial_kwargs")) or {}).get(FIELD)]
    for each in expanded if isinstance(expanded, list) else [expanded]:
        values = _plain(each)
        if isinstance(values, Mapping):
            found = _plain(values.get(FIELD))
            given += found if isinstance(found, list) else [found]
    given = [_plain(value) for value in given if value is not None]
    if task and not given:  # a mapped operator has neither its Dag's nor its own default
        given = [_plain(default_args.get(FIELD, KubernetesHook.default_conn_name))]
    yield from (word for word in given if isinstance(word, str) and "{{" not in word and "{%" not in word)


def _plain(value: Any) -> Any:
    """Without the envelope that Airflow puts around some values. What another task gives stays in its own."""
    return value["__var"] if isinstance(value, Mapping) and value.get("__type") in ("dict", "tuple", "set") else value


def connect(conn_id: str) -> tuple[Kube, str]:
    """As `cluster.connect`. Raises RefusedError when the connection's kubeconfig names a program to run."""
    hook = KubernetesHook(conn_id=conn_id)
    if not conf.getboolean(SECTION, EXEC_PLUGINS, fallback=False):
        program = next((name for name in RUNS_PROGRAMS if name in _user(hook)), None)
        if program is not None:
            raise RefusedError(
                f"connection {conn_id!r} logs in with {program!r} of its kubeconfig, which runs a program: Airflow's "
                f"servers, which all users share, do not. Give it a token or a client certificate, or in_cluster; or "
                f"an administrator sets [{SECTION}] {EXEC_PLUGINS} = True"
            )
    return cluster.opened(hook)


def _user(hook: KubernetesHook) -> Mapping[str, Any]:
    """The user entry of the kubeconfig that `hook` is going to load; empty when it loads none."""
    field = hook._get_field
    text, path = field("kube_config"), field("kube_config_path")
    if field("in_cluster") or (not text and not path and "KUBERNETES_SERVICE_HOST" in os.environ):
        return {}
    if text:
        merged = yaml.safe_load(json.dumps(text) if isinstance(text, dict) else text)
    else:  # the same reader as the client's: it joins several files
        merged = getattr(KubeConfigMerger(path or KUBE_CONFIG_DEFAULT_LOCATION).config, "value", None)
    merged = merged if isinstance(merged, Mapping) else {}
    context = _entry(merged, "contexts", field("cluster_context") or merged.get("current-context"))
    user = _entry(merged, "users", (context.get("context") or {}).get("user")).get("user")
    return user if isinstance(user, Mapping) else {}


def _entry(merged: Mapping[str, Any], kind: str, name: object) -> Mapping[str, Any]:
    for item in merged.get(kind) or ():
        found = getattr(item, "value", item)
        if isinstance(found, Mapping) and found.get("name") == name:
            return found
    return {}
