"""One training job as its objects tell it: `records` is the table of all that stands on its Job, `view` reads it,
`workload` and `pods` the objects beside it, `states` what their labels, spec and status say.

What users ask of a job, and how it is shown, is in `requests` and `jobs`.
"""
