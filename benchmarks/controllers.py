"""The controller as a process of this machine: its keys, its start and its end."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def certificate(folder: Path, *others: str) -> Path:
    """A folder with a certificate for this machine and its key, and other keys."""
    folder.mkdir()
    for other in others:
        (folder / other).write_text(secrets.token_hex(32))
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    where = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    named = ["-days", "2", "-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", *kind, *named, *where]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    (folder / "ca.crt").write_bytes((folder / "tls.crt").read_bytes())
    return folder


@contextlib.contextmanager
def started(words: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """Run a program while the block runs. Yields its process number."""
    with log.open("wb") as file:
        process = subprocess.Popen(words, env=env, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process.pid
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        process.kill()
        process.wait(30)
