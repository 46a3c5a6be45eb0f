"""`@task.singularity_train`: a decorated function becomes the training script of a `SingularityTrainOperator`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from kueue_integration.errors import SpecError
from kueue_integration.kube.client import Kube

from . import submission, taskflow
from .exceptions import InvalidTrainingError, TrainingResultError
from .operators import SingularityTrainOperator

RETURN_LINES = 200


_REPLACED = ("command", "script", "script_args")
"""Parameters of the operator whose place the function takes."""


class _SingularityTrainDecoratedOperator(DecoratedOperator, SingularityTrainOperator):  # type: ignore[misc]
    """What `@task.singularity_train` makes."""

    custom_operator_name = "@task.singularity_train"
    template_fields: Sequence[str] = (
        *(field for field in SingularityTrainOperator.template_fields if field not in _REPLACED),
        "op_args",
        "op_kwargs",
    )
    template_fields_renderers: Mapping[str, str] = {  # type: ignore[assignment]
        **{k: v for k, v in SingularityTrainOperator.template_fields_renderers.items() if k != "command"},
        **DecoratedOperator.template_fields_renderers,
    }
    shallow_copy_attrs: Sequence[str] = ("python_callable",)

    def __init__(self, **kwargs: Any) -> None:
        for name in _REPLACED:
            if name in kwargs:
                raise ValueError(f"{name} = {kwargs[name]!r}: the decorated function is the script; leave it out")
        super().__init__(command=("python3", taskflow.SCRIPT), **kwargs)

    def execute(self, context: Any) -> Any:
        """Ship function and arguments, then as the operator. Raises as it does, InvalidTrainingError for arguments."""
        name = self.python_callable.__name__
        try:
            own = taskflow.files(name, self.get_python_source(), self.op_args, self.op_kwargs)
        except SpecError as error:
            field, value, text = error.problems[0]
            raise InvalidTrainingError(
                f"The training job was refused before anything was created:\n  {field} = {value!r}: {text}"
            ) from None
        self.files = {**(self.files or {}), **own}
        return super().execute(context)

    def _result(self, kube: Kube, namespace: str, name: str) -> Any:
        if not self.do_xcom_push:
            return None
        try:
            value = taskflow.returned(submission.rank0_output(kube, namespace, name, RETURN_LINES))
        except LookupError as error:
            raise TrainingResultError(
                f"The training succeeded, but its return value cannot be had: {error}. Job {namespace}/{name} is kept; "
                "a retry reads it again without training again"
            ) from None
        return value


def singularity_train_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Run the decorated function as a training job: once per rank.

    A job of several ranks (`workers`, `world_size`) has torchrun's environment set, however few pods it runs in. With
    one rank the function gets what a plain `python3` gives: leave `init_process_group` out, or call it only if
    `"RANK" in os.environ`.

    Arguments must be JSON; XComArgs of upstream tasks are resolved first. What rank 0 returns (JSON, 48 KB at most) is
    the task's XCom. The function is shipped as source: it imports what it needs itself.

    :param python_callable: function to decorate
    :param multiple_outputs: unroll a returned dict to several XComs
    :param kwargs: as for `SingularityTrainOperator`, without `command` and `script`
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_SingularityTrainDecoratedOperator,
        **kwargs,
    )
