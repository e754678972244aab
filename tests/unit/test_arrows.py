"""The dependency arrows of the house: who may import whom."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "denpex"

LEAVES = {"config", "errors", "gist", "hostlist", "model", "resources", "spool", "taxonomy"}
JOINS = {"diagnose", "worker"}

# Part -> the parts of Denpex that it may import, besides itself.
ALLOWED = {
    "model": set(),
    "errors": set(),
    "spool": set(),
    "resources": set(),
    "taxonomy": {"model"},
    "gist": set(),
    "parallel": set(),
    "hostlist": {"errors"},
    "jobid": {"errors"},
    "times": {"errors"},
    "slurm": LEAVES,
    "queuefile": LEAVES | {"slurm"},
    "sntp": {"errors"},
    "store": LEAVES,
    "answers": LEAVES | {"jobid", "store"},
    "credential": {"errors"},
    "service": LEAVES | {"answers", "credential", "store"},
    "answerfiles": LEAVES | {"answers", "credential", "jobid", "store"},
    "client": LEAVES | {"answerfiles", "credential"},
    "config": {"errors", "model", "resources"},
    "engine": {"errors", "gist", "hostlist", "model", "taxonomy"},
    "node": {"spool"},
    "ingest": LEAVES,
    "library": LEAVES | {"engine"},
    "render": LEAVES,
}


def _part(path: Path) -> str:
    """Return the part that a module belongs to: its folder, or its name up to an underscore (worker_late: worker)."""
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return name if name.startswith("_") else name.split("_")[0]


def _imports(path: Path) -> set[str]:
    """Return the parts of Denpex that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module] if node.module != "denpex" else [f"denpex.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1].split("_")[0] for name in names if name.startswith("denpex.")}
    return found


def _imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


MODULES = sorted(p for p in PACKAGE.rglob("*.py") if "_data" not in p.parts)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_along_the_arrows(path):
    part = _part(path)
    imports = _imports(path) - {part, ""}
    if part in ALLOWED:
        assert imports <= ALLOWED[part], f"{part} must not import {sorted(imports - ALLOWED[part])}"
    if part not in JOINS | {"cli", "__main__", "__init__"} and part not in ("node", "ingest"):
        assert not imports & JOINS, f"only cli sees joins, not {part}"


def test_model_knows_only_the_standard_library():
    assert _imported_modules(PACKAGE / "model.py") <= {"__future__", "collections", "dataclasses", "enum", "typing"}


def test_the_engine_has_no_door_to_the_outside():
    """Engine functions take plain values: no clock, file, environment, network, process or randomness."""
    closed = {"os", "io", "pathlib", "socket", "subprocess", "time", "random", "shutil", "tempfile", "threading"}
    for path in (PACKAGE / "engine").glob("*.py"):
        assert not _imported_modules(path) & closed, path


def test_node_code_needs_only_the_standard_library_and_pynvml():
    import sys

    for path in (PACKAGE / "node").glob("*.py"):
        outside = _imported_modules(path) - set(sys.stdlib_module_names) - {"denpex", "pynvml"}
        assert not outside, f"{path.name} imports {sorted(outside)}"
