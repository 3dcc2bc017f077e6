"""What a run says of itself: records of steps and evaluations, progress, and how they reach the coordinator.

`run_recorder` writes `metrics.jsonl` and the summary, `progress` adds up what the records say, `delivery` sends them
until they are acknowledged. In come facts about steps; out go records on disk and over the network. Nothing here
decides anything about training.
"""
