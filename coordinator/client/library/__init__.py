"""The library that `import periplus` offers to scripts: connect to a fleet, submit jobs, follow and cancel them.

Mappings, job files and paths come in; plain dicts, `JobStatus` values and the errors of `periplus/errors.py` go out.
`client` connects and submits, `submitted_job` is one job, `starting` runs a local fleet for a script, and `calls` makes
the gRPC calls. All of it is synchronous: calls block their thread and need no event loop, so that they work where one
runs already, as in Jupyter. The package `periplus` names these objects through the entry-point group
`periplus.library`, so that the kernel imports no service. The room must not print, and must not reach into a service.
"""
