"""For all tests: a function that prints past pytest's capture, and the time of each test file at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# The test command gives the same verdict on every run and on a slow machine; look for new cases with
# `pytest --hypothesis-profile=explore`.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a progress line while a long test runs."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def line(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"    {text}", flush=True)

    return line


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped where there is none; they never block."""
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU (/dev/nvidia0)"))


SHOWN_FILES = 25


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Seconds of each test file, the longest first. A shared fixture counts for the file that needs it first."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    if sum(seconds.values()) < 1:
        return
    terminalreporter.section("time per test file")
    for name, spent in seconds.most_common(SHOWN_FILES):
        terminalreporter.write_line(f"{spent:8.1f} s  {name}")
    rest = seconds.most_common()[SHOWN_FILES:]
    if rest:
        terminalreporter.write_line(f"{sum(spent for _, spent in rest):8.1f} s  {len(rest)} other files")
