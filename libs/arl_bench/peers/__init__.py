"""Programs that serve the same forward with other frameworks. This package imports none of them.

`PEER_SERVICE`, `PEER_PORT`, `PEER_BATCH` and, for the server's files, `PEER_DIRECTORY` configure a program. Each
answers `POST /get_reward` with `{"query": [text], "prompts": [reference]}` by `{"rewards": [score]}`.
"""
