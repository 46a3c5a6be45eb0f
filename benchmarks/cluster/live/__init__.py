"""A replay with the real controller on fake nodes: `python -m benchmarks.cluster replay --policies NAME,...`.

Real: API server, scheduler, Job controller, Kueue, and our controller with fence, hold, planner and arbiter.
Fake: the nodes (kwok). The program stands for the sidecar and the ranks in each leader pod. It speaks to the controller
through the sidecars' own client. It trains, saves and starts by the laws of the simulator.
"""
