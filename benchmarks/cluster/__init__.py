"""Studies of policies: traces, a generator of workloads, a simulator of Kueue, and what they show."""
