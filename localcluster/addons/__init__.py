"""What is installed into a cluster: its network, Kueue, the controllers of JobSet and TrainJob, and our Helm chart.

An addon may use all that a cluster consists of. Nothing that a cluster consists of may use an addon, except `start`,
which puts them in order.
"""
