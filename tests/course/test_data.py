"""The loaders of the data, on small files in the published formats that the tests write."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import struct
import tarfile

import numpy as np
import pytest


@pytest.fixture
def data(from_course):
    return from_course("data")


def idx(values):
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


@pytest.fixture
def fashion(data, monkeypatch):
    """File -> the content of a small Fashion-MNIST, whose shapes and checksums the loader expects."""
    rng = np.random.default_rng(0)
    shapes = dict(zip(data.FASHION_MNIST, [(7, 28, 28), (7,), (3, 28, 28), (3,)], strict=True))
    contents = {
        file: idx(rng.integers(256 if len(shape) > 1 else 10, size=shape).astype(np.uint8))
        for file, shape in shapes.items()
    }
    known = {file: (shape, hashlib.sha256(contents[file]).hexdigest()) for file, shape in shapes.items()}
    monkeypatch.setattr(data, "FASHION_MNIST", known)
    return contents


@pytest.fixture
def cifar(data, monkeypatch):
    """File -> the content of a small CIFAR-10, whose checksums the loader expects."""
    rng = np.random.default_rng(0)
    contents = {}
    for file in data.CIFAR_10:
        images = rng.integers(256, size=(4, 3072)).astype(np.uint8)
        contents[file] = pickle.dumps({"data": images, "labels": [1, 2, 3, 4]}, protocol=2)
    known = {file: hashlib.md5(content).hexdigest() for file, content in contents.items()}
    monkeypatch.setattr(data, "CIFAR_10", known)
    monkeypatch.setattr(data, "CIFAR_ROWS", 4)
    return contents


@pytest.fixture
def binary(data, cifar, monkeypatch):
    """File -> the content of the same small CIFAR-10 in the binary version."""
    contents = {}
    for file, content in cifar.items():
        batch = pickle.loads(content)
        classes = np.array(batch["labels"], np.uint8)[:, None]
        contents[f"{file}.bin"] = np.concatenate([classes, batch["data"]], 1).tobytes()
    known = {file: hashlib.sha256(content).hexdigest() for file, content in contents.items()}
    monkeypatch.setattr(data, "CIFAR_10_BINARY", known)
    return contents


def write(folder, contents, zipped=False):
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in contents.items():
        (folder / (f"{file}.gz" if zipped else file)).write_bytes(gzip.compress(content) if zipped else content)


def pack(path, contents):
    with tarfile.open(path, "w:gz") as tar:
        for file, content in contents.items():
            local = path.parent / "one"
            local.write_bytes(content)
            tar.add(local, f"cifar-10-batches-py/{file}")


def test_digits_are_split_in_the_same_way_each_time(data):
    pytest.importorskip("sklearn")
    one, two = data.load(), data.load("digits")
    assert one.train_x.shape == (1348, 8, 8, 1) and one.test_x.shape == (449, 8, 8, 1)
    assert one.train_x.dtype == np.float32 and one.train_y.dtype == np.int64
    assert one.train_x.min() == 0 and one.train_x.max() == 1 and set(one.test_y) == set(range(one.classes))
    assert np.array_equal(one.train_x, two.train_x) and np.array_equal(one.test_y, two.test_y)


@pytest.mark.parametrize("folder", ["", "FashionMNIST/raw", "fashion-mnist"])
@pytest.mark.parametrize("zipped", [False, True])
def test_fashion_mnist_is_read_from_a_folder_a_torchvision_root_and_debians_folder(
    data, fashion, tmp_path, folder, zipped
):
    write(tmp_path / folder, fashion, zipped)
    read = data.load("fashion-mnist", tmp_path)
    assert read.train_x.shape == (7, 28, 28, 1) and read.test_x.shape == (3, 28, 28, 1)
    assert read.train_x.dtype == np.float32 and read.train_y.dtype == np.int64
    pixels = np.frombuffer(fashion["train-images-idx3-ubyte"], np.uint8, offset=16)
    assert np.allclose(read.train_x.ravel(), pixels / 255, atol=1e-6)
    assert read.test_y.tolist() == list(fashion["t10k-labels-idx1-ubyte"][8:])


def test_files_are_found_in_kerass_cache(data, fashion, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "datasets" / "fashion-mnist", fashion, zipped=True)
    assert len(data.load("fashion-mnist").train_y) == 7


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda content: content[:-5], "has 5483 values, not the 5488 of its shape"),
        (lambda content: content[:10], "no IDX file of bytes in 3 dimensions"),
        (lambda content: idx(np.zeros((6, 28, 28), np.uint8)), r"has shape \(6, 28, 28\), not \(7, 28, 28\)"),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "its checksum differs"),
        (lambda content: b"<html>not found</html>", "no IDX file"),
    ],
    ids=["truncated", "only a header", "of another shape", "of another content", "something else"],
)
def test_a_damaged_file_of_fashion_mnist_is_refused(data, fashion, tmp_path, spoil, message):
    write(tmp_path, {**fashion, "train-images-idx3-ubyte": spoil(fashion["train-images-idx3-ubyte"])})
    with pytest.raises(ValueError, match=rf"train-images-idx3-ubyte.*{message}"):
        data.load("fashion-mnist", tmp_path)


def test_a_truncated_gzip_file_is_refused(data, fashion, tmp_path):
    write(tmp_path, fashion, zipped=True)
    path = tmp_path / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz is truncated or damaged"):
        data.load("fashion-mnist", tmp_path)


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-py", "cifar-10-batches-py-target/cifar-10-batches-py"])
def test_cifar_10_is_read_from_a_folder_a_torchvision_root_and_kerass_cache(data, cifar, tmp_path, folder):
    write(tmp_path / folder, cifar)
    read = data.load("cifar-10", tmp_path)
    assert read.train_x.shape == (20, 32, 32, 3) and read.test_x.shape == (4, 32, 32, 3)
    assert read.train_y.tolist() == [1, 2, 3, 4] * 5
    image = pickle.loads(cifar["test_batch"])["data"][2].reshape(3, 32, 32)  # red, green, blue
    assert np.allclose(read.test_x[2, 5, 7], image[:, 5, 7] / 255, atol=1e-6)


def test_cifar_10_is_read_from_the_archive(data, cifar, tmp_path):
    pack(tmp_path / "cifar-10-python.tar.gz", cifar)
    assert data.load("cifar-10", tmp_path).train_x.shape == (20, 32, 32, 3)


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-bin"])
def test_the_binary_version_of_cifar_10_is_the_same(data, cifar, binary, tmp_path, folder):
    write(tmp_path / "python", cifar)
    write(tmp_path / "binary" / folder, binary)
    one, other = (data.load("cifar-10", tmp_path / version) for version in ("python", "binary"))
    for field in ("train_x", "train_y", "test_x", "test_y"):
        assert np.array_equal(getattr(one, field), getattr(other, field))
        assert getattr(one, field).dtype == getattr(other, field).dtype


def test_damaged_or_missing_files_of_the_binary_version_are_refused(data, binary, tmp_path):
    write(tmp_path, {**binary, "test_batch.bin": binary["test_batch.bin"][:-1]})
    with pytest.raises(ValueError, match=r"test_batch\.bin is truncated or not the published file"):
        data.load("cifar-10", tmp_path)
    (tmp_path / "test_batch.bin").unlink()
    with pytest.raises(ValueError, match=r"is incomplete: test_batch\.bin is missing"):
        data.load("cifar-10", tmp_path)


def test_a_damaged_file_of_cifar_10_is_refused_before_it_is_unpickled(data, cifar, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemExit('was unpickled')",))

    for bad in (cifar["data_batch_3"][:-1], pickle.dumps(Bomb())):
        write(tmp_path, {**cifar, "data_batch_3": bad})
        with pytest.raises(ValueError, match="data_batch_3 is truncated or not the published file"):
            data.load("cifar-10", tmp_path)


def test_a_batch_of_the_wrong_shape_is_refused(data, cifar, tmp_path, monkeypatch):
    write(tmp_path, cifar)
    monkeypatch.setattr(data, "CIFAR_ROWS", 5)
    with pytest.raises(ValueError, match=r"data_batch_1 has images of shape \(4, 3072\)"):
        data.load("cifar-10", tmp_path)


def test_a_truncated_or_incomplete_archive_is_refused(data, cifar, tmp_path):
    path = tmp_path / "cifar-10-python.tar.gz"
    pack(path, cifar)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError, match="is truncated or damaged"):
        data.load("cifar-10", tmp_path)
    del cifar["test_batch"]
    pack(path, cifar)
    with pytest.raises(ValueError, match="is incomplete: test_batch is missing"):
        data.load("cifar-10", tmp_path)


@pytest.mark.parametrize(("name", "how"), [("fashion-mnist", "dataset-fashion-mnist"), ("cifar-10", "cifar-10-python")])
def test_missing_files_are_reported_with_the_way_to_get_them(data, tmp_path, name, how):
    with pytest.raises(FileNotFoundError, match=f"the files of {name} are not in {tmp_path}.*{how}"):
        data.load(name, tmp_path)


def test_an_unknown_name_is_refused(data):
    with pytest.raises(ValueError, match="no data set 'mnist', only digits, fashion-mnist, cifar-10"):
        data.load("mnist")
