"""The numbers of a job's problems: how many there are, how many are left out and why, and what the others are for."""

from dataclasses import asdict, dataclass

WARNED_SHARE = 0.5
"""Share of the problems that may be left out without a warning at submit. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemCounts:
    """Numbers of problems. A problem that is left out is counted by the first of the reasons that it meets.

    `filtered` are rows that the filters left out; they are no problems, and `total` does not count them.
    """

    total: int
    filtered: int
    long: int
    evaluated: int
    repeated: int
    warmup: int
    held_out: int

    @property
    def left_out(self) -> int:
        """The number of problems that are used for nothing."""
        return self.long + self.evaluated + self.repeated

    @property
    def train(self) -> int:
        """The number of problems to train on."""
        return max(0, self.total - self.left_out - self.warmup - self.held_out)

    @property
    def is_mostly_left_out(self) -> bool:
        """Whether so many problems are left out that a person should know before the job runs."""
        return self.left_out > WARNED_SHARE * self.total

    def values(self) -> dict[str, float]:
        """Return the numbers under the names of the metric registry."""
        counts = {**asdict(self), "train": self.train, "left_out": self.left_out}
        return {f"problems_{name}": float(value) for name, value in counts.items()}

    def sentence(self, prompt_tokens: int) -> str:
        """Return the numbers as a sentence for a person; `prompt_tokens` is the job's bound on prompts."""

        def of_all(number: int, which: str) -> str:
            return f"{number} of {self.total} problems ({number / self.total:.0%}) {which}" if number else ""

        used = [f"{self.train} problems to train on", f"{self.held_out} held out"]
        used += [f"{self.warmup} for the warm-up"] if self.warmup else []
        reasons = [
            f"{self.filtered} rows by filters" if self.filtered else "",
            of_all(self.long, f"with prompts longer than sampling.prompt_tokens={prompt_tokens}"),
            of_all(self.evaluated, "of evaluation sets"),
            of_all(self.repeated, "that repeat another prompt"),
        ]
        left_out = ", ".join(filter(None, reasons)) or "nothing"
        return f"{', '.join(used)}; left out: {left_out}"
