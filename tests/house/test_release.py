"""`make release`: what it refuses, and what it writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import release

CHANGELOG = "# Changelog\n\n## Unreleased\n\n### Added\n\n- A wheel.\n\n## 0.1.0 - 2026-01-02\n\n- A ring.\n"
CITATION = "title: t\nversion: 0.1.0\nlicense: l\n"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets that are made in a repository of its own."""
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "CITATION.cff").write_text(CITATION)
    (tmp_path / ".gitignore").write_text("dist\n")
    (tmp_path / "dist").mkdir()
    for name in ("NAME", "EMAIL"):
        monkeypatch.setenv(f"GIT_AUTHOR_{name}", "a@b")
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", "a@b")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Begin"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    targets: list[str] = []
    monkeypatch.setattr(release, "make", targets.append)
    return targets


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["release.py", *words])
    release.main()


def test_a_release_is_checked_dated_committed_tagged_and_built(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(monkeypatch, "0.2.0")
    assert made == ["lint", "test", "integration", "test-frameworks", "nightly", "wheels"]
    changelog = (release.ROOT / "CHANGELOG.md").read_text()
    assert changelog.startswith("# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2")
    assert changelog.endswith("\n\n### Added\n\n- A wheel.\n\n## 0.1.0 - 2026-01-02\n\n- A ring.\n")
    assert "version: 0.2.0\ndate-released: 2" in (release.ROOT / "CITATION.cff").read_text()
    assert (release.ROOT / "dist/notes.md").read_text() == "### Added\n\n- A wheel.\n"
    assert release.git("show", "--no-patch", "--format=%s", "v0.2.0^{}") == "Release 0.2.0"
    assert "### Added\n\n- A wheel." in release.git("tag", "--list", "--format=%(contents)", "v0.2.0")
    assert release.git("status", "--porcelain") == ""
    with pytest.raises(SystemExit, match="nothing under"):
        run(monkeypatch, "0.3.0")


def test_what_cannot_be_released(
    made: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="'next' is no version"):
        run(monkeypatch, "next")
    run(monkeypatch, "0.2.0", "--dry-run")
    assert capsys.readouterr().out == "### Added\n\n- A wheel.\n"
    release.git("tag", "v0.2.0")
    with pytest.raises(SystemExit, match=r"v0\.2\.0 has been tagged before"):
        run(monkeypatch, "0.2.0")
    (release.ROOT / "more").touch()
    with pytest.raises(SystemExit, match="not committed"):
        run(monkeypatch, "0.3.0")
    assert made == []
