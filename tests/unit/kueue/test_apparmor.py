"""The chart's AppArmor profile: compiled by AppArmor's own parser. No node here has AppArmor."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from kueue_samples import PLATFORM
from pod_variants import ours
from rendered import CHART

PROFILE = CHART / "apparmor" / "singularity-launcher"
NO_PARSER = "no apparmor_parser: SINGULARITY_APPARMOR_PARSER is printed by `python -m localcluster.prepare --env`"
PARSER = os.environ.get("SINGULARITY_APPARMOR_PARSER") or shutil.which("apparmor_parser")


def test_the_launcher_runs_under_the_profile_that_the_platform_names() -> None:
    (train,) = ours(replace(PLATFORM, apparmor=PROFILE.name))["containers"]
    assert train["securityContext"]["appArmorProfile"] == {"type": "Localhost", "localhostProfile": PROFILE.name}
    (train,) = ours(PLATFORM)["containers"]
    assert train["securityContext"]["appArmorProfile"] == {"type": "Unconfined"}


def test_the_profile_has_the_files_name_and_what_each_rank_needs() -> None:
    text = PROFILE.read_text()
    assert re.findall(r"^profile (\S+)", text, re.MULTILINE) == [PROFILE.name]
    rules = {line.strip() for line in text.splitlines()}
    assert {"mount,", "umount,", "pivot_root,", "ptrace,", "capability,", "file,"} <= rules
    denied = [line for line in rules if line.startswith("deny ")]
    assert denied and all(line.split()[1].startswith(("/proc/", "/sys/")) for line in denied)


def compiled(path: Path) -> subprocess.CompletedProcess[bytes]:
    """As a node's parser compiles it for its kernel; this machine's is not asked (-Q), nor a cache (-K)."""
    return subprocess.run([str(PARSER), "-Q", "-K", "-S", str(path)], capture_output=True, timeout=120)


@pytest.mark.skipif(PARSER is None, reason=NO_PARSER)
def test_apparmors_own_parser_takes_the_profile(tmp_path: Path) -> None:
    done = compiled(PROFILE)
    assert done.returncode == 0, done.stderr
    assert PROFILE.name.encode() in done.stdout, "what a kernel would be given"
    text = PROFILE.read_text()
    for broken in (text.replace("  pivot_root,", "  pivot_roof,"), text.replace("/proc/* w,", "/proc/{* w,")):
        copy = tmp_path / PROFILE.name
        copy.write_text(broken)
        assert broken != text and compiled(copy).returncode != 0, "it is read, not only found"
