"""The Dag of the page "Your first Dag", with names of this cluster. (Airflow looks for files with its name.)"""

from __future__ import annotations

import re
from typing import Any

from localcluster.config import cache_dir
from localcluster.demo.stage import CHECKOUT, NAMESPACE
from localcluster.images import rootfs
from localcluster.images.containers import TRAIN

TEXT = re.findall(r"```python\n(.*?)```", (CHECKOUT / "docs/start/first-dag.md").read_text(), re.DOTALL)[0]
for there, here in (("REGISTRY/your-torch-image:1", TRAIN.tag), ('"trains"', f'"{NAMESPACE}"')):
    assert there in TEXT, there
    TEXT = TEXT.replace(there, here)
made: dict[str, Any] = {"__name__": __name__, "__file__": __file__}
exec(compile(TEXT, __file__, "exec"), made)
dag_of_digits = made["dag_of_digits"]

# The image here has no numpy: that is in a folder of the nodes, which the chart mounts into training pods only.
look = dag_of_digits.get_task("look")
spec = look.pod_template_dict["spec"]
torch = {"path": str(rootfs.torch(cache_dir(), lambda text: None)), "type": "Directory"}
spec["volumes"] = [*spec["volumes"], {"name": "torch", "hostPath": torch}]
(base,) = spec["containers"]
base["volumeMounts"] = [*base["volumeMounts"], {"name": "torch", "mountPath": rootfs.TORCH_MOUNT, "readOnly": True}]
base["env"] = [{"name": "PYTHONPATH", "value": rootfs.TORCH_MOUNT}]
