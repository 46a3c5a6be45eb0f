"""The HTTPS API of the sidecars: authentication (tokens, pod identity), and the effect of a report on its Job.

Nothing here decides about a Job beyond its own report.
"""
