"""The audit of a run: the journal that a trainer writes, and the check that recomputes what was trained on.

The trainer writes its side with `records` (line format), `journal` (the file `audit.jsonl`) and `seals` (signatures).
The auditor reads a run directory (`run_reader`) into `evidence`, replays the journal (`walk`, `batches`, `history`),
compares what is left on disk (`kept_files`, `manifests`) and adds everything up (`account`); `auditor` runs these in
order. Out come `findings` and a `report`. docs/audit.md says what a clean report proves.

The check is pure apart from `run_reader`. It must never take a number from a counter of the trainer's ledger, and it
knows nothing of sockets, torch or a running job.
"""
