"""Secrets are removed from an endpoint's response in every encoding in which they occur."""

import json
from base64 import b64encode
from html import escape
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl_api.redaction import REDACTED, SecretRedactor

KEY = 'a+b/c==Qq"x&y z'


@pytest.mark.parametrize(
    "form",
    [
        *(KEY, quote(KEY), quote(KEY, safe=""), quote_plus(KEY), json.dumps(KEY)[1:-1], escape(KEY)),
        json.dumps(KEY)[1:-1].replace("/", "\\/"),
        *(
            quote(KEY).replace("%2B", "%2b"),
            KEY.replace("+", "\\u002B").replace("=", "\\u003d"),
            KEY.replace("&", "&#38;"),
        ),
    ],
)
def test_secret_is_redacted_in_every_encoding(form: str) -> None:
    assert SecretRedactor([KEY]).redact(f"<{form}>".encode()) == b"<" + REDACTED + b">"


def test_token_and_basic_password_inside_headers_are_redacted() -> None:
    basic = b64encode(b"user:pass-word").decode()
    hiding = SecretRedactor(["Bearer sk-0123456789", f"Basic {basic}"])
    assert hiding.redact(b"sk-0123456789 pass-word " + basic.encode()) == b" ".join([REDACTED] * 3)


def test_ordinary_text_and_too_short_secrets_are_not_redacted() -> None:
    assert (
        SecretRedactor(["abc", "sk-0123456789"]).redact(b"abc application/json 2024-06-01")
        == b"abc application/json 2024-06-01"
    )


@given(st.text("abc", min_size=4, max_size=12), st.lists(st.text("xyz", max_size=6), max_size=6), st.integers(0, 80))
def test_truncated_response_contains_no_partial_secret(secret: str, between: list[str], cut: int) -> None:
    content = f"x{secret}y".join(between).encode()[:cut]
    assert not set(b"abc") & set(SecretRedactor([secret]).redact_truncated(content))
