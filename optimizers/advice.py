"""What to try next where a compile gained nothing."""

from optimizers.job import Job

__all__ = ("advice",)

_FEW = 100
"""Training samples below which more of them are worth more than another recipe."""


def advice(job: Job) -> str:
    """Return in one line what has not been tried yet, the most promising first."""
    count, tried = len(job.samples("train")), set(job.optimizers)
    ways = []
    if count < _FEW:
        ways.append(f"more labelled training samples ({count} now)")
    if job.embedded:
        recipes = ("random-search,fusion", "labeled --demos all")
    elif job.reflection is not None:
        recipes = ("gepa", "mipro", "random-search,fusion")
    else:
        recipes = ("random-search,fusion", "bootstrap")
    # A recipe that was left out for want of samples is named as well: the first way is its mend.
    ways += [f"--optimizer {names}" for names in recipes if not set(names.partition(" ")[0].split(",")) <= tried]
    if "random-search" in tried or not job.embedded:
        ways.append("--repeat 3 (other seeds)")
    ways.append("a language model, --lm PROVIDER/MODEL" if job.embedded else "a stronger model's demos, --teacher-lm MODEL")
    return f"to try next: {'; '.join(ways)}"
