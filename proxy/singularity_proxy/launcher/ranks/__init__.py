"""A rank's slot: its namespaces, its environment, its user and what it may do, and how it is started and stopped.

Nothing here writes or reads a checkpoint.
"""
