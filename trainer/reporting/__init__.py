"""Reports of a run: records of steps and evaluations, and sums over the run for its summary.

In come facts about steps, publications and readers' proofs. Out go records, to the run directory and to those who
watch the run, and the sums that a checkpoint keeps. Nothing here may decide anything about training.

    run_recorder     writes each record to the run directory, and sends it to the gateway for watchers
    sample_recorder  writes figures of each sample of a step, for those who look at samples
    batch_figures    figures of the batch of a step: lengths, parts of the reward, throughput of regions
    progress         sums over a run, which a checkpoint keeps and the summary reports
    delivery         figures of one publication, and of readers' proofs of what they hold
"""
