"""The way to an object store by TLS and back (`put_tls_cpu_s_per_gb`, `fetch_tls_cpu_s_per_gb`), by obstore and, for
comparison, by gcsfs.

The server speaks Google Cloud Storage's protocol and is a process of its own: its time does not count. The content
neither compresses nor repeats.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

from localcluster.prepare import prepare

from .harness import TESTS, make_gcs_bucket, running_gcs
from .model import Group, Measured, Options, Say, Spec

MIB = 1 << 20
SIZE = 1024 * MIB
TURNS = ("", "fsspec", "fsspec", "")
CHILD = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from store_samples import JOB, NAMESPACE, manifest
from singularity_proxy.store import Store, memory

memory.load()  # as a sidecar does before its first upload
url, image, back = sys.argv[1:4]
store, cpu = Store(url), []
store.probe()
began = time.process_time()
put = store.put_ranks(NAMESPACE, JOB, f"{JOB}-a1-g1", {0: Path(image)})
cpu.append(time.process_time() - began)
began = time.process_time()
store.fetch_ranks(manifest(put.images), {0: Path(back)})
cpu.append(time.process_time() - began)
print(json.dumps([seconds / put.bytes * 1e9 for seconds in cpu]))
"""


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """An authority of our own, a certificate of it for 127.0.0.1, and its key."""
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    for words in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=bench",
        "req -newkey rsa:2048 -nodes -keyout key.pem -out request -subj /CN=127.0.0.1",
        "x509 -req -in request -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out cert.pem",
    ):
        subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True)
    return folder / "ca.pem", folder / "cert.pem", folder / "key.pem"


def measure(options: Options, say: Say) -> Mapping[str, Measured]:
    program = prepare(say).fake_gcs
    runs: dict[str, list[list[float]]] = {"": [], "fsspec": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority, *own = certificates(folder)
        image = folder / "image"
        image.mkdir()
        with (image / "pages-1.img").open("wb") as file:
            for _ in range((SIZE // 10 if options.quick else SIZE) // MIB):
                file.write(os.urandom(MIB))
        for number, client in enumerate(TURNS):
            with (
                patch.dict(os.environ, {"SSL_CERT_FILE": str(authority), "SINGULARITY_STORE_CLIENT": client}),
                running_gcs(program, folder / "gcs.log", (own[0], own[1])) as server,
                patch.dict(os.environ, {"STORAGE_EMULATOR_HOST": server}),
            ):
                words = [make_gcs_bucket(server), str(image), str(folder / f"back-{number}"), str(TESTS)]
                said = subprocess.run([sys.executable, "-c", CHILD, *words], check=True, stdout=subprocess.PIPE).stdout
            runs[client].append(json.loads(said.splitlines()[-1]))
            say(f"{client or 'obstore'}: put and fetch {runs[client][-1]}")
    found = {}
    for index, metric in enumerate(("put_tls_cpu_s_per_gb", "fetch_tls_cpu_s_per_gb")):
        ours, theirs = ([run[index] for run in runs[client]] for client in ("", "fsspec"))
        text = f"{ours[0]:.2f} and {ours[1]:.2f}; in turns with gcsfs, {theirs[0]:.2f} and {theirs[1]:.2f}"
        found[metric] = Measured(sum(ours) / len(ours), [*ours, *theirs], text)
    return found


GROUP = Group(
    "store_tls",
    "3 GB of disk, fake-gcs-server in memory (1 GB), openssl",
    [
        Spec("put_tls_cpu_s_per_gb", "s/GB", "<= 1.2", "processor seconds of an upload of new bytes by TLS"),
        Spec("fetch_tls_cpu_s_per_gb", "s/GB", "<= 1.3", "processor seconds of the download by TLS"),
    ],
    measure,
)
