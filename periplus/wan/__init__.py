"""The WAN emulator: a user-space process that carries TCP between regions as slowly as the measured links do.

    grid.py      CSV of measured pairs -> LinkSpec; presets; the factor that fits the rates to one machine
    shaping.py   one directed link: rate, delay, finite queue, node caps, drop; pure, time is an argument
    relay.py     sockets: one listener per (source region, destination address), shaped in both directions
    service.py   the gRPC servicer: convert, call, convert
    app.py       composition root; runs until stopped
    client.py    what a Periplus process uses: address_resolver
    commands.py  periplus wan run | set | show

It needs no root and no network namespace. It does not emulate loss, reordering, or TCP's own congestion control between
the two ends: a sender is limited by the link's rate and queue, as a transfer of many streams is.
"""
