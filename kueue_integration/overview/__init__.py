"""The cluster at a glance: quota, who holds it, who waits and why, and how much of the held time trained.

`look` asks the API server (a few lists, however many jobs there are) and `objects` makes typed values of the answers.
`report` is a pure function from these values to an `Overview`; `quota` and `goodput` do its arithmetic. `singularityctl
top` prints it, and a page may show the same.

Nothing here writes to the cluster, and nothing here knows how an answer is printed.
"""
