"""Requests from the gateway to admission that change reward services. They may change with any version."""

from pydantic import BaseModel

from arl_wire.reward_services.service import RegisterRewardServiceRequest, ServiceOperation
from arl_wire.scores import ServiceName

__all__ = ["InternalRegisterServiceRequest", "RemoveServiceRequest", "RemoveServiceResponse", "ServiceOperationRequest"]


class InternalRegisterServiceRequest(BaseModel):
    """The registration of a reward service."""

    service: RegisterRewardServiceRequest


class ServiceOperationRequest(BaseModel):
    """An operation on a reward service."""

    name: ServiceName
    verb: ServiceOperation


class RemoveServiceRequest(BaseModel):
    """A request to remove a registered reward service."""

    name: ServiceName


class RemoveServiceResponse(BaseModel):
    """The result of removing a service: removed, or the number of unsettled actions that name it."""

    removed: bool
    unsettled: int
