"""Where the plugin is served, and the URLs of its scripts."""

from __future__ import annotations

import hashlib
from pathlib import Path

PREFIX = "/singularity"
STATIC = Path(__file__).parent / "static"


def bundle(place: str, script: str = "training.js") -> str:
    """URL of a script, for one of the places that Airflow shows it in."""
    # A module runs once per URL: each place needs an URL of its own. Browsers keep what has a `v` for good. A script
    # gives its `v` on to what it imports, so all of them have one.
    content = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(STATIC.glob("*.js")))).hexdigest()[:12]
    return f"{PREFIX.strip('/')}/static/{script}?v={content}&place={place}"
