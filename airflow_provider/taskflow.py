"""A Python function as a training script: the files that the ranks run. Pure.

Arguments travel as JSON in a file beside the script. What rank 0 returns is left in a file, which the pod's sidecar
brings to the Job: not through the log, where others print after it. `return_value`, which is shipped too, reads and
writes both.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import libcst as cst

from kueue_integration.contract import job_names
from kueue_integration.errors import SpecError
from kueue_integration.spec.validation import MAX_FILES_BYTES

from . import return_value

SCRIPT = "training_task.py"
ARGUMENTS = "training_task.json"
RETURN = job_names.RETURN_FILE

# No more of ours than this: with another script saved processes are not gone on with (`start_from`).
_SCRIPT = '''\
"""Made from the function {name} of an Airflow Dag; every rank runs it."""
{constants}{source}

if __name__ == "__main__":
    __import__({module!r}).run({name}, {arguments!r})
'''


def files(
    name: str,
    source: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    constants: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The files of the job. Raises SpecError when an argument would not arrive as it is.

    :param source: of the function
    :param constants: what it needs of the Dag file, as source text by name
    """
    given = {
        "args": [_carried(f"op_args[{i}]", value) for i, value in enumerate(args)],
        "kwargs": {name: _carried(name, value) for name, value in kwargs.items()},
    }
    script = _SCRIPT.format(
        name=name,
        constants="".join(f"{key} = {text}\n" for key, text in (constants or {}).items()),
        source=unannotated(source).rstrip(),
        arguments=ARGUMENTS,
        module=Path(RETURN).stem,
    )
    return {
        SCRIPT: script,
        ARGUMENTS: json.dumps(given),
        RETURN: Path(return_value.__file__).read_text(encoding="utf-8"),
    }


def _carried(field: str, value: Any) -> Any:
    try:
        return return_value.carried(value, MAX_FILES_BYTES)
    except ValueError as error:
        fix = f"cannot be sent to the ranks ({error}); give a path or an address instead, and read it in the function"
        raise SpecError([(field, value, fix)]) from None


def unannotated(source: str) -> str:
    """`source` of a function without the annotations of its parameters and of what it returns.

    They are for the Dag's reader: the ranks would look the names in them up, and have only what the function imports.
    Annotations within the function stay, because a library may read them there.
    """
    return cst.parse_module(textwrap.dedent(source)).visit(_Unannotated()).code


class _Unannotated(cst.CSTTransformer):
    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False  # what is within stays

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        params = updated_node.params.visit(_Parameters())
        return updated_node.with_changes(params=params, returns=None)


class _Parameters(cst.CSTTransformer):
    def leave_Param(self, original_node: cst.Param, updated_node: cst.Param) -> cst.Param:
        return updated_node.with_changes(annotation=None)
