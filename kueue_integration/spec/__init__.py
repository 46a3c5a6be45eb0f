"""What a user says about a training job, and whether it is valid: `train_spec.TrainSpec` and its rules.

Pure. Nothing here makes a manifest, or asks a cluster but for the platform's published configuration.
"""
