"""What a call may ask for: a request that stays below its endpoint's address and has nothing secret in it."""

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
def test_a_path_below_the_address_is_one(path: str) -> None:
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
def test_a_path_that_leads_elsewhere_or_is_none_is_refused(path: str) -> None:
    with pytest.raises(ValidationError, match="path"):
        CallRequest(path=path)


@given(st.text(alphabet="./%25ef2cFCAb\\", max_size=24))
def test_no_accepted_path_has_a_segment_that_goes_up_however_often_it_is_decoded(path: str) -> None:
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
def test_headers_that_are_secret_or_the_senders_are_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="headers"):
        CallRequest(headers={name: "x"})


def test_a_key_that_makes_a_request_idempotent_is_no_secret() -> None:
    assert CallRequest(headers={"Idempotency-Key": "k", "x-keys": "2"}).headers["Idempotency-Key"] == "k"


@pytest.mark.parametrize("value", ["a\r\nb", "a\x00", "é"])
def test_headers_end_with_their_line(value: str) -> None:
    with pytest.raises(ValidationError, match="headers"):
        CallRequest(headers={"x-a": value})


def test_a_body_is_json_or_text_or_bytes() -> None:
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


def test_a_query_is_said_by_names_or_as_it_is() -> None:
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
def test_what_belongs_to_other_kinds_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        a_call(**fields)


def test_what_may_be_sent_twice_may_have_retries() -> None:
    assert a_call(retries=2, request={"method": "GET"}).retries == 2
    assert a_call(retries=2, idempotent=True).retries == 2


def test_the_sdk_takes_a_get_where_there_is_no_body() -> None:
    def method(**options: Any) -> str:
        request = call_action("e", "p", **options).request
        assert request is not None
        return request.method

    assert [method(), method(json_body={}), method(body="x"), method(method="PUT")] == ["GET", "POST", "POST", "PUT"]
    with pytest.raises(ValidationFailed, match="Did you mean timeout_s"):
        call_action("e", timeout=1)  # type: ignore[call-arg]
