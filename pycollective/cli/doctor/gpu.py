"""What the doctor finds out about GPUs: driver, nvcc, NCCL, and whether a call on GPU arrays works."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from pycollective.cli.doctor.findings import Finding, first_line, output_of
from pycollective.cli.units import format_size


def gpu() -> Iterator[Finding]:
    yield _cuda()
    nvcc = shutil.which("nvcc") or next((p for p in ["/usr/local/cuda/bin/nvcc"] if Path(p).exists()), None)
    if nvcc is None:
        yield Finding("GPU", "nvcc", "not found", None, "GPU ranks cannot be built here")
    else:
        yield Finding("GPU", "nvcc", first_line([nvcc, "--version"], line=-2), why=nvcc)
    yield _nccl()
    yield from _gpu_path()


def _gpu_path() -> Iterator[Finding]:
    """Whether a call on GPU arrays works; if not, the error that it raises."""
    from pycollective.comm.cuda.runtime import load, why_not

    built = importlib.util.find_spec("pycollective._cuda") is not None or "pycollective._cuda" in sys.modules
    yield Finding("GPU", "pycollective._cuda", "built" if built else "not built", True if built else None)
    reason = why_not()
    if reason is not None:
        yield Finding("GPU", "GPU path", "none", None, reason)
        return
    cuda = load()
    for device in range(cuda.device_count()):
        has = cuda.properties(device)
        major, minor = has["compute_capability"]
        text = f"{has['name']}, sm_{major}{minor}, {has['multiprocessors']} SMs, {format_size(has['memory_bytes'])}"
        yield Finding("GPU", f"device {device}", text)
    text = output_of([sys.executable, "-c", _GPU_TRIAL])
    right = text.strip().endswith("TRIAL right")
    what = "an allreduce of two ranks on device 0"
    yield Finding("GPU", "GPU path", f"{what} {'is right' if right else 'fails'}", right, "" if right else text[-2000:])


_GPU_TRIAL = """
import numpy, pycollective
from pycollective.comm.cuda.arrays import allocate

def work(comm):
    x, host = allocate((1000,), "float32", 0), numpy.full(1000, comm.rank + 1, numpy.float32)
    x.copy_from_host(host)
    comm.allreduce(x, out=x).copy_to_host(host)
    return bool((host == 3).all())

print("TRIAL", "right" if all(pycollective.local_world(2).run(work)) else "wrong")
"""


def _cuda() -> Finding:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Finding("GPU", "CUDA driver", "not found", None, "no libcuda.so.1: no NVIDIA driver on this machine")
    status = cuda.cuInit(0)
    if status != 0:
        return Finding("GPU", "CUDA driver", "does not start", None, f"cuInit returned {status}")
    count, version = ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    cuda.cuDriverGetVersion(ctypes.byref(version))
    text = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}, {count.value} devices"
    return Finding("GPU", "CUDA driver", text, True if count.value else None)


def _nccl() -> Finding:
    """The library that `topology="nccl"` would load here, and why."""
    from pycollective.comm.cuda.nccl.library import library
    from pycollective.errors import CommunicatorError

    try:
        found = library()
    except ImportError:
        return Finding("GPU", "NCCL", "not looked for", None, "pycollective._cuda, which loads it, is not built")
    except CommunicatorError as error:
        return Finding("GPU", "NCCL", "not found", None, str(error))
    return Finding("GPU", "NCCL", found.version_text, why=f"{found.source}: {found.path}; {found.reason}")
