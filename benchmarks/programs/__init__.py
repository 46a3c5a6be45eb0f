"""Scripts that run elsewhere: in the training root file system, and in training pods."""

from pathlib import Path


def train_wide_source() -> str:
    return (Path(__file__).parent / "train_wide.py").read_text()


def train_paced_source() -> str:
    return (Path(__file__).parent / "train_paced.py").read_text()


def train_resized_source() -> str:
    return (Path(__file__).parent / "train_resized.py").read_text()


def deferred_dag_source() -> str:
    return (Path(__file__).parent / "deferred_dag.py").read_text()
