"""The certificates between training pods and the controller: an authority of our own, and what it signs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LEAF_DAYS = 365
"""Of a server's certificate, if its authority lasts so long."""
BEFORE = timedelta(hours=1)
"""A certificate is valid from an hour before it was made: clocks of nodes may be behind."""
DUE = 3
"""A certificate is renewed in the last third of its life."""


def authority(now: float, days: int) -> tuple[str, str]:
    """Return a new authority that is valid for `days`: PEM of its certificate and of its key. `now`: Unix seconds."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = _name(f"singularity-controller-ca-{serial:x}"[:60])
    usage = _usage(key_cert_sign=True, crl_sign=True)
    made = (
        _builder(name, name, key.public_key(), serial, _time(now) + timedelta(days=days), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return _certificate_text(made), _key_text(key)


def leaf(ca: str, ca_key: str, names: Sequence[str], now: float) -> tuple[str, str]:
    """Return a server's certificate for the DNS `names` and its key, both PEM, signed by the authority `ca`."""
    signer = x509.load_pem_x509_certificate(ca.encode())
    signer_key = serialization.load_pem_private_key(ca_key.encode(), password=None)
    if not isinstance(signer_key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key of the authority is none of ours: it is not of an elliptic curve")
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(_time(now) + timedelta(days=LEAF_DAYS), signer.not_valid_after_utc)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key())
    made = (
        _builder(_name(names[0]), signer.subject, key.public_key(), x509.random_serial_number(), end, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(signer_key, hashes.SHA256())
    )
    return _certificate_text(made), _key_text(key)


def expires(certificate: str) -> float:
    """Return the Unix seconds at which the first certificate of a PEM text ends. Raises ValueError."""
    return x509.load_pem_x509_certificate(certificate.encode()).not_valid_after_utc.timestamp()


def due(certificate: str, now: float) -> bool:
    """Return whether a certificate should be renewed. Raises ValueError."""
    found = x509.load_pem_x509_certificate(certificate.encode())
    begin, end = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
    return end - now < (end - begin) / DUE


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    serial: int,
    end: datetime,
    now: float,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(_time(now) - BEFORE)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _usage(digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature, key_cert_sign=key_cert_sign, crl_sign=crl_sign, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), tz=timezone.utc)


def _certificate_text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    private = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption()).decode()
