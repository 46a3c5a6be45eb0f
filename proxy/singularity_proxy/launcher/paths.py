"""Where things lie in the pod. Everything hangs below one root, so that tests can have their own.

No variable names the root: whoever writes the pod chooses those, and what runs with capabilities comes from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..protocol import names


@dataclass(frozen=True)
class Paths:
    root: Path = Path(names.ROOT)

    def _below(self, standard: str) -> Path:
        return self.root / PurePosixPath(standard).relative_to(names.ROOT)

    @property
    def run(self) -> Path:
        return self._below(names.RUN_DIR)

    @property
    def socket(self) -> Path:
        return self.run / names.SOCKET_FILE

    @property
    def pages_socket(self) -> Path:
        """Where the sidecar takes pages during a dump."""
        return self.run / names.PAGES_FILE

    @property
    def agent(self) -> Path:
        return self._below(names.AGENT_DIR)

    @property
    def agent_lib(self) -> Path:
        return self.agent / "lib"

    @property
    def tools(self) -> Path:
        return self.agent / "launcher"

    @property
    def source(self) -> Path:
        return self._below(names.SOURCE_DIR)

    def control(self, rank: int) -> Path:
        """Control directory shared by the launcher and the agent of `rank`."""
        return self.run / f"rank-{rank}"

    def work(self, rank: int) -> Path:
        """Directory that travels with the rank: cwd, TMPDIR, log."""
        return self._below(names.WORK_DIR) / f"rank-{rank}"

    @property
    def views(self) -> Path:
        """What ranks see of the container's file system that came from different pods (`views`)."""
        return self._below(names.WORK_DIR) / ".views"

    def log(self, rank: int) -> Path:
        return self.work(rank) / "stdout.log"

    def outputs(self, rank: int) -> Path:
        """What the rank's program leaves behind for others."""
        return self.work(rank) / names.OUTPUTS_DIR

    @property
    def outputs_from(self) -> Path:
        """State engine: what the ranks before had, where the rest of their images is fetched in parts."""
        return self._below(names.IMAGE_DIR) / names.OUTPUTS_FROM

    def result(self, rank: int) -> Path:
        """Where the rank's program may leave what it returns."""
        return self.work(rank) / names.RESULT_FILE

    @property
    def handed_result(self) -> Path:
        """Where the sidecar takes it from; ranks do not see that folder."""
        return self.run / names.HANDED_RESULT_FILE

    def images(self, checkpoint_id: str) -> Path:
        return self._below(names.IMAGE_DIR) / checkpoint_id

    def image(self, checkpoint_id: str, rank: int) -> Path:
        return self.images(checkpoint_id) / f"rank-{rank}"

    def state_to(self, rank: int) -> Path:
        """State engine: where a rank saves its state, on the volume of the images. No checkpoint is called so."""
        return self._below(names.IMAGE_DIR) / ".to" / f"rank-{rank}"

    def state_beside(self, rank: int) -> Path:
        """Engine `both`: the same, where the rank's own user may write. Ranks in slots do not see the images."""
        return self.work(rank) / "state-to"

    def state_begun(self, rank: int) -> Path:
        """Engine `both`: the checkpoint that the rank begins with. It travels with a rank that has not read it yet."""
        return self.work(rank) / "state-from"

    @property
    def state_from(self) -> Path:
        """State engine: the checkpoint that the ranks begin with."""
        return self._below(names.IMAGE_DIR) / names.STATE_FROM

    @property
    def state_parts(self) -> Path:
        """State engine: where ranks ask the sidecar for what is not there yet."""
        return self.run / names.PARTS_FILE

    def withdrawn(self, checkpoint_id: str) -> Path:
        """Exists once the trial of this name has to give way."""
        return self._below(names.IMAGE_DIR) / f".withdrawn-{checkpoint_id}"

    def criu_work(self, checkpoint_id: str, rank: int) -> Path:
        """CRIU's logs and statistics: beside the image, so that they are not part of the checkpoint."""
        return self.images(checkpoint_id) / f"criu-{rank}"
