"""The mirror that the Debian root file system is made from."""

from __future__ import annotations

import pytest

from localcluster.errors import HostError
from localcluster.images.rootfs import mirror


def test_the_archive_is_taken_not_the_security_updates() -> None:
    lines = "Debian-Security|http://mirror.example/debian-security\nDebian|http://mirror.example/debian\n"
    assert mirror(lines) == "http://mirror.example/debian"


def test_sources_that_were_never_updated_have_no_label() -> None:
    assert mirror("|http://mirror.example/debian-security/\n|http://mirror.example/debian\n") == (
        "http://mirror.example/debian"
    )


@pytest.mark.parametrize("lines", ["", "Ubuntu|http://mirror.example/ubuntu\n", "|\n"])
def test_no_mirror_is_an_error_with_the_fix(lines: str) -> None:
    with pytest.raises(HostError, match=r"sources\.list"):
        mirror(lines)
