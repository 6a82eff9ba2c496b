"""Network policies in the form in which clients set them, and the use of the network by an action."""

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    Tag,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from arl_core.network.policy import MAX_TARGETS, POLICY_NAME, parse_target
from arl_wire.validation import StrictModel

__all__ = [
    "ACTION_NETWORK_DESCRIPTION",
    "NETWORK_DESCRIPTION",
    "NetworkAllowList",
    "NetworkRefusal",
    "NetworkSetting",
    "NetworkUsage",
    "PolicyName",
    "UpdateEnvironmentRequest",
]

MAX_LIST_CHARACTERS = 16 << 10
MAX_ADDRESSES = 1 << 20
"""Public IPv4 addresses of a list. More would be `open` by another name, which operators allow or not."""

NETWORK_DESCRIPTION = (
    "`none`: no network. `open`: every public address. An object with `allow`: only the listed hosts. Any other text is"
    " the name of a policy that the operator has defined, such as `package-mirrors`. Private, loopback and link-local"
    " addresses are always refused unless the operator permits them"
)
ACTION_NETWORK_DESCRIPTION = (
    "Network of this action only; for kind `environment.create`, of the environment. Absent: the environment's. Forms:"
    ' `none`, `open`, `{"allow": [...]}`, or the name of a policy'
)


def _canonical_target(text: str) -> str:
    return str(parse_target(text))


NetworkTarget = Annotated[str, StringConstraints(min_length=1, max_length=300), AfterValidator(_canonical_target)]


class NetworkAllowList(StrictModel):
    """The only hosts that programs may reach."""

    allow: list[NetworkTarget] = Field(
        min_length=1,
        max_length=MAX_TARGETS,
        description="Hosts: `pypi.org`, `*.github.com` for all names below it, an address, or a network such as"
        " `10.1.0.0/16`. Each may end with a port, as in `pypi.org:443`. Without one, ports 80 and 443 are allowed",
    )

    @field_validator("allow")
    @classmethod
    def _check_size(cls, allow: list[str]) -> list[str]:
        if sum(map(len, allow)) > MAX_LIST_CHARACTERS:
            raise ValueError(
                f"the hosts have more than {MAX_LIST_CHARACTERS} characters in all: use patterns such as *.HOST"
            )
        networks = [network for each in allow if (network := parse_target(each).network) is not None]
        if sum(each.num_addresses for each in networks if each.version == 4 and not each.is_private) > MAX_ADDRESSES:
            raise ValueError(
                f"the networks have more than {MAX_ADDRESSES} public addresses in all: use the policy `open`"
            )
        return allow


def _form(setting: Any) -> str:
    return "name" if isinstance(setting, str) else "hosts"


class _AnyOf:
    """Describe a union as `anyOf`: generators of clients name the forms of `oneOf` after reserved words."""

    @staticmethod
    def __get_pydantic_json_schema__(schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        found = handler(schema)
        return {"anyOf" if name == "oneOf" else name: value for name, value in found.items()}


PolicyName = Annotated[str, StringConstraints(pattern=f"^{POLICY_NAME.pattern}$")]
NetworkSetting = Annotated[
    Annotated[PolicyName, Tag("name")] | Annotated[NetworkAllowList, Tag("hosts")], Discriminator(_form), _AnyOf
]


class UpdateEnvironmentRequest(StrictModel):
    """A change of a live environment."""

    network: NetworkSetting = Field(description=NETWORK_DESCRIPTION)


class NetworkRefusal(BaseModel):
    """A target that a program tried to reach and that was refused."""

    host: str
    port: int
    reason: str = Field(
        description="`not_allowed`: the policy does not list it. `private`, `loopback`, `link_local`, `multicast`,"
        " `metadata`, `reserved`, `this_host` or `own_machine`: the kind of its address. `name_mismatch`: a request"
        " named another host than its connection. `invalid`: the request could not be parsed. `too_many`: too many"
        " connections of the environment. `port_in_use`: a program inside uses a port of the proxy"
    )
    count: int = 1


class NetworkUsage(BaseModel):
    """The use of the network by an action."""

    sent_bytes: int = 0
    received_bytes: int = 0
    refusals: list[NetworkRefusal] = []
    more_refusals: int = Field(default=0, description="Refusals of further targets, which are not listed")
    interruptions: int = Field(
        default=0,
        description="Failures of the node's egress process during the action. If the program failed, the outcome is"
        " `infra_error`",
    )
