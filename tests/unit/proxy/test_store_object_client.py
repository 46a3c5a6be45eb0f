"""What obstore is asked for: parts of large objects, keys from where users have them, refusals with their reason."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from singularity_proxy.errors import StoreError
from singularity_proxy.store import object_client
from singularity_proxy.store.backend import Backend

MIB = 1 << 20


class Clouds(ThreadingHTTPServer):
    """Gives out tokens, has no object, and notes who asked for one."""

    asked: list[str]
    tokens = 0

    def __init__(self) -> None:
        self.asked = []
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Clouds

    def do_POST(self) -> None:
        self.server.tokens += 1
        self._say(200, b'{"access_token": "of-the-key-file", "expires_in": 3600, "token_type": "Bearer"}')

    def do_GET(self) -> None:
        self.server.asked.append(self.headers.get("Authorization", ""))
        self._say(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _say(self, status: int, body: bytes) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def clouds() -> Iterator[Clouds]:
    with Clouds() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(params=["gs", "s3"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def test_large_objects_go_in_parts_both_ways(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_client, "PART", 5 * MIB)
    backend, content = Backend(url, patience_s=30), os.urandom(12 * MIB + 5)
    backend.write("large", content)
    assert backend.find("") == {"large": (len(content), pytest.approx(backend.find("")["large"][1]))}
    assert backend.read("large") == content
    assert backend.read("large", 11 * MIB) == content[: 11 * MIB]
    assert backend.view("large", 4 * MIB, 1 << 40) == content[4 * MIB :]
    assert backend.view("large", 3, 3) == backend.view("large", len(content), len(content) + 9) == b""
    assert backend.retries == 0
    backend.write("large", content, new=True)  # not in parts: it is created on a condition


def test_a_bucket_that_does_not_exist_is_named(url: str) -> None:
    backend = Backend(f"{url.partition('://')[0]}://no-such-bucket/x", patience_s=30)
    for ask in (lambda: backend.write("a", b""), lambda: backend.read("a"), lambda: backend.delete("a")):
        with pytest.raises(StoreError, match="the bucket does not exist"):
            ask()
    assert backend.retries == 0


def test_googles_key_file(clouds: Clouds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = rsa.generate_private_key(65537, 2048)
    key = {
        "type": "service_account", "client_email": "trainer@project.test", "token_uri": f"{clouds.url}/token",
        "private_key": private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
    }  # fmt: skip
    (tmp_path / "key.json").write_text(json.dumps(key))
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    monkeypatch.setattr(object_client, "GOOGLE", clouds.url)
    backend = Backend("gs://bucket/x", patience_s=5)
    assert backend.read("a") is None and clouds.asked == ["Bearer of-the-key-file"]
    assert Backend("gs://bucket/y", patience_s=5).read("a") is None and clouds.tokens == 1, "one client per bucket"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(StoreError, match=r"none\.json was not found"):
        Backend("gs://bucket/x", patience_s=5).read("a")


def test_amazons_key_file(clouds: Clouds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("[team]\naws_access_key_id = of-the-team\naws_secret_access_key = secret\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.setenv("AWS_ENDPOINT_URL", clouds.url)
    assert Backend("s3://bucket/x", patience_s=5).read("a") is None
    assert "Credential=of-the-team/" in clouds.asked[0]


def test_azure_without_an_account_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreError, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        Backend("az://container/x", patience_s=30).read("a")
