"""A certificate authority for tests, which signs what clusters and clients show."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """Signs certificates; everything is a PEM file of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("authority")
        own = self._certificate(self._name, self._key.public_key(), is_authority=True)
        self.file = self._write("authority", own.public_bytes(Encoding.PEM))

    def issue(self, role: str) -> tuple[str, str]:
        """Files of a certificate and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        signed = self._certificate(_named(role), key.public_key(), is_authority=False)
        secret = key.private_bytes(
            Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
        )
        return (
            self._write(role, signed.public_bytes(Encoding.PEM)),
            self._write(f"{role}-key", secret),
        )

    def _certificate(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool
    ) -> x509.Certificate:
        now = datetime.now(timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(
                x509.BasicConstraints(ca=is_authority, path_length=None), critical=True
            )
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, name: str, pem: bytes) -> str:
        path = self.folder / f"{name}.pem"
        path.write_bytes(pem)
        return str(path)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
