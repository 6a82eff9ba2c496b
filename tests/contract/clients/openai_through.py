"""Use OpenAI's client through a broker: `openai_through.py PACKAGES URL KEY` prints what it read."""

import json
import sys

sys.path.append(sys.argv[1])

import openai

ASKED = [{"role": "user", "content": "?"}]


def main(url: str, key: str) -> None:
    said = {}
    with openai.OpenAI(base_url=url, api_key=key) as client:
        said["answer"] = client.chat.completions.create(model="m", messages=ASKED).choices[0].message.content
        stream = client.chat.completions.create(model="m", messages=ASKED, stream=True)
        said["streamed"] = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        try:
            client.chat.completions.create(model="unknown", messages=ASKED)
        except openai.NotFoundError as error:
            said["refused"] = error.message
        try:
            client.chat.completions.create(model="lost", messages=ASKED)
        except openai.InternalServerError as error:
            said["lost"] = error.status_code
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[2:])
