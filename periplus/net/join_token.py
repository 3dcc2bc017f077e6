"""Join tokens: one line of text with which an agent or an operator becomes a member of a fleet, once.

It holds the coordinator's address, the digest of the fleet authority's certificate, and a key with a certificate of the
party `joining(...)`, which is valid for a short time. With it its holder connects as any member does, by mutual TLS,
and asks for a certificate of a key of its own. The coordinator gives one for each token.

    "periplus-" + base64url(version | len(address) | address | digest[32] | private key[32] | certificate in DER)
"""

import base64
import binascii
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from periplus.errors import ConfigError, Denied
from periplus.net.certificates import certified_party
from periplus.net.parties import Party, party_of

PREFIX = "periplus-"
VERSION = 1
TOKEN_VARIABLE = "PERIPLUS_JOIN_TOKEN"
"""Environment variable with the token of an agent that has no identity of the token's fleet yet."""
LIFETIME_S = 3600.0
"""Seconds for which a token is valid, if nobody says otherwise."""
MAX_ADDRESS_BYTES = 255
"""Longest address in a token, whose length is one byte."""
_DIGEST_BYTES = _KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """The content of a token: host:port of the coordinator, the digest, and key and certificate in PEM."""

    address: str
    authority_digest: bytes
    key: bytes
    certificate: bytes

    def to_text(self) -> str:
        """Return the token as a line of text. Raises: ConfigError if the address is too long for it."""
        private = serialization.load_pem_private_key(self.key, None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        scalar = private.private_numbers().private_value.to_bytes(_KEY_BYTES, "big")
        certificate = x509.load_pem_x509_certificate(self.certificate).public_bytes(serialization.Encoding.DER)
        address = self.address.encode()
        if len(address) > MAX_ADDRESS_BYTES:
            raise ConfigError(f"the address {self.address[:80]}... has more than {MAX_ADDRESS_BYTES} bytes")
        raw = bytes((VERSION, len(address))) + address + self.authority_digest + scalar + certificate
        return PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")

    @classmethod
    def from_text(cls, text: str) -> "JoinToken":
        """Return the content of a token. Raises: ConfigError if the text is none."""
        text = text.strip()
        try:
            if not text.startswith(PREFIX):
                raise ValueError(f"it does not begin with {PREFIX}")
            encoded = text.removeprefix(PREFIX)
            raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
            if len(raw) < 2 or raw[0] != VERSION:
                raise ValueError("it is of another version of Periplus, or a part of it is missing")
            address, rest = raw[2 : 2 + raw[1]].decode(), raw[2 + raw[1] :]
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal():
                raise ValueError(f"its address {address!r} is not HOST:PORT")
            digest, scalar = rest[:_DIGEST_BYTES], rest[_DIGEST_BYTES : _DIGEST_BYTES + _KEY_BYTES]
            private = ec.derive_private_key(int.from_bytes(scalar, "big"), ec.SECP256R1())
            certificate = x509.load_der_x509_certificate(rest[_DIGEST_BYTES + _KEY_BYTES :])
        except (ValueError, binascii.Error) as error:
            raise ConfigError(
                f"this is no join token ({error}); `periplus token create` makes one, copy the whole line"
            ) from error
        return cls(
            address=address,
            authority_digest=digest,
            key=private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
            certificate=certificate.public_bytes(serialization.Encoding.PEM),
        )


def member_of(token: JoinToken) -> Party:
    """Return the party that the holder of a token becomes. Raises: ConfigError."""
    try:
        return party_of(certified_party(token.certificate).name)
    except (ValueError, Denied) as error:
        raise ConfigError(f"this is no join token: {error}") from error
