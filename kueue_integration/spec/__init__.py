"""What a user says about a training job, and whether it is valid: `train_spec.TrainSpec` and its rules.

Pure. No manifest is made here, and no cluster is asked, but for the platform's published configuration.
"""
