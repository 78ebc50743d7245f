"""Authorities and certificates for tests, made by the machine's openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

_CONFIG = """
[req]
distinguished_name = name
prompt = no
[name]
CN = {name}
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {names}
"""
_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Authority:
    """Signs certificates; everything lies in `folder`: `ca.pem`, and `<name>.pem` with `<name>.key`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate = folder / "ca.pem"
        self._key = folder / "ca.key"
        self._make("authority", name, "DNS:nobody", self.certificate, self._key, ["-x509"])

    def issue(self, name: str, names: str = "DNS:localhost", *, days: int = 2) -> tuple[Path, Path]:
        """A certificate for these names (openssl's form), and its key."""
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        signed = ["-x509", "-CA", str(self.certificate), "-CAkey", str(self._key), "-days", str(days)]
        self._make("leaf", name, names, certificate, key, signed)
        return certificate, key

    def _make(self, kind: str, name: str, names: str, certificate: Path, key: Path, how: list[str]) -> None:
        config = self.folder / "openssl.cnf"
        config.write_text(_CONFIG.format(name=name, names=names))
        command = ["openssl", "req", "-config", str(config), "-extensions", kind, *_KEY, *how]
        command += ["-keyout", str(key), "-out", str(certificate)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        key.chmod(0o644)  # The server may run as another account.
