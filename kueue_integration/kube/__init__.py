"""The Kubernetes API: resources as plain dictionaries, a blocking client and one for event loops with the same errors,
a fake for unit tests, times and quantities.

Nothing here knows what a training job is.
"""
