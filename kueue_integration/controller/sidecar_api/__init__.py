"""The HTTPS API of the sidecars: who speaks (tokens, pod identity), and what a report does to its Job.

Nothing here decides about a Job beyond its own report.
"""
