"""A bounded log of records on disk: a record that was accepted is still there after a crash.

Records of bytes come in and get a position; after a crash the same records come out in order. `spool` is the log with
its one writer, `reader` reads the log of another process, and `database` defines the SQLite database that holds it.
`format` has the values, and `files` the file operations of other stores. Nothing here knows what a record's bytes mean.
"""
