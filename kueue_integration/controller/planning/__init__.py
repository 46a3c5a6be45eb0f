"""The planner in the controller. What its arbiter allows is carried out by the requests that users can make too.

`look` makes the snapshot, `selection` says which policies are on, `rounds` asks them and the arbiter, `carry_out`
writes, `report` tells.

Nothing here weighs one job against another: the policies do.
"""
