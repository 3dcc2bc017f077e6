"""Finds the final answer in a completion that may hold thoughts and an answer section, marked by tags.

    <think>so I get 15 ... no, 12</think><answer>12</answer>     ->  12

The thoughts are what precedes the last `</think>`; a chat template may have put `<think>` into the prompt. The answer
is the last section `<answer>` of the rest, up to its end tag or the end of the text. Without a section the rest itself
is the answer, and so a completion without tags is its own answer. Of thoughts that do not end, only an answer section
in them is an answer.
"""

import re

_END_OF_THOUGHTS = re.compile(r"<\s*/\s*think\s*>", re.IGNORECASE)
_THOUGHTS = re.compile(r"<\s*think\s*>", re.IGNORECASE)
_SECTION = re.compile(r"<\s*answer\s*>", re.IGNORECASE)
_END_OF_SECTION = re.compile(r"<\s*/\s*answer\s*>", re.IGNORECASE)


def after_thoughts(completion: str) -> str | None:
    """Return what follows the thoughts: all of a completion without thoughts, and None if they do not end."""
    *_, rest = _END_OF_THOUGHTS.split(completion)
    return None if _THOUGHTS.search(rest) else rest


def answer_section(text: str) -> str | None:
    """Return the content of the last answer section, or None if the text has none."""
    _, *sections = _SECTION.split(text)
    return _END_OF_SECTION.split(sections[-1])[0] if sections else None


def final_answer(completion: str) -> str | None:
    """Return the final answer of a completion, or None if its thoughts do not end and have no answer section."""
    rest = after_thoughts(completion)
    section = answer_section(completion if rest is None else rest)
    return rest if section is None else section


def is_answer(completion: str, answer: str) -> bool:
    """Return whether the completion, or its final answer, is the answer up to white space around them."""
    final = final_answer(completion)
    return answer.strip() in (completion.strip(), None if final is None else final.strip())
