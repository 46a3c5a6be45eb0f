"""What is made of the times that the ranks of the state benchmarks report."""

from __future__ import annotations

from benchmarks import state_storage


def turn(**seconds):
    return {name: {"blocked": each, "trained": 1.0, "done": 2.0} for name, each in seconds.items()}


def test_a_save_is_compared_with_the_one_beside_it():
    turns = [
        turn(ours=0.02, theirs=0.04, cached=0.02, ours_sync=0.4, theirs_sync=0.2),
        turn(ours=0.02, theirs=0.02, cached=0.02, ours_sync=0.4, theirs_sync=0.1),
        turn(ours=0.03, theirs=0.04, cached=0.02, ours_sync=0.3, theirs_sync=0.3),
    ]
    found = state_storage.stalls({"fsdp": {"saves": turns}, "ddp": {"saves": turns[:1]}})
    assert found["state_async_stall"].value == 0.75
    sync = found["state_sync_ratio"]
    assert sync.value == 0.1
    assert "20 ms against 200 ms of DCP's save" in sync.baseline
    assert "our save against DCP's 2.00, under DDP 2.00" in sync.baseline


def test_restores_of_two_sizes_are_figures_of_their_own():
    def loads(size, *seconds):
        return {"written": {"state": size}, "loads": [{"load": load, "read": read} for load, read in seconds]}

    found = state_storage.restores(loads(50_000_000, (0.06, 0.04)), loads(315_000_000, (0.33, 0.3)))
    assert found["state_restore_ratio"].value == 0.06 / 0.04
    assert found["state_restore_large_ratio"].value == 0.33 / 0.3
    assert "330 ms against 300 ms for 315 MB" in found["state_restore_large_ratio"].baseline
    assert found.keys() <= {spec.key for spec in state_storage.GROUP.specs}
