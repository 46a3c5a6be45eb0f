"""Servers that speak the protocol of an object store and keep objects in memory."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

ENDPOINTS = {"gs": "STORAGE_EMULATOR_HOST", "s3": "AWS_ENDPOINT_URL"}
"""Scheme -> variable that says where its server is."""


@contextlib.contextmanager
def running_gcs(program: str | Path, log: Path, tls: tuple[Path, Path] | None = None) -> Iterator[str]:
    """Address of a fake-gcs-server (`localcluster/go/fakegcs`); it has gone when the context ends.

    :param tls: certificate and key
    """
    port = _free_port()
    words = ["-host", "127.0.0.1", "-port", str(port)]
    if tls is not None:
        words += ["-cert-location", str(tls[0]), "-private-key-location", str(tls[1])]
    url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    with _running([str(program), *words], f"{url}/_internal/healthcheck", log):
        yield url


def make_gcs_bucket(server: str) -> str:
    """gs:// URL of a new bucket."""
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    body = f'{{"name": "{bucket}"}}'.encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server}/storage/v1/b?project=test", body, headers)
    urllib.request.urlopen(request, timeout=10).close()
    return f"gs://{bucket}/checkpoints"


@contextlib.contextmanager
def running_s3(log: Path) -> Iterator[str]:
    """Address of moto's S3 server; it has gone when the context ends."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(words, f"{url}/moto-api/", log):
        yield url


def make_s3_bucket(server: str) -> str:
    """s3:// URL of a new bucket."""
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    urllib.request.urlopen(urllib.request.Request(f"{server}/{bucket}", method="PUT"), timeout=30).close()
    return f"s3://{bucket}/checkpoints"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _running(words: Sequence[str], health: str, log: Path) -> Iterator[None]:
    with log.open("wb") as out, subprocess.Popen(words, stdout=out, stderr=out) as process:
        try:
            _wait_until_up(health, process)
            yield
        finally:
            process.kill()


def _wait_until_up(health: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(health, timeout=5).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, "the server does not come up"
            time.sleep(0.05)
