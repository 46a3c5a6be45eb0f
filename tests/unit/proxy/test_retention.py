"""Which checkpoints of a job its leader deletes: by the order of the commits, whatever the nodes' clocks say."""

from __future__ import annotations

import dataclasses

from store_samples import manifest

from singularity_proxy.protocol.messages import CheckpointRef, FailedRestore
from singularity_proxy.sidecar.retention import superseded
from singularity_proxy.store.catalog import Listing


def listing(number: int, pinned: bool = False, readable: bool = True) -> Listing:
    made = manifest([], number)
    return Listing(made.id, made if readable else None, "" if readable else "not JSON", pinned)


def ref(number: int, unusable: str = "") -> CheckpointRef:
    made = manifest([], number)
    return CheckpointRef(
        made.id, made.generation, 1, 17, 0, "file:///s", 1, 1, made.created_at, "5" * 64, unusable=unusable
    )


def gone(listed: list[Listing], committed: list[CheckpointRef], under_way: str = "") -> list[int]:
    return sorted(int(name.rpartition("-g")[2]) for name in superseded(listed, committed, under_way))


def test_the_newest_three_that_were_committed_stay() -> None:
    listed = [listing(number) for number in (3, 1, 5, 2, 4)]
    assert gone(listed, [ref(5), ref(4), ref(3), ref(2), ref(1)]) == [1, 2]


def test_what_was_never_committed_goes_whatever_its_number_or_date() -> None:
    """Of a Job of the same name before this one, or of a commit that came too late."""
    assert gone([listing(number) for number in (1, 2, 3, 90, 91)], [ref(3), ref(2), ref(1)]) == [90, 91]


def test_what_is_being_committed_now_stays() -> None:
    listed = [listing(number) for number in (1, 2, 3, 4, 90, 91, 92)]
    assert gone(listed, [ref(3), ref(2), ref(1)], manifest([], 4).id) == [90, 91, 92]


def test_as_long_as_fewer_are_known_the_highest_numbers_make_up_for_them() -> None:
    """The job's list could not be read, say."""
    listed = [listing(number) for number in range(1, 6)]
    assert gone(listed, []) == [1, 2]
    assert gone(listed, [ref(1)]) == [2, 3]


def test_the_pinned_stay_and_count_for_nobody() -> None:
    listed = [listing(1, pinned=True), *(listing(number) for number in range(2, 6))]
    assert gone(listed, [ref(5), ref(4), ref(3), ref(2), ref(1)]) == [2]


def test_a_damaged_one_goes_once_three_newer_ones_are_there() -> None:
    listed = [listing(1), listing(2, readable=False), listing(3), listing(4), listing(5)]
    assert gone(listed[:4], [ref(4), ref(3), ref(2, "damaged"), ref(1)]) == []
    assert gone(listed, [ref(5), ref(4), ref(3), ref(2, "damaged"), ref(1)]) == [1, 2]


def test_one_that_no_try_restored_counts_as_little_as_a_damaged_one() -> None:
    """The checkpoint before it is what the job goes back to."""
    listed = [listing(1), listing(2), listing(3), listing(4), listing(5)]
    tries = [FailedRestore(number, "why") for number in (6, 7, 8)]
    lost = dataclasses.replace(ref(2), failed=tries)
    assert gone(listed[:4], [ref(4), ref(3), lost, ref(1)]) == []
    assert gone(listed, [ref(5), ref(4), ref(3), lost, ref(1)]) == [1, 2]
    assert gone(listed[:4], [ref(4), ref(3), dataclasses.replace(lost, failed=tries[:2]), ref(1)]) == [1]


def test_what_cannot_be_read_and_nobody_knows_is_left_alone() -> None:
    listed = [listing(number) for number in range(1, 5)] + [listing(9, readable=False)]
    assert gone(listed, [ref(4), ref(3), ref(2)]) == [1]
    assert gone([*listed, listing(8, readable=False)], [dataclasses.replace(ref(4), created_at=0.0)]) == [1]
