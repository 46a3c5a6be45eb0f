"""The software of a cluster, made once and kept in the cache. It is programs from their Go modules, a root file system,
and container images in the OCI layout.

Nothing here starts a process of a cluster, or knows one.
"""
