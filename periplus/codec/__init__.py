"""Codecs: bytes <-> values, without sockets, torch or protobuf."""
