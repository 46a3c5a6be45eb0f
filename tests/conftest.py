"""For all tests: printing past the capture of pytest, second tries, and the time of each test file at the end."""

from __future__ import annotations

import gc
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


REAL = ("criu", "cluster", "airflow")
"""Markers of tests that run real worlds of processes, or a whole platform."""
TIMED = ("test_mesh_", "test_store_network")
"""Files of tests in which sidecars or servers wait for each other by the clock. They are marked `timed`."""
LONG = (
    "test_store_contract", "test_store_collection_model", "test_store_memory", "test_protocol_ratchet_model",
    "test_cluster_study", "test_wheel",
)  # fmt: skip
"""Files with thousands of random cases, or with a fresh environment. They are marked `long`."""


LONGEST_FIRST = (
    "test_fault_table", "test_resize", "test_trajectory", "test_state_pods", "test_both_pods", "test_gpu_kit",
    "test_store_contract", "test_shared_device", "test_agent_store", "test_store_export", "test_state_parts",
    "test_store_collection_model", "test_launcher_hostile", "test_launcher_anywhere", "test_launcher_user",
    "test_launcher_pod", "test_state_contents", "test_programs", "test_wheel", "test_job_errors",
    "test_protocol_ratchet_model", "test_streamed_dump", "test_state_faults", "test_shared_pages", "test_policy_world",
    "test_planner_gains", "test_hostile_loops", "test_cluster_study", "test_hostile_objects",
    "test_planner_any_cluster", "test_controller_chart", "test_localcluster_sandbox", "test_protocol_threads_model",
    "test_cluster_simulator", "test_provider_package", "test_controller_crashes", "test_store_stream",
    "test_evaluate_dag", "test_cluster_book", "test_podlogs", "test_multikueue_clusters",
    # They wait by the clock, and come when nothing else uses the processors up.
    "test_mesh_attempts", "test_store_network", "test_mesh_ends", "test_mesh_stay",
)  # fmt: skip
"""Files of few and long tests, the longest first: begun last, one of them would keep the other processes waiting."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first: pytest-xdist keeps the order with `--no-loadscope-reorder`.

    Tests marked `gpu` are skipped where there is none; they never block.
    Those of REAL things, and `timed` ones, get a second try. The summary shows what needed it, with its first failure:
    a defect to look for, in the product or in the test.
    """
    ranks = {name: rank for rank, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
    gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    for item in items:
        if item.get_closest_marker("gpu") and not gpu:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU (/dev/nvidia0)"))
        if item.path.name.startswith(TIMED):
            item.add_marker(pytest.mark.timed)
        if item.path.name.startswith(LONG):
            item.add_marker(pytest.mark.long)
        if any(item.get_closest_marker(name) for name in (*REAL, "timed")):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_collection_finish() -> None:
    """What is imported stays: a collection of garbage need not walk through Airflow and all tests again."""
    gc.collect()
    gc.freeze()


SHOWN_FILES = 25


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What needed a second try. Then the seconds of each test file, the longest first.

    A shared fixture counts for the file that needs it first.
    """
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"second try: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
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
