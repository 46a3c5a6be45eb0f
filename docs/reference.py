"""MkDocs hook: the reference pages, generated from the code.

The pages read sources as text (syntax trees, YAML, click's own description), so that building needs no cluster and
no running Airflow, only the packages of the extra `kueue`. Each function returns one page as Markdown; `PAGES` says
which file it becomes.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import cli_reference  # noqa: E402
from chart_reference import chart_values, table  # noqa: E402

NOTE = "*Generated from `{}`.*\n"


# --- docstrings -----------------------------------------------------------------------------------------------------
def class_named(path: Path, name: str) -> ast.ClassDef:
    """The syntax tree of class `name` in the file. Raises LookupError."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return node
    raise LookupError(f"{path}: no class {name}")


def parameters(docstring: str) -> list[tuple[str, str]]:
    """`:param name: text` fields in order. A field with several names gives one row for each."""
    rows: list[tuple[str, str]] = []
    for block in re.split(r"(?m)^\s*:(?=param |raises )", docstring)[1:]:
        head, _, text = block.partition(":")
        words = " ".join(text.split())
        if head.startswith("param "):
            rows += [(name.strip(), words) for name in head.removeprefix("param ").split(",")]
    return rows


def introduction(docstring: str) -> str:
    """What stands before the first field, as paragraphs."""
    text = re.split(r"(?m)^\s*:(?:param|raises) ", docstring)[0]
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n") if part.strip())


def defaults(function: ast.FunctionDef) -> dict[str, str]:
    """Source text of each keyword-only parameter's default; "" for a parameter that must be given."""
    pairs = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return {argument.arg: ast.unparse(default) if default else "" for argument, default in pairs}


# --- pages ----------------------------------------------------------------------------------------------------------
OPERATOR: dict[str, tuple[str, ...]] = {
    "Program": ("command", "script", "script_args", "files", "render_files", "env", "workdir", "image", "name"),
    "Queue and size": ("queue_name", "priority_class", "workers", "min_workers", "world_size", "pod_resources"),
    "Place and devices": ("topology", "node_selector", "tolerations", "resource_claims"),
    "Checkpoints": (
        "engine", "store", "inputs", "outputs", "checkpoint_every", "start_from", "hold", "checkpoint_budget_s",
        "grace_period_s", "checkpoint_disk", "checkpoint_memory", "reproducible_layout",
    ),
    "Pods": ("privileges", "volumes", "volume_mounts", "labels", "annotations", "pod_override", "pod_template_file"),
    "Cluster": ("kubernetes_conn_id", "namespace", "api_outage_tolerance"),
    "Failures and limits": (
        "infrastructure_retries", "resume_on_exit_codes", "skip_on_exit_code", "fail_on_exit_codes", "max_preemptions",
        "preemption_alert",
    ),
    "Waiting": ("deferrable", "wait", "queue_timeout"),
    "Task log, and the end": ("get_logs", "logging_interval", "log_max_lines", "deletion_policy", "ttl"),
}  # fmt: skip
"""Parameters of the operator by what they are about."""


def in_words(annotation: ast.expr) -> str:
    """A type without bars, which would end the cell of a table."""
    return ast.unparse(annotation).replace(" | ", " or ")


def types(function: ast.FunctionDef) -> dict[str, str]:
    """Each keyword-only parameter's type."""
    return {each.arg: in_words(each.annotation) for each in function.args.kwonlyargs if each.annotation}


def operator() -> str:
    source = ROOT / "airflow_provider/operators.py"
    found = class_named(source, "SingularityTrainOperator")
    docstring = ast.get_docstring(found) or ""
    init = next(n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    given, described, annotated = defaults(init), dict(parameters(docstring)), types(init)
    sections = []
    for title, names in OPERATOR.items():
        rows = [
            (
                f"[`{name}`](#{name}){{#{name}}}",
                f"`{annotated[name]}`",
                f"`{given[name]}`" if given[name] else "*required*",
                described[name],
            )
            for name in names
        ]
        sections.append(f"## {title}\n\n{table(('parameter', 'type', 'default', 'meaning'), rows)}")
    return (
        f"# SingularityTrainOperator\n\n{introduction(docstring)}\n\n{NOTE.format('airflow_provider/operators.py')}\n"
        "The page [The operator](../operator.md) says what belongs together. A templated parameter takes\n"
        "a template of Airflow, and a whole number or a truth value may then come as text.\n\n" + "\n".join(sections)
    )


def decorator() -> str:
    source = ROOT / "airflow_provider/decorators.py"
    functions = [n for n in ast.parse(source.read_text()).body if isinstance(n, ast.FunctionDef)]
    docstring = ast.get_docstring(next(f for f in functions if f.name == "singularity_train_task")) or ""
    rows = [(f"`{name}`", text) for name, text in parameters(docstring)]
    return (
        f"# @task.singularity_train\n\n{introduction(docstring)}\n\n{NOTE.format('airflow_provider/decorators.py')}\n"
        + table(("parameter", "meaning"), rows)
        + "\nEverything else is a parameter of the [operator](operator.md).\n"
    )


def train_spec() -> str:
    found = class_named(ROOT / "kueue_integration/spec/train_spec.py", "TrainSpec")
    docstring = ast.get_docstring(found) or ""
    described = dict(parameters(docstring))
    rows: list[tuple[str, ...]] = []
    for node in found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            value = ast.unparse(node.value) if node.value else ""
            shown = f"`{value}`" if value else "*required*"
            rows.append((f"`{name}`", f"`{in_words(node.annotation)}`", shown, described.get(name, "")))
    return (
        f"# TrainSpec\n\n{introduction(docstring)}\n\n{NOTE.format('kueue_integration/spec/train_spec.py')}\n"
        + table(("field", "type", "default", "meaning"), rows)
    )


def annotations() -> str:
    from kueue_integration.guard.ownership import CONTROLLER, CREATION, LABELS, TABLE, USER

    words = {CONTROLLER: "the platform's", CREATION: "yours when you create the job", USER: "yours"}
    whose = {entry.name: words[entry.whose] for entry in TABLE} | dict.fromkeys(LABELS, words[CREATION])
    sources = ("kueue_integration/contract/job_names.py", "proxy/singularity_proxy/protocol/names.py")
    rows: list[tuple[str, ...]] = []
    tree = [node for source in sources for node in ast.parse((ROOT / source).read_text()).body]
    for node, after in zip(tree, [*tree[1:], None], strict=True):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        if not node.target.id.startswith(("ANN_", "LABEL_", "FINALIZER_")) or not isinstance(node.value, ast.JoinedStr):
            continue
        fixed = [str(part.value) for part in node.value.values if isinstance(part, ast.Constant)]
        name = "singularity.dev" + "".join(fixed)
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        kind = {"A": "annotation", "L": "label", "F": "finalizer"}[node.target.id[0]]
        rows.append((f"`{name}`", kind, whose.get(name, ""), " ".join(str(text).split())))
    return (
        f"# Labels and annotations\n\n{NOTE.format('` and `'.join(sources))}\n"
        "The policy `singularity-guard-annotations` refuses a write of what is the platform's, with a sentence that\n"
        "says what to do instead; [Faults](../faults.md#whose-an-annotation-is) has the exceptions. What is yours may\n"
        "be changed on a running job, and keeps its name and meaning within a minor version. The text of what is the\n"
        "platform's may change with every version: read it through `singularityctl`.\n\n"
        + table(("name", "kind", "whose", "meaning"), rows)
    )


def exit_codes() -> str:
    from singularity_proxy.protocol.exit_codes import markdown

    note = NOTE.format("proxy/singularity_proxy/protocol/exit_codes.py")
    return (
        f"# Exit codes of a training container\n\n{note}\n{markdown()}\n"
        "\nThe exit codes of the command line are on the page [singularityctl](../singularityctl.md).\n"
    )


def evidence() -> str:
    """What each file of tests shows, in the words of its own docstring."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        said = " ".join(text.split("\n\n")[0].split()).replace("|", "\\|").replace("<", "&lt;")
        rows.setdefault(path.parent.relative_to(ROOT).as_posix(), []).append((f"`{path.name}`", said))
    sections = [f"## {folder}\n\n{table(('file', 'what it shows'), found)}" for folder, found in rows.items()]
    return (
        "# Evidence\n\nWhat the pages say is played by tests: with real CRIU and a real API server, and end to end "
        "on a real cluster with a real Airflow (`tests/e2e`). `make test` runs most of them, `make test-full` all. "
        "Each file says itself what it shows.\n\n" + "\n".join(sections)
    )


PAGES: dict[str, Callable[[], str]] = {
    "reference/operator.md": operator,
    "reference/decorator.md": decorator,
    "reference/train-spec.md": train_spec,
    "reference/chart-values.md": chart_values,
    "reference/annotations.md": annotations,
    "reference/exit-codes.md": exit_codes,
    "project/evidence.md": evidence,
}


# --- MkDocs ---------------------------------------------------------------------------------------------------------
def on_config(config: Any) -> Any:
    """Put the pages of the commands below that of `singularityctl`, and find our sources from now on.

    MkDocs takes back what a hook has done to the path when it loads it.
    """
    sys.path[:0] = [str(ROOT)]
    below = [f"{cli_reference.FOLDER}/{name}.md" for name in cli_reference.commands()]
    for section in config.nav:
        for place, entry in enumerate(section.get("Reference", ())):
            if entry == {"singularityctl": "singularityctl.md"}:
                section["Reference"][place] = {"singularityctl": [{"All commands": "singularityctl.md"}, *below]}
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages. A command whose page has a part written by hand has a file already."""
    from mkdocs.structure.files import File

    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    for name in cli_reference.commands():
        path = f"{cli_reference.FOLDER}/{name}.md"
        if files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, content=""))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the generated part before what is written by hand."""
    path = page.file.src_uri
    if path == "singularityctl.md":
        return markdown.replace("<!-- commands -->", cli_reference.overview())
    if path.startswith(f"{cli_reference.FOLDER}/"):
        return f"{cli_reference.page(Path(path).stem)}\n{markdown}"
    return markdown
