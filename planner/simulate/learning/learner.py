"""Learner: batches are formed when the staleness window allows it, then scored, trained on, and published.

At most one batch is between forming and training, so the next batch is scored while one is trained on. Scoring begins
when the whole batch is in the trainer's region. Samples travel to the regions that score them, and scores travel back.
A step ends when every task that trains is done with it; then its weights leave.

Invariant: no token older than the staleness bound is ever trained on. An assertion holds it.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from planner.problem.workload import Task
from planner.simulate.event_queue import EventQueue
from planner.simulate.generation.rollouts import LeasedGroup
from planner.simulate.generation.staleness_window import Window
from planner.simulate.generation.time_sharing import DeviceQueue


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """One group of devices, with the scoring and training passes that it runs for each batch.

    `seconds(task, tokens)` gives the seconds of one of its tasks over samples of these lengths.
    """

    scoring: tuple[Task, ...]
    training: tuple[Task, ...]
    queue: DeviceQueue
    seconds: Callable[[Task, Sequence[int]], float]
    transfer_s: Callable[[int], tuple[float, float]]
    """Function of a batch's bytes: (seconds until its samples are at the devices, seconds of the scores back)."""
    needs_critic: bool
    """Whether the group scores with a critic that another group trains."""


@dataclass(slots=True)
class _Batch:
    """One batch; `waits_for` counts the groups of devices that have not finished its current stage."""

    step: int
    leased_groups: list[LeasedGroup]
    tokens: list[int]
    waits_for: int = 0
    is_scored: bool = False


@dataclass(slots=True)
class Totals:
    """Sums that the learner has recorded so far."""

    ended_s: list[float] = field(default_factory=list)
    """Time at which each training step ended."""
    busy_s: dict[Task, float] = field(default_factory=dict)
    """Busy seconds of each task."""
    tokens_by_age: Counter[int] = field(default_factory=Counter)
    """Number of tokens trained on, by age in versions."""
    hold_s: float = 0.0
    """Seconds in which a whole batch was present and the window did not allow it to be taken."""


class SimulatedLearner:
    """State of batches in one run.

    The groups of samples that form a batch are `LeasedGroup`s; the groups of devices that work on it are
    `DeviceGroup`s. `publish(version)` sends the weights of a version. `formed()` is called when a new batch has moved
    the window.
    """

    def __init__(
        self,
        events: EventQueue,
        window: Window,
        device_groups: Sequence[DeviceGroup],
        trajectory_bytes_per_token: float,
        publish: Callable[[int], None],
        formed: Callable[[], None],
    ) -> None:
        self.totals = Totals()
        self._events = events
        self._window = window
        self._device_groups = tuple(device_groups)
        self._bytes_per_token = trajectory_bytes_per_token
        self._publish = publish
        self._formed = formed
        self._ready: list[tuple[int, int, LeasedGroup]] = []
        """Finished groups as (class, index, group), sorted."""
        self._batch: _Batch | None = None
        """The batch that is scored or waits for training. The one that is trained on is not kept here."""
        self._is_training = False
        self._held_since_s: float | None = None
        """Time since which a complete batch waits for the window, or None."""
        self._critic_version = 0
        """Newest version of the critic that all devices that infer with it have."""
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        """Scoring passes that wait for a newer critic: (step, function that starts the pass)."""

    def receive(self, leased: LeasedGroup) -> None:
        """Take a finished group that has arrived in the trainer's region."""
        # Sorted by class, then by order of lease. Indices are unique, so groups themselves are never compared.
        insort(self._ready, (leased.version, leased.index, leased))
        self._form()

    def _form(self) -> None:
        """Form the next batch of the oldest finished groups, if none is waiting and the window allows it."""
        size = self._window.batch
        if self._batch or len(self._ready) < size:
            return
        now_s = self._events.now_s
        taken = self._ready[:size]
        # The batch takes the oldest finished groups. Older ones that are still being generated may then become too
        # stale; if so, the batch waits for them.
        if not self._window.may_take([version for version, _, _ in taken]):
            # Only time in which nothing is trained counts as held: until then the devices that train lose nothing.
            if self._held_since_s is None and not self._is_training:
                self._held_since_s = now_s
            return
        if self._held_since_s is not None:
            self.totals.hold_s += now_s - self._held_since_s
            self._held_since_s = None
        step = self._window.next_step
        self._window.take([version for version, _, _ in taken])
        # The oldest groups come first, since the list is sorted by version.
        self._ready = self._ready[size:]
        leased_groups = [leased for _, _, leased in taken]
        tokens = [num for leased in leased_groups for num in leased.tokens]
        self._batch = _Batch(step=step, leased_groups=leased_groups, tokens=tokens)
        self._score(self._batch)
        # The window has moved on by a step, so generation may lease more groups.
        self._formed()

    def _score(self, batch: _Batch) -> None:
        """Send a batch to all groups that score. It is trained on when all of them have answered."""
        groups = [group for group in self._device_groups if group.scoring]
        batch.waits_for = len(groups)
        # Without a task that scores, the batch is ready for training at once.
        if not groups:
            self._scored(batch)
        for group in groups:
            there_s, back_s = group.transfer_s(int(sum(batch.tokens) * self._bytes_per_token))

            # The functions below run after the loop has moved on, so they bind its variables as default values.
            def done(back_s: float = back_s) -> None:
                self._events.at(self._events.now_s + back_s, lambda: self._one_scored(batch))

            def begin(group: DeviceGroup = group, done: Callable[[], None] = done) -> None:
                # The critic's weights obey the staleness bound too: scoring for this step waits until the critic is at
                # most eta versions old.
                if group.needs_critic and self._critic_version < batch.step - self._window.eta:
                    self._waiting.append((batch.step, lambda: self._chain(group, group.scoring, batch, done)))
                else:
                    self._chain(group, group.scoring, batch, done)

            self._events.at(self._events.now_s + there_s, begin)

    def critic_arrived(self, version: int) -> None:
        """Note that every device that infers with the critic has that version of it, and start what waited for it."""
        self._critic_version = version
        # The list is emptied first, since what starts now may add to it.
        waiting, self._waiting = self._waiting, []
        for step, begin in waiting:
            if version >= step - self._window.eta:
                begin()
            else:
                self._waiting.append((step, begin))

    def _one_scored(self, batch: _Batch) -> None:
        batch.waits_for -= 1
        if not batch.waits_for:
            self._scored(batch)

    def _scored(self, batch: _Batch) -> None:
        batch.is_scored = True
        self._train()

    def _train(self) -> None:
        """Train on the scored batch if the mesh is free, and form the next batch meanwhile."""
        batch = self._batch
        if batch is None or not batch.is_scored or self._is_training:
            return
        # The batch leaves the place of the next batch, so that the next one is formed and scored during training.
        self._is_training, self._batch = True, None
        groups = [group for group in self._device_groups if group.training]
        batch.waits_for = len(groups)
        for group in groups:
            there_s, _ = group.transfer_s(int(sum(batch.tokens) * self._bytes_per_token))
            begin = partial(self._chain, group, group.training, batch, lambda: self._one_trained(batch))
            self._events.at(self._events.now_s + there_s, begin)
        # The next batch could not be formed before, because this one was waiting.
        self._form()

    def _one_trained(self, batch: _Batch) -> None:
        """Note that one group has trained on the batch. After the last one, publish the new version."""
        batch.waits_for -= 1
        if batch.waits_for:
            return
        for leased in batch.leased_groups:
            for version, tokens in leased.ages.items():
                # The step starts from version `step`, so a token's age is the distance to that version.
                age = batch.step - version
                assert 0 <= age <= self._window.eta, f"step {batch.step} trains on tokens of version {version}"
                self.totals.tokens_by_age[age] += tokens
        self._is_training = False
        self.totals.ended_s.append(self._events.now_s)
        # Published first: where generation shares these devices, its next phase is requested before the next training
        # passes.
        self._publish(batch.step + 1)
        # A batch that was scored in the meantime is trained on. If instead a complete batch may not be taken, its
        # waiting time counts from here.
        self._train()
        self._form()

    def _chain(self, group: DeviceGroup, tasks: Sequence[Task], batch: _Batch, done: Callable[[], None]) -> None:
        """Run the tasks one after the other, each when the group's device queue reaches it; then call `done`."""
        if not tasks:
            done()
            return
        task = tasks[0]

        def ended(began_s: float, ended_s: float) -> None:
            self.totals.busy_s[task] = self.totals.busy_s.get(task, 0.0) + ended_s - began_s
            # The next task is requested before the queue releases the devices, behind requests that other batches have
            # made.
            self._chain(group, tasks[1:], batch, done)

        # The seconds are computed when the pass starts: rates of links between pools may have changed by then.
        group.queue.request_pass(lambda: group.seconds(task, batch.tokens), ended)
