"""Asks the GPU driver for every GPU's identity and counters, in a child that is abandoned when the driver hangs."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

_CODE = "import sys; sys.path.append(sys.argv[1]); from denpex.node import nvml; nvml.main()"


def snapshot(seconds: float, when: str) -> dict[str, Any] | str | None:
    """Return the content of nvml.<when>.json, None where there is no driver, or a sentence on why there is none.

    The question is put by a child process: a driver that hangs cannot be interrupted, only left behind.
    """
    import ctypes

    try:
        # NVML comes with the driver. Loading it asks the driver nothing.
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    from denpex.node import child

    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    try:
        status, output = child.ask([sys.executable, "-I", "-c", _CODE, package], seconds)
    except OSError as error:
        return f"NVML could not be asked: {error}"
    if status is None:
        return f"NVML did not answer within {seconds:g} s"
    try:
        answer = json.loads(output)
    except ValueError:
        return f"NVML could not be asked (the child ended with status {status})"
    if "error" in answer:
        return f"NVML: {answer['error']}"
    return {"when": when, "realtime_ns": time.time_ns(), **answer}


def main() -> None:
    """Print one JSON object: the counters of all GPUs, or ``error``."""
    try:
        import pynvml
    except ImportError as error:
        print(json.dumps({"error": f"the Python package nvidia-ml-py is missing: {error}"}))
        return
    try:
        pynvml.nvmlInit()
        answer: dict[str, Any] = {"driver_version": _text(pynvml.nvmlSystemGetDriverVersion()), "gpus": {}}
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                answer["gpus"][_text(pynvml.nvmlDeviceGetUUID(handle))] = _gpu(pynvml, handle, index)
            except pynvml.NVMLError as error:
                answer.setdefault("lost", []).append({"index": index, "error": str(error)})
    except pynvml.NVMLError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _gpu(nvml: Any, handle: Any, index: int) -> dict[str, Any]:
    pci = _text(nvml.nvmlDeviceGetPciInfo(handle).busId)
    gpu: dict[str, Any] = {"index": index, "pci": pci.lower()}
    counters: dict[str, Callable[[], Any]] = {
        "minor": lambda: nvml.nvmlDeviceGetMinorNumber(handle),
        "serial": lambda: _text(nvml.nvmlDeviceGetSerial(handle)),
        "model": lambda: _text(nvml.nvmlDeviceGetName(handle)),
        "ecc_volatile_uncorrected": lambda: nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
        "ecc_aggregate_uncorrected": lambda: nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC
        ),
        "pcie_replay": lambda: nvml.nvmlDeviceGetPcieReplayCounter(handle),
        "pcie_gen": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "pcie_gen_max": lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
        "pcie_width": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "pcie_width_max": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "event_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        "recovery_action": lambda: _field(nvml, handle, nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
        "processes": lambda: [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)],
    }
    # A counter that this GPU, driver or binding does not have is left out, as the contract says. An older driver that
    # lacks the newest form of a call is a mismatch to the binding, which is no NVMLError.
    absent = (nvml.NVMLError, AttributeError, getattr(nvml, "NVMLLibraryMismatchError", AttributeError))
    for name, read in counters.items():
        with contextlib.suppress(*absent):
            gpu[name] = read()
    names = ("remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failure")
    with contextlib.suppress(*absent):
        gpu.update(zip(names, nvml.nvmlDeviceGetRemappedRows(handle), strict=False))
    return gpu


def _field(nvml: Any, handle: Any, field: int) -> int:
    """Return a field value; raises NVMLError where the GPU does not have it."""
    (value,) = nvml.nvmlDeviceGetFieldValues(handle, [field])
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)
