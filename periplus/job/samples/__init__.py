"""Samples of a run, for a person who looks at them: which there are, which of them to show, and what they say.

A trainer writes one block for each step into `samples/` of its run directory (`step_blocks`): for each sample where its
trajectory is, its reward, its advantage, and how far the trainer's log-probabilities are from the engine's. These
blocks are also the index: a page is chosen from them without reading any trajectory. Then the trajectories of the page
are read from the kept frames, each at its place in the file. Tokens become text in a child process, since the kernel
imports no tokenizer.

    step_blocks   the format of a step's block, and the names of the files
    reward_parts  parts of a reward in the metadata of a trajectory
    correctness   what a job calls right, for accuracies and filters of groups
    index         the blocks of a run directory, without the steps of dead forks and the samples whose frame was removed
    selection     which samples are on a page: a step, the worst, the best, a region, a group
    trajectories  the trajectories of chosen samples, from the kept frames
    texts         token ids to text, in a child process
    shown         samples with all that is shown of them, and their JSON
    gallery       the page that a user asked for, from a run directory

Nothing here changes a file, connects to anything, or knows how a sample is drawn on a page or a terminal
(periplus/view/).
"""
