"""Names of the guard policies; the binding of each has the same."""

ANNOTATIONS = "singularity-guard-annotations"
PODS = "singularity-guard-pods"
JOBS = "singularity-guard-jobs"
EXEC = "singularity-guard-exec"
RECOVERY = "singularity-guard-recovery"
NAMESPACES = "singularity-guard-namespaces"
CONTROLLER = "singularity-guard-controller"
POLICIES = (ANNOTATIONS, PODS, JOBS, EXEC, RECOVERY, NAMESPACES, CONTROLLER)
OF_PODS = (PODS, JOBS, EXEC)
"""The guard of pods: while one of them is not in force, nothing of ours begins."""
