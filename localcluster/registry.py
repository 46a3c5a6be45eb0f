"""Which cluster has which index: a file under the state root, changed under a lock."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Collection, Mapping
from pathlib import Path

from .config import MAX_CLUSTERS, STATE_ROOT, ClusterConfig, check_name
from .errors import HostError
from .locks import locked
from .shell import run

LOCK_TIMEOUT = 30.0


def find(name: str, state_root: Path = STATE_ROOT) -> ClusterConfig | None:
    """The registered cluster `name`, or None."""
    index = _read(state_root).get(check_name(name))
    return None if index is None else ClusterConfig(name, index, state_root)


def allocate(name: str, state_root: Path = STATE_ROOT) -> ClusterConfig:
    """The cluster `name`, registered now if it was not.

    :raises HostError: no index is left whose subnets the host does not use
    """
    check_name(name)
    with locked(state_root / "registry.lock", timeout=LOCK_TIMEOUT):
        known = _read(state_root)
        if name not in known:
            known[name] = choose_index(name, known, host_networks())
            _write(state_root, known)
        return ClusterConfig(name, known[name], state_root)


def release(name: str, state_root: Path = STATE_ROOT) -> None:
    """Forget `name`."""
    if not state_root.exists():
        return
    with locked(state_root / "registry.lock", timeout=LOCK_TIMEOUT):
        known = _read(state_root)
        known.pop(name, None)
        _write(state_root, known)


def remove_empty_root(state_root: Path = STATE_ROOT) -> None:
    """Remove the state root after the last cluster."""
    try:
        state_root.rmdir()
    except OSError:
        return  # other clusters, or somebody is at a lock in it


def choose_index(name: str, known: Mapping[str, int], used: Collection[ipaddress.IPv4Network]) -> int:
    """Lowest index that no cluster has and whose networks the host does not route elsewhere.

    :raises HostError: none
    """
    for index in range(MAX_CLUSTERS):
        config = ClusterConfig(name, index)
        wanted = (config.uplink, config.pod_subnet, config.service_subnet)
        if index not in known.values() and not any(a.overlaps(b) for a in wanted for b in used):
            return index
    raise HostError(
        f"no free network for cluster {name!r}: {len(known)} clusters exist ({', '.join(known) or 'none'}) and the "
        "host routes the rest of 10.199-10.245.0.0 itself; `singularityctl local down --name NAME` frees one"
    )


def host_networks() -> list[ipaddress.IPv4Network]:
    """Networks that the host routes, the default route left out."""
    routes = json.loads(run(["ip", "-4", "-json", "route", "show", "table", "all"]) or "[]")
    found = []
    for route in routes:
        try:
            network = ipaddress.IPv4Network(route["dst"], strict=False)
        except (KeyError, ValueError):
            continue
        if network.prefixlen > 0:
            found.append(network)
    return found


def _read(state_root: Path) -> dict[str, int]:
    try:
        data = json.loads((state_root / "clusters.json").read_text())
    except FileNotFoundError:
        return {}
    return {str(name): int(index) for name, index in data.items()}


def _write(state_root: Path, known: Mapping[str, int]) -> None:
    path = state_root / "clusters.json"
    if not known:
        path.unlink(missing_ok=True)
        return
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(known, indent=1) + "\n")
    draft.rename(path)
