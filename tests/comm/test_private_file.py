"""Files that are unpickled or trusted must be writable by this user only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pycollective.comm.private_file import open_private, write_private


def test_written_content_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert open_private(path) is None
    for content in (b"first", b"second"):
        before = os.umask(0)
        try:
            write_private(path, lambda file, content=content: file.write(content))  # type: ignore[misc]
        finally:
            os.umask(before)
        assert path.stat().st_mode & 0o7777 == 0o600
        file = open_private(path)
        assert file is not None
        with file:
            assert file.read() == content
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_link_at_the_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    """Another user has left a link at the name of the unfinished file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "file.new").symlink_to(victim)
    write_private(tmp_path / "file", lambda file: file.write(b"content"))
    assert victim.read_text() == "precious"
    assert (tmp_path / "file").read_bytes() == b"content" and not (tmp_path / "file").is_symlink()


def test_a_link_that_another_user_puts_back_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, link = tmp_path / "victim", tmp_path / "file.new"
    monkeypatch.setattr(os, "unlink", lambda path: link.symlink_to(victim))
    with pytest.raises(FileExistsError):
        write_private(tmp_path / "file", lambda file: file.write(b"content"))
    assert not victim.exists()


def test_a_failed_write_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_private(path, lambda file: file.write(b"old"))
    with pytest.raises(ZeroDivisionError):
        write_private(path, lambda file: 1 // 0)
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_others_may_write(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    with pytest.raises(PermissionError, match="lets others write"):
        open_private(path)


def test_no_regular_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").touch(0o600)
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(PermissionError, match="symbolic link"):
        open_private(tmp_path / "link")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):  # the FIFO has no writer: opening it must not block
        with pytest.raises(PermissionError, match="not a regular file"):
            open_private(path)
    with pytest.raises(PermissionError, match="not replaced"):
        write_private(tmp_path / "fifo", lambda file: file.write(b"content"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a file of another user")
def test_of_another_user(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(0o600)
    os.chown(path, 65534, 65534)
    with pytest.raises(PermissionError, match="uid 65534, not to this one"):
        open_private(path)
