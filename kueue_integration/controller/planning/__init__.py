"""The planner in the controller. What its arbiter allows is carried out by the requests that users can make too.

`look` makes the snapshot, `rounds` asks the policies and the arbiter, `carry_out` writes, `report` tells.

Nothing here weighs one job against another: the policies do.
"""
