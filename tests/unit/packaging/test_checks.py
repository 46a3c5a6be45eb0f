"""Each check of `tests/checks.py` finds what it is for, in a checkout of two files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from module_files import loaded

ROOT = Path(__file__).parents[3]
checks = loaded(ROOT / "tests/checks.py")
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg"><rect fill="#000"/><image href="https://a.org/b"/></svg>'
DEFECTS: dict[str, tuple[dict[str, str], list[str]]] = {
    "printed": ({"kueue_integration/cli/a.py": "click.echo(x)\necho(x)\nprint(y)\nclick.secho(z)\n"},
                ["a.py:1", "a.py:3", "a.py:4"]),
    "links": ({"docs/a.md": "[x](../no.py#L3) [y](b.svg)", "docs/b.svg": ""}, ["../no.py"]),
    "named_tests": ({f"docs/{page}": "`test_no.py`" for page in checks.NAMES_TESTS},
                    ["test_no.py"] * len(checks.NAMES_TESTS)),
    "pictures": ({"docs/a.svg": PICTURE}, ["<title>", "white ground", "dark pages", "https://a.org/b"]),
    "prose": ({"proxy/a.py": "x == 'a b'\nf'{z} is over' in y\ny.startswith(('a', 'went away'))\ny == 'one'\n",
               "proxy/b.py": "A = 'all gone'\nB: str = 'b'\nx == A\nx == B\n",
               "proxy/c/d.py": "from .. import b\nfrom ..b import A as C\nfrom e import A\nb.A in x\nx == C\nx == A\n"},
              ["'a b'", "' is over'", "'went away'", "b.py", "d.py", "d.py"]),
    "annotation_readers": (
        {"kueue_integration/jobs/a.py": "annotation(job, a.ANN_A)\nwhole(job, ANN_B)\nx['annotations'][ANN_C]\n"
                                        "x['annotations'][ANN_C] = 1\nwritten(job, ANN_D)\nannotations.get(ANN_E)\n",
         "kueue_integration/jobs/c.py": "from ..kube.resources import annotation\n",
         "kueue_integration/jobs/d.py": "n = m.get('annotations') or {}\nn.get(a.ANN_A)\na.ANN_B in n\nn[a.ANN_C]\n"
                                        "m['annotations'].get('singularity.dev/step')\nn.pop(ANN_D)\nn[a.ANN_E] = 1\n",
         "kueue_integration/controller/lease.py": "x = 1\n", "kueue_integration/drain/nodes.py": "message(n, ANN_F)\n",
         "kueue_integration/contract/b.py": "annotation(job, names.ANN_A)"},
        ["lease.py: reads no", "a.py:1", "a.py:2", "a.py:3", "a.py:6", "c.py:1", "d.py:2",
         "d.py:3", "d.py:4", "d.py:5"],
    ),
    "error_trees": ({name: f"class {top}(Exception): ...\nclass Other: ...\n"
                     for name, top in checks.ERROR_TREES.items()}, ["should draw", "Other is not below"] * 7),
    "borrowed_helpers": ({"tests/e2e/world.py": "", "tests/unit/test_a.py": "import world"}, ["world lies in another"]),
    "timed_tests": ({"tests/unit/test_a.py": "assert x and "
                                             "time.monotonic() - began < 5\nasync def eventually(x):\n"
                                             "    assert time.monotonic() - began >= 5\n",
                     "tests/unit/mesh_world.py": "def until(x):\n"},
                    ["test_a.py:1: measures", "test_a.py:2: waits"]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "files", "wanted"), [(name, *rest) for name, rest in DEFECTS.items()])
def test_a_defect_is_found(tmp_path: Path, name: str, files: Mapping[str, str], wanted: list[str]) -> None:
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = list(getattr(checks, name)(tmp_path))
    assert len(found) == len(wanted) and all(part in line for part, line in zip(wanted, found, strict=True)), found


def test_every_check_has_a_defect_here() -> None:
    assert [check.__name__ for check in checks.CHECKS] == list(DEFECTS)
