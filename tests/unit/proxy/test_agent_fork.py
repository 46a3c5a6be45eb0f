"""Forked children keep the script's sockets and lose those of communication."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

CHILD = """
import json, os, select, socket, sys
from singularity_proxy.agent import fork

own = socket.create_server(("127.0.0.1", 0))
before = fork.seen()
listener = socket.create_server(("127.0.0.1", 0))
poll = select.epoll()
fork.communication(before)
client = socket.create_connection(listener.getsockname())      # another rank
accepted, _ = listener.accept()                                 # later, by a thread of the store
assert len(fork.tcp_sockets()) == 4, fork.tcp_sockets()
read, write = os.pipe()
if os.fork() == 0:
    links = {n: os.readlink(f"/proc/self/fd/{s.fileno()}") for n, s in
             dict(own=own, listener=listener, poll=poll, client=client, accepted=accepted).items()}
    os.write(write, json.dumps(links).encode())
    os._exit(0)
os.wait()
print(os.read(read, 65536).decode())
print(len(fork.tcp_sockets()))
"""


def test_a_child_lets_go_of_communication_only() -> None:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env={**os.environ, "PYTHONPATH": str(root)}, text=True, capture_output=True,
        timeout=60, check=True,
    )  # fmt: skip
    links, parents = done.stdout.splitlines()
    child = json.loads(links)
    assert {child[name] for name in ("listener", "accepted", "poll")} == {"/dev/null"}
    assert child["own"].startswith("socket:")
    assert child["client"].startswith("socket:")
    assert int(parents) == 4


def test_addresses_of_open_sockets_are_named() -> None:
    from singularity_proxy.agent import fork

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert any(f"0100007F:{port:04X}" in line and "state 0A" in line for line in fork.tcp_sockets())
    assert not any(f"0100007F:{port:04X} " in line and "state 0A" in line for line in fork.tcp_sockets())
