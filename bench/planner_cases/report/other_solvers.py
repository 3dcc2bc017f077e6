"""How long other planners think, for context: they solve other problems, none of them proves a gap.

Times of DT-FM, FlashFlex, Metis and Sailor are of one run each of their public code on two cores. ReaL's is the limit
that its search is given in its code; nobody here ran it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """One planner's times on one kind of problem."""

    name: str
    problem: str
    source: str
    seconds: tuple[tuple[int, float], ...]
    """By number of GPUs."""
    stopped: tuple[tuple[int, float], ...] = ()
    """Had no answer yet after so many seconds."""


OTHERS = (
    Other(
        name="DT-FM",
        problem="pipeline and data parallelism of one training job, equal devices, uneven network",
        source="DS3Lab/DT-FM, its default 5,000 evaluations",
        seconds=((64, 328.0),),
    ),
    Other(
        name="FlashFlex",
        problem="asymmetric parallelism of one training job, one bandwidth between machines",
        source="Relaxed-System-Lab/FlashFlex, 40 iterations",
        seconds=((64, 17.0), (128, 27.0), (256, 81.0)),
    ),
    Other(
        name="Metis",
        problem="parallelism of one training job of ten layers, two types",
        source="SamsungLabs/Metis, its widest search (0.15 and 7.8 s with narrower ones)",
        seconds=((64, 71.0),),
    ),
    Other(
        name="Sailor, 3 types",
        problem="parallelism of one training job in one zone",
        source="eth-easl/sailor, without 20 s of loading",
        seconds=((24, 0.10), (40, 0.61), (64, 8.66)),
        stopped=((128, 150.0),),
    ),
    Other(
        name="Sailor, 2 types",
        problem="parallelism of one training job in one zone",
        source="eth-easl/sailor, without 20 s of loading",
        seconds=((64, 0.32), (128, 0.64), (320, 2.5), (512, 9.8), (1024, 15.9)),
    ),
)
REAL_LIMIT_S = 120.0
REAL_MOST_GPUS = 128
"""ReaL (openpsi-project/ReaLHF) places RLHF's calls on equal devices; its paper has up to so many."""
