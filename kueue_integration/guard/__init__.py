"""What tenants may not write, whatever RBAC allows them: the guard policies of the chart, always in force. Pure.

`ownership` says whose each annotation is, for the docs too; `pods` what pods and Jobs may be in namespaces that train;
`names` has the policies' own names. `policy` makes the chart's template (`python -m kueue_integration.guard.policy`; a
test compares).

Nothing here asks a cluster, and what users may ask of their own jobs is never judged here.
"""
