"""Every change that an audit must find."""

from tests.support.audit.tampering import batches, forks, frames, leases, weights

TAMPERINGS = (
    *batches.TAMPERINGS,
    *leases.TAMPERINGS,
    *frames.TAMPERINGS,
    *forks.TAMPERINGS,
    *weights.TAMPERINGS,
)
