"""A bounded log of records on disk: a record that was accepted is still there after a crash.

Records of bytes come in and get a position; after a crash the same records come out in order. `spool` is the log with
its one writer, `reader` reads the log of another process, `lookup` reads single records of it, `segment` and `format`
define the files, `note` remembers retired records, and `files` is the only access to the disk. Nothing here knows what
a record's bytes mean.
"""
