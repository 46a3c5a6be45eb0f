"""Airflow's own Kueue operator and ours, side by side in the same trouble: `python -m benchmarks.anchor`.

The scenarios are data (`scenarios`); one Dag file makes a Dag of each for each contender. One runner plays them on a
real Airflow and a real cluster, and a pure function judges what was seen. Must not live here: a scenario that only one
of the contenders plays.
"""
