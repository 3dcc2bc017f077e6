"""Probes of a health service, with the stub of grpcio-health-checking and without a certificate."""

from collections.abc import AsyncGenerator

from grpc_health.v1 import health_pb2, health_pb2_grpc

from periplus.net import rpc

DEADLINE_S = 20.0


async def probed(address: str, service: str = "") -> str:
    """The name of the status that the service has now."""
    async with rpc.channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE_S)
        return _name(answer)


async def watched(address: str, service: str = "") -> AsyncGenerator[str, None]:
    """The names of the statuses that the service has from now on."""
    async with rpc.channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        async for answer in stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE_S):
            yield _name(answer)


def _name(answer: health_pb2.HealthCheckResponse) -> str:
    name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return name
