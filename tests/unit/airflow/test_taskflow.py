"""A function on its way to the ranks, and what it returned on the way back."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import os
import re
import subprocess
import sys
import textwrap
import uuid
import zoneinfo
from collections import namedtuple
from pathlib import Path, PosixPath
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider import compat, free_names, return_value, taskflow
from kueue_integration.errors import SpecError
from singularity_proxy.protocol import decode, messages, names

SOURCE = '''
    def fit(rate, *, layers=(1,), name="{x}"):
        print("loss 0.5")
        return {"rate": rate, "layers": layers, "name": name, "rank": __import__("os").environ["RANK"]}
'''


def run(folder: Path, files: dict[str, str], rank: int = 0) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / name).write_text(text)
    env = {**os.environ, "RANK": str(rank), names.ENV_RESULT: str(folder / "result.json")}
    return subprocess.run(
        [sys.executable, taskflow.SCRIPT], cwd=folder, env=env, capture_output=True, text=True, timeout=60
    )


def returned(folder: Path) -> tuple[Any, list[str]]:
    return return_value.taken(decode.json_value((folder / "result.json").read_text()))


def travelled(value: Any) -> tuple[Any, list[str]]:
    """As launcher, controller and Airflow read it on the way."""
    text = return_value.written(value)
    assert len(text) <= messages.RESULT_BYTES
    found = decode.json_value(text, messages.RESULT_BYTES)
    assert isinstance(found, dict), found
    return return_value.taken(found)


def stored(value: Any) -> Any:
    """As an XCom: what Airflow sends to its server, and what the next task gets."""
    text = json.dumps(compat.serialised(value), allow_nan=False, ensure_ascii=False).encode()
    return compat.deserialised(json.loads(text))


def test_arguments_and_value_make_the_round_trip(tmp_path: Path) -> None:
    done = run(tmp_path, taskflow.files("fit", SOURCE, [0.1], {"layers": [2, 3]}))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "loss 0.5\n"
    assert returned(tmp_path) == ({"rate": 0.1, "layers": [2, 3], "name": "{x}", "rank": "0"}, [])


def test_only_rank_0_returns(tmp_path: Path) -> None:
    done = run(tmp_path, taskflow.files("fit", SOURCE, [0.1], {}), rank=1)
    assert done.returncode == 0 and not (tmp_path / "result.json").exists()


def test_arguments_arrive_as_they_are(tmp_path: Path) -> None:
    """Dates, paths and what JSON has no word for; of arrays, models and dataclasses the plain data."""
    moment = datetime.datetime(2026, 3, 1, 4, 5, tzinfo=ZoneInfo("Europe/Berlin"))
    given = [
        moment, moment.date(), datetime.datetime(2026, 3, 1), datetime.timedelta(minutes=3), Path("/data/x"),
        (1, {2, 3}), math.inf, 2**70, decimal.Decimal("0.1"), uuid.UUID(int=5), {"!": 1}, {(1, 2)}, range(3),
        Colour.RED, b"".decode(),
    ]  # fmt: skip
    source = "def show(*given):\n    print(repr(given))"
    done = run(tmp_path, taskflow.files("show", source, given, {}))
    assert done.returncode == 0, done.stderr
    wanted = [[0, 1, 2] if item == range(3) else "red" if item is Colour.RED else item for item in given]
    scope = {"datetime": datetime, "zoneinfo": zoneinfo, "inf": math.inf, "Decimal": decimal.Decimal, "UUID": uuid.UUID}
    assert eval(done.stdout, {**scope, "PosixPath": PosixPath}) == tuple(wanted)


@pytest.mark.parametrize(
    ("args", "kwargs", "field", "why"),
    [
        ([object()], {}, "op_args[0]", "it is of type object"),
        ([], {"model": {"a": [b"x"]}}, "model", "(['a'][0] is of type bytes)"),
        ([], {"table": {1: 0, "1": 0}}, "table", "it has keys that are the same as text"),
    ],
)
def test_what_would_not_arrive_as_it_is_is_named(
    args: list[Any], kwargs: dict[str, Any], field: str, why: str
) -> None:
    with pytest.raises(SpecError) as caught:
        taskflow.files("fit", SOURCE, args, kwargs)
    assert caught.value.problems[0][0] == field and why in str(caught.value)


def test_an_argument_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(SpecError, match="cannot be sent to the ranks"):
        taskflow.files("fit", SOURCE, [endless], {})


# --- the value --------------------------------------------------------------------------------------------------------
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    # Airflow keeps seconds as a float, which has no microseconds any more in some hundred years.
    st.datetimes(datetime.datetime(1971, 1, 1), datetime.datetime(2100, 1, 1), timezones=st.just(datetime.UTC)),
    st.dates(),
    st.timedeltas(min_value=datetime.timedelta(-9999), max_value=datetime.timedelta(9999)), st.uuids(),
)  # fmt: skip
KEYS = st.sampled_from(["a", "loss", "!", "is", "é", ""])
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=3).map(tuple), st.dictionaries(KEYS, inner, max_size=3),
        st.sets(st.integers(0, 9)), st.frozensets(st.text("ab", max_size=2)),
    ),
    max_leaves=12,
)  # fmt: skip


@given(VALUES)
@settings(deadline=None)
def test_what_airflow_can_store_comes_back_as_it_was(value: Any) -> None:
    assert travelled(value) == (value, [])
    if not any(isinstance(part, datetime.timedelta) for part in parts(value)):  # of which Airflow keeps a float
        assert stored(value) == value


def parts(value: Any) -> list[Any]:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else []
    return [value, *(each for item in inner for each in parts(item))]


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Result:
    loss: float
    where: Path


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Odd:
    """Answers to every attribute, as a mock does."""

    def __getattr__(self, name: str) -> Any:
        return lambda: Odd()

    def __repr__(self) -> str:
        return "odd"


Pair = namedtuple("Pair", "a b")
NAN = float("nan")
BERLIN = datetime.datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin"))
OFFSET = datetime.datetime(2026, 7, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))


def of_numpy() -> list[tuple[Any, Any]]:
    import numpy as np

    return [
        (np.float32(0.25), 0.25), (np.float64(0.5), 0.5), (np.int64(7), 7), (np.bool_(True), True), (np.str_("x"), "x"),
        (np.float32("nan"), "nan"), (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]), (np.array(2.5), 2.5),
        (np.datetime64("2026-01-02"), datetime.date(2026, 1, 2)), (np.float16(NAN), "nan"), ([np.float32(1)], [1.0]),
    ]  # fmt: skip


KNOWN: list[tuple[Any, Any]] = [
    (NAN, "nan"), (float("inf"), "inf"), (-float("inf"), "-inf"), (1.7e308, 1.7e308), (2**70, str(2**70)),
    (Path("/a/b"), "/a/b"), (datetime.time(3, 4), "03:04:00"), (Colour.RED, "red"), (Level.LOW, 1), (-0.0, -0.0),
    (Pair(1, 2), (1, 2)),
    (BERLIN, BERLIN), (OFFSET, OFFSET), (decimal.Decimal("1.5"), decimal.Decimal("1.5")),
    (decimal.Decimal("NaN"), "nan"), (decimal.Decimal("-Infinity"), "-inf"),
    (Result(0.5, Path("/x")), {"loss": 0.5, "where": "/x"}), ({1: "a", Colour.RED: 2}, {"1": "a", "red": 2}),
    ({(1, 2)}, [(1, 2)]), ("\ud800", "\\ud800"), ({"\udfff": 1}, {"\\udfff": 1}),
]  # fmt: skip


@pytest.mark.parametrize("value_and_wanted", KNOWN, ids=lambda pair: repr(pair[0])[:40])
def test_what_other_programs_return(value_and_wanted: tuple[Any, Any]) -> None:
    value, wanted = value_and_wanted
    got, notes = travelled(value)
    assert (got, type(got)) == (wanted, type(wanted))
    assert stored(got) == wanted
    is_text = isinstance(got, str) and not isinstance(value, (str, Path, datetime.time, enum.Enum))
    assert bool(notes) == is_text  # a number that became a text is told


def test_scalars_and_arrays_of_numpy() -> None:
    """Those of torch: `test_launcher_pod`."""
    for value, wanted in of_numpy():
        got, _ = travelled(value)
        assert (got, type(got)) == (wanted, type(wanted)), value
        assert stored(got) == wanted


@pytest.mark.parametrize(
    ("value", "where"),
    [({"a": [1, object()]}, "['a'][1]"), (b"x", "it"), (Broken(), "it"), ([Odd()], "[0]"), ({"m": sys}, "['m']")],
)
def test_what_cannot_travel_is_told_and_the_rest_arrives(value: Any, where: str) -> None:
    got, notes = travelled(value)
    assert len(notes) == 1 and notes[0].startswith(f"{where} is of type ")
    assert type(got) is type(value) or isinstance(got, str)
    stored(got)


class Locked(dict[str, Any]):
    def items(self) -> Any:
        raise OSError("closed")


class Nowhere(os.PathLike[str]):
    def __fspath__(self) -> str:
        raise OSError("gone")


EAST, WEST = (datetime.timezone(datetime.timedelta(hours=hours)) for hours in (5, -5))
UNREADABLE = {
    "latest moment": datetime.datetime.max.replace(tzinfo=WEST), "earliest": datetime.datetime.min.replace(tzinfo=EAST),
    "more digits than Python writes": 10**5000, "a path that raises": Nowhere(), "a mapping that raises": Locked(a=1),
    "signalling": decimal.Decimal("sNaN"), "longest time": datetime.timedelta.max,
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE)
def test_one_value_that_cannot_be_read_does_not_take_the_others_along(name: str) -> None:
    got, notes = travelled({"loss": 0.5, "odd": UNREADABLE[name], "more": [1]})
    assert (got["loss"], got["more"], type(got["odd"])) == (0.5, [1], str)
    assert len(notes) == 1 and notes[0].startswith("['odd'] ")
    assert stored(got) == got


def itself() -> list[Any]:
    found: list[Any] = []
    found += [found, found]
    return found


@pytest.mark.parametrize(
    "value", ["x" * 48_000, list(range(30_000)), itself(), [[0.1] * 1000] * 1000], ids=["text", "list", "self", "deep"]
)
def test_what_is_too_large_is_told_at_once_and_the_training_stands(value: Any, tmp_path: Path) -> None:
    return_value.leave(value, str(tmp_path / "result.json"))
    with pytest.raises(LookupError, match="more than 48000 bytes as JSON: write it to a file"):
        returned(tmp_path)


def test_the_largest_value_travels() -> None:
    value = "x" * (return_value.LIMIT - len('{"value": ""}'))
    assert travelled(value) == (value, [])


def test_a_deep_value_ends_as_text_and_is_still_read() -> None:
    value: Any = {"!": (1,)}
    for _ in range(40):
        value = {"!": (value,), "n": [value]} if len(str(value)) < 2000 else (value,)
    got, notes = travelled(value)
    assert notes and isinstance(got, (dict, tuple))


@pytest.mark.parametrize("source", ["class R:\n        __slots__ = ()\n        def __repr__(self): raise SystemError"])
def test_no_value_fails_a_training(tmp_path: Path, source: str) -> None:
    body = f"def fit():\n    {source}\n    return R()"
    done = run(tmp_path, taskflow.files("fit", body, [], {}))
    assert done.returncode == 0, done.stderr
    assert returned(tmp_path)[0] == "<R, whose repr raises SystemError>"


def test_a_full_disk_fails_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    return_value.leave(1, str(tmp_path / "absent" / "result.json"))
    return_value.leave(1, "")
    assert "cannot be written" in capsys.readouterr().out


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda x: st.lists(x) | st.dictionaries(KEYS, x)))
@settings(deadline=None)
def test_what_a_program_writes_there_is_a_value_or_none(found: Any) -> None:
    try:
        return_value.taken({"value": found})
        return_value.taken(found)
    except LookupError:
        pass


# --- the names --------------------------------------------------------------------------------------------------------
def missing(source: str, **known: Any) -> set[str]:
    """Names that the function `fit` of a Dag file, which has `known` beside it, cannot have."""
    text = taskflow.unannotated(source)
    space: dict[str, Any] = dict(known)
    return {name for name in free_names.needed(text) if free_names.literal(space.get(name, ...)) is None}


BODIES = {
    # what stands in the function: which of A (module), B (constant) it needs
    "return 1": "", "return A": "A", "return B + 1": "B", "return A.x(B)": "AB", "import math as A; return A.pi": "",
    "from os import path as B; return B": "", "A = 1; return A": "", "return [A for A in range(3)]": "",
    "return [B for x in A]": "AB", "return (lambda A: A)(B)": "B", "return (lambda x=A: x)()": "A",
    "for A in range(3): pass\n    return A": "", "with open('x') as A: return A": "", "x: A = B; return x": "B",
    "try: pass\n    except A as B: return B\n    return 1": "A", "global A; A = 1; return A": "",
    "class C:\n        x: A = 1\n    return C": "A", "class C(A): pass\n    return C": "A", "return f'{A}{B!r}'": "AB",
    "def inner(x: A) -> A: return B\n    return inner(1)": "AB", "def inner(A): return A\n    return inner(B)": "B",
    "def inner():\n        nonlocal B\n        B = 2\n    B = 1\n    return inner()": "", "return (A := 3)": "",
    "match B:\n        case {'k': A}: return A\n    return 1": "B", "import A.b; return A": "",
    "return __name__, len": "",
    "del B": "", "assert A, B": "AB", "return {**A, 'x': [*B]}": "AB", "async def g(): return A\n    return g": "A",
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda body: re.sub(r"\s+", " ", body))
def test_free_names_are_found(body: str) -> None:
    """Checked by running it, with neither name there: what is said to be missing is, and nothing else."""
    source = f"def fit():\n    {body}\n"
    assert free_names.needed(source) == set(BODIES[body])
    assert missing(source, A=os, B=(1, "b")) == set(BODIES[body]) - {"B"}


@pytest.mark.parametrize("name", ["json", "os", "file", "given", "result", "_result", "_given", "training_return"])
def test_a_function_may_be_called_as_the_lines_around_it_call_things(name: str, tmp_path: Path) -> None:
    """`json` and `os` were modules when they were called, after the job had waited for its quota."""
    done = run(tmp_path, taskflow.files(name, f"def {name}(x):\n    return x + 1\n", [1], {}))
    assert done.returncode == 0, done.stderr
    assert returned(tmp_path) == (2, [])


def test_a_global_that_the_function_changes_has_its_value_before(tmp_path: Path) -> None:
    text = """
        SEEN = 2
        with DAG("d", schedule=None):
            @task.singularity_train(queue_name="q")
            def fit():
                global SEEN, NEW
                SEEN += 1
                NEW = SEEN
                return NEW
            OPERATOR = fit().operator
    """
    from airflow_provider import decorators

    source, constants = decorators._source(dag(tmp_path, text).OPERATOR.python_callable)
    assert constants == {"SEEN": "2"}
    done = run(tmp_path, taskflow.files("fit", source, [], {}, constants))
    assert done.returncode == 0, done.stderr
    assert returned(tmp_path) == (3, [])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("async def fit(): return 1", "fit is `async`"), ("def fit(): yield 1", "fit is a generator"),
        ("async def fit(): yield 1", "fit is an `async` generator"), ("fit = lambda: 1", "is a lambda"),
    ],
)  # fmt: skip
def test_what_a_call_does_not_run_is_refused_when_the_file_is_read(tmp_path: Path, function: str, words: str) -> None:
    """The ranks called it, got a coroutine or a generator, and the training had succeeded without one step."""
    with pytest.raises(ValueError, match=words):
        dag(tmp_path, f"\n{function}\ntask.singularity_train(queue_name='q')(fit)\n")


SIGNATURES = {
    "rate: float, cfg: Any = None": set(), "rate: 'pd.DataFrame | None' = None": set(), "x=STEPS": {"STEPS"},
    "*args: Any, **more: np.ndarray": set(), "x: int = len(NAMES), /, *, y: T = np.pi": {"NAMES", "np"},
    "x: Annotated[int, 3] = (lambda a: a + B)(1)": {"B"},
}  # fmt: skip


@pytest.mark.parametrize("signature", SIGNATURES)
def test_annotations_of_the_signature_stay_at_home_and_defaults_travel(signature: str, tmp_path: Path) -> None:
    source = f"def fit({signature}) -> pd.Series:  # why\n    return 1\n"
    shipped = taskflow.unannotated(source)
    assert free_names.needed(shipped) == SIGNATURES[signature]
    assert "pd.Series" not in shipped and "# why" in shipped
    if "np" not in SIGNATURES[signature]:
        given_ = [0.5] if signature.startswith("rate") else []
        constants = dict.fromkeys(sorted(SIGNATURES[signature]), "1")
        done = run(tmp_path, taskflow.files("fit", source, given_, {}, constants))
        assert done.returncode == 0, done.stderr


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3) | st.sets(st.integers()) | st.frozensets(st.text()),
        max_leaves=8,
    )
)  # fmt: skip
def test_a_constant_travels_as_it_is(value: Any) -> None:
    text = free_names.literal(value)
    assert text is not None and "\n" not in text
    assert spelled(eval(text, {})) == spelled(value)


def spelled(value: Any) -> str:
    """The same for what is the same, also for NaN, and in whatever order a set is kept."""
    if isinstance(value, dict):
        return f"{{{[(spelled(key), spelled(item)) for key, item in value.items()]}}}"
    if isinstance(value, (set, frozenset)):
        return f"{type(value)}{sorted(map(spelled, value))}"
    return f"{type(value)}{[*map(spelled, value)]}" if isinstance(value, (list, tuple)) else repr(value)


@pytest.mark.parametrize("value", [os, len, object(), [object()], {"a": os}, Colour.RED, Path("/x"), Level.LOW])
def test_anything_else_is_no_constant(value: Any) -> None:
    assert free_names.literal(value) is None


# --- the decorator ----------------------------------------------------------------------------------------------------
def dag(tmp_path: Path, text: str) -> Any:
    """Import a Dag file; what it defines."""
    import importlib.util

    path = tmp_path / f"dag_{uuid.uuid4().hex}.py"
    path.write_text("import os as system\nfrom airflow.sdk import DAG, task\nSTEPS = 3\n" + textwrap.dedent(text))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("call", ["fit(1)", "fit.expand(x=[1, 2])"])
@pytest.mark.parametrize(
    ("uses", "words"),
    [
        ("system.sep", "line 9: system is module os, which the Dag file imports: import it in the function"),
        ("helper(1)", "line 9: helper is dag_[0-9a-f]+.helper, which is not shipped"),
        ("DAG", "line 9: DAG is airflow"),
        ("odd", "line 9: odd is no constant but of type object: give it as an argument"),
    ],
)
def test_a_name_of_the_dag_file_is_refused_when_the_file_is_read(
    tmp_path: Path, call: str, uses: str, words: str
) -> None:
    text = f"""
        odd = object()
        def helper(x): return x
        with DAG("d", schedule=None):
            @task.singularity_train(queue_name="q")
            def fit(x): return {uses}
            {call}
    """
    with pytest.raises(ValueError, match=words):
        dag(tmp_path, text)


def test_a_name_that_nothing_has_is_refused_when_the_task_is_made(tmp_path: Path) -> None:
    text = """
        with DAG("d", schedule=None):
            @task.singularity_train(queue_name="q")
            def fit(x):
                return x + LATER
            {0}
            fit(1)
    """
    with pytest.raises(ValueError, match="line 8: LATER is defined neither in the function nor in the Dag file"):
        dag(tmp_path, text.format(""))
    dag(tmp_path, text.format("LATER = 2"))


def test_constants_of_the_dag_file_travel_and_of_the_function_around(tmp_path: Path) -> None:
    text = """
        def made(rate):
            top = {"inf": float("inf"), "many": (1, 2)}
            with DAG("d", schedule=None):
                @task.singularity_train(queue_name="q")
                def fit(x, steps: int = STEPS):
                    # a comment
                    said = \"\"\"
                    # no comment
                    \"\"\"
                    return [x, steps, rate, top["many"], top["inf"] > 1e9, said.strip()]
                return fit(1).operator
        OPERATOR = made(0.5)
    """
    from airflow_provider import decorators

    op = dag(tmp_path, text).OPERATOR
    source, constants = decorators._source(op.python_callable)
    done = run(tmp_path, taskflow.files("fit", source, [1], {}, constants))
    assert done.returncode == 0, done.stderr
    assert returned(tmp_path) == ([1, 3, 0.5, (1, 2), True, "# no comment"], [])


def test_nan_is_not_equal_to_a_text() -> None:
    assert math.isnan(float(travelled(NAN)[0]))
