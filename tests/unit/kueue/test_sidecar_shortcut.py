"""Notes that are read where they arrive: only what sidecars send, and never another answer than the long way gives."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import pytest
from controller_scene import NS
from hypothesis import given
from hypothesis import strategies as st

from kueue_integration.contract import attempt_records
from kueue_integration.controller.sidecar_api import shortcut
from kueue_integration.kube.resources import TOKEN_REVIEW
from singularity_proxy.protocol.messages import Progress, Reading, to_json


def request(body, token="t", **changed):
    """As aiohttp's client sends it. A header that is None is left out."""
    headers = {
        "Host": "localhost:1",
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "Accept": "*/*",
        "Accept-Encoding": "gzip, deflate, br",
        "User-Agent": "Python/3.11 aiohttp/3.14.5",
        "Content-Length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in changed.items()},
    }
    lines = [f"{name}: {value}\r\n" for name, value in headers.items() if value is not None]
    return f"POST /v1/progress HTTP/1.1\r\n{''.join(lines)}\r\n".encode() + body


BODY = b'{"a": 1}'


def test_what_a_sidecar_sends():
    assert shortcut.note(request(BODY)) == ("t", BODY)
    assert shortcut.note(request(BODY).replace(b"Content-Length", b"content-length")) == ("t", BODY)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        request(BODY)[:-1],
        request(BODY) + b"G",
        request(BODY) * 2,
        request(BODY).replace(b"/v1/progress", b"/v1/commit"),
        request(BODY).replace(b"HTTP/1.1", b"HTTP/1.0"),
        request(BODY).replace(b"POST", b"GET"),
        request(BODY, Transfer_Encoding="chunked"),
        request(BODY, Expect="100-continue"),
        request(BODY, Connection="close"),
        request(BODY, Content_Length=None),
        request(BODY, Content_Length="+8"),
        request(BODY, content_length="8"),
        request(BODY, Authorization=None),
        request(BODY, Authorization="Basic x"),
        request(BODY, Accept="a\r\n b"),
        request(b"x" * shortcut.MOST),
    ],
)
def test_all_else_goes_the_long_way(data):
    assert shortcut.note(data) is None


@given(data=st.binary(max_size=300), place=st.integers(0, 300), cut=st.integers(0, 300))
def test_bytes_of_any_kind(data, place, cut):
    whole = request(BODY)
    for each in (data, whole[:place] + data + whole[place:], whole[:cut], whole[cut:]):
        found = shortcut.note(each)
        assert found is None or each.endswith(found[1])


# --- over the wire ----------------------------------------------------------------------------------------------------
@contextlib.asynccontextmanager
async def connection(served, path):
    port = int(served.url.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection(
        "localhost", port, ssl=ssl.create_default_context(cafile=str(path)), server_hostname="localhost"
    )
    try:
        yield reader, writer
    finally:
        writer.close()


async def said(lines, data):
    reader, writer = lines
    writer.write(data)
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)).decode()
    length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length"))
    return int(head.split()[1]), (await reader.readexactly(length)).decode()


def progress(step, **more):
    return to_json(Progress(NS, "train", 1, "running", step, reading=Reading(step, 900, 1.5), **more)).encode()


@pytest.fixture
def short(served, monkeypatch):
    """How many requests took the short way."""
    found = []
    kept = shortcut.answer
    monkeypatch.setattr(shortcut, "answer", lambda text: found.append(text) or kept(text))
    return found


async def test_notes_take_the_short_way_once_the_pod_and_the_phase_are_known(served, certificate, short):
    token = served.tokens["leader"]
    async with connection(served, certificate[0]) as lines:
        answers = [await said(lines, request(progress(10), token))]
        for _ in range(200):  # the copy of the Job has what the first note wrote on it
            answers.append(await said(lines, request(progress(10 + len(answers)), token)))
            if short:
                break
            await asyncio.sleep(0.02)
        assert short and set(answers) == {(200, '{"every_s":2.0}')}
        job = served.world.job(NS, "train")
        assert attempt_records.progress(job).step == 9 + len(answers)
        count = len(short)
        for bad, status in (
            (request(b"{", token), 400),
            (request(progress(50).replace(b'"attempt":1', b'"attempt":2'), token), 409),
            (request(progress(50), served.tokens["follower"]), 403),
            (request(progress(50), served.tokens["unknown"]), 401),
        ):
            assert (await said(lines, bad))[0] == status
        assert len(short) == count
        assert await said(lines, request(progress(60), token)) == answers[0], "the connection goes on"
        assert len(short) == count + 1
        half = request(progress(70), token)
        lines[1].write(half[:100])
        await lines[1].drain()
        await asyncio.sleep(0)
        assert await said(lines, half[100:]) == answers[0], "a request may arrive in parts"
        assert attempt_records.progress(served.world.job(NS, "train")).step == 70
        reviews = [each for each in served.kube.requests if each[1] == TOKEN_REVIEW.name]
        assert len(reviews) == 3, "one of each token"
