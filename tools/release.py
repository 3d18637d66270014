"""Prepares a release: `make release VERSION=0.2.0`. Nothing is pushed.

Runs all three tiers of tests, dates the changelog's section and CITATION.cff, commits and tags, and builds the sdist
and wheels of that version with their notes in dist. ARGS=--dry-run only shows the notes.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECKS = ("lint", "test", "integration", "test-frameworks", "nightly")
_UNRELEASED = "## Unreleased\n"


def notes_of(changelog: str) -> str:
    """What the changelog has under "Unreleased"; SystemExit if that is nothing."""
    _, found, after = changelog.partition(_UNRELEASED)
    notes = re.split(r"^## ", after, maxsplit=1, flags=re.M)[0].strip()
    if not found or not notes:
        sys.exit("CHANGELOG.md has nothing under '## Unreleased'")
    return notes + "\n"


def date_files(version: str) -> None:
    """Date the changelog's unreleased section, with an empty one above it, and write CITATION.cff of this version."""
    day = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    changelog, citation = ROOT / "CHANGELOG.md", ROOT / "CITATION.cff"
    changelog.write_text(changelog.read_text().replace(_UNRELEASED, f"{_UNRELEASED}\n## {version} - {day}\n", 1))
    kept = [line for line in citation.read_text().splitlines() if not line.startswith(("version:", "date-released:"))]
    citation.write_text("\n".join([*kept, f"version: {version}", f"date-released: {day}", ""]))


def git(*words: str) -> str:
    return subprocess.check_output(["git", *words], cwd=ROOT, text=True).strip()


def make(target: str) -> None:
    if subprocess.run(["make", target], cwd=ROOT, check=False).returncode:
        sys.exit(f"make {target} failed: there is no release")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("version")
    parser.add_argument("--dry-run", action="store_true", help="only show the notes")
    options = parser.parse_args()
    version, notes = options.version, notes_of((ROOT / "CHANGELOG.md").read_text())
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit(f"{version!r} is no version: write VERSION=0.2.0")
    if git("tag", "--list", f"v{version}"):
        sys.exit(f"v{version} has been tagged before")
    if options.dry_run:
        print(notes, end="")
        return
    if git("status", "--porcelain"):
        sys.exit("there are changes that are not committed")
    for target in CHECKS:
        make(target)
    date_files(version)
    git("commit", "--all", "--message", f"Release {version}")
    git("tag", "--annotate", f"v{version}", "--cleanup=verbatim", "--message", f"pycollective {version}\n\n{notes}")
    make("wheels")  # named after the tag
    (ROOT / "dist" / "notes.md").write_text(notes)
    print(f"v{version} is ready: git push --follow-tags, and publish dist with dist/notes.md")


if __name__ == "__main__":
    main()
