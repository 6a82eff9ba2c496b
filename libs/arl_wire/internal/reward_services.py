"""Changes of reward services that the gateway asks of admission. They may change with any version."""

from pydantic import BaseModel

from arl_wire.reward_services.service import RegisterServiceRequest, ServiceOperation
from arl_wire.scores import ServiceName

__all__ = ["InternalRegisterServiceRequest", "RemoveServiceRequest", "RemoveServiceResponse", "ServiceOperationRequest"]


class InternalRegisterServiceRequest(BaseModel):
    service: RegisterServiceRequest


class ServiceOperationRequest(BaseModel):
    name: ServiceName
    verb: ServiceOperation


class RemoveServiceRequest(BaseModel):
    name: ServiceName


class RemoveServiceResponse(BaseModel):
    """Whether it is gone; how many actions that name it have not settled keeps it."""

    removed: bool
    unsettled: int
