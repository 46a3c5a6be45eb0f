"""Packages of the frameworks that cannot be installed: a laptop skips, continuous integration fails."""

from __future__ import annotations

import pytest
from unavailable import unavailable


@pytest.mark.parametrize("value", ["true", "1", "True"])
def test_continuous_integration_fails(value: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="needs lightning, which cannot be installed: no index"):
        unavailable("needs lightning, which cannot be installed: no index", {"CI": value})


@pytest.mark.parametrize("environ", [{}, {"CI": ""}, {"CI": "false"}, {"CI": "0"}])
def test_a_laptop_skips(environ: dict[str, str]) -> None:
    with pytest.raises(pytest.skip.Exception, match="needs lightning"):
        unavailable("needs lightning", environ)
