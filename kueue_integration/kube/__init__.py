"""The Kubernetes API: resources as plain dictionaries, a fake for unit tests, times and quantities. A blocking client
and a client for event loops raise the same errors.

Nothing here knows what a training job is.
"""
