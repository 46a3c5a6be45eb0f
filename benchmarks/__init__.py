"""Figures of the engine and of the controller: `python -m benchmarks --help`."""
