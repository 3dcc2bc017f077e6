"""Certificates: X.509 for ECDSA keys on P-256, which TLS in gRPC takes, and the authority that signs them.

    FleetAuthority (coordinator) --Certificate of (party, key)--> Identity (agent, operator, coordinator)
    FleetAuthority (agent's own) --Certificate of (task, key)---> Identity (a process of a job)

A certificate names its party as a URI and as a host name (`periplus.net.parties`), and serves both ends of a
connection. It is valid from SKEW_S before it was issued, so that clocks may differ by as much, for LIFETIME_S after.
The coordinator's has the authority's own certificate as an extension, from which somebody who knows only its digest
learns it.
"""

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from periplus.errors import ConfigError, Denied, NotFound
from periplus.net.parties import COORDINATOR, Party, party_of
from periplus.process.disk import replacing

SKEW_S = 300.0
"""Seconds by which the clocks of two machines may differ. Chosen by hand."""

LIFETIME_S = 7 * 86_400.0
"""Seconds for which a certificate is valid: an agent that is away for longer needs a new join token."""

RENEWED_AT = 2 / 3
"""Part of its lifetime after which a certificate is renewed."""

AUTHORITY_LIFETIME = timedelta(days=20 * 365)

AUTHORITY_EXTENSION = x509.ObjectIdentifier("2.25.126351502680461061221174737943659191073")
"""Extension with the DER encoding of the authority's certificate. Its number is a random UUID's."""

IDENTITY_FILE = "identity.pem"
"""File of an identity in its folder: the key, its certificate, and the authority's certificate."""

_BLOCK = re.compile(rb"-----BEGIN [A-Z ]+-----\n.*?-----END [A-Z ]+-----\n", re.DOTALL)
_PEM = serialization.Encoding.PEM
_DER = serialization.Encoding.DER


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A private key, the certificate that names its owner, and the authority's certificate, all in PEM."""

    key: bytes
    certificate: bytes
    authority: bytes

    @property
    def party(self) -> Party:
        """Who the identity is."""
        return certified_party(self.certificate)

    @property
    def expires_at_s(self) -> float:
        """Unix time at which the certificate ends."""
        return expires_at_s(self.certificate)

    @property
    def renew_at_s(self) -> float:
        """Unix time at which the certificate should be renewed."""
        issued_s = issued_at_s(self.certificate)
        return issued_s + RENEWED_AT * (self.expires_at_s - issued_s)

    def save(self, folder: Path) -> None:
        """Write the identity into a folder that its owner alone may read. Raises: OSError."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # In one file, so that no reader and no crash finds the key of one certificate beside another one.
        with replacing(folder / IDENTITY_FILE) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(self.key + self.certificate + self.authority)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the identity in a folder. Raises: NotFound without one, ConfigError if it cannot be read."""
        path = folder / IDENTITY_FILE
        try:
            if path.stat().st_mode & 0o077:
                raise ConfigError(f"others than its owner may read {path}; chmod 600 it")
            key, certificate, authority = _BLOCK.findall(path.read_bytes())
            certified_party(certificate)
        except FileNotFoundError as error:
            raise NotFound(f"there is no identity in {folder}") from error
        except (OSError, ValueError, Denied) as error:
            raise ConfigError(f"{path} is no identity: {error}; join or log in again with a new token") from error
        return cls(key=key, certificate=certificate, authority=authority)


class FleetAuthority:
    """Signs certificates. `key` and `certificate` are its own, in PEM."""

    def __init__(self, key: bytes, certificate: bytes) -> None:
        self.key, self.certificate = key, certificate
        signing = serialization.load_pem_private_key(key, None)
        assert isinstance(signing, ec.EllipticCurvePrivateKey)
        self._signing = signing
        self._own = x509.load_pem_x509_certificate(certificate)

    @classmethod
    def generate(cls, name: str, now_s: float) -> Self:
        """Create an authority from the system's randomness. Call it in an app, not in code that decides."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), datetime.fromtimestamp(now_s, UTC)
        certificate = (
            x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(seconds=SKEW_S))
            .not_valid_after(now + AUTHORITY_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(_key_pem(key), certificate.public_bytes(_PEM))

    def certify(self, request: bytes, party: Party, now_s: float, lifetime_s: float = LIFETIME_S) -> bytes:
        """Return a certificate in PEM for the key of a signing request (DER). Its own names do not count.

        Raises: Denied if the request is none or is not signed with its key.
        """
        try:
            asked = x509.load_der_x509_csr(request)
            key = asked.public_key()
            if not asked.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
                raise ValueError("it is not signed with an ECDSA key of its own")
        except (ValueError, InvalidSignature) as error:
            raise Denied(f"this is no request for a certificate: {error}") from error
        issued = datetime.fromtimestamp(int(now_s), UTC)
        names = [x509.UniformResourceIdentifier(party.uri), x509.DNSName(party.server_name)]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            x509.CertificateBuilder(self._own.subject, x509.Name([]), key, x509.random_serial_number())
            .not_valid_before(issued - timedelta(seconds=SKEW_S))
            .not_valid_after(issued + timedelta(seconds=lifetime_s))
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if party == COORDINATOR:
            own = x509.UnrecognizedExtension(AUTHORITY_EXTENSION, self._own.public_bytes(_DER))
            builder = builder.add_extension(own, critical=False)
        return builder.sign(self._signing, hashes.SHA256()).public_bytes(_PEM)

    def identity(self, party: Party, now_s: float, lifetime_s: float = LIFETIME_S) -> Identity:
        """Return a new key of `party` with its certificate."""
        key = new_key()
        certificate = self.certify(signing_request(key), party, now_s, lifetime_s)
        return Identity(key=key, certificate=certificate, authority=self.certificate)


def new_key() -> bytes:
    """Return a new private key in PEM, from the system's randomness."""
    return _key_pem(ec.generate_private_key(ec.SECP256R1()))


def signing_request(key: bytes) -> bytes:
    """Return a request (DER) for a certificate of this private key, signed with it."""
    private = serialization.load_pem_private_key(key, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    return x509.CertificateSigningRequestBuilder(x509.Name([])).sign(private, hashes.SHA256()).public_bytes(_DER)


def certified_party(certificate: bytes) -> Party:
    """Return the party that a certificate (PEM) names. Raises: Denied if it names none."""
    try:
        names = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        (uri,) = names.value.get_values_for_type(x509.UniformResourceIdentifier)
        return party_of(uri)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise Denied(f"the certificate names no party of a fleet: {error}") from error


def issued_at_s(certificate: bytes) -> float:
    """Return the Unix time at which a certificate (PEM) was issued, in whole seconds."""
    return x509.load_pem_x509_certificate(certificate).not_valid_before_utc.timestamp() + SKEW_S


def expires_at_s(certificate: bytes) -> float:
    """Return the Unix time at which a certificate (PEM) ends."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()


def serial_of(certificate: bytes) -> str:
    """Return the serial number of a certificate (PEM) in hexadecimal."""
    return f"{x509.load_pem_x509_certificate(certificate).serial_number:x}"


def authority_within(certificate: bytes) -> bytes:
    """Return the authority's certificate (PEM) that is an extension of a certificate (DER). Raises: Denied."""
    try:
        found = x509.load_der_x509_certificate(certificate).extensions.get_extension_for_oid(AUTHORITY_EXTENSION)
        assert isinstance(found.value, x509.UnrecognizedExtension)
        return x509.load_der_x509_certificate(found.value.value).public_bytes(_PEM)
    except (ValueError, x509.ExtensionNotFound) as error:
        raise Denied(f"the server's certificate is none of a fleet: {error}") from error


def pem_of(certificate: bytes) -> bytes:
    """Return a certificate in PEM that is given in DER. Raises: Denied if it is none."""
    try:
        return x509.load_der_x509_certificate(certificate).public_bytes(_PEM)
    except ValueError as error:
        raise Denied(f"this is no certificate: {error}") from error


def certificate_digest(certificate: bytes) -> bytes:
    """Return the SHA-256 of a certificate (PEM)."""
    return sha256(x509.load_pem_x509_certificate(certificate).public_bytes(_DER)).digest()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
