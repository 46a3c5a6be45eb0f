"""The chart's AppArmor profile: read by AppArmor's own parser where there is one. No node here has AppArmor."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from kueue_samples import PLATFORM
from pod_variants import ours
from rendered import CHART

PROFILE = CHART / "apparmor" / "singularity-launcher"
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


@pytest.mark.skipif(PARSER is None, reason="no apparmor_parser: put it on PATH or in SINGULARITY_APPARMOR_PARSER")
def test_apparmors_own_parser_takes_the_profile() -> None:
    done = subprocess.run([str(PARSER), "-Q", "-K", str(PROFILE)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
