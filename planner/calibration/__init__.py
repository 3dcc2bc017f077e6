"""Calibration: efficiencies of device types that are fitted to what was measured on a machine.

- `robust`: regression by least absolute deviations with priors.
- `efficiencies`: the efficiencies of a device type for one model, from a profile (`periplus.values.profile`).
- `runs`: a profile made of the figures of runs.

In come measured seconds and a device type; out come the type with its efficiencies, and the error before and after. The
package measures nothing and talks to no machine.
"""
