"""Progress of one request under the policies that hexserve's scheduler is compared with."""

from dataclasses import dataclass

from tools.simulate.load import Job


@dataclass(slots=True)
class RequestProgress:
    """computed: tokens whose keys and values are cached. emitted: tokens that came out; the newest is not cached."""

    job: Job
    computed: int = 0
    emitted: int = 0

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that are not cached."""
        return max(0, self.job.prompt - self.computed)

    @property
    def is_finished(self) -> bool:
        """Whether every token came out."""
        return self.emitted == self.job.output

    def advance(self, rows: int) -> tuple[tuple[int, int], ...]:
        """Compute so many more rows: the next token, if they reached it, as (job, token)."""
        self.computed += rows
        if self.prompt_left:
            return ()
        self.emitted += 1
        return ((self.job.number, self.emitted - 1),)
