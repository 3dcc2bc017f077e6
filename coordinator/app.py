"""The composition root of the coordinator process: it builds the parts, owns the tasks and stops them in order.

This is the only module, beside `__main__`, that constructs objects with I/O: the gRPC server, the store, the writer and
the planner's call. The configuration is taken apart here; the parts get plain values. Time comes from
the monotonic clock, so that a change of the machine's clock moves no deadline.
"""

import asyncio
import contextlib
import importlib.metadata
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc.aio

from coordinator.config import CoordinatorConfig
from coordinator.events import FleetEvent, FleetEventKind, PlanFinished, RunPlanner
from coordinator.exported.mqtt_publisher import MqttBroker, MqttPublisher, publishing
from coordinator.exported.samples import coordinator_samples
from coordinator.members.membership import Membership
from coordinator.planning import architecture_of, planned
from coordinator.service import CoordinatorService
from coordinator.state import JobRequest, Settings, State
from coordinator.store import Store, open_store
from coordinator.writer import Writer
from periplus import clock
from periplus.errors import ConfigError
from periplus.job.job_file import JobFile
from periplus.net import rpc
from periplus.net.health import OVERALL, answering_probes
from periplus.net.tokens import TokenGuard, read_token
from periplus.pb.v1 import control_pb2, control_pb2_grpc
from periplus.process.exported_metrics import COORDINATOR_METRICS, ExportedSample
from periplus.process.lifecycle import ShutdownReason, wait_for_stop, write_ready_file
from periplus.process.metrics_endpoint import exporting
from periplus.process.telemetry import event as log_event
from periplus.values.machine import DeviceCount
from periplus.wan.client import address_resolver
from planner.answer.outcome import BudgetExhausted, Found
from planner.files.capabilities import load_capabilities
from planner.files.hub_checkpoint import published_bytes
from planner.plan import Plan, PlanOutcome
from planner.problem.fleet import Fleet
from planner.simulated_plan import simulated_plan
from planner.solve import Thinking, plan_job

log = logging.getLogger(__name__)

COORDINATOR = control_pb2.DESCRIPTOR.services_by_name["Coordinator"].full_name

STOP_GRACE_S = 2.0
"""Seconds that open streams have to deliver their last message when the server stops; chosen by hand."""

PLAN_BUDGET_S = 10.0
"""Seconds that the planner may search for one job; chosen by hand, because an operator waits for the answer."""

SIMULATED_STEPS, SIMULATION_S = 8, 1.0
"""Steps of a job's plan that are simulated, and the seconds after which it is left unsimulated. Chosen by hand: eight
steps of `examples/spelling.yaml` on three regions take 0.03 s on two cores."""


async def run(config: CoordinatorConfig, ready_file: Path | None, stop_on_stdin_eof: bool) -> ShutdownReason:
    """Serve until the process is asked to stop, and return what asked it.

    Raises: Conflict if the port or the state directory is in use, Unreachable if the WAN emulator does not answer,
    ConfigError if the state directory, the ready file or the token file cannot be used, StorageError.
    """
    log_event(log, logging.INFO, "coordinator_config", **config.model_dump())
    with contextlib.closing(open_store(config.state_dir)) as store:
        membership = None if config.plaintext else Membership(store, clock.unix_s)
        server = (
            rpc.server(membership.admit, membership.calls)
            if membership
            else rpc.server(_token_admission(config.token_file))
        )
        address = rpc.bind(
            server, config.listen, rpc.ServerIdentity(current=membership.own_identity) if membership else None
        )
        token = read_token(config.token_file) if config.token_file else ""
        async with address_resolver(config.region, config.wan or None, token) as resolver:
            await resolver.announce(address)
        with rpc.ungrouped():
            async with served(config, server, store, membership) as others:
                return await _until_stopped({"coordinator": address, **others}, ready_file, stop_on_stdin_eof)


def _token_admission(file: Path | None) -> rpc.Admission | None:
    """Return what asks callers for the token of a file; None without one. Raises: what `read_token` raises."""
    if file is None:
        return None
    guard = TokenGuard(file)
    return lambda call: guard.check(call.metadata)


async def _until_stopped(
    addresses: Mapping[str, str], ready_file: Path | None, stop_on_stdin_eof: bool
) -> ShutdownReason:
    def ready() -> None:
        if ready_file:
            write_ready_file(ready_file, addresses)
        log_event(log, logging.INFO, "coordinator_ready", address=addresses["coordinator"])

    reason = await wait_for_stop(stop_on_stdin_eof, on_waiting=ready)
    log_event(log, logging.INFO, "coordinator_stopping", reason=reason)
    return reason


@asynccontextmanager
async def serving(config: CoordinatorConfig, server: grpc.aio.Server) -> AsyncIterator[dict[str, str]]:
    """Run a coordinator without identities behind `server`, which is already bound to its port.

    Both stop when the context ends.

    Yield the addresses of its metrics and its health service, by these names, if it has them. Raises: Conflict if
    another coordinator uses the state directory or a port is in use, ConfigError, StorageError.
    """
    with contextlib.closing(open_store(config.state_dir)) as store:
        async with served(config, server, store, None) as others:
            yield others


@asynccontextmanager
async def served(
    config: CoordinatorConfig, server: grpc.aio.Server, store: Store, membership: Membership | None
) -> AsyncIterator[dict[str, str]]:
    now_s, authority = _steady_unix_s(), store.authority()
    public_key, version = authority.public_key.hex(), importlib.metadata.version("periplus")
    log_event(log, logging.INFO, "job_authority", public_key=public_key, state_dir=config.state_dir or "none")
    state = store.load(State(settings=_settings(config), authority_key=public_key), now_s())
    num_live = sum(not job.ended for job in state.jobs.values())
    text = f"version {version}; {len(state.regions)} regions and {len(state.jobs)} jobs are known, {num_live} not ended"
    before_start = store.newest_event()
    store.write((), [FleetEvent(FleetEventKind.COORDINATOR_STARTED, text)], now_s())
    log_event(log, logging.INFO, "coordinator_started", text=text)
    writer = Writer(state, store, now_s, _plan)
    service = CoordinatorService(writer, config.heartbeat_s, version, _job_id, authority, membership)
    control_pb2_grpc.add_CoordinatorServicer_to_server(service, server)

    def samples() -> Iterator[ExportedSample]:
        return coordinator_samples(writer.state, now_s(), version)

    publisher = _mqtt_publisher(config, writer, before_start, version)
    serves = asyncio.Event()

    def health() -> dict[str, bool]:
        return dict.fromkeys((OVERALL, COORDINATOR), serves.is_set())

    # The server starts after the writer's tasks, because its calls wait for events to be applied.
    async with (
        exporting(config.metrics_listen, COORDINATOR_METRICS, samples) as metrics,
        answering_probes(config.health_listen, health) as probed,
        publishing(publisher),
        asyncio.TaskGroup() as tasks,
    ):
        running = [tasks.create_task(work()) for work in (writer.run, writer.run_planner, writer.run_ticks)]
        try:
            await server.start()
            serves.set()
            yield {name: at for name, at in (("metrics", metrics), ("health", probed)) if at}
        finally:
            serves.clear()
            # Open streams end first, with an error that tells agents and watchers to try again. The server then has
            # only short calls to wait for, and they still need the writer. The tasks run without end, so that they must
            # be cancelled.
            writer.close()
            await server.stop(STOP_GRACE_S)
            for task in running:
                task.cancel()


def _mqtt_publisher(config: CoordinatorConfig, writer: Writer, after: int, version: str) -> MqttPublisher | None:
    if not config.mqtt:
        return None
    broker = MqttBroker(
        address=config.mqtt,
        prefix=config.mqtt_topic,
        user=config.mqtt_user,
        password=_password(config.mqtt_password_file) if config.mqtt_password_file else "",
        uses_tls=config.mqtt_tls,
    )
    return MqttPublisher(broker, writer, after=after, version=version, started_s=clock.unix_s())


def _password(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read --mqtt-password-file {file}: {error}") from error


def _settings(config: CoordinatorConfig) -> Settings:
    return Settings(
        silent_after_s=config.silent_after_s,
        probe_payload_bytes=config.probe_payload_bytes,
        probe_timeout_s=config.probe_timeout_s,
        probe_retry_s=config.probe_retry_s,
        probe_again_s=config.probe_again_s,
        jobs_per_region=config.jobs_per_region,
    )


def _plan(state: State, order: RunPlanner) -> PlanFinished:
    return planned(state, order, plan_request)


def plan_request(
    fleet: Fleet, free: Mapping[str, DeviceCount], request: JobRequest, delta_bytes_per_param: float | None = None
) -> PlanOutcome:
    """Return the plan of a submitted job on the free devices of a fleet, simulated if that takes little.

    Raises: ConfigError, ValueError.
    """
    job = JobFile.from_json(request.job_json)
    path = job.model.path
    outcome = plan_job(
        fleet,
        job,
        architecture=architecture_of(request),
        model_bytes=request.model_bytes or published_bytes(path),
        capabilities=load_capabilities(),
        devices=free,
        thinking=Thinking(budget_s=PLAN_BUDGET_S, now_s=clock.monotonic_s),
        by_hand=Plan.from_json(request.plan_json) if request.plan_json else None,
        delta_bytes_per_param=delta_bytes_per_param,
    )
    match outcome:
        case Found(best=plan) | BudgetExhausted(best=Plan() as plan):
            played = simulated_plan(
                plan, num_steps=SIMULATED_STEPS, seed=0, budget_s=SIMULATION_S, now_s=clock.monotonic_s
            )
            return replace(outcome, best=played)
        case _:
            return outcome


def _steady_unix_s() -> Callable[[], float]:
    """Return a clock that starts at the Unix time and advances with the monotonic clock, for measuring deadlines."""
    started_s, at_s = clock.unix_s(), clock.monotonic_s()
    return lambda: started_s + clock.monotonic_s() - at_s


def _job_id(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:6]}"
