"""The ledger of this project as a scheduler: the same object that the trainer runs, told the same events."""

from collections.abc import Sequence
from itertools import count

from bench.staleness import simulator as sim
from bench.staleness.world import World
from periplus.values.policy import Lineage, Policy
from periplus.values.trajectory import PolicyRun, Purpose
from trainer.ledger import machine, values

MAX_SAMPLE_TOKENS = 32_768

LEASE_TIMEOUT_S = 900.0
MAX_HOLD_S = 1800.0
"""Both beyond the longest sample (four minutes and a half) and its repetition after a death."""


class Ours:
    """Translates messages into the ledger's events, and its effects into orders."""

    def __init__(self, world: World, depth: float | None = None) -> None:
        batch_tokens = world.groups_per_step * world.group_size * MAX_SAMPLE_TOKENS
        limits = values.LedgerLimits(
            groups_per_step=world.groups_per_step,
            group_size=world.group_size,
            bound=world.bound,
            steps=1 << 30,
            lease_timeout_s=LEASE_TIMEOUT_S,
            max_hold_s=MAX_HOLD_S,
            max_sample_tokens=MAX_SAMPLE_TOKENS,
            intake_tokens=batch_tokens * (world.bound + 4),
            depth=depth,
        )
        self.ledger = machine.Ledger(limits, Lineage(0), Policy(0, 0), item_of=lambda group: group)
        self._handles = count()
        self._attempts: dict[int, sim.Attempt] = {}
        """Attempts whose results the ledger has and has not handed back, by the result's handle."""

    def hears(self, message: sim.Message, now_s: float) -> Sequence[sim.Order]:
        """Every message is one event or several, in the order in which a gateway would hand them over."""
        orders: list[sim.Order] = []
        for event in self._events(message):
            for effect in self.ledger.apply(event, now_s):
                order = self._order_of(effect)
                if order is not None:
                    orders.append(order)
        return orders

    def _events(self, message: sim.Message) -> Sequence[values.Event]:
        match message:
            case sim.Joined(worker, room, version):
                return (
                    values.WorkerJoined(worker),
                    values.PolicyReached(worker, Policy(0, version)),
                    values.RoomOffered(worker, room),
                )
            case sim.Left(worker):
                return (values.WorkerLeft(worker),)
            case sim.Reached(worker, version):
                return (values.PolicyReached(worker, Policy(0, version)),) if self._knows(worker) else ()
            case sim.Progress(worker, finished, begun):
                return (*map(self._arrival, finished), *self._starts(worker, begun))
            case sim.BatchWanted():
                return (values.BatchWanted(),)
            case sim.StepDone():
                return (values.StepDone(),)
            case sim.Ticked():
                return (values.ClockTicked(),)

    def _starts(self, worker: str, begun: tuple[sim.Attempt, ...]) -> Sequence[values.Event]:
        if not begun or not self._knows(worker):
            return ()
        keys = tuple(attempt.key for attempt in begun)
        return (values.LeasesStarted(worker, keys, Policy(0, begun[0].version)),)

    def _knows(self, worker: str) -> bool:
        return worker in self.ledger.state.workers

    def _arrival(self, attempt: sim.Attempt) -> values.Event:
        handle = next(self._handles)
        self._attempts[handle] = attempt
        result = values.Result(
            lease_id=attempt.key,
            group=attempt.group,
            sample=attempt.sample,
            item=attempt.group,
            purpose=Purpose.TRAIN,
            worker_id=attempt.worker,
            policies=(PolicyRun(Policy(0, attempt.version), attempt.length),),
            num_tokens=attempt.length,
            outcome=float(attempt.sample % 2),
            handle=handle,
        )
        return values.ResultArrived(result)

    def _order_of(self, effect: values.Effect) -> sim.Order | None:
        match effect:
            case values.Granted(worker, leases):
                asks = (sim.Ask(one.lease_id, one.group, one.sample, one.start_at.version) for one in leases)
                return sim.Start(worker, tuple(asks))
            case values.Revoked(worker, lease_ids):
                return sim.Cancel(worker, lease_ids, running=False)
            case values.BatchReady(_, results):
                return sim.Train(self._taken(results))
            case values.GroupDropped(_, _, results):
                return sim.Drop(self._taken(results))
            case values.JudgedResult(result, arrival) if arrival is not values.Arrival.ACCEPTED:
                return sim.Drop(self._taken((result,)))
        return None

    def _taken(self, results: Sequence[values.Result]) -> tuple[sim.Attempt, ...]:
        return tuple(self._attempts.pop(result.handle) for result in results)
