"""Where the processes of a cluster live: Linux namespaces that one process holds open, their cgroups, and the tables of
processes in them, by PID and start time.

Nothing here knows what the processes are.
"""
