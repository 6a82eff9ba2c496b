"""Use OpenAI's client, unmodified: `openai_chat.py PACKAGES URL KEY` prints what it read as JSON."""

import json
import sys

sys.path.append(sys.argv[1])

import openai

ASKED = [{"role": "user", "content": "say:yes|no"}]


def main(url: str, key: str) -> None:
    said = {}
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0) as client:
        answer = client.chat.completions.create(model="judge", messages=ASKED, n=2, temperature=0.5, logprobs=True)
        said["answers"] = [choice.message.content for choice in answer.choices]
        said["tokens"] = answer.usage.completion_tokens
        said["models"] = [each.id for each in client.models.list()]
        try:
            client.chat.completions.create(model="judge", messages=ASKED, stream=True)
        except openai.BadRequestError as error:
            said["refused"] = [error.type, error.param]
    with openai.OpenAI(base_url=url, api_key="tk_wrong", max_retries=0) as client:
        try:
            client.models.list()
        except openai.AuthenticationError as error:
            said["unknown"] = error.status_code
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[2:])
