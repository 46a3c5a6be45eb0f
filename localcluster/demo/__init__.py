"""The demo: one real preemption story on the local cluster, shown, measured and judged.

Lives here: the story's driver, the Airflow processes that it needs, the comparison with an uninterrupted run, the
report and its picture. What they say about a job comes from `kueue_integration.jobs.status`, as for any other user.
Must not live here: anything that the cluster, the operator or the controller needs to work.
"""
