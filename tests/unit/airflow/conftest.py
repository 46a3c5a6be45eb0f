"""Airflow without a database: its home is set before anything imports it."""

from __future__ import annotations

import os
import tempfile

# Before anything imports airflow: it reads its configuration once.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="airflow-home-"))
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestServer
from airflow_fakes import CONN_ID, ApiServer, connection


@pytest.fixture(autouse=True)
def deployment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The Variables of the Airflow that a test plays, which has an id."""
    from airflow_provider import compat
    from airflow_provider.identity import DEPLOYMENT

    variables = {DEPLOYMENT: "here"}

    async def get(key: str) -> str | None:
        return variables.get(key)

    monkeypatch.setattr(compat, "variable", variables.get)
    monkeypatch.setattr(compat, "variable_from_trigger", get)
    return variables


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    """A running API server behind the Airflow connection CONN_ID."""
    server = ApiServer()
    async with TestServer(server.app()) as running:
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", connection(str(running.make_url(""))))
        yield server
        server.drop()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the triggers of this test write to the task log."""
    from airflow_provider.triggers import SingularityJobTrigger

    found: list[str] = []

    class Log:
        def info(self, text: str, *args: object) -> None:
            found.append(text % args)

        warning = error = debug = info

    monkeypatch.setattr(SingularityJobTrigger, "log", Log())
    return found
