"""A certificate authority for tests, with all certificates and keys as PEM files."""

from __future__ import annotations

from pathlib import Path

import trustme


class Authority:
    """Signs certificates for clusters and clients."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self._folder = folder
        self.file = self._write("authority", self._authority.cert_pem)

    def issue(self, role: str) -> tuple[str, str]:
        """Return the files of a new certificate and its key."""
        issued = self._authority.issue_cert(common_name=role)
        (certificate,) = issued.cert_chain_pems
        return (
            self._write(role, certificate),
            self._write(f"{role}-key", issued.private_key_pem),
        )

    def _write(self, name: str, pem: trustme.Blob) -> str:
        path = self._folder / f"{name}.pem"
        pem.write_to_path(path)
        return str(path)
