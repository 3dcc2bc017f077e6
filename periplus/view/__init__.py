"""Views of a job for people: a pure fold of its events into a `ViewState`, and renderings of that state.

Events come in: changes of the job, records of its trainer, snapshots of the fleet (`state`), also read back from a run
directory (`recording`). Out come a live terminal view, plain lines and SVG pictures (`terminal/`), an HTML report
(`page/`) and the summary of a run (`summary`). `units` formats quantities, `axes` finds ranges and ticks, and `svg`
writes the markup of all SVG pictures, the planner's too. Nothing here knows where events come from, opens a connection,
or changes a job.
"""
