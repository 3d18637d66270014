"""How an elastic job ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Outcome:
    """The exit code and the reason; the first one counts.

    Attributes:
        code: None while the job runs.
        failure: why it has failed, one sentence.
        failed: the first exit code of this generation that is not 0; 0: none.
    """

    code: int | None = None
    failure: str = ""
    failed: int = 0

    def end(self, code: int, failure: str = "") -> None:
        """The job ends, unless it has already."""
        if self.code is None:
            self.code, self.failure = code, failure

    def fail(self, reason: str) -> None:
        """The job fails, with the exit code of a worker if one has failed."""
        self.end(self.failed or 1, reason)
