"""The programs that run with the launcher's capabilities. They come from the agent's volume, and from nowhere else.

A rank is root on the container's file system, and a checkpoint brings files of its own. So nothing that runs with
capabilities is found by a name there: neither a program, nor a library, a module, a setting or a plugin. The volume is
read-only, and nobody but the launcher can move it or mount over it (`mounts`).

    start                    what the container runs: a script of the static shell beside it    busybox
    ld-linux-x86-64.so.2     a loader that looks for libraries in `lib` only; it reads no /etc/ld.so.preload, no cache
    lib/  criu  python/      CRIU and a Python with the launcher in it, and all libraries of both
    empty/                   the PATH of what is started here, and the folder of CRIU's plugins
"""

from __future__ import annotations

import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

from ..protocol import user_namespace
from . import reap
from .errors import LauncherError

LOADER = "ld-linux-x86-64.so.2"
PACKAGE = "_singularity.launcher"
"""This one, by the name that it has there."""
FEATURES_S = 30.0


@dataclass(frozen=True)
class Tools:
    """:param folder: `launcher` of the agent's volume"""

    folder: Path
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)
    _answer: list[bytes | LauncherError] = field(default_factory=list, compare=False, repr=False)

    def check(self) -> None:
        """Raises LauncherError if something is missing."""
        for name in (LOADER, "criu", "python/bin/python3", "empty"):
            if not (self.folder / name).exists():
                raise LauncherError(f"{self.folder / name} is not there; has the agent been installed?")

    def criu(self, *words: str) -> list[str]:
        """argv of CRIU, with options that keep it from running or loading files of the container."""
        level = ["--unprivileged"] if user_namespace.inside() else []
        return [*self._loaded("criu"), *words, *level, "--no-default-config", "--libdir", str(self.folder / "empty")]

    def python(self, module: str, *words: str) -> list[str]:
        """argv of a module of this package."""
        program = "python/bin/python3"
        return [*self._loaded(program), "-I", "-S", "-B", "-m", f"{PACKAGE}.{module}", *words]

    def _loaded(self, program: str) -> list[str]:
        path = str(self.folder / program)
        library_path = ["--inhibit-cache", "--library-path", str(self.folder / "lib")]
        return [str(self.folder / LOADER), *library_path, "--argv0", path, path]

    def environment(self) -> dict[str, str]:
        """The whole environment of a process with capabilities."""
        # In a user namespace CRIU looks there for its record of the kernel's features.
        place = {"XDG_RUNTIME_DIR": "/run"} if user_namespace.inside() else {}
        return {"PATH": str(self.folder / "empty"), "LC_ALL": "C", "HOME": "/", **place}

    def features(self) -> bytes:
        """CRIU's record of the kernel's features, which it would otherwise read from the container's /run. Probed once.

        :raises LauncherError: CRIU gave no result
        """
        with self._lock:
            if not self._answer:
                try:
                    self._answer.append(self._ask_criu())
                except LauncherError as error:
                    self._answer.append(error)
        answer = self._answer[0]
        if isinstance(answer, LauncherError):
            raise answer
        return answer

    def _ask_criu(self) -> bytes:
        process = reap.spawn(
            self.python("snapshot.criu_features", str(self.folder)),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment(),
        )  # fmt: skip
        try:
            found, said = process.communicate(timeout=FEATURES_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise LauncherError(f"CRIU did not tell within {FEATURES_S:.0f} s what this kernel can do") from None
        finally:
            reap.forget(process)
        if process.returncode != 0 or not found:
            text = said.decode(errors="replace").strip()[-500:]
            raise LauncherError(f"CRIU did not tell what this kernel can do: {text or process.returncode}")
        return found
