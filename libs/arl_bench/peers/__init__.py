"""Programs, each a server of the same forward as somebody else's framework would have it. Nothing here is imported.

`PEER_SERVICE`, `PEER_PORT`, `PEER_BATCH` and, for files that it leaves, `PEER_DIRECTORY` say what to serve and where.
Each answers `POST /get_reward` with `{"query": [text], "prompts": [reference]}` by `{"rewards": [score]}`.
"""
