"""The driver's GPU attributes that determine the usable paths. ``python -m bench.gpu.attributes``"""

from __future__ import annotations

import argparse
import ctypes
import sys
from pathlib import Path

from pycollective.cli.outputs import json_text
from pycollective.comm.cuda.runtime import load, why_not

from .rows import provenance

ATTRIBUTES = {
    "multiprocessors": 16,
    "registers_per_multiprocessor": 82,
    "cooperative_launch": 95,
    "virtual_memory_management": 102,
    "posix_file_descriptor_handles": 103,
    "memory_sync_domains": 126,
    "fabric_handles": 128,
    "multicast": 132,
}
"""Numbers of CUdevice_attribute, in cuda.h."""


def main() -> int:
    """Exit status 1 if there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.attributes", description="What a GPU can do.")
    parser.add_argument("--output", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    if reason := why_not():
        print(f"nothing to read: {reason}", file=sys.stderr)
        return 1
    cuda = load()
    found = {"provenance": provenance(cuda, 0, 0.0, {}), "devices": [_read(d) for d in range(cuda.device_count())]}
    text = json_text(found) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text)
    return 0


def _read(device: int) -> dict[str, int | None]:
    """Look an attribute up by name; None if the driver does not know the attribute."""
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuInit(0)
    found: dict[str, int | None] = {}
    for name, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        found[name] = value.value if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0 else None
    peers = range(load().device_count())
    can = ctypes.c_int()
    found["peers_reached"] = sum(
        peer != device and driver.cuDeviceCanAccessPeer(ctypes.byref(can), device, peer) == 0 and can.value == 1
        for peer in peers
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
