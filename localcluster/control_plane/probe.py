"""Is it really answering? HTTP(S) and DNS, asked the way a client asks."""

from __future__ import annotations

import http.client
import secrets
import socket
import ssl
import struct
import urllib.error
import urllib.request
from pathlib import Path


def http_ok(url: str, *, ca: Path | None = None, timeout: float = 3) -> bool:
    """Whether a GET answers 200. Without `ca` the server's certificate is not checked: several parts make their
    own for a health address, and nothing secret is sent.
    """
    if ca is not None:
        context = ssl.create_default_context(cafile=str(ca))
    else:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=timeout) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        return False


def resolve(server: str, name: str, *, port: int = 53, timeout: float = 1) -> list[str]:
    """IPv4 addresses that the DNS server gives for `name` (RFC 1035, one A question over UDP); [] without an answer."""
    number = secrets.randbelow(65536)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(timeout)
        try:
            client.sendto(question(number, name), (server, port))
            reply = client.recv(4096)
        except OSError:
            return []
    return answers(reply, number)


def question(number: int, name: str) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split("."))
    return struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", 1, 1)


def answers(reply: bytes, number: int) -> list[str]:
    """A records of a reply; [] when it answers another question or is cut short."""
    try:
        identity, _, questions, records, _, _ = struct.unpack_from(">HHHHHH", reply)
        if identity != number:
            return []
        at = 12
        for _ in range(questions):
            at = _skip_name(reply, at) + 4
        found = []
        for _ in range(records):
            at = _skip_name(reply, at)
            kind, _, _, length = struct.unpack_from(">HHIH", reply, at)
            at += 10
            if kind == 1 and length == 4:
                found.append(socket.inet_ntoa(reply[at : at + 4]))
            at += length
        return found
    except (struct.error, IndexError, OSError):
        return []


def _skip_name(reply: bytes, at: int) -> int:
    while True:
        length = reply[at]
        if length == 0:
            return at + 1
        if length >= 0xC0:
            return at + 2
        at += length + 1
