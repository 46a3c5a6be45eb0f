"""Dump and restore of ranks: CRIU, and what travels beside its images (files, work directory, connections).

Nothing here decides when a checkpoint is taken.
"""
