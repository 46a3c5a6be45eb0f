"""What a Job carries for all who read it: the text of its annotations as values, its records, the kinds of job.

`job_names` has the names of labels and annotations, but for those that the pods use too (`names` of the protocol).
Only this package turns text of an annotation into a value. Nothing here decides: `controller` does.
Nothing here makes sentences: `jobs` does.
"""
