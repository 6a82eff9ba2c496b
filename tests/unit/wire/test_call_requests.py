"""Rules for call requests: paths stay below the endpoint's address and nothing in them is secret."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from arl_tangram import call_action
from arl_wire.actions.action import SubmitActionRequest
from arl_wire.calls import CallRequest
from arl_wire.errors import ValidationFailed


def a_call(**fields: Any) -> SubmitActionRequest:
    return SubmitActionRequest.model_validate({"task": "t", "kind": "call", "endpoint": "e", "request": {}, **fields})


@pytest.mark.parametrize("path", ["v1/search", "/v1/search", "a%20b", "%C3%A9", "a/b..c", "@evil/x", "http:/x", "a:b"])
def test_path_below_the_endpoint_address_is_accepted(path: str) -> None:
    assert CallRequest(path=path).path == path.removeprefix("/")


@pytest.mark.parametrize(
    "path",
    [
        *(
            "..",
            "a/../b",
            "a/%2e%2e/b",
            "a/%252e%252E/b",
            "./a",
            "%2e/a",
            "..%2fadmin",
            "..;/admin",
            "..;x=y/a",
            "%c0%ae%c0%ae/a",
            "a%5c..%5cb",
            "a\\b",
            "a?b=c",
        ),
        *("a#b", "a b", "a\r\nX: y", "a%0d%0aX", "\x00", "é"),
    ],
)
def test_escaping_or_invalid_path_is_rejected(path: str) -> None:
    with pytest.raises(ValidationError, match="path"):
        CallRequest(path=path)


@given(st.text(alphabet="./%25ef2cFCAb\\", max_size=24))
def test_accepted_path_never_escapes_after_repeated_decoding(path: str) -> None:
    from urllib.parse import unquote

    try:
        accepted = CallRequest(path=path).path
    except ValidationError:
        return
    for _ in range(12):
        assert not {".", ".."} & set(accepted.replace("\\", "/").split("/"))
        accepted = unquote(accepted)


SECRET_NAMES = (
    *("Authorization", "Proxy-Authorization", "cookie", "X-API-Key", "x-goog-api-key", "X-Subscription-Token"),
    *("Ocp-Apim-Subscription-Key", "x-rapidapi-key", "private-token", "x-auth-token", "apikey"),
)


@pytest.mark.parametrize("name", [*SECRET_NAMES, "Host", "Content-Length", "a b", "", "é"])
def test_secret_or_reserved_header_is_rejected(name: str) -> None:
    with pytest.raises(ValidationError, match="headers"):
        CallRequest(headers={name: "x"})


def test_idempotency_key_header_is_not_secret() -> None:
    assert CallRequest(headers={"Idempotency-Key": "k", "x-keys": "2"}).headers["Idempotency-Key"] == "k"


@pytest.mark.parametrize("value", ["a\r\nb", "a\x00", "é"])
def test_header_value_with_invalid_characters_is_rejected(value: str) -> None:
    with pytest.raises(ValidationError, match="headers"):
        CallRequest(headers={"x-a": value})


def test_body_is_json_text_or_bytes() -> None:
    assert (CallRequest(json_body={"a": "é"}).content, CallRequest(json_body=[]).content) == (
        '{"a": "é"}'.encode(),
        b"[]",
    )
    assert (CallRequest(body="é").content, CallRequest().content) == ("é".encode(), b"")
    assert CallRequest.model_validate({"base64": "/wA=", "method": "GET"}).content == b"\xff\x00"
    for wrong in (
        {"json_body": 1, "body": "x"},
        {"base64": "eA==", "body": "x"},
        {"base64": "x"},
        {"method": "HEAD", "body": "x"},
        {"body": "\ud800"},
        {"json_body": {"q": "\ud800"}},
    ):
        with pytest.raises(ValidationError):
            CallRequest.model_validate(wrong)
    deep: Any = 1
    for _ in range(70):
        deep = [deep]
    for unwritable in (deep, float("nan")):
        with pytest.raises(ValidationError, match=r"json_body|JSON"):
            CallRequest(json_body=unwritable)


def test_query_is_given_by_names_or_raw() -> None:
    assert CallRequest(raw_query="flag&a=%20b&c=+d&a").raw_query == "flag&a=%20b&c=+d&a"
    for wrong in (
        {"raw_query": "a=b c"},
        {"raw_query": "a#b"},
        {"raw_query": "é"},
        {"raw_query": "a", "query": {"b": "c"}},
    ):
        with pytest.raises(ValidationError):
            CallRequest.model_validate(wrong)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"endpoint": None}, "needs an endpoint and a request"),
        ({"request": None}, "needs an endpoint and a request"),
        ({"argv": ["true"]}, "remove argv"),
        ({"environment": {"scope": "trajectory"}, "trajectory": "r"}, "remove environment"),
        ({"demand": {"cpu": 2}}, "remove demand"),
        ({"service": "minilm", "items": [{"text": "a"}]}, "does not score items"),
        ({"retries": 1}, "retries could send this POST request twice"),
        ({"kind": "exec", "argv": ["true"]}, "does not call an endpoint"),
    ],
)
def test_fields_of_other_action_kinds_are_rejected(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        a_call(**fields)


def test_idempotent_call_may_have_retries() -> None:
    assert a_call(retries=2, request={"method": "GET"}).retries == 2
    assert a_call(retries=2, idempotent=True).retries == 2


def test_sdk_call_without_body_uses_get() -> None:
    def method(**options: Any) -> str:
        request = call_action("e", "p", **options).request
        assert request is not None
        return request.method

    assert [method(), method(json_body={}), method(body="x"), method(method="PUT")] == ["GET", "POST", "POST", "PUT"]
    with pytest.raises(ValidationFailed, match=r"timeout: unknown option\. Did you mean timeout_s"):
        call_action("e", timeout=1)  # type: ignore[call-arg]
