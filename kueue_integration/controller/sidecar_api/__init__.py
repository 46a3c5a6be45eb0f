"""The HTTPS API of the sidecars: authentication (tokens, pod identity), and the effect of a report on its Job.

`adoption` has the one question of the API server, on the same port.

Nothing here decides about a Job beyond its own report.
"""
