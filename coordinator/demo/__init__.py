"""`periplus demo`: the whole runtime on one machine, every part in its own process, talking over an emulated
network."""
