"""What was measured on a real device, for the end of a test run. Nothing is asserted."""

from __future__ import annotations

lines: list[str] = []
"""What the test command shows at its end (`conftest.pytest_terminal_summary`)."""
