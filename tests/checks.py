"""What ruff, mypy and import-linter have no rule for, in one look at the files: `make lint` runs it.

Each check yields lines `file: what is wrong`. It reads texts and syntax trees, and imports nothing of the project.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGES = ("airflow_provider", "gpukit", "kueue_integration", "localcluster", "proxy", "singularity_train")
GENERATED = ("reference/", "../reference/", "cli/", "../cli/", "project/evidence.md")
"""Folders of docs/ that the site's own hooks fill; mkdocs checks links to them."""
NAMES_TESTS = ("project/evidence-faults.md", "project/reviews.md")
"""Pages of docs/ whose tables name tests."""
WAITS = ("mesh_world.py", "pod_moves.py")
"""Whose `until` or `eventually` is that of `waits`, for what they wait for."""
SVG = "{http://www.w3.org/2000/svg}"
PROSE = {
    ("kueue_integration/controller/attempt_history.py", "Preempted to accommodate"),
    ("kueue_integration/doctor/probe.py", " is supported"),
    ("localcluster/images/gobuild.py", "no space left"),
    ("gpukit/parts/limits.py", "this pod has no GPU"),
    ("gpukit/parts/limits.py", "needs the same type of GPU"),
    ("gpukit/parts/limits.py", "it does not support managed memory, CUDA IPC and MPS"),
    ("kueue_integration/contract/saveable.py", "not tried"),
    ("airflow_provider/narrate.py", "not tried"),
    ("airflow_provider/start_point.py", "earlier run"),
    ("airflow_provider/start_point.py", "last try"),
    ("airflow_provider/start_point.py", "step 0"),
    ("airflow_provider/podlogs.py", "[rank 0] "),
}
"""(file, text): of another program that says it nowhere else; what is itself tried; a value or a mark of ours."""
TEXT_METHODS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "split", "find", "count"}
ANNOTATION_READS = {"annotation", "message", "messages", "whole", "moment", "value", "integer"}
READER_FOLDERS = ("kueue_integration/contract/", "kueue_integration/job/")
READERS = {
    "airflow_provider/identity.py": "the provider's own mark on a Job: the task that it belongs to",
    "kueue_integration/adoption/jobset.py": "Kueue's, of a JobSet that is not ours yet",
    "kueue_integration/adoption/patch.py": "Kueue's, of a Job that is not ours yet",
    "kueue_integration/adoption/trainjob.py": "Kueue's, of a TrainJob that is not ours yet",
    "kueue_integration/controller/lease.py": "of the Lease",
    "kueue_integration/drain/nodes.py": "of a Node",
    "kueue_integration/multikueue/plan.py": "Kueue's name of a Workload that was made beforehand",
    "kueue_integration/overview/objects.py": "of a pod template; others are copied for a caller that knows its own",
}
"""File outside of READER_FOLDERS that reads annotations -> whose."""
DOMAIN = "singularity.dev/"
ERROR_TREES = {
    "kueue_integration/errors.py": "SingularityError",
    "airflow_provider/exceptions.py": "SingularityProviderError",
    "proxy/singularity_proxy/errors.py": "ProxyError",
    "proxy/singularity_proxy/launcher/errors.py": "LauncherError",
    "localcluster/errors.py": "LocalClusterError",
    "singularity_train/errors.py": "TrainError",
    "singularity_train/storage/errors.py": "StateStorageError",
}
"""Module -> the root of the errors that its docstring draws."""
RAW = {
    ("logs.py", "click.echo(line)  # a program's own output, with the colours that it has"),
    ("top.py", "click.echo(CLEAR, nl=False)"),
}
COPIED = {("e2e/scripts/hostile.py", "plant"), ("unit/proxy/fault_nursery.py", "small_world")}
"""(script, helper of another folder that is copied beside it before it runs)."""


# --- pages ----------------------------------------------------------------------------------------------------------
def links(root: Path) -> Iterator[str]:
    """Links of pages to files of the checkout. mkdocs follows only those between the site's own pages."""
    for page in [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("charts/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / target).exists() and not target.startswith(GENERATED):
                yield f"{page.relative_to(root)}: a link leads to {target}, which does not exist"


def named_tests(root: Path) -> Iterator[str]:
    """Tests that pages name."""
    files = {path.name for path in (root / "tests").rglob("test_*.py")}
    for page in NAMES_TESTS:
        for name in sorted(set(re.findall(r"\btest_\w+\.py", (root / "docs" / page).read_text())) - files):
            yield f"docs/{page}: names the test {name}, which does not exist"


def pictures(root: Path) -> Iterator[str]:
    """A picture has a title, a white ground that dark mode makes dark, and fetches nothing."""
    for path in root.glob("docs/**/*.svg"):
        name, picture = path.relative_to(root), ElementTree.parse(path).getroot()
        if not (picture.findtext(f"{SVG}title") or picture.get("aria-label")):
            yield f"{name}: has neither <title> nor aria-label"
        ground = picture.find(f"{SVG}rect")
        if ground is None or str(ground.get("fill")).lower() not in ("#ffffff", "#fff", "white"):
            yield f"{name}: its first <rect> is not its white ground"
        if not any("prefers-color-scheme: dark" in (style.text or "") for style in picture.iter(f"{SVG}style")):
            yield f"{name}: has no colours for dark pages (kueue_integration/picture.py)"
        for address in set(re.findall(r"https?://[^\"'\s)]+", path.read_text())) - {SVG.strip("{}")}:
            yield f"{name}: a browser would fetch {address}"


# --- code -----------------------------------------------------------------------------------------------------------
def _words(node: ast.expr, named: Mapping[str, str]) -> Iterator[str]:
    for each in node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]:
        if isinstance(each, (ast.Name, ast.Attribute)) and ast.unparse(each) in named:
            yield named[ast.unparse(each)]
        parts = each.values if isinstance(each, ast.JoinedStr) else [each]
        text = "".join(str(p.value) for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str))
        if len(text.split()) > 1:
            yield text


def compared_texts(tree: ast.AST, named: Mapping[str, str]) -> Iterator[str]:
    """Yield texts of two or more words that something is compared with; `named`: those that have names."""
    for node in ast.walk(tree):
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TEXT_METHODS:
            sides = node.args[:1]
        for side in sides:
            yield from _words(side, named)


def sentences(tree: ast.Module) -> dict[str, str]:
    """The constants of a module that are texts of two or more words, by name."""
    found: dict[str, str] = {}
    for node in tree.body:
        value = getattr(node, "value", None)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(value, ast.Constant) and isinstance(value.value, str) and len(value.value.split()) > 1:
            found.update((each.id, value.value) for each in targets if isinstance(each, ast.Name))
    return found


def named_sentences(tree: ast.Module, module: str, known: dict[str, dict[str, str]]) -> dict[str, str]:
    """As the code of `module` calls them (`NAME`, `module.NAME`): its own, and those it imports; `known`: by module."""
    found = dict(known.get(module, {}))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*package, *(node.module.split(".") if node.module else [])])
            for alias in node.names:
                called = alias.asname or alias.name
                whole = known.get(f"{base}.{alias.name}", {})
                found.update((f"{called}.{name}", text) for name, text in whole.items())
                if alias.name in known.get(base, {}):
                    found[called] = known[base][alias.name]
    return found


def prose(root: Path) -> Iterator[str]:
    """What the code does never depends on a sentence: causes and outcomes are values, texts are made from them."""
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    modules = {path: ".".join(path.relative_to(root).with_suffix("").parts) for path in paths}
    trees = {path: ast.parse(path.read_text()) for path in paths}
    known = {modules[path]: sentences(tree) for path, tree in trees.items()}
    for path, tree in trees.items():
        name = path.relative_to(root).as_posix()
        for text in compared_texts(tree, named_sentences(tree, modules[path], known)):
            if (name, text) not in PROSE:
                yield f"{name}: is compared with {text!r}: make it a value, or add it to PROSE in tests/checks.py"


def _drawn(name: str, bases: dict[str, list[str]], depth: int = 1) -> Iterator[str]:
    yield "    " * depth + name
    for below, its in bases.items():
        if name in its:
            yield from _drawn(below, bases, depth + 1)


def error_trees(root: Path) -> Iterator[str]:
    """The tree of errors at the top of its module is that of the classes."""
    for name, top in ERROR_TREES.items():
        tree = ast.parse((root / name).read_text())
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        drawn = [*_drawn(top, {c.name: [b.id for b in c.bases if isinstance(b, ast.Name)] for c in classes})]
        if "\n".join(drawn) not in (ast.get_docstring(tree, clean=False) or ""):
            yield "\n".join([f"{name}: its docstring should draw", *drawn])
        for other in sorted({c.name for c in classes} - {line.strip() for line in drawn}):
            yield f"{name}: {other} is not below {top}"


def _imported(path: Path) -> set[str]:
    """First words of what a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def borrowed_helpers(root: Path) -> Iterator[str]:
    """A test that imports a helper of another folder passes among all tests, and fails alone."""
    tests = root / "tests"
    files = [*tests.rglob("*.py")]
    homes: dict[str, set[Path]] = {}
    for path in files:
        if not path.name.startswith("test_") and path.name != "conftest.py":
            homes.setdefault(path.stem, set()).add(path.parent)
    for path in files:
        name = path.relative_to(tests).as_posix()
        for helper in sorted(_imported(path) & homes.keys()):
            if not homes[helper] & {tests / "support", *path.parents} and (name, helper) not in COPIED:
                yield f"tests/{name}: {helper} lies in another folder: move it to tests/support"


def printed(root: Path) -> Iterator[str]:
    """`singularityctl` prints through `cli/output.py`: texts of others must not reach the terminal as they are."""
    exempt = {"output.py", "completion.py"}
    for path in sorted((root / "kueue_integration/cli").glob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            raw = re.search(r"(?<!\w)print\(|click\.s?echo\(", line)
            if raw and path.name not in exempt and (path.name, line.strip()) not in RAW:
                yield f"{path.relative_to(root)}:{number}: prints without `output.echo`: {line.strip()}"


def _carriers(tree: ast.Module) -> set[str]:
    """Names that a module gives to the annotations of an object."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            parts = {each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)}
            made = isinstance(node.value, ast.Dict | ast.DictComp)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id for each in targets if isinstance(each, ast.Name) and "annotations" in parts and not made}
    return found


def _is_read(node: ast.AST, carriers: set[str]) -> bool:
    """Whether the text of an annotation of ours is taken from an object here, or looked for."""

    def of_object(each: ast.AST) -> bool:
        return "annotations" in ast.unparse(each) or (isinstance(each, ast.Name) and each.id in carriers)

    def ours(each: ast.AST) -> bool:
        text = ast.unparse(each)
        return ".ANN_" in f".{text}" or text.strip("'\"").startswith(DOMAIN)

    if isinstance(node, ast.Call):
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        its = isinstance(node.func, ast.Attribute) and of_object(node.func.value)
        reads = called in ANNOTATION_READS or (called == "get" and its)
        return reads and any(ours(each) for each in node.args[:2])
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return of_object(node.value) and ours(node.slice)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return ours(node.left) and of_object(node.comparators[0])
    return False


def _reads(tree: ast.Module) -> Iterator[int]:
    """Yield lines that read annotations, or import what reads them."""
    carriers = _carriers(tree)
    for node in ast.walk(tree):
        names = {each.name for each in node.names} if isinstance(node, ast.ImportFrom) else set()
        if names & {"annotation", "annotation_values"} or _is_read(node, carriers):
            yield getattr(node, "lineno", 0)


def annotation_readers(root: Path) -> Iterator[str]:
    """Annotations are read where their forms are known; elsewhere code takes the value from there."""
    for package in ("airflow_provider", "kueue_integration"):
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if name.startswith(READER_FOLDERS):
                continue
            lines = [*_reads(ast.parse(path.read_text()))]
            if name in READERS and not lines:
                yield f"{name}: reads no annotation any more: take it off READERS in tests/checks.py"
            elif name not in READERS:
                for line in lines:
                    yield f"{name}:{line}: reads an annotation: take it from job/ (view, workload, pods)"


def timed_tests(root: Path) -> Iterator[str]:
    """A test that measures fails on a slow machine, and so does one that waits with a short limit of its own."""
    for path in sorted((root / "tests/unit").rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"assert\b.*(monotonic|perf_counter|process_time)\(\) - [\w.]+ <", line):
                yield f"{path.relative_to(root)}:{number}: measures: count, or let the other side wait for an Event"
            if re.match(r"(async )?def (until|eventually|wait_for|wait_until)\(", line) and path.name not in WAITS:
                yield f"{path.relative_to(root)}:{number}: waits in its own way: take `until` of tests/support/waits.py"


CHECKS = (
    printed, links, named_tests, pictures, prose, annotation_readers, error_trees, borrowed_helpers, timed_tests,
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the checkout (default: this one)")
    root = parser.parse_args().root.resolve()
    found = [line for check in CHECKS for line in check(root)]
    print("\n".join(found) or "All checks passed: " + ", ".join(check.__name__ for check in CHECKS))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
