"""GPU identity and counters, with the real pynvml on a stand-in library; a driver that hangs is left behind."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from denpex.node import nvml
from tests.unit.hooksite import document, site

STUB = Path(__file__).parents[1] / "native" / "nvml_stub.c"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("there is no C compiler")

    def build(state):
        folder = tmp_path_factory.mktemp("nvml")
        target = folder / "libnvidia-ml.so.1"
        (folder / "state").write_text(state)
        option = f'-DSTATE_FILE="{folder}/state"'
        command = ["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", option, "-o", target, STUB]
        subprocess.run(command, check=True)
        folder.chmod(0o755)
        return str(folder)

    return build


@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs these hooks as root")
def test_prolog_and_epilog_keep_what_the_driver_says(library):
    path = library(
        "1 lost 1\n0 minor 2\n0 ecc_volatile 1\n0 ecc_aggregate 9\n"
        "0 remapped_correctable 3\n0 remapped_uncorrectable 1\n0 remap_pending 1\n"
    )
    uuid = f"GPU-{socket.gethostname()[:63]}-0000"
    with site() as node:
        node.hook("prolog", LD_LIBRARY_PATH=path)
        node.hook("epilog", LD_LIBRARY_PATH=path)
        run = node.only_run()
        before = document(run / "nvml.before.json")
        assert (before["when"], before["driver_version"]) == ("before", "550.54.15")
        gpu = before["gpus"][uuid]
        assert gpu == {
            "index": 0, "minor": 2, "pci": "00000000:3b:00.0", "serial": "4710", "model": "Stub H100",
            "ecc_volatile_uncorrected": 1, "ecc_aggregate_uncorrected": 9, "temperature_c": 41, "power_w": 123.5,
            "remapped_correctable": 3, "remapped_uncorrectable": 1, "remap_pending": 1, "remap_failure": 0,
            "event_reasons": 0,
        }  # fmt: skip
        assert document(run / "nvml.after.json")["gpus"].keys() == {uuid}
        meta = document(run / "meta.json")
        assert meta["gpus"] == [
            {
                "uuid": uuid,
                "index": 0,
                "minor": 2,
                "pci": "00000000:3b:00.0",
                "serial": "4710",
                "model": "Stub H100",
            }
        ]
        assert (meta["driver_version"], meta["kernel_mark"]["source"]) == ("550.54.15", "file")
        assert "GPU 1 did not answer NVML before the job: GPU is lost" in node.gaps()


@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs these hooks as root")
def test_a_driver_that_hangs_is_a_gap_and_the_run_is_closed(library):
    path = library("-1 hang 1\n")
    with site(hooks={"timeout": 3, "nvml_timeout": 1}) as node:
        assert node.hook("prolog", LD_LIBRARY_PATH=path) < 2
        node.output()
        assert node.hook("epilog", LD_LIBRARY_PATH=path) < 2
        assert "NVML did not answer within 1 s (before the job)" in node.gaps()
        assert (node.only_run() / "tasks" / "batch.out").exists()
        assert (node.only_run() / "DONE").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs these hooks as root")
def test_a_step_that_takes_all_the_time_leaves_the_rest_out_and_the_run_closed(library):
    path = library("-1 hang 1\n")
    with site(hooks={"timeout": 2, "nvml_timeout": 60}) as node:
        node.hook("prolog")
        node.output()
        assert node.hook("epilog", LD_LIBRARY_PATH=path) < 2
        assert "the GPUs: the hook's time was over" in node.gaps()
        assert "the job's output file: left out" in node.gaps()
        assert (node.only_run() / "user").stat().st_uid == 0
        assert (node.only_run() / "DONE").exists()


def test_without_a_driver_there_is_nothing_to_say():
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a driver")
    assert nvml.snapshot(1, "before") is None
