"""What a placement does when its parts are played one by one: a discrete-event simulator, `simulator.simulate`.

It is written apart from the cost model and imports none of it: the two share the question, the answer and the physics
of one device (`planner.device`), and are compared (`bench/planner_simulation.py`). Time is an event's time; randomness
is keyed by the seed.

What is played: engines that batch continuously over sampled lengths, with caches that fill (`engine`, `rollouts`);
groups of tasks that take turns on their devices (`turns`); batches that are formed, scored and trained (`learner`);
links that are shared and may vary (`links`); devices that vanish and return (`faults`); the admission and consumption
gates of the staleness bound (`window`).
"""
