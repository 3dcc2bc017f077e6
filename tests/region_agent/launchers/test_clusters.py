"""One contract for all launchers: the agent's own machine, a step of a real Slurm, and an actor of a real Ray."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from periplus.errors import ConfigError, RankLost, Unreachable
from periplus.values.machine import Device, DeviceFamily
from periplus.values.task import RankMachine, Role, TaskOutcome, TaskState
from region_agent.control.reconcile import AskToStop, Kill, LocalTask, Start
from region_agent.launchers.cluster import Cluster
from region_agent.launchers.local import Supervisor, WorkerSettings, variables_of
from region_agent.launchers.ray_cluster import RayCluster
from region_agent.launchers.slurm_cluster import SlurmCluster
from tests.region_agent.launchers.test_local import ROOT, WORKER, outcome, running_pid, settings_of, task, wait_for
from tests.support.coordinator.machines import machine
from tests.support.processes.clusters import RayNodes, SlurmNodes, ray_nodes, slurm_allocation
from tests.support.processes.fake_engine import is_alive
from tests.support.trainer.learning import make_job, sampled, tiny_model
from tests.support.trainer.samples import CONSUMER
from trainer.distributed.leader import Leader

# Starts of Ray and Slurm take seconds each, and several times that beside other tests.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

DEVICES = (Device(index=0, kind=DeviceFamily.CUDA, model="NVIDIA L4", uuid="GPU-0", memory_bytes=1 << 30),)


class Place:
    """Where processes are started: `node` of a cluster, or the agent's own machine."""

    def __init__(
        self, cluster: Cluster | None, variables: Mapping[str, str], nodes: RayNodes | SlurmNodes | None = None
    ) -> None:
        self.cluster, self.variables, self.nodes = cluster, variables, nodes
        self.node = cluster.nodes()[-1] if cluster else machine().name

    def supervisor(self, folder: Path) -> Supervisor:
        settings = self.settings(folder)
        own = replace(machine(), name=self.node, devices=DEVICES)
        return Supervisor(settings, (own,), dict.fromkeys(Role, WORKER))

    def settings(self, folder: Path) -> WorkerSettings:
        return replace(settings_of(folder), words_on=self.cluster.words if self.cluster else None)

    def task(self, behaviour: str, task_id: str = "j/rollout:0") -> LocalTask:
        return replace(task(behaviour, task_id), machine=self.node)


PLACES = (
    pytest.param("local", marks=pytest.mark.slow),
    *(pytest.param(name, marks=pytest.mark.clusters) for name in ("slurm", "ray")),
)


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patched:
        cluster: Cluster | None = None
        nodes: RayNodes | SlurmNodes | None = None
        if request.param == "slurm":
            nodes = stack.enter_context(slurm_allocation(tmp_path_factory.mktemp("slurm")))
        elif request.param == "ray":
            nodes = stack.enter_context(ray_nodes(tmp_path_factory.mktemp("ray")))
        variables = {"PYTHONPATH": str(ROOT), **(nodes.variables if nodes else {})}
        for name, text in variables.items():
            patched.setenv(name, text)
        if isinstance(nodes, SlurmNodes):
            cluster = SlurmCluster()
        elif nodes is not None:
            cluster = RayCluster(nodes.address, "eu")
            wait_for(lambda: len(cluster.nodes()) == 2)
        if cluster is not None:
            stack.callback(lambda: cluster.close(leaves_tasks=False))
        yield Place(cluster, variables, nodes)


@pytest.fixture
def supervisor(place: Place, tmp_path: Path) -> Iterator[Supervisor]:
    made = place.supervisor(tmp_path)
    yield made
    asyncio.run(made.stop_all(0.0, time.monotonic))


def _words(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def log_of(tmp_path: Path) -> str:
    return (tmp_path / "runs" / "j" / "logs" / "rollout-0.log").read_text()


def test_a_process_that_succeeds_has_its_log_here(place: Place, supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.perform(Start(place.task("succeed"), 0), 1.0)
    assert outcome(supervisor) == TaskOutcome(state=TaskState.SUCCEEDED, message="")
    assert "at work" in log_of(tmp_path)


def test_a_process_sees_the_devices_of_its_plan_alone(place: Place, supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.perform(Start(replace(place.task("wait"), devices=(0,)), 0), 1.0)
    environment = psutil.Process(running_pid(tmp_path)).environ()
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    (tmp_path / "runs" / "j" / "running").unlink()
    supervisor.perform(Start(place.task("wait", "j/rollout:1"), 0), 1.0)
    assert psutil.Process(running_pid(tmp_path)).environ()["CUDA_VISIBLE_DEVICES"] == ""


def test_a_failure_is_told_in_the_words_of_the_process(place: Place, supervisor: Supervisor) -> None:
    supervisor.perform(Start(place.task("fail"), 0), 1.0)
    assert outcome(supervisor) == TaskOutcome(state=TaskState.FAILED, message="the loss is not finite")


def test_a_process_that_is_killed_has_failed_and_leaves_nobody(
    place: Place, supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.perform(Start(place.task("wait"), 0), 1.0)
    os.kill(running_pid(tmp_path), signal.SIGKILL)
    ended = outcome(supervisor)
    assert ended.state is TaskState.FAILED
    assert "signal 9" in ended.message


def test_who_is_asked_to_stop_saves_and_stops(place: Place, supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.perform(Start(place.task("wait"), 0), 1.0)
    running_pid(tmp_path)
    supervisor.perform(AskToStop("j/rollout:0"), 5.0)
    assert outcome(supervisor) == TaskOutcome(state=TaskState.STOPPED, message="")


def test_who_does_not_listen_is_killed(place: Place, supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.perform(Start(place.task("ignore"), 0), 1.0)
    pid = running_pid(tmp_path)
    supervisor.perform(AskToStop("j/rollout:0"), 5.0)
    supervisor.perform(Kill("j/rollout:0"), 6.0)
    assert "signal 9" in outcome(supervisor).message
    wait_for(lambda: not is_alive(pid))


def agent_with(place: Place, folder: Path, *, tied: bool) -> "subprocess.Popen[bytes]":
    """Start a process that starts one worker on the place, as an agent does."""
    words = "None"
    if place.cluster is not None:
        words = f"lambda node, settings: {place.cluster.words(place.node, {})!r}"
    program = textwrap.dedent(f"""
        import time
        from dataclasses import replace
        from pathlib import Path
        from periplus.values.task import Role
        from region_agent.control.reconcile import Start
        from region_agent.launchers.local import Supervisor
        from tests.region_agent.launchers.test_local import WORKER, settings_of, task
        from tests.support.coordinator.machines import machine
        settings = replace(settings_of(Path({str(folder)!r})), words_on={words}, ties_tasks={tied})
        made = Supervisor(settings, (replace(machine(), name={place.node!r}),), dict.fromkeys(Role, WORKER))
        made.perform(Start(task("wait"), 0), 0.0)
        made.poll(0.0)
        time.sleep(60)
    """)
    return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)


def test_a_process_whose_agent_died_leaves_if_it_is_tied(place: Place, tmp_path: Path) -> None:
    with agent_with(place, tmp_path, tied=True) as agent:
        pid = running_pid(tmp_path)
        agent.kill()
    wait_for(lambda: not is_alive(pid))


def test_the_next_agent_adopts_what_a_killed_one_left(place: Place, tmp_path: Path) -> None:
    with agent_with(place, tmp_path, tied=False) as agent:
        pid = running_pid(tmp_path)
        agent.kill()
    time.sleep(1.0)
    assert is_alive(pid)
    made = place.supervisor(tmp_path)
    assert list(made.adopt(1.0)) == ["j/rollout:0"]
    made.perform(AskToStop("j/rollout:0"), 3.0)
    assert outcome(made).state is TaskState.STOPPED
    wait_for(lambda: not is_alive(pid))


def test_many_starts_and_stops_leave_nothing(place: Place, supervisor: Supervisor) -> None:
    own, number = psutil.Process(), 200 if os.environ.get("PERIPLUS_ALL_STARTS") else 10

    def counts() -> tuple[int, int]:
        return own.num_fds(), len(own.children(recursive=True))

    def start(name: str) -> None:
        supervisor.perform(Start(place.task("succeed", name), 0), 1.0)
        assert outcome(supervisor, name).state is TaskState.SUCCEEDED

    start("j/rollout:first")
    before = counts()
    for each in range(number):
        start(f"j/rollout:{each}")
    # Other tests of this process may open and close something meanwhile. A leak would be one for each start.
    wait_for(lambda: all(now < was + number // 2 for now, was in zip(counts(), before, strict=True)))
    if isinstance(place.nodes, RayNodes):
        daemons = place.nodes.processes(place.node)
        wait_for(lambda: not any("NodeActor" in _words(each) for own in daemons for each in own.children()))


def test_a_trainer_has_a_rank_on_a_node_which_is_named_when_it_dies(place: Place) -> None:
    words = place.cluster.words(place.node, variables_of(1, ())) if place.cluster else ("env",)
    machines = (RankMachine(name="first", num_devices=1), RankMachine(name=place.node, num_devices=1, words=words))
    leader = Leader(2, 1, machines, "127.0.0.1")
    try:
        leader.start()
        leader.build(make_job(), tiny_model())
        assert leader.step(sampled(tiny_model(), 0), consumer=CONSUMER, learning_rate=1e-2) is not None
        assert leader._followers is not None
        dialled = "{}:{}".format(*leader._followers._listener.address)
        (there,) = [each for each in psutil.process_iter() if is_follower(each, dialled)]
        there.kill()
        with pytest.raises(RankLost, match=rf"rank 1 of 2 on {place.node} .* is lost"):
            train_for_ever(leader)
    finally:
        leader.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_the_signal_that_ended_a_process_comes_back(place: Place, number: int) -> None:
    words = place.cluster.words(place.node, {}) if place.cluster else ()
    program = f"import os, signal; signal.signal({number}, signal.SIG_DFL); os.kill(os.getpid(), {number})"
    if number == signal.SIGKILL:
        program = program.replace(f"signal.signal({number}, signal.SIG_DFL); ", "")
    done = subprocess.run([*words, sys.executable, "-c", program], check=False, stdin=subprocess.PIPE)
    assert done.returncode in (-number, 128 + number)


def test_what_runs_a_process_is_killed_and_nobody_stays(place: Place, supervisor: Supervisor, tmp_path: Path) -> None:
    if place.cluster is None:
        pytest.skip("nothing stands between the agent and its process")
    supervisor.perform(Start(place.task("wait"), 0), 1.0)
    pid, runner = running_pid(tmp_path), "srun" if isinstance(place.cluster, SlurmCluster) else "ray_relay"
    runners = [each for each in psutil.Process().children(recursive=True) if runner in " ".join(each.cmdline()[:3])]
    min(runners, key=lambda each: each.create_time()).kill()
    assert outcome(supervisor).state is TaskState.FAILED
    until_s = time.monotonic() + 30.0
    while is_alive(pid):
        assert time.monotonic() < until_s, "the process has outlived what ran it"
        time.sleep(0.1)


def train_for_ever(leader: Leader) -> None:
    while True:
        leader.step(sampled(tiny_model(), 0), consumer=CONSUMER, learning_rate=1e-2)


def is_follower(process: psutil.Process, dialled: str) -> bool:
    """Return whether a process is a rank that dials this address, and not what runs it on a node."""
    with suppress(psutil.Error):
        words = process.cmdline()
        return words[1:3] == ["-m", "trainer.distributed.follower"] and dialled in words
    return False


def test_a_program_that_is_not_there_fails_by_name(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(place.settings(tmp_path), python_of={"vllm": "/does/not/exist"})
    made = Supervisor(settings, (replace(machine(), name=place.node),), dict.fromkeys(Role, WORKER))
    made.perform(Start(replace(place.task("succeed"), engine="vllm"), 0), 1.0)
    ended = outcome(made)
    assert ended.state is TaskState.FAILED
    assert "/does/not/exist" in ended.message + log_of(tmp_path)


@pytest.fixture
def nodes(place: Place) -> RayNodes | SlurmNodes:
    if place.nodes is None:
        pytest.skip("it has no nodes")
    return place.nodes


def test_a_process_runs_on_the_node_that_is_named(place: Place, nodes: RayNodes | SlurmNodes, tmp_path: Path) -> None:
    assert place.cluster is not None
    for name in place.cluster.nodes():
        there = Place(place.cluster, place.variables, nodes)
        there.node = name
        made = there.supervisor(tmp_path / name)
        made.perform(Start(there.task("wait"), 0), 1.0)
        parents = psutil.Process(running_pid(tmp_path / name)).parents()
        assert not nodes.processes(name).isdisjoint(parents)
        asyncio.run(made.stop_all(0.0, time.monotonic))


def test_who_watches_the_nodes_is_started_again(place: Place) -> None:
    cluster = place.cluster
    if not isinstance(cluster, RayCluster):
        pytest.skip("nobody watches its nodes")
    known = cluster.nodes()
    cluster._watching.kill()
    cluster._watching.wait()
    with pytest.raises(Unreachable, match="does not answer"):
        cluster.nodes()
    wait_for(lambda: cluster._names == known)
    assert cluster.nodes() == known


@pytest.mark.clusters
def test_a_cluster_is_started_where_the_address_says_so_and_ends_with_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ray_nodes(tmp_path, num_nodes=1) as other:
        for name, text in (other.variables | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": "new"}).items():
            monkeypatch.setenv(name, text)
        cluster = RayCluster("new", "eu")
        assert len(cluster.nodes()) == 1
        assert cluster._address.rpartition(":")[2] != other.address.rpartition(":")[2], "not one that runs already"
        (started,) = (
            each for each in psutil.process_iter() if cluster._address in _words(each) and "raylet" in each.name()
        )
        cluster.close(leaves_tasks=False)
        wait_for(lambda: not started.is_running())


@pytest.mark.clusters
@pytest.mark.parametrize(
    ("address", "why"),
    [("nonsense", "give HOST:PORT"), (":1", "give HOST:PORT"), ("127.0.0.1:1", "nothing answers at 127.0.0.1:1")],
)
def test_an_address_without_a_cluster_is_refused_at_once(address: str, why: str) -> None:
    with pytest.raises((ConfigError, Unreachable), match=why):
        RayCluster(address, "eu")


def test_a_node_that_joins_can_be_used_and_one_that_dies_is_noticed(
    place: Place, nodes: RayNodes | SlurmNodes, tmp_path: Path
) -> None:
    cluster, there = place.cluster, Place(place.cluster, place.variables, nodes)
    assert cluster is not None
    if isinstance(nodes, RayNodes):  # an allocation of Slurm gets no more nodes
        there.node = nodes.add_node()
        wait_for(lambda: there.node in cluster.nodes())
    made = there.supervisor(tmp_path)
    made.perform(Start(there.task("wait"), 0), 1.0)
    pid = running_pid(tmp_path)
    began_s = time.monotonic()
    nodes.kill_node(there.node)
    ended = outcome(made)
    assert (ended.state, ended.message) == (TaskState.FAILED, f"its node {there.node} was lost")
    assert time.monotonic() - began_s < 10.0
    assert there.node in log_of(tmp_path)
    wait_for(lambda: not is_alive(pid))
    assert made.lost == {there.node}
    if isinstance(nodes, RayNodes):  # Slurm takes minutes
        wait_for(lambda: there.node not in cluster.nodes())
