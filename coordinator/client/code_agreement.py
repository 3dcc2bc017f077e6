"""Shows the code that would travel with a job, and has the person who submits the job agree to it.

The code runs on machines of other regions. What is agreed to are the digests in the job: trainer and workers refuse any
other content.
"""

import sys

import click

from periplus.errors import ConfigError
from periplus.job.job_file import JobFile
from periplus.job.reward_code import read_code
from periplus.view.terminal.visible import say

DIGEST_CHARACTERS = 16
"""Characters of a digest that are shown. They tell versions of a file apart; the job has the whole digest."""


def show_code(job: JobFile) -> None:
    """Print each file of the job's own code to standard error, with its size and digest; nothing without such code.

    Raises: ConfigError if a file has changed since the job was made.
    """
    contents = read_code(job.reward, job.environment)
    if contents:
        say("code that travels with this job, and runs on its rollout workers:", err=True)
    for name, content in sorted(contents.items()):
        digest = job.code_digests[name][:DIGEST_CHARACTERS]
        say(f"  {name}  {len(content)} bytes  blake3 {digest}", err=True)


def agree_to_code(job: JobFile, *, is_agreed: bool) -> None:
    """Ask whether the job's own code may be sent, unless `is_agreed`. Raises: ConfigError without an agreement."""
    if is_agreed or not job.has_own_code:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            "this job sends code of its own to other machines (see above), and nobody can be asked here whether it "
            "may; read the code, and submit with --allow-code"
        )
    if not click.confirm("send this code to the regions of the job?", err=True):
        raise ConfigError(
            "the code was not agreed to, so nothing was submitted; change reward.functions or environment.path"
        )
