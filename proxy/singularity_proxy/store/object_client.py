"""The client of object stores (gs, s3, az): obstore, whose requests cost a tenth of the CPU that fsspec's cost.

`backend` decides when a request is given up or sent again; obstore does neither. Credentials are found as by the
libraries below fsspec: Google's own for gs (key files, workload identity, the metadata server), botocore for s3
(variables, files, web identity, pod identity). obstore itself finds those of Azure, in variables.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fsspec.asyn import get_loop

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES: Final = ("gs", "s3", "az")
GOOGLE: Final = "https://storage.googleapis.com"
PART: Final = 16 << 20
"""Bytes of a request: what is larger is sent and read in parts, several at a time."""
_AT_A_TIME: Final = 4
_VARIABLES: Final = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_", "SSL_", "HTTP_", "HTTPS_")
_KEY_S: Final = 300.0
"""For how long a key of botocore, which renews its keys in time, is used without asking again."""
_CODE = re.compile(r"non-2xx status code: (\d+)")
_CAUSE = re.compile(r"""(?:message|error): "([^"]+)"|(InvalidCertificate\(\s*\w+)""")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_CLIENT: Final = {"allow_http": True, "timeout": "1 day", "connect_timeout": "1 day"}
"""Without limits of its own: `backend` has them. Plain http is for an endpoint that was given as such."""


class ObjectFiles:
    """See `clients.Files`. Nothing is asked, and no credential looked for, before the first operation."""

    def __init__(self, url: str) -> None:
        """Raises ImportError."""
        import obstore

        self._obstore = obstore
        self._scheme, _, rest = url.partition("://")
        self._bucket, _, folder = rest.partition("/")
        self.root = f"{self._bucket}/{folder}".rstrip("/")
        self.loop = get_loop()

    async def put(self, path: str, data: bytes | memoryview, new: bool) -> None:
        """See `Files`."""
        options: dict[str, Any] = {"use_multipart": not new and len(data) > PART}
        if new:
            options["mode"] = "create"
        try:
            await self._obstore.put_async(
                self._store, self._key(path), data, chunk_size=PART, max_concurrency=_AT_A_TIME, **options
            )
        except self._obstore.exceptions.AlreadyExistsError as error:
            raise FileExistsError(path) from error
        except Exception as error:
            raise _plain(error) from error

    async def put_file(self, path: str, source: int, size: int) -> None:
        """See `Files`."""
        if size <= PART:
            await self.put(path, os.pread(source, size, 0), new=False)
            return
        pieces = (os.pread(source, PART, at) for at in range(0, size, PART))
        try:
            await self._obstore.put_async(
                self._store, self._key(path), pieces, use_multipart=True, chunk_size=PART, max_concurrency=_AT_A_TIME
            )
        except Exception as error:
            raise _plain(error) from error

    async def get(self, path: str, begin: int | None, end: int | None) -> bytes | memoryview:
        """See `Files`."""
        first = begin or 0
        # A range of no bytes cannot be asked for.
        upto = max(first + 1, first + PART if end is None else min(end, first + PART))
        key = self._key(path)
        try:
            found = await self._obstore.get_async(self._store, key, options={"range": (first, upto)})
            parts = [await found.bytes_async()]
            last = min(found.meta["size"], found.meta["size"] if end is None else end)
            limit = asyncio.Semaphore(_AT_A_TIME)

            async def rest(start: int) -> Any:
                async with limit:
                    stop = min(start + PART, last)
                    return await self._obstore.get_range_async(self._store, key, start=start, end=stop)

            parts += await asyncio.gather(*(rest(start) for start in range(upto, last, PART)))
        except Exception as error:
            if _code(error) == 416:
                return b""
            raise _plain(error) from error
        # One part, as most packs are, is not copied.
        whole = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
        return whole[: None if end is None else end - first]

    async def find(self, folder: str) -> dict[str, tuple[int, float]]:
        """See `Files`."""
        found: dict[str, tuple[int, float]] = {}
        try:
            async for batch in self._obstore.list(self._store, prefix=self._key(folder), chunk_size=1000):
                for file in batch:
                    found[f"{self._bucket}/{file['path']}"] = (file["size"], file["last_modified"].timestamp())
        except Exception as error:
            raise _plain(error) from error
        return found

    async def delete(self, path: str) -> None:
        """See `Files`."""
        try:
            await self._obstore.delete_async(self._store, self._key(path))
        except Exception as error:
            raise _plain(error) from error

    def _key(self, path: str) -> str:
        return path.removeprefix(self._bucket).strip("/")

    @cached_property
    def _store(self) -> ObjectStore:
        if not _BUCKET.fullmatch(self._bucket):
            raise ValueError(f"Invalid bucket name {self._bucket!r}")
        said = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(_VARIABLES)))
        return _bucket_of(self._scheme, self._bucket, said)


@lru_cache(maxsize=8)
def _bucket_of(scheme: str, bucket: str, said: tuple[tuple[str, str], ...]) -> ObjectStore:
    """One client, with its connections and its key, for all who ask a bucket. `said`: the variables that matter."""
    return {"gs": _google, "s3": _amazon, "az": _azure}[scheme](bucket)


def _google(bucket: str) -> ObjectStore:
    from obstore.store import GCSStore

    server, provider = os.environ.get("STORAGE_EMULATOR_HOST", ""), None
    if not server:
        server, provider = GOOGLE, _google_token()
    elif "://" not in server:
        server = f"http://{server}"
    key = {"gcs_base_url": server, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    options: dict[str, Any] = {"credential_provider": provider} if provider else {}
    return GCSStore(
        bucket, service_account_key=json.dumps(key), client_options=_CLIENT, retry_config={"max_retries": 0}, **options
    )


def _google_token() -> Callable[[], dict[str, Any]] | None:
    """None where nothing says who this is: what everybody may read can be read."""
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError
    from google.auth.transport.requests import Request

    try:
        who, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/devstorage.read_write"])
    except DefaultCredentialsError:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            raise
        return None

    def token() -> dict[str, Any]:
        who.refresh(Request())
        return {"token": who.token, "expires_at": who.expiry and who.expiry.replace(tzinfo=timezone.utc)}

    return token


def _amazon(bucket: str) -> ObjectStore:
    from botocore.exceptions import NoCredentialsError
    from botocore.session import Session
    from obstore.store import S3Store

    session = Session()
    found = session.get_credentials()
    if found is None:
        raise NoCredentialsError
    settings = session.get_scoped_config()
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    endpoint = endpoint or settings.get("endpoint_url")
    region = os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"
    client: dict[str, Any] = dict(_CLIENT)
    if authorities := session.get_config_variable("ca_bundle"):
        client["root_certificate"] = Path(authorities).read_text()

    def key() -> dict[str, Any]:
        now = found.get_frozen_credentials()
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": datetime.now(timezone.utc) + timedelta(seconds=_KEY_S),
        }

    # A digest of the content in the request costs as much as all the rest; what is read is verified by its name.
    options: dict[str, Any] = {"unsigned_payload": True, "disable_bulk_delete": True}
    if endpoint:
        options["endpoint"] = endpoint
    options |= {"client_options": client, "retry_config": {"max_retries": 0}, "credential_provider": key}
    return S3Store(bucket, region=region, **options)


def _azure(bucket: str) -> ObjectStore:
    from obstore.store import AzureStore

    if not os.environ.get("AZURE_STORAGE_ACCOUNT_NAME") and not os.environ.get("AZURE_STORAGE_USE_EMULATOR"):
        raise ValueError(f"az://{bucket} has no account: set AZURE_STORAGE_ACCOUNT_NAME")
    return AzureStore(bucket, client_options=_CLIENT, retry_config={"max_retries": 0})


def _code(error: Exception) -> int:
    """HTTP status that a server answered; 0 if it did not."""
    found = _CODE.search(str(error))
    return int(found[1]) if found else 0


def _plain(error: Exception) -> Exception:
    """The error as one of Python's own, in one line: which of them may pass, `backend` knows."""
    said, _, source = str(error).partition("\n\n")
    cause, code = _CAUSE.search(source), _code(error)
    text = said.strip() + (f": {cause[0]}" if cause and not code else "")
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        return NotADirectoryError(f"the bucket does not exist: {text}")
    if isinstance(error, FileNotFoundError):
        return error
    if code in (401, 403):
        return PermissionError(f"Forbidden: {text}")
    if code == 501 or "NotImplemented" in text:
        return NotImplementedError(text)
    if type(error).__module__.startswith("obstore") and 400 <= code < 500 and code not in (408, 425, 429):
        return ValueError(text)
    return ConnectionError(text) if type(error).__module__.startswith("obstore") else error
