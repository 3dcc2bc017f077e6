"""An environment of the library `verifiers` (0.1) as an environment of one's own, and its problems as a data file.

    pip install 'periplus[verifiers]' THE-ENVIRONMENTS-PACKAGE    # here and on the hosts of rollout workers
    python verifiers_env.py ENV_ID '{"ARG": VALUE}' > problems.jsonl

In the job file, beside which this file lies: environment.path "verifiers_env:Episode", environment.config with `id` and
`args`, and data.path. Each episode follows `MultiTurnEnv.rollout` of the library, with the policy in place of a client:
the environment says when the episode is done, and then its rubric gives the reward. docs/environments.md says what
does not work.
"""

import functools
import json
import sys
from typing import Any

import verifiers as vf  # type: ignore[import-not-found, unused-ignore]  # of the extra `verifiers`


@functools.cache
def loaded(env_id: str, args_json: str) -> Any:
    """Return the environment. A process plays many episodes with it."""
    return vf.load_environment(env_id, **json.loads(args_json))


def said(messages: Any) -> list[dict[str, str]]:
    """Return messages of the library, or a text, as mappings. Raises: TypeError for content that is no text."""
    listed = [vf.UserMessage(content=messages)] if isinstance(messages, str) else messages
    plain = [each if isinstance(each, dict) else each.model_dump() for each in listed]
    if strange := [each for each in plain if not isinstance(each["content"], str)]:
        raise TypeError(f"a message has content that is no text: {strange[0]!r:.200}")
    # The library reads a prompt that is a text as a message of the role `text`.
    return [{"role": "user" if each["role"] == "text" else each["role"], "content": each["content"]} for each in plain]


class Episode:
    """One episode of the environment `id` with the arguments `args`."""

    def __init__(self, id: str, args: dict[str, Any] | None = None) -> None:
        self.env = loaded(id, json.dumps(args or {}, sort_keys=True))
        self.state: Any = None
        self.messages: Any = []

    async def reset(self, item: dict[str, Any]) -> list[dict[str, str]]:
        """Begin with the row of the environment's data set that the problem names."""
        row = self.env.get_dataset()[int(item["columns"]["row"])]
        self.state = await self.env.init_state(row, vf.ClientConfig(), "policy")
        await self.env.setup_state(self.state)
        self.messages = list(await self.env.get_prompt_messages(self.state))
        return said(self.messages)

    async def step(self, completion: str) -> tuple[list[dict[str, str]] | None, float, bool]:
        """Take the policy's turn. Return the environment's answer, or the rubric's reward at the end."""
        env, state = self.env, self.state
        turn = [vf.AssistantMessage(content=completion)]
        step = {"prompt": self.messages, "completion": turn, "response": None, "tokens": None, "reward": None}
        rest = {"advantage": None, "is_truncated": False, "trajectory_id": state["trajectory_id"], "extras": {}}
        await env.add_trajectory_step(state, {**step, **rest})
        if not await env.is_completed(state):
            messages = list(await env.get_prompt_messages(state))
            # The environment may have ended the episode while it answered.
            if not await env.is_completed(state):
                answer, self.messages = messages[len(self.messages) + 1 :], messages
                return said(answer), 0.0, False
        await env.cleanup(state)
        await env.rubric.score_rollout(state)
        await env.rubric.cleanup(state)
        return None, float(state["reward"]), True


def main() -> None:
    """Print the environment's training problems as JSON lines."""
    env = loaded(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "{}")
    for number, row in enumerate(env.get_dataset()):
        answer = row.get("answer") or ""
        text = answer if isinstance(answer, str) else json.dumps(answer)
        print(json.dumps({"prompt": said(row["prompt"]), "answer": text, "row": number}))


if __name__ == "__main__":
    main()
