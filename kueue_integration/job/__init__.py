"""One training job as its Job object tells it: `records` is the table of all that stands there.

What users ask of a job, and how it is shown, is in `requests` and `jobs`.
"""
