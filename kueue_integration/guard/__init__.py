"""What tenants may not write, whatever RBAC allows them: what Python has to know of the chart's guard policies. Pure.

The rules are the chart's (`guard*.yaml`, by hand). `names` has the policies' names, `in_force` says what is wrong with
one, `ownership` whose each annotation is, for the controller and the docs too; a test compares it with the chart.

Nothing here asks a cluster, and what users may ask of their own jobs is never judged here.
"""
