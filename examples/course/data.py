"""The labs' data: scikit-learn's digits, and Fashion-MNIST and CIFAR-10 in full from their standard files.

    data = load("digits")                            # bundled with scikit-learn
    data = load("fashion-mnist", Path("~/data"))     # a folder with the files, or torchvision's root
    data = load("cifar-10")                          # from wherever torchvision or Keras has stored it

Nothing is downloaded. The files are the published ones: their contents are compared with the published checksums.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ("digits", "fashion-mnist", "cifar-10")

# File of Fashion-MNIST -> its shape and the SHA-256 of its content without gzip's header, which differs between
# distributors. Published are the MD5 sums of the compressed files, https://github.com/zalandoresearch/fashion-mnist;
# these are the sums of the contents of files that have those.
FASHION_MNIST = {
    "train-images-idx3-ubyte": (
        (60000, 28, 28),
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    "train-labels-idx1-ubyte": ((60000,), "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
    "t10k-images-idx3-ubyte": ((10000, 28, 28), "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
    "t10k-labels-idx1-ubyte": ((10000,), "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
}

# File of CIFAR-10's version for Python -> the MD5 that torchvision publishes; each has CIFAR_ROWS images.
CIFAR_10 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
# File of its binary version -> the SHA-256 that https://github.com/ankane/torchvision-ruby publishes; these are the
# same images in the same order, each after the byte of its class.
CIFAR_10_BINARY = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
CIFAR_ROWS = 10_000
CIFAR_ARCHIVES = ("cifar-10-python.tar.gz", "cifar-10-batches-py.tar.gz", "cifar-10-batches-py-target_archive")

ADVICE = {
    "fashion-mnist": "Install Debian's package dataset-fashion-mnist; or run, once and online, "
    "keras.datasets.fashion_mnist.load_data() or torchvision.datasets.FashionMNIST('data', download=True); or put "
    "the four files of https://github.com/zalandoresearch/fashion-mnist in a folder and name it.",
    "cifar-10": "Run, once and online, keras.datasets.cifar10.load_data() or "
    "torchvision.datasets.CIFAR10('data', download=True); or put cifar-10-python.tar.gz, or the files of "
    "cifar-10-binary.tar.gz, of https://www.cs.toronto.edu/~kriz/cifar.html in a folder and name it.",
}


@dataclass(frozen=True)
class Dataset:
    """Images and their classes, for training and testing.

    Attributes:
        train_x, test_x: float32 [n, height, width, channels], from 0 to 1.
        train_y, test_y: int64 [n], from 0 to classes - 1.
        classes: number of classes.
        name: one of NAMES.
    """

    name: str
    train_x: Any
    train_y: Any
    test_x: Any
    test_y: Any
    classes: int = 10


def load(name: str = "digits", folder: Path | None = None) -> Dataset:
    """A data set of NAMES.

    Args:
        name: digits has 1348 images for training and 449 for testing, in a fixed random order, 8 by 8 by 1;
            fashion-mnist 60,000 and 10,000, 28 by 28 by 1; cifar-10 50,000 and 10,000, 32 by 32 by 3.
        folder: of the files, also a root folder of torchvision; by default the usual places. Not used for digits.

    Raises:
        ValueError: no such name; a file is truncated, or its shape or checksum is not that of the published file.
        FileNotFoundError: the files are in none of the places; tells how to get them.
    """
    if name not in NAMES:
        raise ValueError(f"there is no data set {name!r}, only {', '.join(NAMES)}")
    if name == "digits":
        return _digits()
    roots = _usual_roots() if folder is None else [Path(folder).expanduser()]
    return (_fashion_mnist if name == "fashion-mnist" else _cifar_10)(roots)


def _digits() -> Dataset:
    from sklearn.datasets import load_digits  # here, as importing it is slow

    images, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x = (images[order] / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    y = classes[order].astype(np.int64)
    held_out = len(x) // 4
    return Dataset("digits", x[held_out:], y[held_out:], x[:held_out], y[:held_out])


def _usual_roots() -> list[Path]:
    """Where the files usually are: torchvision's root, Keras's cache, Debian's package."""
    keras = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras"))
    return [Path("data"), Path.home() / "data", keras / "datasets", Path("/usr/share/datasets")]


def _first(roots: list[Path], folders: tuple[str, ...], names: tuple[str, ...]) -> Path | None:
    """The first file that exists with one of the names, in one of the folders below the roots."""
    paths = (root / folder / name for root in roots for folder in folders for name in names)
    return next((path for path in paths if path.is_file()), None)


def _missing(name: str, roots: list[Path]) -> FileNotFoundError:
    where = ", ".join(map(str, roots))
    return FileNotFoundError(f"the files of {name} are not in {where}. {ADVICE[name]} (--data {name}:FOLDER)")


def _fashion_mnist(roots: list[Path]) -> Dataset:
    folders = ("", "FashionMNIST/raw", "fashion-mnist")
    paths = {file: _first(roots, folders, (file, f"{file}.gz")) for file in FASHION_MNIST}
    if None in paths.values():
        raise _missing("fashion-mnist", roots)
    arrays = [_idx(path, *FASHION_MNIST[file]) for file, path in paths.items() if path]
    train_x, train_y, test_x, test_y = arrays
    return Dataset("fashion-mnist", _scaled(train_x[..., None]), train_y, _scaled(test_x[..., None]), test_y)


def _idx(path: Path, shape: tuple[int, ...], sha256: str) -> Any:
    """An array of bytes in the IDX format: two zero bytes, 8 for bytes, the number of dimensions, these, the values."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is truncated or damaged: {error}") from error
    start = 4 + 4 * len(shape)
    if content[:4] != bytes([0, 0, 8, len(shape)]) or len(content) < start:
        raise ValueError(f"{path} is no IDX file of bytes in {len(shape)} dimensions")
    found = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    if found != shape:
        raise ValueError(f"{path} has shape {found}, not {shape}")
    if len(content) - start != np.prod(shape):
        raise ValueError(f"{path} has {len(content) - start} values, not the {np.prod(shape)} of its shape {shape}")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{path} is not the published file: its checksum differs")
    values = np.frombuffer(content, np.uint8, offset=start).reshape(shape)
    return values.astype(np.int64) if len(shape) == 1 else values


def _cifar_10(roots: list[Path]) -> Dataset:
    folders = ("", "cifar-10-batches-py", "cifar-10-batches-py-target/cifar-10-batches-py")
    checksums, read = CIFAR_10, _batch
    if first := _first(roots, folders, ("data_batch_1",)):
        contents = _files(first.parent, CIFAR_10)
        where = f"{first.parent}/"
    elif archive := _first(roots, folders, CIFAR_ARCHIVES):
        contents = _unpacked(archive)
        where = f"{archive}:"
    elif first := _first(roots, ("", "cifar-10-batches-bin"), ("data_batch_1.bin",)):
        checksums, read = CIFAR_10_BINARY, _binary_batch
        contents = _files(first.parent, CIFAR_10_BINARY)
        where = f"{first.parent}/"
    else:
        raise _missing("cifar-10", roots)
    if absent := checksums.keys() - contents.keys():
        raise ValueError(f"{where} is incomplete: {', '.join(sorted(absent))} is missing")
    parts = [read(f"{where}{file}", contents[file], checksum) for file, checksum in checksums.items()]
    x = [part[0] for part in parts]
    y = [part[1] for part in parts]
    return Dataset("cifar-10", _scaled(np.concatenate(x[:-1])), np.concatenate(y[:-1]), _scaled(x[-1]), y[-1])


def _files(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Name -> content of those of the files that are in the folder."""
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


def _unpacked(archive: Path) -> dict[str, bytes]:
    """Name -> content of the batches in a .tar.gz."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = [m for m in tar.getmembers() if m.isfile() and Path(m.name).name in CIFAR_10]
            return {Path(m.name).name: opened.read() for m in members if (opened := tar.extractfile(m))}
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{archive} is truncated or damaged: {error}") from error


def _batch(what: str, content: bytes, md5: str) -> tuple[Any, Any]:
    """Images uint8 [n, 32, 32, 3] and classes int64 [n] of a pickled batch, in which the channels come first."""
    # The checksum comes first: unpickling a file of unknown origin can run any code.
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise ValueError(f"{what} is truncated or not the published file: its checksum differs")
    entries = pickle.load(io.BytesIO(content), encoding="latin1")
    images, classes = np.asarray(entries["data"]), np.asarray(entries["labels"], np.int64)
    if images.shape != (CIFAR_ROWS, 3072) or classes.shape != (CIFAR_ROWS,):
        raise ValueError(
            f"{what} has images of shape {images.shape} and {classes.shape} classes, not {CIFAR_ROWS} each"
        )
    return images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), classes


def _binary_batch(what: str, content: bytes, sha256: str) -> tuple[Any, Any]:
    """As _batch, of the binary version: CIFAR_ROWS times the byte of the class and the bytes of the image."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{what} is truncated or not the published file: its checksum differs")
    rows = np.frombuffer(content, np.uint8).reshape(CIFAR_ROWS, 1 + 3072)
    return rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0].astype(np.int64)


def _scaled(images: Any) -> Any:
    return np.multiply(images, np.float32(1 / 255), dtype=np.float32)
