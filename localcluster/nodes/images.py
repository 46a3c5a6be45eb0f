"""Images inside one node's containerd."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
from dataclasses import dataclass

from ..config import Node
from ..errors import CommandError
from ..images.oci import Image, write_archive
from ..namespaces.sandbox import Sandbox
from . import node

IMPORT_TIMEOUT = 300.0


@dataclass(frozen=True)
class NodeImages:
    """:param ctr: path of containerd's client"""

    box: Sandbox
    member: Node
    ctr: str

    def _command(self, *arguments: str) -> list[str]:
        address = str(node.socket(self.box.config, self.member))
        return [self.ctr, "--address", address, "--namespace", "k8s.io", *arguments]

    def _run(self, *arguments: str, timeout: float = 30) -> str:
        return self.box.run(self._command(*arguments), timeout=timeout)

    def answers(self) -> bool:
        try:
            self._run("version", timeout=10)
        except CommandError:
            return False
        return True

    def manifests(self) -> dict[str, str]:
        """Image name -> digest of its manifest."""
        lines = self._run("images", "ls").splitlines()[1:]
        return {fields[0]: fields[2] for fields in (line.split() for line in lines) if len(fields) > 2}

    def ensure(self, image: Image) -> bool:
        """Import `image` unless the node has exactly it. True when something was imported.

        :raises CommandError: the import failed
        """
        if self.manifests().get(image.name) == image.manifest:
            return False
        present = set(self._run("content", "ls", "--quiet").split())
        try:
            self._import(image, present)
        except CommandError:
            # containerd may have collected a layer between the two calls: then everything has to come.
            self._import(image, set())
        return True

    def _import(self, image: Image, present: set[str]) -> None:
        """Through a pipe: the archive may have hundreds of megabytes, and it goes to several nodes at once."""
        command = self.box.enter(self._command("images", "import", "-"))
        with tempfile.TemporaryFile() as output:
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, cwd="/") as importer:
                timer = threading.Timer(IMPORT_TIMEOUT, importer.kill)
                timer.start()
                assert importer.stdin is not None
                try:
                    with contextlib.suppress(BrokenPipeError), importer.stdin:  # its own words say why it ended
                        write_archive(image, importer.stdin, present)
                    code = importer.wait()
                finally:
                    timer.cancel()
            output.seek(0)
            words = output.read().decode(errors="replace").strip()
        if code != 0:
            raise CommandError(f"node {self.member.name} could not import {image.name} (status {code}): {words[-400:]}")
