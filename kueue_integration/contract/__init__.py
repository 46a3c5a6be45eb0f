"""What a Job carries for all who read it: the text of its annotations as values, its records, the kinds of job.

Only this package turns text of an annotation into a value. Decisions belong to `controller`, sentences to `jobs`.
"""
