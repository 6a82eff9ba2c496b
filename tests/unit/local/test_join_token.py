"""Test join tokens: what a node sends, and who can decrypt the credentials."""

import pytest

from arl_local.join.join_token import InvalidJoinToken, JoinToken

CREDENTIALS = {"name": "n", "secrets": {"service_token": "s"}}


def test_token_survives_its_text_form() -> None:
    token = JoinToken.generate()
    assert JoinToken.parse(f" {token}\n") == token


@pytest.mark.parametrize(
    "text", ["", "tk_0123", "tj_", "tj_0123456789ab", "tj_0123456789ab_short", "tj_zz_" + "x" * 43]
)
def test_text_that_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(InvalidJoinToken, match="join-token create"):
        JoinToken.parse(text)


def test_request_and_stored_hash_do_not_contain_the_secret() -> None:
    token = JoinToken.generate()
    assert token.secret not in token.authorization
    assert token.secret.encode() not in token.proof_hash


def test_only_the_same_token_decrypts_the_credentials() -> None:
    token = JoinToken.generate()
    encrypted = token.encrypt(CREDENTIALS)
    assert token.decrypt(encrypted) == CREDENTIALS
    with pytest.raises(InvalidJoinToken, match="not made for this token"):
        JoinToken(token.id, JoinToken.generate().secret).decrypt(encrypted)
