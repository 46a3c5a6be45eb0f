"""XGBoost on data of its own, until $OUTPUT/stop is there: round, error (all bits), when."""

import os
import time
from pathlib import Path

import numpy as np
import xgboost

OUTPUT = Path(os.environ["OUTPUT"])


class Written(xgboost.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        error = evals_log["train"]["rmse"][-1]
        with (OUTPUT / "lines").open("a") as lines:
            lines.write(f"{epoch} {error.hex()} {time.time()}\n")
        time.sleep(0.1)
        return (OUTPUT / "stop").exists()


random = np.random.default_rng(7)
features = random.normal(size=(2000, 12))
target = np.sin(features[:, 0]) * features[:, 1] + random.normal(size=2000) / 10
data = xgboost.DMatrix(features, target)
settings = {"tree_method": "hist", "eta": 0.01, "subsample": 0.7, "seed": 3, "nthread": 2}
xgboost.train(settings, data, 1_000_000, evals=[(data, "train")], verbose_eval=False, callbacks=[Written()])
