"""What ranks of the state engine have saved, each for itself, as the one folder that `singularity_train` reads."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from . import names


def lay_together(images: Path, target: Path) -> int:
    """Move what the ranks have written, `images/rank-<r>`, into one folder; how many ranks. Raises OSError.

    Of engine `both` it lies beside the processes, in `names.STATE_PART`.
    """
    shutil.rmtree(target, ignore_errors=True)
    ranks = sorted(images.glob("rank-*"))
    found = [rank / names.STATE_PART if (rank / names.STATE_PART).is_dir() else rank for rank in ranks]
    for part in (names.STATE_BLOBS, names.STATE_CHECKPOINTS):
        (target / part).mkdir(parents=True)
        for path in _entries(found, part):
            shutil.move(path, target / part / path.name)
    if not any((target / names.STATE_CHECKPOINTS).iterdir()):
        raise FileNotFoundError(f"{images} has no manifest of singularity_train")
    return len(found)


def _entries(images: Iterable[Path], part: str) -> list[Path]:
    return [path for image in images if (image / part).is_dir() for path in (image / part).iterdir()]
