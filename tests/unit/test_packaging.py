"""What travels in the wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_patterns_hooks_and_templates_travel_in_the_wheel(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT],
        check=True, timeout=120,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("denpex_slurm-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for folder in ("patterns", "hooks", "slurm_conf"):
        here = {p.name for p in (ROOT / folder).rglob("*") if p.is_file()}
        there = {Path(n).name for n in names if n.startswith(f"denpex/_data/{folder}/")}
        assert here, folder
        assert here == there, folder
    assert "denpex/node/prolog.py" in names
    entry = zipfile.ZipFile(wheel).read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    assert "denpex = denpex.cli:main" in entry


def test_the_module_runs_as_the_command():
    shown = subprocess.run(
        [sys.executable, "-m", "denpex", "--version"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert shown.stdout.startswith("denpex ")
