"""Learning in the simulator: batches that are formed, scored, trained on and published.

`learner` holds the order of these phases, `scoring` and `training` give their seconds. In come finished groups; out
come versions to publish. Nothing here uses the cost model.
"""
