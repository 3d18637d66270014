"""The list of phrases that the project does not use."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import phrases


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(phrases, "HOME", tmp_path)
    return tmp_path


def found(repository: Path, text: str) -> int:
    (repository / "page.md").write_text(text)
    subprocess.run(["git", "add", "-A"], cwd=repository, check=True)
    return phrases.main([])


PHRASES = ["The call is through.", "the array lies in a window", "It says no.", "whoever comes", "it goes its way"]
PHRASES += ["NCCL is not to be had", '"""Of a rank."""']
PLAIN = ["The call has completed.", "reliable, essay, client", "the data is sent through a socket"]


def test_phrases_of_the_list_are_found_and_plain_english_is_not(repository: Path) -> None:
    assert [text for text in [*PHRASES, *PLAIN] if found(repository, text)] == PHRASES


def test_this_repository_has_none() -> None:
    assert phrases.main([]) == 0
