"""Composition root of the region agent: gateway server, coordinator session, supervisor and upstream connections.

One asyncio TaskGroup owns all of them. The agent starts in this order: it binds the gateway's port, announces the
address to the WAN emulator if there is one, adopts the processes that an earlier agent left, and then opens the session
with the coordinator. It stops in the opposite order: workers first, because they may still have something to send, then
the session, then the gateway. Asked by SIGHUP, it leaves its workers running for the agent that follows.

Every `RECONCILE_S` the agent drops the hubs (gateway/hub.py) of jobs that have no task here any more and has the stores
of new ones opened (stores.py), looks at its processes, reports what has changed, and performs the actions that
`reconcile` returns. A job's hub is opened once its stores are open, and only then a new task of it is started. The hub
of a job whose trainer is in another region also has an upstream connection to the trainer's gateway (the *home*
gateway).
"""

import asyncio
import contextlib
import importlib.metadata
import logging
import random
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from periplus import clock
from periplus.errors import ConfigError, PeriplusError
from periplus.job.job_file import JobFile
from periplus.net import parties, rpc
from periplus.net.convert import inventory_to_pb
from periplus.net.health import OVERALL, answering_probes
from periplus.net.parties import COORDINATOR, Party
from periplus.net.resolver import AddressResolver
from periplus.net.tokens import read_token
from periplus.pb.v1 import control_pb2, gateway_pb2, gateway_pb2_grpc
from periplus.process.backoff import Backoff
from periplus.process.exported_metrics import AGENT_METRICS, ExportedSample
from periplus.process.lifecycle import ShutdownReason, wait_for_stop, write_ready_file
from periplus.process.metrics_endpoint import exporting, on_loop
from periplus.process.telemetry import event
from periplus.values.machine import DeviceFamily, Inventory
from periplus.values.record import RecordKind
from periplus.values.task import Role, RunFiles, TaskReport, TaskState, authority_key_of
from periplus.wan.client import address_resolver
from region_agent.config import NOT_DIALLED, AgentConfig
from region_agent.control.accelerators import Accelerators
from region_agent.control.certificates import CertificateRequests
from region_agent.control.conclusion import conclude
from region_agent.control.convert import heartbeat_to_pb, report_to_pb, tasks_from_pb
from region_agent.control.engines import InstalledEngine, installed
from region_agent.control.identity import AgentIdentity
from region_agent.control.inventory import trainer_threads
from region_agent.control.links import answer
from region_agent.control.reconcile import (
    LocalTask,
    Process,
    RestartLimits,
    reconcile,
    report,
    report_unstarted,
    task_of,
)
from region_agent.control.session import CoordinatorSession, SessionHandlers
from region_agent.exported import SessionStatus, agent_samples
from region_agent.gateway.admission import GatewayAdmission
from region_agent.gateway.frames import FrameSpool
from region_agent.gateway.hub import JobHub
from region_agent.gateway.hubs import Hubs
from region_agent.gateway.service import GatewayService
from region_agent.gateway.traffic import Traffic
from region_agent.gateway.upstream import Upstream
from region_agent.gateway_server import bound, revoke
from region_agent.launchers.cluster import cluster_of
from region_agent.launchers.local import Supervisor, WorkerSettings
from region_agent.launchers.region_machines import RegionMachines, has_other_figures, has_problems, news_of
from region_agent.owner.region_owner import RegionOwner
from region_agent.profiling import Profiler
from region_agent.relay.paths import RelayedPaths
from region_agent.relay.switchboard import Switchboard
from region_agent.state_directory import StateDirectory
from region_agent.stores import StoreOpenings, close_stores
from region_agent.weights.weight_cache import WeightCache

log = logging.getLogger(__name__)

FINAL_REPORTS_S = 2.0
"""Seconds that a stopping agent waits for its last reports to reach a connected coordinator. Chosen by hand."""

DEVICES_S = 30.0
"""Seconds between two looks at the devices. A look waits for the driver. Chosen by hand."""

GATEWAY = gateway_pb2.DESCRIPTOR.services_by_name["Gateway"].full_name

RECONCILE_S = 0.2
"""Seconds between two looks at the processes. A person does not notice the delay, and the cost is negligible. Chosen by
hand.
"""


async def run(config: AgentConfig, *, ready_file: Path | None, stop_on_stdin_eof: bool) -> ShutdownReason:
    """Serve one region until asked to stop, and return what asked for it.

    Raises: Conflict if another agent serves the region or a port is in use, ConfigError if the coordinator refuses this
    agent's settings, Denied if it refuses the token, Unreachable.
    """
    state = StateDirectory(config.state_dir)
    folder = config.identity_dir or state.identity
    identity = None if config.plaintext else AgentIdentity(folder, clock.unix_s)
    if identity is not None and identity.region != config.region:
        raise ConfigError(f"{folder} is the identity of region {identity.region}, not of {config.region}")
    admission, calls = GatewayAdmission(config.region), rpc.OpenCalls()
    server = rpc.server(None if identity is None else admission.admit, calls)
    hubs, traffic = Hubs(config.region), Traffic()
    address = bound(server, config.listen, state.last_address(), identity)
    state.keep_address(address)
    owner = RegionOwner.of_file(config.policy_file, state.egress, clock.unix_s())
    token = read_token(config.token_file) if config.token_file else ""
    async with address_resolver(config.region, config.wan or None, token) as resolver:
        advertised = "" if config.advertise == NOT_DIALLED else config.advertise or address
        await resolver.announce(advertised or address)
        engines, cluster = await asyncio.to_thread(lambda: (installed(config.engines), cluster_of(config)))
        machines = RegionMachines(config, engines, Accelerators(), cluster)
        offered = await asyncio.to_thread(machines.read, clock.monotonic_s())
        agent = Agent(
            config,
            owner.offered(offered),
            machines,
            engines,
            owner,
            address=address,
            advertised=advertised,
            resolver=resolver,
            hubs=hubs,
            traffic=traffic,
            identity=identity,
            on_revocations=partial(revoke, admission, calls),
        )
        relay = Switchboard(config.region, traffic, owner.spent) if config.relay else None
        service = GatewayService(hubs, traffic, agent.pass_record, agent.certificate, relay)
        gateway_pb2_grpc.add_GatewayServicer_to_server(service, server)
        await server.start()
        event(log, logging.INFO, "gateway_listening", region=config.region, address=address)

        def ready() -> None:
            if ready_file is not None:
                optional = {"metrics": metrics, "health": health}
                write_ready_file(ready_file, {"gateway": address} | {name: at for name, at in optional.items() if at})

        version = importlib.metadata.version("periplus")
        samples = on_loop(lambda: agent.samples(version))
        try:
            with rpc.ungrouped():
                async with (
                    exporting(config.metrics_listen, AGENT_METRICS, samples) as metrics,
                    answering_probes(config.health_listen, agent.health) as health,
                ):
                    return await agent.run(stop_on_stdin_eof, ready)
        finally:
            await server.stop(grace=0.5)
            for job_id in hubs.job_ids():
                release(hubs.drop(job_id))
            state.remove_if_empty()


def release(hub: JobHub) -> None:
    """Close the stores of a dropped hub, after its weight cache's task has ended (see `close_stores`)."""
    close_stores(hub.job_id, hub.frames, hub.weight_cache, job_is_done=hub.job_is_done)


class Agent:
    """The daemon's long-lived parts, and the state that they share."""

    def __init__(
        self,
        config: AgentConfig,
        offered: Inventory,
        machines: RegionMachines,
        engines: Sequence[InstalledEngine],
        owner: RegionOwner,
        *,
        address: str,
        advertised: str,
        resolver: AddressResolver,
        hubs: Hubs,
        traffic: Traffic,
        identity: AgentIdentity | None = None,
        on_revocations: Callable[[Mapping[str, float]], None] = lambda before_s: None,
    ) -> None:
        self._config = config
        self._identity = identity
        self._inventory, self._machines = offered, machines
        self._engines, self._owner = engines, owner
        self._advertised = advertised
        self._hubs, self._traffic = hubs, traffic
        self._boot_id = uuid.uuid4().hex
        # What the coordinator wants here, and what it was told last of each task.
        self._desired: dict[str, LocalTask] = {}
        self._stopping = False
        self._reported: dict[str, TaskReport] = {}
        self._ended_files: dict[tuple[str, int], RunFiles | None] = {}  # (task id, fork) of ended trainers
        self._upstreams: dict[str, tuple[str, asyncio.Task[None]]] = {}  # by job: home gateway, its connection
        self._cache_tasks: dict[str, asyncio.Task[None]] = {}
        self._openings = StoreOpenings(config, self._open_hub)
        self._hub_opened = asyncio.Event()
        self._limits = RestartLimits(grace_s=config.stop_grace_s, backoff=Backoff(first_s=config.restart_backoff_s))
        self._supervisor = Supervisor(
            WorkerSettings(
                region=config.region,
                gateway=advertised or address if machines.cluster else address,
                work_dir=config.work_dir.absolute(),
                task_dir=StateDirectory(config.state_dir).tasks.absolute(),
                allow_dirs=tuple(each.absolute() for each in config.allow_dirs),
                num_threads={Role.TRAINER: trainer_threads(config, offered.own), Role.ROLLOUT: config.worker_threads},
                python_of={engine.name: engine.python for engine in engines},
                allows_own_code=config.allow_code,
                allows_unsandboxed=config.allow_unsandboxed,
                fork_server=config.fork_server,
                ties_tasks=config.ties_tasks,
                identify=identity.of_task if identity else None,
                words_on=machines.cluster.words if machines.cluster else None,
                owner=owner,
            ),
            offered.usable,
        )
        # Until the coordinator says otherwise, what runs here is wanted.
        self._desired |= self._supervisor.adopt(clock.monotonic_s())
        self._tasks = asyncio.TaskGroup()
        self._resolver = RelayedPaths(config.region, address, resolver, self._secured, self._tasks, random.random)
        self._profiler = Profiler(
            StateDirectory(config.state_dir).profiles,
            offered.own,
            {Role.TRAINER: trainer_threads(config, offered.own), Role.ROLLOUT: config.worker_threads},
            {engine.name: engine.python for engine in engines},
            self._on_profiled,
        )
        self._inventory = replace(offered, profiles=self._profiler.profiles)
        self._certificates = CertificateRequests(config.coordinator, self._send)
        handlers = SessionHandlers(
            hello=self._hello,
            heartbeat=self._heartbeat,
            unanswered=self._certificates.unanswered,
            desired=self._on_desired,
            probe=self._on_probe,
            listen=self._resolver.listen_at,
            profile=self._on_profile,
            certificate=self._certificates.answered,
            renewed=self._on_renewed,
            revocations=lambda message: on_revocations(dict(message.before_s)),
        )
        token = read_token(config.token_file) if config.token_file and config.plaintext else ""
        secured = partial(self._secured, COORDINATOR)
        self._session = CoordinatorSession(config.coordinator, resolver, handlers, token, secured)

    async def run(self, stop_on_stdin_eof: bool, on_ready: Callable[[], None]) -> ShutdownReason:
        """Serve until a stop signal comes, or until the coordinator refuses this agent for good, and return the reason.

        `on_ready` is called once the agent waits for a stop signal. Raises: Conflict, ConfigError (see
        `CoordinatorSession.run`).
        """
        jitter: Callable[[], float] = random.Random().random
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._owner.wake)
        async with self._tasks as tasks:
            session = tasks.create_task(self._session.run(jitter))
            reconciling = tasks.create_task(self._keep_reconciled())
            looking = tasks.create_task(self._keep_inventory())
            measuring = tasks.create_task(self._machines.keep_fabric(self._look_at_devices))
            profiling = tasks.create_task(self._profiler.run())
            leaves_tasks = False
            try:
                reason = await wait_for_stop(stop_on_stdin_eof, on_waiting=on_ready, stop_on_hangup=True)
                leaves_tasks = reason is ShutdownReason.SIGHUP and not self._config.ties_tasks
                return reason
            finally:
                # From here on nothing is started. Workers stop first, because they may still have something to send.
                reconciling.cancel()
                looking.cancel()
                measuring.cancel()
                self._machines.stop()
                profiling.cancel()
                self._openings.cancel()
                self._desired, self._stopping = {}, True
                if not leaves_tasks:
                    await self._supervisor.stop_all(self._config.stop_grace_s, clock.monotonic_s)
                    # Report how they ended, and let the session send it.
                    await self._look(clock.monotonic_s())
                self._session.close()
                if self._session.connected.is_set() and not leaves_tasks:
                    await asyncio.wait({session}, timeout=FINAL_REPORTS_S)
                session.cancel()
                # Readers and whoever waits for a disk job are told before the tasks that serve them end.
                for hub in map(self._hubs.get, self._hubs.job_ids()):
                    hub.end()
                    hub.weight_cache.stop()
                for running in (
                    *(upstream for _, upstream in self._upstreams.values()),
                    *self._cache_tasks.values(),
                ):
                    running.cancel()
                asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
                self._resolver.close()
                self._owner.keep()
                if self._machines.cluster is not None:
                    await asyncio.to_thread(partial(self._machines.cluster.close, leaves_tasks=leaves_tasks))

    def pass_record(self, record: control_pb2.StepRecord) -> None:
        """Queue a training record for the coordinator.

        Before the run's summary, which is its last record, a heartbeat with the current traffic counters is queued,
        because the job may end before the next regular heartbeat.
        """
        if record.kind == RecordKind.SUMMARY:
            self._send(control_pb2.AgentMessage(heartbeat=self._heartbeat()))
        self._send(control_pb2.AgentMessage(step=record))

    async def certificate(self, job_id: str, fork: int, public_key: bytes) -> control_pb2.CertificateAnswer:
        """Return the coordinator's answer to a trainer's certificate request: a certificate, or why there is none."""
        return await self._certificates.ask(job_id, fork, public_key)

    def samples(self, version: str) -> Iterator[ExportedSample]:
        """Return what is exported to Prometheus now. Call it and read it on the event loop."""
        session = self._session
        age_s = clock.monotonic_s() - session.opened_at_s if session.connected.is_set() else None
        return agent_samples(
            self._config.region,
            version=version,
            session=SessionStatus(epoch=session.epoch, age_s=age_s),
            machine=self._inventory.own,
            processes=self._supervisor.processes,
            sent_bytes=self._traffic.sent_bytes,
            hubs=map(self._hubs.get, self._hubs.job_ids()),
        )

    def health(self) -> dict[str, bool]:
        """Return whether the gateway serves, and whether there is a session with the coordinator, for probes."""
        serves = not self._stopping
        return {OVERALL: serves, GATEWAY: serves, "session": serves and self._session.connected.is_set()}

    def _send(self, message: control_pb2.AgentMessage) -> None:
        self._session.send(message)

    def _secured(self, peer: Party) -> rpc.Secured | None:
        return self._identity.secured(peer) if self._identity else None

    def _renew_identities(self) -> None:
        """Ask for a new certificate if it is time for it, and renew those of the processes here."""
        if self._identity is not None:
            self._supervisor.renew_identities(clock.unix_s())
            if (request := self._identity.renewal_request()) is not None:
                self._send(control_pb2.AgentMessage(renewal=control_pb2.RenewalRequest(request=request)))

    # ---- session handlers -----------------------------------------------------------------------------------------

    def _hello(self) -> control_pb2.Hello:
        config = self._config
        return control_pb2.Hello(
            region=config.region,
            boot_id=self._boot_id,
            gateway_address=self._advertised,
            inventory=inventory_to_pb(self._inventory),
            tasks=[report_to_pb(report_) for report_ in self._reports().values()],
        )

    def _heartbeat(self) -> control_pb2.Heartbeat:
        return heartbeat_to_pb(self._traffic)

    def _on_desired(self, message: control_pb2.DesiredTasks) -> None:
        # Nothing is started any more, whatever the coordinator still wants.
        if self._stopping:
            return
        tasks, failed = tasks_from_pb(message)
        self._desired = {task.task_id: task for task in tasks}
        for unread in failed:
            event(log, logging.ERROR, "order_not_read", task=unread.task_id, why=unread.message)
            self._send(control_pb2.AgentMessage(task=report_to_pb(unread)))
        event(log, logging.INFO, "desired", revision=message.revision, tasks=",".join(sorted(self._desired)) or "none")

    def _on_probe(self, order: control_pb2.ProbeOrder) -> None:
        self._tasks.create_task(self._probe(order))

    def _on_profile(self, order: control_pb2.ProfileOrder) -> None:
        try:
            self._profiler.order(JobFile.from_json(order.job_json), order.model_config)
        except PeriplusError as error:
            event(log, logging.ERROR, "order_not_read", task="profile", why=error)

    def _on_renewed(self, message: control_pb2.CertificateResponse) -> None:
        if self._identity is not None:
            try:
                self._identity.renewed(message.certificate)
                event(log, logging.INFO, "identity_renewed", expires_at_s=self._identity.current().expires_at_s)
            except (OSError, PeriplusError) as error:
                event(log, logging.ERROR, "identity_not_renewed", why=error)

    def _on_profiled(self) -> None:
        self._inventory = replace(self._inventory, profiles=self._profiler.profiles)
        self._send(control_pb2.AgentMessage(inventory=inventory_to_pb(self._inventory)))

    # ---- work -----------------------------------------------------------------------------------------------------

    async def _probe(self, order: control_pb2.ProbeOrder) -> None:
        secured = partial(self._secured, parties.region(order.dst_region))
        link = await answer(order, self._config.region, self._resolver, clock.monotonic_s, secured)
        # The probe's bytes went over the link like all others.
        if link.probe_bytes:
            self._traffic.sent(order.dst_region, link.probe_bytes)
        self._send(control_pb2.AgentMessage(link=link))

    async def _open_and_drop_hubs(self) -> None:
        jobs = {task.job_id: task for task in self._admitted().values()}
        for job_id in self._hubs.job_ids():
            # With another job authority, readers no longer accept what is cached here, so the hub is opened anew.
            if job_id not in jobs or self._hubs.get(job_id).authority_key != authority_key_of(jobs[job_id]):
                await self._drop_hub(job_id, jobs)
        self._openings.forget_all_but(jobs)
        for job_id, task in jobs.items():
            if job_id in self._hubs.job_ids():
                self._keep_upstream(task)
            else:
                self._openings.begin(self._tasks, task)

    async def _drop_hub(self, job_id: str, jobs: Mapping[str, LocalTask]) -> None:
        if job_id in self._upstreams:
            self._upstreams.pop(job_id)[1].cancel()
        hub = self._hubs.drop(job_id)
        saving = self._cache_tasks.pop(job_id)
        # The cache's task finishes a disk job that has begun. Only then may the stores be closed.
        saving.cancel()
        await asyncio.wait({saving})
        await asyncio.to_thread(release, hub)
        state = StateDirectory(self._config.state_dir)
        # Folders of jobs that are here or whose stores are being opened must not be removed.
        used = [*jobs.values(), *self._openings.tasks]
        in_use = {state.spool_of(task.job_id) for task in used}
        in_use |= {state.weights_of(task.job_id, authority_key_of(task)) for task in used}
        try:
            await asyncio.to_thread(state.give_up_oldest, in_use)
        except PeriplusError as error:
            event(log, logging.WARNING, "spools_not_tidied", why=error)

    def _open_hub(self, task: LocalTask, frames: FrameSpool, weight_cache: WeightCache) -> None:
        """Open the hub of a job whose stores are open. If the job has left meanwhile, the next look drops it again."""
        hub = self._hubs.open(task.job_id, frames, weight_cache, secret=task.job_secret)
        self._cache_tasks[task.job_id] = self._tasks.create_task(weight_cache.run(hub.feed.settled))
        self._hub_opened.set()
        if frames.pending:
            event(log, logging.INFO, "spool_recovered", job=task.job_id, frames=len(frames.pending))

    def _keep_upstream(self, task: LocalTask) -> None:
        job_id = task.job_id
        gateway, upstream_task = self._upstreams.get(job_id, ("", None))
        # The trainer's own region connects to nobody.
        is_home = task.trainer_region == self._config.region
        # A trainer that was resumed in another region has another gateway, or none that is remote.
        if upstream_task is not None and (is_home or task.trainer_gateway != gateway):  # the trainer has moved
            upstream_task.cancel()
            del self._upstreams[job_id]
        if is_home or task.trainer_gateway == gateway:
            return
        upstream = Upstream(
            self._hubs.get(job_id),
            region=self._config.region,
            home_region=task.trainer_region,
            home_gateway=task.trainer_gateway,
            resolver=self._resolver,
            traffic=self._traffic,
            secured=partial(self._secured, parties.region(task.trainer_region)),
        )
        running = self._tasks.create_task(upstream.run(random.Random().random))
        self._upstreams[job_id] = (task.trainer_gateway, running)

    def _startable(self) -> dict[str, LocalTask]:
        """Return the desired tasks, without new ones of a job whose hub is not open yet."""
        open_jobs, running = self._hubs.job_ids(), self._supervisor.processes
        return {id_: task for id_, task in self._admitted().items() if task.job_id in open_jobs or id_ in running}

    def _admitted(self) -> dict[str, LocalTask]:
        """Return the desired tasks that the region's owner lets run, and as stopping those that run but must not."""
        return self._owner.admitted(self._desired, self._supervisor.processes)

    async def _keep_reconciled(self) -> None:
        while True:
            await self._owner.count(self._traffic.sent_bytes.total(), clock.unix_s())
            # Hubs first: a worker that is started finds its gateway ready.
            await self._open_and_drop_hubs()
            now_s = clock.monotonic_s()
            await self._look(now_s)
            for action in reconcile(self._startable(), self._supervisor.processes, now_s, self._limits):
                event(log, logging.INFO, "act", action=type(action).__name__, task=task_of(action))
                self._supervisor.perform(action, now_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECONCILE_S):
                    await self._hub_opened.wait()
            # A hub that was opened is a reason to look at once, since its tasks may start now.
            self._hub_opened.clear()

    async def _keep_inventory(self) -> None:
        """Look at the devices now and then, and tell the coordinator when one has failed or works again."""
        while True:
            self._renew_identities()
            await self._look_at_devices(has_news=await self._owner.changed(DEVICES_S))

    async def _look_at_devices(self, *, has_news: bool = False, asks: bool = True) -> None:
        try:
            offered = await asyncio.to_thread(self._machines.read, clock.monotonic_s(), anew=has_news, asks=asks)
        except PeriplusError as error:  # of a file of devices that was changed
            event(log, logging.WARNING, "devices_unknown", why=error)
            return
        offered = self._owner.offered(offered)
        news = news_of(self._inventory, offered)
        if news:
            event(log, logging.WARNING, "devices_changed", **news)
        # While a device fails, each look says for how long it has.
        if has_news or news or has_problems(offered) or has_other_figures(self._inventory, offered):
            self._inventory = replace(offered, profiles=self._profiler.profiles)
            self._supervisor.machines = offered.usable
            self._session.send(control_pb2.AgentMessage(inventory=inventory_to_pb(self._inventory)))

    async def _look(self, now_s: float) -> None:
        """Note which processes have ended, and report every task whose state has changed."""
        failed = self._supervisor.poll(now_s)
        for task in failed:
            self._machines.doubt(task.machine)
        if self._machines.lose(self._supervisor.lost):
            self._tasks.create_task(self._look_at_devices())  # so that they are asked at once
        if failed and (
            self._machines.cluster or any(each.kind is DeviceFamily.CUDA for each in self._inventory.own.devices)
        ):
            # A device or a node that is gone may be why, and the coordinator plans by what it knows of these.
            await self._look_at_devices(asks=False)
        await self._conclude_runs()
        reports = self._reports()
        for task_id, report_ in reports.items():
            # Only changes are reported; the hello of a new session has all of them.
            if self._reported.get(task_id) != report_:
                self._session.send(control_pb2.AgentMessage(task=report_to_pb(report_)))
        # What was said to be starting, and is wanted no more, would otherwise keep its devices for ever.
        for task_id in self._reported.keys() - reports.keys() - self._desired.keys():
            if (last := self._reported[task_id]).is_unstarted and not self._stopping:
                ended = replace(last, state=TaskState.STOPPED, message="never started")
                self._session.send(control_pb2.AgentMessage(task=report_to_pb(ended)))
        self._reported = reports

    async def _conclude_runs(self) -> None:
        """Complete the run directory of every trainer that has ended, before its end is reported to anybody."""
        ended = {
            task_id: process
            for task_id, process in self._supervisor.processes.items()
            if process.task.role is Role.TRAINER and process.outcome is not None
        }
        # Forget those whose processes are forgotten.
        self._ended_files = {key: files for key, files in self._ended_files.items() if key[0] in ended}
        for task_id, process in ended.items():
            # A resumed run keeps its task id, so the fork tells its trainers apart.
            key = task_id, process.task.fork
            if self._supervisor.refusal(process.task):
                self._ended_files[key] = None  # nothing is written where no run may lie
            elif key not in self._ended_files:
                run, ended_report = (
                    self._supervisor.run_directory(process.task),
                    self._owner.said(report(process, None)),
                )
                checkpoint, page = await asyncio.to_thread(conclude, run, process.task, ended_report)
                files = self._files(process)
                self._ended_files[key] = files and replace(files, checkpoint=checkpoint, report=page)

    def _files(self, process: Process) -> RunFiles | None:
        if self._supervisor.refusal(process.task):
            return None
        run, log_file = self._supervisor.run_directory(process.task), self._supervisor.log_file(process.task)
        return RunFiles(run_dir=str(run.root), log=str(log_file))

    def _reports(self) -> dict[str, TaskReport]:
        processes, admitted = self._supervisor.processes, self._admitted()
        # A task that was to stop before its process was started would otherwise never be reported as ended.
        unstarted = {
            task_id: said
            for task_id, task in admitted.items()
            if (said := report_unstarted(task) if task.stopping else self._openings.report(task))
        }
        started = {
            task_id: replace(
                self._with_obstacle(process.task, report(self._concluded(process), admitted.get(task_id))),
                files=self._ended_files.get((task_id, process.task.fork)) or self._files(process),
            )
            for task_id, process in processes.items()
        }
        return self._owner.reported(self._desired, unstarted | started)

    def _with_obstacle(self, task: LocalTask, said: TaskReport) -> TaskReport:
        """Return the report of a worker that runs, with what keeps its gateway from taking its samples, if anything."""
        waits = said.state is TaskState.RUNNING and task.role is Role.ROLLOUT and task.job_id in self._hubs.job_ids()
        return replace(said, message=self._hubs.get(task.job_id).frames.obstacle) if waits else said

    def _concluded(self, process: Process) -> Process:
        """Return a process as it is reported: a trainer runs until it is known what it left."""
        is_known = (
            process.task.role is not Role.TRAINER or (process.task.task_id, process.task.fork) in self._ended_files
        )
        return process if is_known else replace(process, outcome=None)
