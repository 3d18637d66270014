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
    """What the changelog has under "Unreleased".

    Raises:
        ValueError: nothing.
    """
    _, found, after = changelog.partition(_UNRELEASED)
    notes = re.split(r"^## ", after, maxsplit=1, flags=re.M)[0].strip()
    if not found or not notes:
        raise ValueError("CHANGELOG.md has nothing under '## Unreleased'")
    return notes + "\n"


def dated_changelog(changelog: str, version: str, day: str) -> str:
    """The changelog with its unreleased section dated, and an empty one above it."""
    return changelog.replace(_UNRELEASED, f"{_UNRELEASED}\n## {version} - {day}\n", 1)


def dated_citation(citation: str, version: str, day: str) -> str:
    """CITATION.cff of this version."""
    lines = [line for line in citation.splitlines() if not line.startswith(("version:", "date-released:"))]
    return "\n".join([*lines, f"version: {version}", f"date-released: {day}", ""])


def refusal(version: str) -> str:
    """Why this version cannot be released from this checkout; "" if it can."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        return f"{version!r} is no version: write VERSION=0.2.0"
    if git("tag", "--list", f"v{version}"):
        return f"v{version} has been tagged before"
    return ""


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
    version, day = options.version, datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    changelog, citation = ROOT / "CHANGELOG.md", ROOT / "CITATION.cff"
    try:
        notes = notes_of(changelog.read_text())
    except ValueError as error:
        sys.exit(str(error))
    if reason := refusal(version):
        sys.exit(reason)
    if options.dry_run:
        print(notes, end="")
        return
    if git("status", "--porcelain"):
        sys.exit("there are changes that are not committed")
    for target in CHECKS:
        make(target)
    changelog.write_text(dated_changelog(changelog.read_text(), version, day))
    citation.write_text(dated_citation(citation.read_text(), version, day))
    git("commit", "--all", "--message", f"Release {version}")
    git("tag", "--annotate", f"v{version}", "--cleanup=verbatim", "--message", f"pycollective {version}\n\n{notes}")
    make("wheels")  # named after the tag
    (ROOT / "dist" / "notes.md").write_text(notes)
    print(f"v{version} is ready: git push --follow-tags, and publish dist with dist/notes.md")


if __name__ == "__main__":
    main()
