"""The sidecar's environment, read once and checked by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ..errors import ConfigError
from ..protocol import image_room, names, page
from ..protocol.messages import Engine
from ..protocol.placement import ranks_of


@dataclass(frozen=True)
class Config:
    """The identity of this sidecar and the addresses of its peers. `mesh_port` is the leader's port.

    :param world_size: ranks of this attempt
    """

    namespace: str
    job: str
    pod: str
    pod_ip: str
    index: int
    attempt: int
    workers: int
    world_size: int
    store: str
    controller_url: str
    controller_ca: str
    token_file: Path
    checkpoint: str = ""
    engine: Engine = names.ENGINE_PROCESS
    root: Path = Path(names.ROOT)
    """No variable names it: only a test has another."""
    mesh_port: int = names.MESH_PORT
    store_keys: Path | None = None
    """Folder with the namespace's keys: checkpoints are encrypted."""
    image_room: int | None = None
    """Bytes that the volume of the images may hold; None: as much as the disk has."""
    memory: int = 0
    """Bytes of memory for a checkpoint after which the job trains on."""

    @property
    def leader(self) -> bool:
        return self.index == 0

    @property
    def ranks(self) -> list[int]:
        """Global ranks of this pod."""
        return ranks_of(self.index, self.workers, self.world_size)

    @property
    def run_dir(self) -> Path:
        return self.root / Path(names.RUN_DIR).relative_to(names.ROOT)

    @property
    def plan_file(self) -> Path:
        """The plan that the launcher got: a restarted sidecar gives the same plan again."""
        return self.run_dir / "plan.json"

    @property
    def started_file(self) -> Path:
        """Exists once the launcher has reported that the ranks run: they appear on the page only when they import
        torch."""
        return self.run_dir / "started"

    @property
    def handed_result(self) -> Path:
        """What rank 0 has returned, from the launcher."""
        return self.run_dir / names.HANDED_RESULT_FILE

    @property
    def work_dir(self) -> Path:
        """Folders of the ranks; mounted only where the job has outputs."""
        return self.root / Path(names.WORK_DIR).relative_to(names.ROOT)

    @property
    def inputs_dir(self) -> Path:
        """Mounted only where the job has inputs."""
        return self.root / Path(names.INPUTS_DIR).relative_to(names.ROOT)

    @property
    def image_dir(self) -> Path:
        return self.root / Path(names.IMAGE_DIR).relative_to(names.ROOT)


def from_env(env: Mapping[str, str] = os.environ) -> Config:
    """Read the configuration. Raises ConfigError that names the variable."""
    config = Config(
        namespace=_text(env, names.ENV_NAMESPACE),
        job=_text(env, names.ENV_JOB),
        pod=_text(env, names.ENV_POD),
        pod_ip=_text(env, names.ENV_POD_IP),
        index=_number(env, names.ENV_INDEX, 0),
        attempt=_number(env, names.ENV_ATTEMPT, 1),
        workers=_number(env, names.ENV_WORKERS, 1),
        world_size=_world_size(env),
        store=_text(env, names.ENV_STORE),
        controller_url=_text(env, names.ENV_CONTROLLER_URL).rstrip("/"),
        controller_ca=_text(env, names.ENV_CONTROLLER_CA),
        token_file=Path(_text(env, names.ENV_TOKEN_FILE)),
        checkpoint=env.get(names.ENV_CHECKPOINT, ""),
        engine=_engine(env),
        store_keys=Path(env[names.ENV_STORE_KEYS]) if env.get(names.ENV_STORE_KEYS) else None,
        image_room=_room(env),
        memory=_number(env, names.ENV_CHECKPOINT_MEMORY, 0) if env.get(names.ENV_CHECKPOINT_MEMORY) else 0,
    )
    if config.world_size > page.MAX_WORLD:
        raise ConfigError(f"{names.ENV_WORLD_SIZE} = {config.world_size}: at most {page.MAX_WORLD} ranks fit the page")
    try:
        ranks_of(config.index, config.workers, config.world_size)
    except ValueError as error:
        raise ConfigError(f"{names.ENV_INDEX}, {names.ENV_WORKERS}, {names.ENV_WORLD_SIZE}: {error}") from error
    return config


def _room(env: Mapping[str, str]) -> int | None:
    try:
        return image_room.limit(env)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _engine(env: Mapping[str, str]) -> Engine:
    named = env.get(names.ENV_ENGINE) or names.ENGINE_PROCESS
    if named not in names.ENGINES:
        raise ConfigError(f"{names.ENV_ENGINE} = {named!r}: this agent knows {', '.join(names.ENGINES)}")
    return cast(Engine, named)


def _world_size(env: Mapping[str, str]) -> int:
    """Of this attempt: with the state engine it follows the workers."""
    if _engine(env) != names.ENGINE_STATE:
        return _number(env, names.ENV_WORLD_SIZE, 1)
    return _number(env, names.ENV_WORKERS, 1) * _number(env, names.ENV_RANKS_PER_WORKER, 1)


def _text(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "")
    if not value:
        raise ConfigError(f"{name} is not set: the Job's pod template has to set it")
    return value


def _number(env: Mapping[str, str], name: str, least: int) -> int:
    text = _text(env, name)
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{name} = {text!r}: not a whole number") from None
    if value < least:
        raise ConfigError(f"{name} = {value}: at least {least}")
    return value
