"""`@task.singularity_train`: a decorated function becomes the training script of a `SingularityTrainOperator`."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from kueue_integration.errors import SpecError
from kueue_integration.job.view import Job
from kueue_integration.kube.client import Kube
from kueue_integration.kube.resources import JOB
from kueue_integration.spec.secret_text import SecretText
from singularity_proxy.protocol import decode

from . import compat, free_names, return_value, taskflow
from .exceptions import InvalidTrainingError
from .operators import SingularityTrainOperator

NAME = "@task.singularity_train"
_NOT_CALLED_ONCE = (
    (inspect.iscoroutinefunction, "`async`"),
    (inspect.isasyncgenfunction, "an `async` generator"),
    (inspect.isgeneratorfunction, "a generator"),
)
_REPLACED = ("command", "script", "script_args")
"""Parameters of the operator whose place the function takes."""


class _SingularityTrainDecoratedOperator(DecoratedOperator, SingularityTrainOperator):  # type: ignore[misc]
    """What `@task.singularity_train` makes."""

    custom_operator_name = NAME
    multiple_outputs: bool
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
        _source(self.python_callable)

    def execute(self, context: Any) -> Any:
        """Ship function and arguments, then as the operator. Raises as it does, InvalidTrainingError for arguments."""
        try:
            source, constants = _source(self.python_callable)
            name = self.python_callable.__name__
            own = taskflow.files(name, source, self.op_args, self.op_kwargs, constants)
        except SpecError as error:
            field, value, text = error.problems[0]
            raise InvalidTrainingError(
                f"The training job was refused before anything was created:\n  {field} = {value!r}: {text}"
            ) from None
        except ValueError as error:
            raise InvalidTrainingError(f"The training job was refused before anything was created: {error}") from None
        if compat.masks([self.op_args, self.op_kwargs]):  # as JSON a text may look otherwise
            own[taskflow.ARGUMENTS] = SecretText(own[taskflow.ARGUMENTS])
        self.files = {**(self.files or {}), **own}
        return super().execute(context)

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> Any:
        """As the operator. Airflow fails a task of `multiple_outputs` whose value is no dict; this one has trained."""
        value = super().execute_complete(context, event)
        if self.multiple_outputs and not (value is None or isinstance(value, Mapping)):
            self.log.warning("multiple_outputs = True, but the function returned no dict: its value is one XCom")
            self.multiple_outputs = False
        return value

    def _result(self, kube: Kube, namespace: str, name: str) -> Any:
        """What rank 0 has returned. What did not travel is told: the training has succeeded, and is never made again
        for the sake of its return value."""
        if not self.do_xcom_push:
            return None
        job = kube.find(JOB, namespace, name)
        try:
            if job is None or not Job.parse(job).has_result:
                raise LookupError("it did not arrive on the Job")
            found = Job.parse(job).result
            if isinstance(found, decode.Unreadable):
                raise LookupError(f"it is {found.why}")
            value, notes = return_value.taken(found)
        except LookupError as error:
            self.log.warning("The training succeeded; what the function returned is lost: %s", error)
            return None
        for note in notes:
            self.log.warning("What the function returned is not quite here: %s", note)
        return self._storable(value)

    def _storable(self, value: Any) -> Any:
        """`value` if Airflow can write it down, else as text: this must not fail the task, either."""
        try:
            json.dumps(compat.serialised(value), allow_nan=False)
        except Exception as error:  # whatever a serialiser says
            self.log.warning("What the function returned is text here, Airflow cannot write it down: %s", error)
            return repr(value)[: return_value.LIMIT]
        return value


def _source(function: Callable[..., Any], later: bool = False) -> tuple[str, dict[str, str]]:
    """What is shipped of the function, and what it needs of its Dag file. Raises ValueError: that cannot travel.

    :param later: names that nothing has yet may be defined later
    """
    plain = inspect.unwrap(function)
    for is_kind, kind in _NOT_CALLED_ONCE:
        if is_kind(plain):
            raise ValueError(f"function {function.__name__} is {kind}: a call would end at once, and train nothing")
    if getattr(plain, "__name__", "") == "<lambda>":
        raise ValueError("the function is a lambda, whose source is part of a line: give it a name with `def`")
    try:
        raw = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise ValueError(f"{function!r}: its source cannot be had, and is what the ranks run: {error}") from None
    source = taskflow.unannotated(compat.undecorated(raw, NAME))
    constants, missing = free_names.of(function, source)
    wrong = [str(each) for each in missing if each.certain or not later]
    if wrong:
        raise ValueError(f"function {function.__name__} is shipped alone, without its Dag file: {'; '.join(wrong)}")
    return source, constants


def singularity_train_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Run the decorated function as a training job: once per rank.

    A job of several ranks (`workers`, `world_size`) has torchrun's environment set, however few pods it runs in. With
    one rank the function gets what a plain `python3` gives: leave `init_process_group` out, or call it only if
    `"RANK" in os.environ`.

    Arguments are numbers, texts, dates, times, paths, arrays and containers of them; dataclasses come as dicts, and
    XComArgs of upstream tasks are resolved first. The function is shipped as source: it imports what it needs itself.
    Of its Dag file it may use constants, which are numbers, texts and containers of them.

    What rank 0 returns is the task's XCom: 48,000 bytes as JSON at most. Numbers and arrays of numpy and torch come as
    numbers and lists, dates and times as such, dataclasses as dicts, paths as texts. NaN and infinity come as the texts
    that `float` reads, because Airflow stores neither. What cannot travel is told in the task's log, and the task
    succeeds all the same: with the beginning of its `repr` in its place, or None for a value that is too large.

    :param python_callable: function to decorate
    :param multiple_outputs: unroll a returned dict to several XComs
    :param kwargs: as for `SingularityTrainOperator`, without `command` and `script`
    """

    def made(function: Callable[..., Any] | None) -> TaskDecorator:
        return task_decorator_factory(
            python_callable=function,
            multiple_outputs=multiple_outputs,
            decorated_operator_class=_SingularityTrainDecoratedOperator,
            **kwargs,
        )

    def decorate(function: Callable[..., Any]) -> TaskDecorator:
        # A mapped task is made in the worker only: what is certain to be missing is refused here.
        _source(function, later=True)
        return made(function)

    return decorate if python_callable is None else decorate(python_callable)
